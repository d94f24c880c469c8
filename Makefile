# dsv32: one binary, `build/dsv32`. `make help` lists the targets.
#
# build/ mirrors the tree. CUDA=1 or CUDA=0 forces the CUDA half on or off; by default it is built when its sources, nvcc
# and a GPU are all there. SAN=1 builds everything under AddressSanitizer and UndefinedBehaviorSanitizer in build/san.

MAKEFLAGS += --no-builtin-rules
# Uses all cores unless the caller says -j; a nested make shares them. With `clean`, targets run one by one, in order.
ifeq ($(MAKELEVEL)$(filter clean,$(MAKECMDGOALS)),0)
  MAKEFLAGS += $(shell case " $$MAKEFLAGS" in (*" -j"*) ;; (*) echo -j$$(nproc) ;; esac)
endif
CXX      := g++
comma    := ,
BUILD    := build$(if $(SAN),/san)
SANITIZE := $(if $(SAN),-fsanitize=address$(comma)undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-maybe-uninitialized)
OPTIMIZE ?= -O2
# Only line numbers, for backtraces: full debugging information takes the compiler a third longer.
DEBUG    := -g1
# -ffp-contract=off: the compiler must not fuse a*b+c in one place and not in another; results are compared bit for bit.
# -Wno-psabi: how a vector of 32 bytes is passed depends on the CPU's registers; functions that pass one are inlined.
# -Wno-subobject-linkage: the warning mistakes files that are compiled together for headers.
CXXFLAGS := -std=c++20 $(OPTIMIZE) $(DEBUG) -Wall -Wextra -Wshadow -Werror -Wno-psabi -Wno-subobject-linkage -ffp-contract=off -pthread -MMD -MP -Isrc -I. $(SANITIZE)
LDFLAGS  := -pthread $(SANITIZE)
LDLIBS   := -lhwy -lsentencepiece -l:libpcre2-8.a -ledit -ltinfo -lcrypto -lxxhash
TEST_LIB := -l:libboost_unit_test_framework.a
BASE_LIBS := -lcrypto  # what src/base alone needs
TEST_PACKAGES := libboost-test-dev  # large, so only the tests install it
PACKAGES := g++ libcxxopts-dev libedit-dev libhwy-dev libncurses-dev libpcre2-dev libsentencepiece-dev libssl-dev libxxhash-dev nlohmann-json3-dev

# The CUDA half. CUDA_ARCHS: compute capabilities, e.g. "86 90"; by default those of the GPUs here, or 90. Hopper's kernels use
# instructions that only 9.0 has, so 90 means 90a. All others get the generic kernels. 80on90 is what 80 compiles, as machine
# code for 9.0: so the generic kernels are tested on a Hopper.
NVCC       := nvcc
GPUS       := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u)
CUDA       ?= $(if $(and $(shell command -v $(NVCC)),$(GPUS)),1,0)
CUDA_ARCHS ?= $(or $(GPUS),90)
override CUDA_ARCHS := $(patsubst 90,90a,$(CUDA_ARCHS))
code_for    = -gencode arch=compute_$(firstword $(subst on, ,$1)),code=sm_$(lastword $(subst on, ,$1))
CUDA_HOME  ?= $(patsubst %/bin/,%,$(dir $(shell command -v $(NVCC))))
NVCCFLAGS  := -std=c++20 -O2 -lineinfo --expt-relaxed-constexpr -Xcompiler -Wall,-Wextra -Werror all-warnings \
              $(foreach arch,$(CUDA_ARCHS),$(call code_for,$(arch))) -MMD -MP -Isrc -I.
