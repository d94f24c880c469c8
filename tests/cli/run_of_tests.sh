# tests/run.sh: what programs of tests say, in order, and reasons of what was skipped at the end, with the sum.

mkdir -p tests build/races
cp "$tests/run.sh" tests/
program() { # PATH LINE...: each to standard output, or with a ! to standard error
  { echo "#!/bin/bash"; for line in "${@:2}"; do [[ $line == !* ]] && echo "echo '${line#!}' >&2" || echo "echo '$line'"; done; } >"$1"
  chmod +x "$1"
}
program build/named_suites 'tally: 1 0 0'
program build/others one '!two' three 'skipped: 2 no such CPU' 'skipped: 1 make test-long runs it' 'tally: 5 0 3'
printf '%s\n' '#!/bin/bash' 'case $1 in --run_test=!*) build/others ;; *) build/named_suites ;; esac' >build/unit_tests
chmod +x build/unit_tests
program build/races/race_tests 'tally: 1 0 0'
program tests/test_cli.sh 'skipped: 3 no such CPU' 'FAILED it' 'tally: 4 1 3'
timeout 60 tests/run.sh build >out 2>err
check "make test: a failure is its exit code" test $? = 1
check "make test: nothing beside its lines" empty err
printf '%s\n' unit_tests: unit_tests_of_models: unit_tests_that_wait: one two three race_tests: test_cli: 'FAILED it' \
  'skipped 1: make test-long runs it' 'skipped 5: no such CPU' '12 passed, 1 failed, 6 skipped' >wanted
check "make test: every line, and no other" same <(sort out) <(sort wanted)
check "make test: a suite's lines in order" test "$(grep -xE 'one|two|three' out | tr '\n' ' ')" = "one two three "
check "make test: reasons at the end" same <(tail -n 3 out) <(tail -n 3 wanted)

# A line is there when it was said, not when the suite has ended.
program build/races/race_tests 'tally: 1 0 0'
printf '%s\n' '#!/bin/bash' 'echo early' 'until [[ -e heard ]]; do sleep 0.05; done' 'echo "tally: 1 0 0"' >build/unit_tests
timeout 60 tests/run.sh build >out 2>err &
running=$!
for _ in {1..200}; do grep -q early out && break; sleep 0.05; done
check "make test: a line is told at once" has out early
touch heard
wait "$running"

# Any order of building is right: what may include a package of the tests waits for it, whatever else is done by then. Each
# file of the tests is an object, or in exactly one that has several.
(cd "$tests/.." && make -pqn BUILD=build/none tested 2>/dev/null) | awk '
  /^FILES_(tests_|gpu_|support )/ { name = substr($1, 7); $1 = $2 = ""; files[name] = $0 }
  /^build\/none\/tests\/.*\.o:.*\| .*test_deps$/ { sub(/^build\/none\//, ""); sub(/\.o:.*/, ""); objects[$0] }
  END {
    for (object in objects) {
      name = substr(object, 7)
      n = split(name in files ? files[name] : object, of_object, " ")
      for (i = 1; i <= n; ++i) { sub(/\.cpp$/, "", of_object[i]); print of_object[i] }
    }
  }' | sort >waiting
(cd "$tests/.." && ls tests/*.cpp tests/support/*.cpp tests/gpu/*.cpp tests/tools/*.cpp) | sed 's/\.cpp$//' | sort >wanted
check "make: each object of the tests waits for their packages" same waiting wanted

# An nvcc that is too old is told before anything is compiled.
for of in "11.8 90 12.4" "12.6 120 12.8" "none 90 12.4"; do
  read -r found archs least <<<"$of"
  program nvcc "Cuda compilation tools, release $found, V$found.89"
  make -C "$tests/.." CUDA=1 CUDA_ARCHS="$archs" NVCC="$PWD/nvcc" BUILD="$PWD/none" deps >out 2>err
  check "make: nvcc of $found for $archs is refused" test $? != 0
  check "make: nvcc of $found for $archs, by one line" has err "needs nvcc of CUDA $least or later, here is $found"
done