# SLOW=1: kernels sleep after they have let the next one start (cuda/dependent.cuh).
NVCCFLAGS  += $(if $(SLOW),-DDSV32_SLOW)
ifeq ($(CUDA),1)
  # Of kernels a build with sanitizers checks only that they compile: slow ones, as ptxas then says, are compiled faster. CUDA
  # 12.9 is the first that knows the flag.
  NVCCFLAGS    += $(if $(SAN),$(if $(shell $(NVCC) --help | grep Ofast-compile),--Ofast-compile=max))
  CUDA_OBJECTS := $(patsubst %.cu,$(BUILD)/%.o,$(wildcard cuda/*.cu cuda/generic/*.cu))
  LDLIBS       += -L$(CUDA_HOME)/lib64 -lcudart_static -lrt -lpthread -ldl
  BACKENDS     := cpu, cuda ($(CUDA_ARCHS))
else
  BACKENDS     := cpu (no nvcc or no GPU here, or CUDA=0; CUDA=1 builds cuda all the same)
endif

# All files of a station (in cli: of a room) are compiled together, because the headers that they share take most of the
# compile time. So the names in their unnamed namespaces must differ.
# ALONE: files compiled once per instruction set or with their own flags, and files that tests link alone or replace.
ALONE        := $(addprefix src/backend/,cpu_matmul.cpp cpu_formats_vnni.cpp cpu_attention_kernels.cpp pinned_memory.cpp) src/base/thread.cpp src/engine/engine.cpp src/cli/options/commands.cpp
STATIONS     := base gguf text constrain backend weights context model engine prefix \
                $(addprefix cli_,terminal options warm chat batch inspect)
$(foreach station,$(STATIONS),$(eval FILES_$(station) := $(filter-out $(ALONE),$(wildcard src/$(subst _,/,$(station))/*.cpp))))
# Tests too, by the first letters of their names, since most of their compile time is for templates that many of them use. So
# all that a test has lies within its suite, which is a namespace. Highway knows no struct Add: in their group the tests that
# include it come before those that include operations.
TEST_GROUPS  := ad:[abd] ch:c[a-h] cz:c[!a-h] eo:[e-o] p:p qz:[q-z]
GPU_GROUPS   := ah:[a-h] iz:[i-z]
# Headers of libedit and Highway have names that ours have too.
TEST_ALONE   := tests/test_history_file.cpp tests/test_row_digests.cpp
# $(call group,VARIABLE,NAME,FOLDER,LETTERS): the files of a group, and its object in VARIABLE.
define group
  FILES_$2 := $(filter-out $(TEST_ALONE),$(wildcard $3/test_$4*.cpp))
  $1 += $(BUILD)/tests/$2.o
endef
$(foreach g,$(TEST_GROUPS),$(eval $(call group,TESTS,tests_$(firstword $(subst :, ,$g)),tests,$(lastword $(subst :, ,$g)))))
$(foreach g,$(GPU_GROUPS),$(eval $(call group,GPU_TESTS,gpu_$(firstword $(subst :, ,$g)),tests/gpu,$(lastword $(subst :, ,$g)))))
OBJECTS      := $(ALONE:%.cpp=$(BUILD)/%.o) $(STATIONS:%=$(BUILD)/src/%.o)
TEST_OBJECTS := $(BUILD)/tests/main.o $(TEST_ALONE:%.cpp=$(BUILD)/%.o) $(TESTS)
LAB_ALONE    := $(addprefix tests/tools/lab/,main.cpp plain_read.cpp)
FILES_lab    := $(filter-out $(LAB_ALONE),$(wildcard tests/tools/lab/*.cpp))
LAB_OBJECTS  := $(BUILD)/src/lab.o $(BUILD)/tests/tools/lab/plain_read.o
SUPPORT_ALONE := $(addprefix tests/support/failing_,allocations.cpp threads.cpp) tests/support/tiny_vocabulary.cpp
FILES_support := $(filter-out $(SUPPORT_ALONE),$(wildcard tests/support/*.cpp))
SUPPORT      := $(BUILD)/tests/support.o $(SUPPORT_ALONE:%.cpp=$(BUILD)/%.o)
WITH_HEADERS := $(TESTS) $(GPU_TESTS) $(BUILD)/tests/support.o  # they include the precompiled ones
UNITED       := $(STATIONS:%=$(BUILD)/src/%.o) $(BUILD)/src/lab.o $(WITH_HEADERS)
TINY         := models/tiny.gguf

all: deps $(BUILD)/dsv32  ## build build/dsv32 (the default)
	@echo "backends: $(BACKENDS)"

demo: all  ## set up, build, and answer a question about a long text with the small trained model
	$(BUILD)/dsv32 run -m models/demo.gguf "Where is the Golden Cloud bound for?" < prompts/town.txt
	@echo
	@echo "What to try next: a second question about the same text, which is not read again, or a talk:"
	@echo '    $(BUILD)/dsv32 run -m models/demo.gguf "Who is the captain of the Crimson Wind?" < prompts/town.txt'
	@echo '    $(BUILD)/dsv32 chat -m models/demo.gguf'

test: test_deps layers tested  ## set up, build, and run every test that needs no GPU
	@tests/run.sh $(BUILD)

tested: test_deps $(BUILD)/dsv32 $(BUILD)/lab $(BUILD)/unit_tests $(if $(SAN),,race_tests) $(TINY)  ## what `make test` runs

test-gpu: test_deps $(BUILD)/dsv32 $(BUILD)/gpu_tests $(TINY)  ## the tests of the CUDA half (CUDA=1); skipped, and counted so, without a GPU
	@tests/run_gpu.sh $(BUILD)

eval: test_deps $(BUILD)/lab $(BUILD)/unit_tests  ## how many questions about long passages the trained model answers right, and with other choosers than its indexer
	$(BUILD)/unit_tests --run_test=@eval

lab: deps $(BUILD)/lab  ## build build/lab, the developers' instruments: answers counted, buffer policies, products on the CPU

test-long: test_deps $(BUILD)/dsv32 $(BUILD)/unit_tests  ## the cases that take minutes: more kills, more damage, more processes
	$(BUILD)/unit_tests --run_test=@long

# The tests of data that threads share, under ThreadSanitizer, which excludes all other sanitizers; part of make test.
race_tests: test_deps
	@while sleep 30 >/dev/null 2>&1; do echo "still building build/races/race_tests"; done >&2 & trap "kill $$!" EXIT; \
	    $(MAKE) --no-print-directory SAN= CUDA=0 BUILD=build/races PRECOMPILED= SANITIZE=-fsanitize=thread build/races/race_tests

deps: $(if $(filter 1,$(CUDA)),nvcc_is_new)  ## install the Debian packages that are missing (through sudo when not root)
	@tests/support/install_packages.sh $(PACKAGES)

# The least CUDA that was tried; 12.8 is the first that knows architectures from 10.0 on.
NVCC_LEAST := $(if $(filter 10% 12%,$(CUDA_ARCHS)),12.8,12.4)
nvcc_is_new:
	@found=$$($(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p'); \
	    printf '%s\n' $(NVCC_LEAST) "$${found:-0}" | sort -CV || { \
	    echo "the CUDA half needs nvcc of CUDA $(NVCC_LEAST) or later, here is $${found:-none}; CUDA=0 builds without it" >&2; exit 1; }

test_deps: deps
	@tests/support/install_packages.sh $(TEST_PACKAGES)

layers:  ## check that includes point one way (base <- gguf <- ... <- cli <- main.cpp)
	@awk -f tests/support/layers.awk $$(find src cuda main.cpp -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)

ARCHS ?= 80 86 89 90 100 120
archs:  ## check that the CUDA half compiles for each compute capability of ARCHS (80 86 89 90 100 120)
	@for arch in $(ARCHS); do \
	    $(MAKE) --no-print-directory CUDA=1 CUDA_ARCHS=$$arch BUILD=build/arch_$$arch cuda_objects || exit 1; \
	    echo "compiles for $$arch"; done

cuda_objects: $(CUDA_OBJECTS)

FUZZ_SECONDS ?= 60
FUZZ_FLAGS = -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=512 -timeout=5 -print_final_stats=1 -artifact_prefix=build/
fuzz: deps fuzz_deps $(BUILD)/fuzz_gguf $(BUILD)/fuzz_schema  ## fuzz the readers of GGUF and of schemas, FUZZ_SECONDS (60) each
	@mkdir -p build/fuzz_corpus build/fuzz_schemas build/fuzz_golden
	@sed -n 's/.*"schema":\(.*\),"\(valid\|refused\)":.*/{"schema":\1}/p' tests/golden/json_schema.json | split -l 1 -a 3 - build/fuzz_golden/
	$(BUILD)/fuzz_gguf $(FUZZ_FLAGS) build/fuzz_corpus tests/fuzz/corpus
	$(BUILD)/fuzz_schema $(FUZZ_FLAGS) -max_len=2000 -dict=tests/fuzz/schema.dict build/fuzz_schemas build/fuzz_golden

format:  ## run clang-format over the sources
	clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

fuzz_deps:
	@tests/support/install_packages.sh clang libclang-rt-dev

PREFIX ?= /usr/local
TARGET  = $(DESTDIR)$(PREFIX)
SHARE   = $(TARGET)/share
ZSH     = $(SHARE)/zsh/$(if $(filter /usr,$(PREFIX)),vendor-completions,site-functions)
INSTALLED = $(TARGET)/bin/dsv32 $(SHARE)/man/man1/dsv32.1.gz $(SHARE)/bash-completion/completions/dsv32 \
            $(ZSH)/_dsv32 $(SHARE)/fish/vendor_completions.d/dsv32.fish $(SHARE)/doc/dsv32/copyright
# The list of folders that install made, for uninstall.
FOLDERS   = $(SHARE)/doc/dsv32/folders
install:  ## install what was built, stripped, with manual page and completions, under PREFIX (/usr/local)
	@test -x $(BUILD)/dsv32 || { echo "there is no $(BUILD)/dsv32: make builds it"; exit 1; }
	@made=$$(LC_ALL=C mkdir -pv $(sort $(dir $(INSTALLED))) | sed "s/.*directory '\(.*\)'/\1/"); \
	    [ -z "$$made" ] || echo "$$made" >>$(FOLDERS)
	install -s -m 755 $(BUILD)/dsv32 $(TARGET)/bin/dsv32
	@$(BUILD)/dsv32 completion man | gzip -9n >$(SHARE)/man/man1/dsv32.1.gz
	@$(BUILD)/dsv32 completion bash >$(SHARE)/bash-completion/completions/dsv32
	@$(BUILD)/dsv32 completion zsh >$(ZSH)/_dsv32
	@$(BUILD)/dsv32 completion fish >$(SHARE)/fish/vendor_completions.d/dsv32.fish
	@(cat LICENSE; for package in $(filter lib% nlohmann%,$(PACKAGES)); do echo; echo "--- $$package:"; \
	    cat /usr/share/doc/$$package/copyright; done) >$(SHARE)/doc/dsv32/copyright 2>/dev/null || true
	@chmod 644 $(wordlist 2,9,$(INSTALLED))

uninstall:  ## remove what install has put there
	@folders=$$(sort -r $(FOLDERS) 2>/dev/null); rm -f $(INSTALLED) $(FOLDERS); \
	    [ -z "$$folders" ] || rmdir $$folders 2>/dev/null || true

deb: all  ## a Debian package in build/
	+@packaging/make_deb.sh $(BUILD)

test-deb: deb  ## the package in a bare Debian: installed, used, removed (root, debootstrap and Debian's servers)
	@tests/deb_in_bare_root.sh $(BUILD)

clean:  ## remove everything that was built
	rm -rf build $(TINY)

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-9s %s\n", $$1, $$2 }'

$(BUILD)/dsv32: $(BUILD)/main.o $(OBJECTS) $(CUDA_OBJECTS)
	@echo "link $@"
	@$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

$(BUILD)/lab: $(BUILD)/tests/tools/lab/main.o $(LAB_OBJECTS) $(OBJECTS) $(CUDA_OBJECTS)
	@echo "link $@"
	@$(CXX) $(LDFLAGS) $^ $(LDLIBS) -o $@

# Calls of start_thread() go through tests/support/failing_threads.cpp.
WRAP_THREADS := -Wl,--wrap=_ZN5dsv3212start_threadERSt6threadSt8functionIFvvEE
$(BUILD)/unit_tests: $(OBJECTS) $(CUDA_OBJECTS) $(LAB_OBJECTS) $(SUPPORT) $(TEST_OBJECTS)
	@echo "link $@"
	@$(CXX) $(LDFLAGS) $(WRAP_THREADS) $^ $(TEST_LIB) $(LDLIBS) -o $@

RACE_SOURCES := tests/main.cpp tests/support/failing_threads.cpp tests/test_numa.cpp tests/test_pinned_memory.cpp tests/test_worker_pool.cpp src/backend/pinned_memory.cpp src/base/thread.cpp
$(BUILD)/race_tests: $(RACE_SOURCES:%.cpp=$(BUILD)/%.o) $(BUILD)/src/base.o
	@echo "link $@"
	@$(CXX) $(LDFLAGS) $(WRAP_THREADS) $^ $(TEST_LIB) $(BASE_LIBS) -o $@

$(BUILD)/make_tiny_model: $(BUILD)/tests/tools/make_tiny_model.o $(SUPPORT) $(OBJECTS) $(CUDA_OBJECTS)
	@echo "link $@"
	@$(CXX) $(LDFLAGS) $^ $(TEST_LIB) $(LDLIBS) -o $@

$(BUILD)/gpu_tests: $(OBJECTS) $(CUDA_OBJECTS) $(LAB_OBJECTS) $(SUPPORT) $(GPU_TESTS) $(BUILD)/tests/main.o
	@echo "link $@"
	@$(CXX) $(LDFLAGS) $^ $(TEST_LIB) $(LDLIBS) -o $@

$(TINY): | $(BUILD)/make_tiny_model
	@mkdir -p $(@D)
	$(BUILD)/make_tiny_model $@

# libFuzzer comes with clang; only the readers are instrumented.
$(BUILD)/fuzz_gguf: tests/fuzz/fuzz_gguf.cpp $(wildcard src/base/*.cpp src/gguf/*.cpp) | fuzz_deps
$(BUILD)/fuzz_schema: tests/fuzz/fuzz_schema.cpp $(wildcard src/constrain/*.cpp) $(addprefix $(BUILD)/,$(addprefix src/,base.o base/thread.o gguf.o text.o) tests/support/tiny_vocabulary.o) | fuzz_deps
$(BUILD)/fuzz_gguf $(BUILD)/fuzz_schema:
	@echo "clang++ $@"
	@mkdir -p $(@D)
	@clang++ -std=c++20 -O1 -g -Wno-psabi -Isrc -I. -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all $^ $(LDLIBS) -o $@

$(BUILD)/%.o: %.cu | deps
	@echo "nvcc $<"
	@mkdir -p $(@D)
	@$(NVCC) $(NVCCFLAGS) -c $< -o $@

# Only engine.cpp depends on whether this build has CUDA; it is rebuilt when CUDA changes.
$(BUILD)/src/engine/engine.o: CXXFLAGS += $(if $(filter 1,$(CUDA)),-DDSV32_CUDA)
$(BUILD)/src/engine/engine.o: $(BUILD)/.cuda_$(CUDA)
$(BUILD)/.cuda_$(CUDA):
	@mkdir -p $(@D)
	@rm -f $(BUILD)/.cuda_*
	@touch $@
# commands.cpp is rebuilt when the revision or the backends change.
REVISION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
$(BUILD)/src/cli/options/commands.o: CXXFLAGS += -DDSV32_REVISION='"$(REVISION)"' -DDSV32_BACKENDS='"$(if $(filter 1,$(CUDA)),$(BACKENDS),cpu)"'
$(BUILD)/src/cli/options/commands.o: $(BUILD)/.built_$(subst $() ,_,$(REVISION)_$(CUDA)_$(CUDA_ARCHS))
$(BUILD)/.built_%:
	@mkdir -p $(@D)
	@rm -f $(BUILD)/.built_*
	@touch $@
# Whatever lies in tests may include what only the tests install.
$(TEST_OBJECTS) $(GPU_TESTS) $(SUPPORT) $(BUILD)/tests/tools/make_tiny_model.o: | test_deps
# Headers of other projects take most of the rest of the tests' compile time, so these are precompiled; for the few race tests
# that takes longer than it saves. Of the sanitizers' checks those of pointers take a quarter of the compile time; the tests'
# own code does without. What tests and product both instantiate is the product's, because its objects are linked first.
TEST_FLAGS = $(if $(SAN),-O0 -fno-sanitize=null$(comma)alignment$(comma)object-size,-O1)
PRECOMPILED = $(BUILD)/tests/support/headers.h
$(WITH_HEADERS): $(PRECOMPILED:=.gch)
$(WITH_HEADERS): private CXXFLAGS += $(PRECOMPILED:%=-include %)
$(TEST_OBJECTS) $(GPU_TESTS) $(SUPPORT) $(BUILD)/src/lab.o: private CXXFLAGS += $(TEST_FLAGS)
$(BUILD)/tests/support/headers.h.gch: tests/support/headers.h | test_deps
	@echo "c++ $<"
	@mkdir -p $(@D)
	@cp $< $(@D)
	@$(CXX) $(CXXFLAGS) $(TEST_FLAGS) -x c++-header $< -o $@
# cli waits for people and for the model, so it is compiled faster instead.
$(BUILD)/src/cli/options/commands.o $(BUILD)/src/cli_%.o: CXXFLAGS += $(if $(SAN),-O0,-O1)
# -idirafter: Debian's toolkit is in /usr, and -isystem /usr/include would hide the C headers from those of C++.
$(GPU_TESTS): CXXFLAGS += -idirafter $(CUDA_HOME)/include
# Under the sanitizers one instruction set is enough (AVX2 if the CPU has it). Products are optimised; alignment (vectors
# are read from any address here) and the stack are not checked. Otherwise products take minutes to compile, and most of
# the tests' time. Kernels for instructions that this CPU lacks are not called, so they are not checked.
SAN_TARGET   := $(if $(SAN),-DHWY_COMPILE_ONLY_STATIC $(if $(shell grep -m 1 avx2 /proc/cpuinfo),-march=x86-64-v3 -maes -mpclmul))
SAN_PRODUCTS := $(if $(SAN),-O2 --param asan-stack=0 -fno-sanitize=null$(comma)alignment)
SAN_VNNI     := $(if $(SAN),$(if $(shell grep -m 1 avx512_vnni /proc/cpuinfo),$(SAN_PRODUCTS),-fno-sanitize=all))
# -MD: a header of Highway includes these sources, once per instruction set, and -MMD omits what system headers include.
$(BUILD)/src/backend/cpu_matmul.o $(BUILD)/src/backend/cpu_attention_kernels.o: CXXFLAGS := $(CXXFLAGS:-MMD=-MD) $(SAN_TARGET) $(SAN_PRODUCTS)
$(BUILD)/src/backend/cpu_formats_vnni.o: CXXFLAGS := $(CXXFLAGS:-MMD=-MD) $(SAN_VNNI)

# Writes the file that includes the files that are compiled together, if their list has changed; two builds may do so at a time.
$(BUILD)/src/%.cpp $(BUILD)/tests/%.cpp: FORCE
	@mkdir -p $(@D)
	@new=$@.$$$$; printf '#include "%s"\n' $(FILES_$*) >$$new; cmp -s $$new $@ && rm $$new || mv $$new $@
$(UNITED): %.o: %.cpp | deps
	@echo "c++ $(@:$(BUILD)/%.o=%)"
	@$(CXX) $(CXXFLAGS) -c $< -o $@
FORCE:

$(BUILD)/%.o: %.cpp | deps
	@echo "c++ $<"
	@mkdir -p $(@D)
	@$(CXX) $(CXXFLAGS) -c $< -o $@

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.PHONY: all demo test tested test-gpu eval lab test-long race_tests deps nvcc_is_new test_deps layers archs cuda_objects fuzz fuzz_deps format install uninstall deb test-deb clean help
.DELETE_ON_ERROR:
