#!/usr/bin/env bash
# tests/test_cli.sh DSV32 [MODEL]: the real binary: pipes, exit codes, signals, terminals and bad input.
#
# Prints a line for each failure, with what the program said, "skipped: COUNT REASON" for what cannot be tested here, and
# "tally: PASSED FAILED SKIPPED" at the end.
# MODEL is any small V3.2 file with a byte-level vocabulary; the tiny one when absent.
set -u
dsv32=$(realpath "${1:?usage: tests/test_cli.sh DSV32 [MODEL]}")
[[ -f $dsv32 && -x $dsv32 ]] || { echo "FAILED $1 is no program"; exit 1; }
tests=$(dirname "$(realpath "$0")")
model=$(realpath "${2:-$tests/../models/tiny.gguf}")
lab=$(dirname "$dsv32")/lab
demo=$(realpath "$tests/../models/demo.gguf")  # trained: its answers end by themselves
work=$(mktemp -d)
trap '[[ $BASHPID == "$$" ]] && rm -rf "$work"' EXIT  # not in a subshell that a signal ends
cd "$work" || exit 1
take_folders() {
  export LC_ALL=C XDG_STATE_HOME=$work/state XDG_RUNTIME_DIR=$work/runtime XDG_CACHE_HOME=$work/cache XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config TERM=xterm
}
take_folders
export OMP_WAIT_POLICY=passive  # threads that spin while they wait are slow on a machine with other work
unset NO_COLOR DSV32_MODEL DSV32_MODELS
esc=$'\e'
passed=0 failed=0 skipped=0

# check NAME COMMAND...: the command succeeds. Who waits sees now and then where it is.
told_at=$SECONDS
check() {
  local name=$1
  shift
  ((SECONDS - told_at < 20)) || { echo "  at $name" && told_at=$SECONDS; }
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED $name: $*"
    [[ -s err ]] && { echo "  stderr:"; head -c 600 err | cat -v | awk '{ print "  | " $0 }'; }
    [[ -s out ]] && { echo "  stdout:"; head -c 600 out | cat -v | awk '{ print "  | " $0 }'; }
  fi
}

# run_ ARGS...: runs the program with no input; leaves out, err and $code.
run_() { timeout 150 "$dsv32" "$@" <"${input:-/dev/null}" >out 2>err; code=$?; }

# prompt_ ARGS...: leaves in out what the model would read, without the token ids.
prompt_() { run_ inspect tokens "$@"; sed -i 1d out; }

# expect NAME CODE ARGS...: the program ends with CODE.
expect() {
  local name=$1 wanted=$2
  shift 2
  run_ "$@"
  check "$name (exit code $code, expected $wanted)" test "$code" = "$wanted"
}

# skip FUNCTION REASON: counts the checks in it. skip_checks COUNT REASON.
skip() { skip_checks "$(declare -f "$1" | grep -c '^ *check ')" "$2"; }
skip_checks() {
  skipped=$((skipped + $1))
  echo "skipped: $1 $2"
}

lines() { [[ $(wc -l <"$1") == "$2" ]]; }
empty() { [[ ! -s $1 ]]; }
has() { grep -aqsF -- "$2" "$1"; }
lacks() { ! grep -aqF -- "$2" "$1"; }
same() { cmp -s "$1" "$2"; }
ends_line() { [[ $(tail -c 1 "$1" | od -An -tx1) == " 0a" ]]; }

# on_terminal COMMAND: its output and ours on a pseudo-terminal; input from $input.
on_terminal() { timeout 150 script -qec "$1" /dev/null <"${input:-/dev/null}" >out 2>err; code=$?; }
has_terminal() { [[ $(timeout 60 script -qec "echo there is one" /dev/null </dev/null 2>/dev/null) == "there is one"* ]]; }
await() { for _ in $(seq 600); do "$@" && return; sleep 0.05; done; return 1; }

# Every usage error: CODE 2, one line on standard error, nothing on standard output.
usage_error() {
  local name=$1
  shift
  expect "$name" 2 "$@"
  check "$name: one line" lines err 1
  check "$name: nothing on standard output" empty out
}

# The same of those whose second line says what to do.
usage_error_with_hint() {
  expect "$1" 2 "${@:2}"
  check "$1: nothing on standard output" empty out
}

full_disk() {
  timeout 60 "$dsv32" "$@" </dev/null >/dev/full 2>err
  check "$*: a full disk is an error" test $? = 1
  check "$*: a full disk: said so" has err "cannot write to standard output"
}

m=(-m "$model")
answer=("${m[@]}" --no-think --seed 7 -n 24)

# --- help and version -------------------------------------------------------------------------------------
for words in help --help -h "run --help" "run -h" "chat --help" "inspect --help" "help run" "check -h" "batch -h" "cache list --help" \
  --version -V version "run --version" "run -V" "inspect model --version" "cache --help" "help cache" "talks -h"; do
  # shellcheck disable=SC2086
  expect "$words" 0 $words
  check "$words: on standard output" test -s out
  check "$words: silent on standard error" empty err
done
expect "no words at all" 2
check "no words: help on standard error" has err "dsv32 run"
check "no words: nothing on standard output" empty out
run_ version
check "version: the revision" grep -aqE '^dsv32 [0-9.]+ \([^)]+\)$' <(head -n 1 out)
check "version: compiler, backends, libraries" test "$(grep -acE '^(compiler: g|backends: cpu|libraries: .*PCRE2 [0-9])' out)" = 3
run_ cache --help
check "help of a group" has out "dsv32 cache verify [flags]"
check "help of a group: of that one" lacks out "dsv32 talks"
run_ run --help
check "help names the default and the environment" has out DSV32_MODEL
check "help names the exit codes" has out "6 no whole answer"

# --- wrong use --------------------------------------------------------------------------------------------
usage_error "unknown command" rnu
check "unknown command: nearest" has err "did you mean run?"
usage_error "unknown flag" run "${m[@]}" --tempp 1 hi
check "unknown flag: nearest" has err "--temp?"
check "unknown flag: where to look" has err "dsv32 run --help"
usage_error "flag before the command" -m "$model" run hi
usage_error "missing value" run "${m[@]}" hi --temp
usage_error "value that looks like a flag" run "${m[@]}" --temp --seed 3 hi
for bad in "-n -2" "-n 2147483648" "-n x" "-n 1.5" "--ctx 0" "--ctx -1" "--temp nan" "--temp inf" "--temp 1e999" \
  "--temp -1" "--top-p 2" "--top-p -0.1" "--min-p 2" "--top-k -2" "--seed -2" "--seed 1x" "--logprobs 21" \
  "--logprobs 3" "--chunk 0" "--threads 0" "--kv-type int8" "--color maybe" "--thinking where" \
  "--topk-buffer 0" "--topk-buffer some" "--backend tpu" "--bogus" "-z" "---x"; do
  # shellcheck disable=SC2086
  usage_error "$bad" run "${m[@]}" $bad hi
done
long=$(head -c 100000 /dev/zero | tr '\0' a)
usage_error "a very long flag" run "${m[@]}" "--$long" hi
usage_error "a very long group of letters" run "${m[@]}" "-$long" hi
usage_error_with_hint "a very long value for a switch" run "${m[@]}" "--json=$long" hi
usage_error "bench: a very long flag" bench "--$long"
usage_error "bench: a very long value for a number" bench "--threads=$long"
usage_error "bench: an unknown word" bench buffer
usage_error "bench: an unknown flag" bench --contxts 1
check "bench: an unknown flag: nearest" has err "--contexts?"
usage_error "bench: a file and synthetic weights" bench "${m[@]}" --synthetic
for bad in "--contexts 1,x" "--contexts ," "--contexts 2000000" "--decode 0" "--locality 2" "--type Q9" \
  "--layers 0" "--temp 1" "--dir ." "--sequences 0" "--sequences 1,x" "--topk-buffer 0"; do
  # shellcheck disable=SC2086
  usage_error "bench $bad" bench --synthetic $bad
done
usage_error "bench: a measurement of the lab" bench prefixes
usage_error "bench: layers of a file" bench "${m[@]}" --layers 3
usage_error "bench: a file and a type" bench "${m[@]}" --type Q2_K
expect "a very long value" 3 run -m absent.gguf "--prompt=$long"
expect "a very long value with a hyphen" 3 run -m absent.gguf -p "-$long"
usage_error "empty stop text" run "${m[@]}" --stop "" hi
usage_error "no prompt" run "${m[@]}"
usage_error "empty prompt" run "${m[@]}" -p ""
usage_error "two prompts" run "${m[@]}" -p one two
usage_error "standard input twice" run "${m[@]}" -f - -p -
usage_error "raw with a system prompt" run "${m[@]}" --raw --system S hi
usage_error "missing file" run "${m[@]}" -f absent.txt hi
usage_error "a directory as file" run "${m[@]}" -f . hi
usage_error "a file without end" run "${m[@]}" -f /dev/zero hi
usage_error "inspect what" inspect
usage_error "inspect something else" inspect weights
usage_error "top-k buffer smaller than top-k" run "${m[@]}" --topk-buffer 3 hi
usage_error "context beyond the model's" run "${m[@]}" -c 2000000000 hi
expect "chat without a terminal" 2 chat "${m[@]}"
check "chat without a terminal names run" has err "dsv32 run"
expect "words for chat" 2 chat "${m[@]}" hello
for bad in "" . .. .hidden a/b "a b" "é" "$(printf 'x%.0s' $(seq 65))"; do
  usage_error "talk name '$bad'" chat "${m[@]}" --session "$bad"
  check "talk name '$bad': says so" has err "is no name for a talk"
done
usage_error "two talks" chat "${m[@]}" --session a --continue
usage_error "a talk and a prompt that is rendered" run "${m[@]}" --talk a --raw hi
usage_error "a talk of many prompts" run "${m[@]}" --continue --lines
usage_error "talks without a word" talks
for bad in "show" "show absent" "rename absent" "rename absent x" "delete" "delete absent" "export ../x"; do
  # shellcheck disable=SC2086
  usage_error_with_hint "talks $bad" talks $bad
done

# --- the answer -------------------------------------------------------------------------------------------
expect "an answer" 0 run "${answer[@]}" "What is a latent row?"
check "an answer is there" test -s out
check "an answer ends its line" ends_line out
check "an answer is all that is said, but that -n cut it" test "$(cat err)" = "note: the answer is cut: the 24 tokens of -n are used up"
cp out first
expect "the same seed" 0 run "${answer[@]}" "What is a latent row?"
check "the same seed, the same answer" same out first
expect "another seed" 0 run "${m[@]}" --no-think -n 24 --seed 8 "What is a latent row?"
check "another seed, another answer" test "$(cmp first out >/dev/null; echo $?)" = 1
expect "seed 0" 0 run "${m[@]}" --no-think --seed 0 -n 4 --json hi
check "seed 0 is a seed" has out '"seed":0,'
expect "flags after the words, = and _" 0 run "What is a latent row?" --model="$model" --nothink --seed=7 --max_tokens=24
check "other spellings, the same answer" same out first
for name in --predict --n-predict --tokens --n_predict -n; do
  run_ run "${m[@]}" --no-think --seed 7 "What is a latent row?" $name 24
  check "$name is --max-tokens" same out first
done
expect "words after --" 0 inspect tokens "${m[@]}" --no-think -- --temp 3
check "words after -- are text" has out "<｜User｜>--temp 3<｜Assistant｜>"
run_ run "${m[@]}" --seed 7 -c 64 -v hi
check "thinking is not on standard output" test "$(cat out)" = ""
check "thinking is on standard error" has err "thinking:"
check "a line for the prompt with -v" has err "prompt: "
check "the seed is reported with -v" has err "seed: 7"
run_ run "${m[@]}" --no-cache --think-max 0 -n 2 --topk-buffer 64 -v "$(seq -s ' ' 100)"
check "the buffer's tally with -v" has err "top-k buffer: "
check "no colour outside a terminal" lacks err "$esc"
run_ run "${answer[@]}" -q hi
check "quiet is quiet" empty err
run_ run "${m[@]}" --seed 7 -c 64 --thinking hide hi
check "hidden thinking is not shown" lacks err thinking:
run_ run "${m[@]}" --seed 7 -c 64 --thinking stdout hi
check "thinking on standard output has its tag" has out "<think>"
run_ run "${m[@]}" --seed 7 -c 64 --color always hi
check "colour when asked for" has err "${esc}[2m"
check "colour is reset" has err "${esc}[0m"
NO_COLOR=1 run_ run "${m[@]}" --seed 7 -c 64 --color always hi
check "the flag beats the environment" has err "${esc}[2m"
expect "no tokens" 0 run "${m[@]}" --no-think -n 0 hi
check "no tokens: an empty line" lines out 1
DSV32_MODEL=$model expect "model from the environment" 0 run --no-think --seed 7 -n 24 "What is a latent row?"
check "model from the environment: same answer" same out first
DSV32_MODEL=absent.gguf expect "the flag beats DSV32_MODEL" 0 run "${answer[@]}" hi
mkdir models
ln -s "$model" models/only.gguf
expect "the only model in models/" 0 run --no-think --seed 7 -n 24 "What is a latent row?"
check "a model that was put there needs no name" lacks err "model:"
expect "the model is named with -v" 0 run "${answer[@]}" -v hi
check "the model is named with -v: it is" has err "model: $model"
mv models/only.gguf models/demo.gguf
expect "the model that came with the program" 0 run --no-think --seed 7 -n 24 "What is a latent row?"
check "the model that came with the program is named" has err "model: models/demo.gguf"
mv models/demo.gguf models/only.gguf
expect "a word that is a model" 0 run "${answer[@]}" models/only.gguf hi
check "a word that is a model: what it means" has err "-m models/only.gguf names it"
echo damaged >models/demo.gguf
echo damaged >models/tiny.gguf
expect "the only model beside those that come with the program" 0 run --no-think --seed 7 -n 24 "What is a latent row?"
rm models/demo.gguf models/tiny.gguf
ln -s "$model" models/other.gguf
expect "two models in models/" 2 run hi
check "two models in models/: they are listed" has err "models/only.gguf ("
expect "a part of a name" 0 run --no-think --seed 7 -n 24 -m ONL "What is a latent row?"
check "a part of a name: that model" same out first
expect "a name that several fit" 2 run -m o hi
check "a name that several fit: which" has err "models/only.gguf ("
expect "a name that none fits" 2 run -m qwen hi
check "a name that none fits: what there is" has err "neither a file nor a model's name; there are models/only.gguf ("
mkdir -p elsewhere share/dsv32/models
mv models/only.gguf elsewhere/Big-00001-of-00002.gguf
printf x >elsewhere/Big-00002-of-00002.gguf
ln -s "$model" share/dsv32/models/shared.gguf
DSV32_MODELS=elsewhere expect "a name in DSV32_MODELS" 0 inspect model -m big
check "a name in DSV32_MODELS: its first part" has out "elsewhere/Big-00001-of-00002.gguf"
XDG_DATA_HOME=$PWD/share expect "a name in the folder of data" 0 inspect model -m shared
DSV32_MODEL=shared XDG_DATA_HOME=$PWD/share expect "a name in DSV32_MODEL" 0 inspect model
rm -r models elsewhere
XDG_DATA_HOME=$PWD/share expect "the only model of all folders" 0 inspect model
expect "no model at all" 2 run hi
expect "a prompt longer than the context" 2 run "${m[@]}" -c 4 "one two three four five six"
check "a prompt longer than the context: counts" has err "the context holds 4"

# --- settings ---------------------------------------------------------------------------------------------
mkdir -p config/dsv32
printf -- '--model=%s\n--seed=7\n# a comment\n--no-think\n--max-tokens=24\n' "$model" >config/dsv32/config
expect "settings" 0 run "What is a latent row?"
check "settings: as the same flags" same out first
expect "settings: the command line wins" 0 run -n 0 hi
check "settings: the command line wins: no answer" lines out 1
expect "settings: flags of other commands are passed over" 0 talks list
echo '--tmep=1' >>config/dsv32/config
usage_error "a wrong setting" run hi
check "a wrong setting: where, and what was meant" has err "config:6: unknown flag --tmep (did you mean --temp?)"
printf 'temp = 1\n' >config/dsv32/config
usage_error_with_hint "a setting that is no flag" run hi
check "a setting that is no flag: what one is" has err "hint: a line is --NAME or --NAME=VALUE"
rm -r config

# --- what is made of the tables ---------------------------------------------------------------------------
usage_error "completion for no shell" completion
usage_error "completion for an unknown shell" completion tcsh
expect "completion" 0 completion bash
completed() { # WORDS...: what bash offers for the last of them
  bash -c 'source out; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dsv32; echo "${COMPREPLY[@]}"' _ "$@"
}
check "completion: commands" test "$(completed dsv32 in)" = "inspect"
check "completion: a group's commands" test "$(completed dsv32 inspect p)" = "plan"
check "completion: flags" test "$(completed dsv32 run --think)" = "--think --think-max --thinking"
check "completion: no words behind a command" test -z "$(completed dsv32 run in)"
check "completion: flags of a group's command" test "$(completed dsv32 cache verify --dry)" = "--dry-run"
check "completion: files elsewhere" test -z "$(completed dsv32 run mod)"
zsh_cases() {
  expect "completion for zsh" 0 completion zsh
  completed_by_zsh() {
    zsh -fc 'compadd() { print -l -- ${(M)@:#$PREFIX*}; }; _files() {}; compdef() {}; words=("$@[2,-1]"); CURRENT=$#words; PREFIX=$words[-1]; source $1; _dsv32' _ ./out "$@" | xargs
  }
  check "completion for zsh: commands" test "$(completed_by_zsh dsv32 in)" = "inspect"
  check "completion for zsh: a group's commands" test "$(completed_by_zsh dsv32 inspect p)" = "plan"
  check "completion for zsh: flags" test "$(completed_by_zsh dsv32 run --think)" = "--think --think-max --thinking"
  check "completion for zsh: flags of a group's command" test "$(completed_by_zsh dsv32 cache verify --dry)" = "--dry-run"
  check "completion for zsh: files elsewhere" test -z "$(completed_by_zsh dsv32 run mod)"
}
fish_cases() {
  expect "completion for fish" 0 completion fish
  completed_by_fish() { fish -c "source out; complete -C '$1'" | cut -f1 | LC_ALL=C sort | xargs; }
  check "completion for fish: commands" test "$(completed_by_fish "dsv32 in")" = "inspect"
  check "completion for fish: a group's commands" test "$(completed_by_fish "dsv32 inspect p")" = "plan"
  check "completion for fish: flags" test "$(completed_by_fish "dsv32 run --think")" = "--think --think-max --thinking"
  check "completion for fish: flags of a group's command" test "$(completed_by_fish "dsv32 cache verify --dry")" = "--dry-run"
}
if command -v zsh >/dev/null; then zsh_cases; else skip zsh_cases "there is no zsh"; fi
if command -v fish >/dev/null; then fish_cases; else skip fish_cases "there is no fish"; fi
manual_cases() {
  groff -man -ww -z page 2>err
  check "manual page: nothing to complain of" empty err
}
expect "manual page" 0 completion man
mv out page
if command -v groff >/dev/null; then manual_cases; else skip manual_cases "there is no groff"; fi
install_() { MAKEFLAGS= make -s -C "${demo%/models/*}" "$@" BUILD="$(dirname "$dsv32")" DESTDIR="$work/root" PREFIX=/usr >out 2>err; }
check "make install" install_ install
check "make install: stripped" test -z "$(readelf -SW root/usr/bin/dsv32 | grep -F .symtab)"
check "make install: it runs" test -n "$(root/usr/bin/dsv32 --version)"
for file in man/man1/dsv32.1.gz bash-completion/completions/dsv32 zsh/vendor-completions/_dsv32 \
  fish/vendor_completions.d/dsv32.fish doc/dsv32/copyright; do
  check "make install: $file" test -s "root/usr/share/$file"
done
check "make uninstall" install_ uninstall
check "make uninstall: nothing is left" test ! -e root
mkdir -p root/usr/share/man/man1
check "make install into folders that were there" install_ install
check "make install once more" install_ install
check "make uninstall from them" install_ uninstall
check "make uninstall: they stay, and no other" test "$(find root | wc -l) $(find root/usr/share/man/man1)" = "5 root/usr/share/man/man1"

# --- an answer that is empty or cut -----------------------------------------------------------------------
says() { test "$(cat err)" = "$1"; }
full="the context of 40 tokens is full, -c N holds more"
expect "until the context is full" 6 run "${m[@]}" -c 40 --seed 7 --no-think hi
check "until the context is full: the answer so far" test "$(wc -c <out)" -gt 1
check "until the context is full: says so" says "dsv32: the answer is cut: $full"
expect "the context is full of thinking" 6 run "${m[@]}" -c 40 --seed 7 --thinking hide hi
check "the context is full of thinking: says so" says "dsv32: no answer: $full
hint: --think-max N ends thinking in time"
expect "thinking has its own limit" 0 run "${m[@]}" -n 6 --think-max 9 --seed 7 --json hi
check "thinking has its own limit: both are counted" has out '"completion_tokens":16,'
check "thinking has its own limit: and thinking apart" has out '"reasoning_tokens":10'
check "thinking has its own limit: an answer began" lacks out '"content":""'
expect "the context is full of thinking" 6 run "${m[@]}" -c 40 -n 8 --seed 7 --thinking hide -q hi
check "the context is full of thinking: an empty line" lines out 1
expect "-n cuts an answer, as JSON" 0 run "${answer[@]}" --json hi
check "-n cuts an answer, as JSON: says so" says "note: the answer is cut: the 24 tokens of -n are used up"
check "-n cuts an answer, as JSON: and so does the object" has out '"finish_reason":"length"'
first_byte=$(grep -ao "[[:alnum:]]" first | head -n 1)
expect "an answer that --stop ends" 0 run "${answer[@]}" --stop "$first_byte" "What is a latent row?"
check "an answer that --stop ends: nothing to say" empty err
expect "an answer that ends by itself" 0 run -m "$demo" --no-cache --temp 0 --thinking hide Hello
check "an answer that ends by itself: nothing to say" empty err
answer_text=$(cat out)
expect "an answer that ends before it begins" 6 run -m "$demo" --no-cache --no-think --temp 0 --stop "${answer_text:0:3}" Hello
check "an answer that ends before it begins: says so" says "dsv32: no answer: the model ended before it began one"
expect "an answer on the last token of -n" 0 run -m "$demo" --no-cache --temp 0 --no-think -n 3 Hello
check "an answer on the last token of -n: says so" says "note: the answer is cut: the 3 tokens of -n are used up"

# --- equalities that a user can see -----------------------------------------------------------------------
for variant in "--topk-buffer 64" "--chunk 3" "-t 1" "-t 3" "--topk-buffer full"; do
  # shellcheck disable=SC2086
  run_ run "${m[@]}" --no-think --seed 7 -n 24 $variant "What is a latent row?"
  check "the same answer with $variant" same out first
done
# What the lab writes of each token, for other programs.
logits() { timeout 20 "$lab" logits "${m[@]}" --backend cpu --tokens "$@" >out 2>err; code=$?; }
ids=$(seq -s, 3 152)
seq 3 152 >ids.txt
logits "$ids" --out whole.bin
check "logits: nothing is said" test "$code$(cat out err)" = 0
n_vocab=$(timeout 20 "$dsv32" inspect model "${m[@]}" --json | grep -ao '"deepseek32.vocab_size","type":"u32","value":"[0-9]*' |
  grep -o '[0-9]*$')
check "logits: n_tokens * vocab_size floats" test "$(stat -c %s whole.bin)" = $((150 * n_vocab * 4))
logits @ids.txt --out part.bin --chunk 20 --topk-buffer 64
check "logits: ids from a file, other steps, the same" same whole.bin part.bin
for bad in 1000000 -1 x 1.5 , ""; do
  logits "$bad" --out bad.bin
  check "logits: token id '$bad'" test $code = 2 -a ! -e bad.bin
done

# --- standard input ---------------------------------------------------------------------------------------
printf 'from a file' >file.txt
printf 'from stdin' >input.txt
input=input.txt prompt_ "${m[@]}" --no-think -f file.txt "the question"
printf '<｜begin▁of▁sentence｜><｜User｜>from stdin\nfrom a file\nthe question<｜Assistant｜></think>' >wanted
check "standard input, then files, then the prompt" same out wanted
input=input.txt prompt_ "${m[@]}" --no-think -f file.txt -f - the question
printf '<｜begin▁of▁sentence｜><｜User｜>from a file\nfrom stdin\nthe question<｜Assistant｜></think>' >wanted
check "-f - reads standard input in its place" same out wanted
input=input.txt prompt_ "${m[@]}" --no-think --no-stdin "the question"
printf '<｜begin▁of▁sentence｜><｜User｜>the question<｜Assistant｜></think>' >wanted
check "--no-stdin leaves standard input alone" same out wanted
printf 'one\ntwo\n' | while read -r line; do
  timeout 20 "$dsv32" inspect tokens "${m[@]}" --no-think --no-stdin "$line" | tail -n +2 && echo
done >out
printf '<｜begin▁of▁sentence｜><｜User｜>one<｜Assistant｜></think>\n<｜begin▁of▁sentence｜><｜User｜>two<｜Assistant｜></think>\n' >wanted
check "--no-stdin in a loop over lines" same out wanted
input=input.txt prompt_ "${m[@]}" --no-think --no-stdin -f - the question
printf '<｜begin▁of▁sentence｜><｜User｜>from stdin\nthe question<｜Assistant｜></think>' >wanted
check "--no-stdin: - names it all the same" same out wanted
input=input.txt prompt_ "${m[@]}" --no-think -p -
printf '<｜begin▁of▁sentence｜><｜User｜>from stdin<｜Assistant｜></think>' >wanted
check "-p - is standard input" same out wanted
prompt_ "${m[@]}" --system S hi
printf '<｜begin▁of▁sentence｜>S<｜User｜>hi<｜Assistant｜><think>' >wanted
check "a system prompt, and thinking by default" same out wanted
prompt_ "${m[@]}" -sys S hi
check "-sys is --system" same out wanted
printf S >system.txt
prompt_ "${m[@]}" -sysf system.txt hi
check "-sysf is --system-file" same out wanted
run_ inspect tokens "${m[@]}" '<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜><think>' --json
printf '%s' "$(cat out)" >raw.json
run_ inspect tokens "${m[@]}" hi --json
check "a prompt that begins with BOS is taken as rendered" test "$(cat out)" = "$(cat raw.json)"
run_ inspect tokens "${m[@]}" '<｜User｜>hi<｜Assistant｜><think>' --raw --json
check "--raw: the same without BOS" test "$(cat out)" = "$(cat raw.json)"
run_ inspect tokens "${m[@]}" 'x<｜User｜>hi<｜Assistant｜><think>' --json
user_id=$(timeout 20 "$dsv32" inspect tokens "${m[@]}" --raw '<｜User｜>' | sed -n '1s/.* //p')
check "marks that were typed are text" test "$(grep -o "\b$user_id\b" out | wc -l)" = 1
"$dsv32" run "${answer[@]}" "What is a latent row?" <&- >out 2>err
check "closed standard input" same out first
"$dsv32" run "${answer[@]}" hi >&- 2>err </dev/null
check "closed standard output is an error" test $? = 1
"$dsv32" run "${m[@]}" -q --no-think --seed 7 -n 400 hi 2>err </dev/null | head -c 1 >out
check "a reader that leaves ends it quietly" test "${PIPESTATUS[0]}" = 141
check "a reader that leaves: nothing said" empty err
head -c 200000 /dev/zero | tr '\0' '\n' >newlines.txt
input=newlines.txt expect "nothing but newlines, and too many" 2 run "${m[@]}" -c 100

# --- files that are something else ------------------------------------------------------------------------
printf '\n<!DOCTYPE html><html><head><title>Hugging Face</title></head></html>' >page.gguf
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1234\n' >pointer.gguf
expect "a web page" 3 run -m page.gguf hi
check "a web page: says so" has err "hint: it is a web page"
expect "a pointer of Git LFS" 3 inspect model -m pointer.gguf
check "a pointer of Git LFS: says so" has err "hint: it is a pointer of Git LFS"

# --- JSON and tokens --------------------------------------------------------------------------------------
expect "json" 0 run "${m[@]}" --seed 7 -n 3 --think-max 2 --json --logprobs 2 hi
check "json: one line" lines out 1
check "json: nothing else but that the answer is cut" lines err 1
for part in '"id":"' '"object":"chat.completion"' '"created":' '"model":"' '"role":"assistant"' '"content":"' \
  '"reasoning_content":"' '"finish_reason":"length"' '"logprobs":{"content":[{"token":' '"top_logprobs":[{' \
  '"prompt_tokens":' '"completion_tokens":6,' '"total_tokens":' '"prompt_tokens_details":{"cached_tokens":0}' \
  '"seed":7,' '"timings":{'; do
  check "json has $part" has out "$part"
done
run_ run "${m[@]}" --no-cache --seed 7 -n 2 --json --no-think --topk-buffer 64 "$(seq -s ' ' 100)"
check "json without thinking: null" has out '"reasoning_content":null'
check "json: the buffer's tally" has out '"topk_buffer":{"rows":'
contents() { grep -aoE '"content":"([^"\\]|\\.)*"' "$1" | sed 's/^"content":"//; s/"$//' | tr -d '\n'; }
expect "json of the answer" 0 run "${answer[@]}" --json hi
contents out >whole
expect "json, streamed" 0 run "${answer[@]}" --json --stream hi
check "json, streamed: a line a piece" test "$(grep -c '"object":"chat.completion.chunk"' out)" = "$(wc -l <out)" -a "$(wc -l <out)" -gt 5
contents out >pieces
check "json, streamed: the pieces are the answer" same pieces whole
check "json, streamed: one id" test "$(grep -oE '"id":"[^"]*"' out | sort -u | wc -l)" = 1
check "json, streamed: it begins with who speaks" grep -aq '"delta":{"role":"assistant"}' <(head -n 1 out)
check "json, streamed: it ends with the reason and the counts" grep -aqE '"finish_reason":"(length|stop)".*"usage":\{.*"seed":7,' <(tail -n 1 out)
check "json, streamed: only there" test "$(grep -c '"finish_reason":null' out)" = "$(($(wc -l <out) - 1))"
expect "json, streamed: thinking" 0 run "${m[@]}" --seed 7 -n 6 --think-max 6 --json --stream hi
check "json, streamed: thinking is there" has out '"delta":{"reasoning_content":"'
usage_error "--stream without --json" run "${m[@]}" --stream hi
usage_error "--stream of many prompts" run "${m[@]}" --json --stream --lines -f input.txt
run_ run "${m[@]}" --no-think --json -n 2 hi
first_seed=$(grep -o '"seed":[0-9]*' out)
run_ run "${m[@]}" --no-think --json -n 2 hi
check "a seed that nobody gave is random" test "$(grep -o '"seed":[0-9]*' out)" != "$first_seed"
printf 'hello there\n' >text.txt
input=text.txt run_ inspect tokens "${m[@]}" --no-think
check "tokens: the first line has the ids" grep -aqxE '[0-9]+( [0-9]+)+' <(head -n 1 out)
cp out tokens
run_ inspect tokens "${m[@]}" --no-think $'hello there\n'
check "tokens: text as a word is the same as on standard input" same out tokens
printf '<｜begin▁of▁sentence｜><｜User｜>hello there\n<｜Assistant｜></think>' >wanted
check "tokens: behind it the prompt" same <(tail -n +2 out) wanted
run_ inspect tokens "${m[@]}" --no-think "hello there"
check "tokens: the final newline counts" test $(($(head -n 1 tokens | wc -w) - $(head -n 1 out | wc -w))) = 1
run_ inspect tokens "${m[@]}" --json "hello <think>"
check "tokens: json" grep -aqxE '\{"prompt":".+","tokens":\[[0-9,]+\],"pieces":\[.+\]\}' out
run_ inspect tokens "${m[@]}" --raw "<think>"
check "tokens: a special token by name" test "$(head -n 1 out | wc -w)" = 2
run_ inspect tokens "${m[@]}" --no-think "<think>"
check "tokens: otherwise it is text" test "$(head -n 1 out | wc -w)" -gt 5
input=/dev/null usage_error "tokens of nothing" inspect tokens "${m[@]}"
expect "plan" 0 inspect plan "${m[@]}" -c 1000 --topk-buffer 128 --json
check "plan: json" has out '"context":1000,'
check "plan: the buffer" has out '"topk_buffer_rows":128'
expect "plan: a limit" 4 inspect plan "${m[@]}" --backend cpu -c 1000 --host-mem 1M
check "plan: what does not fit, and what helps" grep -aqE 'not enough memory for .* wanted, .* free' err
expect "plan: a context chosen for a limit" 0 inspect plan "${m[@]}" --backend cpu --host-mem 100M --json
check "plan: it fits" grep -aqE '"context":[0-9]{4,5},' out
expect "plan: a machine that is not there" 0 inspect plan --synthetic --type Q4_K --on 2x141G+256G -t 16 --json
check "plan: two devices" has out '"first_layer":0,"last_layer":30,'
check "plan: the last layer" has out '"last_layer":60,'
check "plan: experts on the host" grep -qE '"expert_layers":\[[0-9]+,' out
check "plan: what a token reads" grep -qE '"decode_bytes":\{"devices":[0-9]{11},"host":[0-9]{10},"link":[0-9]{9,10}\}' out
expect "plan: no GPU" 0 inspect plan --synthetic --on 0+768G --json
check "plan: no devices" has out '"devices":[]'
small_machine_cases() {
  expect "plan: weights larger than memory" 0 inspect plan --synthetic --backend cpu -c 4096 --chunk 64
  check "plan: weights larger than memory: says so" has out "the rest is read from disk for every token"
}
if (($(awk '/MemTotal/ { print $2 }' /proc/meminfo) < 300000000)); then small_machine_cases; else skip small_machine_cases "this machine has memory for the 671B model"; fi
expect "plan: too small a machine" 4 inspect plan --synthetic --type Q8_0 --on 1x24G+256G --json
check "plan: it does not fit" has out '"fits":false,"reason":"not enough memory for'
expect "plan: experts of so many layers" 0 inspect plan --synthetic --type Q2_K --on 2x141G+256G --cpu-experts 3
check "plan: a line a device" grep -qE '^GPU 1: layers [0-9]+-60, experts of [0-9]+, ' out
expect "plan: no machine" 2 inspect plan --synthetic --on 24G
check "plan: what is expected" has err "--on 24G+256G"
expect "plan: sizes for GPUs" 2 inspect plan "${m[@]}" --gpus 0,1 --gpu-mem 1G,2G,3G
expect "plan: no size" 2 inspect plan "${m[@]}" --gpu-mem lots
check "plan: the flag is named" has err "--gpu-mem"
expect "model as json" 0 inspect model "${m[@]}" --json
check "model: a tensor" has out '"name":"token_embd.weight"'

# --- batch ------------------------------------------------------------------------------------------------
b=("${m[@]}" -c 256 --no-cache)
# How many guesses there were depends on the time that steps took.
without_guesses() { sed -E 's/,"(accepted|rejected)_prediction_tokens":[0-9]+//g'; }
answers() { # FILE: its lines without what differs between two runs, sorted
  sed -E 's/"(chatcmpl|cmpl)-[0-9a-f]+"/0/; s/"created":[0-9]+/0/; s/"timings":\{[^}]*\}/0/' "$1" | without_guesses | sort
}
same_answers() { cmp -s <(answers "$1") <(answers "$2"); }
body() { grep -ao '"choices":.*"seed":[0-9]*' "$1" | without_guesses; }  # what an answer says, of a line or of run --json
for i in $(seq 24); do
  echo "{\"custom_id\":\"q$i\",\"prompt\":\"Say $i\",\"max_tokens\":$((i % 7 * 4 + 1)),\"thinking\":$((i % 2)),\"seed\":$i}"
done | sed 's/"thinking":0/"thinking":false/; s/"thinking":1/"thinking":true/' >asked.jsonl
expect "batch" 0 batch "${b[@]}" asked.jsonl -o ref.jsonl
check "batch: a line for each" lines ref.jsonl 24
check "batch: nothing on standard output" empty out
check "batch: a summary" grep -aqE '^24 lines: 24 answered, 0 failed; [0-9]+ tokens in \(0 from cache\), [0-9]+ out, in ' err
check "batch: each id once" test "$(grep -ao '"custom_id":"q[0-9]*"' ref.jsonl | sort -u | wc -l)" = 24
for i in 2 6 12; do
  run_ run "${b[@]}" --json --no-think --seed $i -n $((i % 7 * 4 + 1)) "Say $i"
  grep -a "\"custom_id\":\"q$i\"" ref.jsonl >line
  check "batch: the answer of run, $i" test "$(body line)" = "$(body out)" -a -n "$(body line)"
done
echo '{"custom_id":"t","prompt":"Say 1","seed":1}' >thought.jsonl
expect "batch: the command's limits" 0 batch "${b[@]}" -n 3 --think-max 4 thought.jsonl -o thought.out
run_ run "${b[@]}" --json --seed 1 -n 3 --think-max 4 "Say 1"
check "batch: the command's limits: the answer of run" test "$(body thought.out)" = "$(body out)" -a -n "$(body out)"
expect "batch again" 0 batch "${b[@]}" -i asked.jsonl -o ref.jsonl
check "batch again: nothing new" lines ref.jsonl 24
check "batch again: says so" has err "24 answered, 0 failed (24 before)"
input=asked.jsonl expect "batch: from a pipe, in order, one at a time" 0 batch "${b[@]}" -q --ordered --parallel 1 - -o -
check "batch: from a pipe: the same answers" same_answers out ref.jsonl
check "batch: in the order of the input" test "$(grep -ao '"custom_id":"q[0-9]*"' out)" = "$(grep -o '"custom_id":"q[0-9]*"' asked.jsonl)"
check "batch -q: silent" empty err
for shard in 0 1 2 3; do
  run_ batch "${b[@]}" -q asked.jsonl -o "shard$shard.jsonl" --shard $shard/4
done
cat shard?.jsonl >merged.jsonl
check "four shards, merged: the same answers" same_answers merged.jsonl ref.jsonl
check "four shards: none has everything" test "$(wc -l <shard0.jsonl)" -lt 24 -a "$(wc -l <merged.jsonl)" = 24
expect "the merged file goes on as one" 0 batch "${b[@]}" asked.jsonl -o merged.jsonl
check "the merged file goes on as one: nothing new" lines merged.jsonl 24

cat >mixed.jsonl <<'END'
{"custom_id":"chat","method":"POST","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"hi"}],"max_tokens":4,"logprobs":true,"top_logprobs":1,"user":"me"}}
{"custom_id":"raw","method":"POST","url":"/v1/completions","body":{"prompt":"<｜User｜>hi<｜Assistant｜></think>","max_tokens":4}}
no JSON

{"custom_id":"chat","prompt":"again"}
{"prompt":"hi","stream":true}
{"custom_id":"long","prompt":"one two three four five six seven eight nine ten","max_tokens":4,"user":"me"}
END
expect "batch: some lines fail" 5 batch "${m[@]}" --no-cache -c 12 mixed.jsonl -o mixed.out
check "batch: some lines fail: a line for each" lines mixed.out 6
for part in '"object":"chat.completion"' '"top_logprobs":[{' '"object":"text_completion"' '"text":"' \
  '"custom_id":null,"response":{"status_code":400,' '"message":"line 3: invalid JSON at byte 2; dsv32 batch --lines' \
  '"message":"line 5: an earlier line has the same id"' '"custom_id":"6","response":{"status_code":400,' \
  '"message":"line 6: stream is true, which is not supported"' '"custom_id":"long","response":{"status_code":413,' \
  'tokens, the context holds 12; a larger context' '"status_code":200,' '"prompt_tokens_details":{"cached_tokens":0}'; do
  check "batch: some lines fail: $part" has mixed.out "$part"
done
cp mixed.out mixed.first
expect "batch: what failed is not asked again" 5 batch "${m[@]}" --no-cache -c 12 mixed.jsonl -o mixed.out
check "batch: what failed is not asked again: the same file" same mixed.out mixed.first
expect "batch: unless it is to be, with more context" 5 batch "${b[@]}" mixed.jsonl -o mixed.out --retry-failed
check "batch: --retry-failed: still a line for each" lines mixed.out 6
check "batch: --retry-failed: the long one is answered" has mixed.out '"custom_id":"long","response":{"status_code":200,'
head -c -40 mixed.first >torn.out
expect "batch: a torn last line" 5 batch "${m[@]}" --no-cache -c 12 mixed.jsonl -o torn.out
check "batch: a torn last line: the same answers" same_answers torn.out mixed.first

# A model in which one token is damaged: whoever says it fails, the others do not notice.
cp "$model" damaged.gguf
embd=$(timeout 20 "$dsv32" inspect model "${m[@]}" --json | grep -ao '"name":"token_embd.weight"[^}]*')
at=$(grep -o '"offset":[0-9]*' <<<"$embd" | tr -dc 0-9)
n_row=$(($(grep -o '"bytes":[0-9]*' <<<"$embd" | tr -dc 0-9) / $(grep -o '[0-9]*\]' <<<"$embd" | tr -dc 0-9)))
row=$(timeout 20 "$dsv32" inspect tokens "${m[@]}" --raw Z | sed -n '1s/.* //p')
head -c $n_row /dev/zero | tr '\0' '\377' | dd of=damaged.gguf bs=1 seek=$((at + row * n_row)) conv=notrunc status=none
printf '{"prompt":"one","max_tokens":4}\n{"prompt":"Z","max_tokens":4}\n{"prompt":"two","max_tokens":4}\n' >three.jsonl
expect "batch: one request fails" 5 batch -m damaged.gguf -c 256 --no-cache three.jsonl -o three.out
check "batch: one request fails: status 500" has three.out '"custom_id":"2","response":{"status_code":500,'
check "batch: one request fails: the others are answered" test "$(grep -ac '"status_code":200' three.out)" = 2

usage_error "batch: without input" batch "${b[@]}" -o x.out
usage_error "batch: two inputs" batch "${b[@]}" asked.jsonl -i asked.jsonl -o x.out
usage_error "batch: without output" batch "${b[@]}" asked.jsonl
usage_error "batch: input is output" batch "${b[@]}" asked.jsonl -o asked.jsonl
ln -s asked.jsonl asked.link
usage_error "batch: input is output by another name" batch "${b[@]}" asked.jsonl -o asked.link
usage_error "batch: no such input" batch "${b[@]}" absent.jsonl -o x.out
echo notes >notes.txt
usage_error "batch: an output that is something else" batch "${b[@]}" asked.jsonl -o notes.txt
check "batch: an output that is something else is left alone" test "$(cat notes.txt)" = notes
for bad in "--shard 4/4" "--shard 1" "--shard -1/4" "--shard 0/0" "--parallel 0" "--ordered --retry-failed" "--json" "--each"; do
  # shellcheck disable=SC2086
  usage_error "batch $bad" batch "${b[@]}" $bad asked.jsonl -o x.out
done
check "batch: no output after wrong use" test ! -e x.out
expect "batch: a full disk" 1 batch "${b[@]}" asked.jsonl -o /dev/full

# Answers that are lost with the process, or written by half, would show in what the next one leaves.
batch_until() { # N OUTPUT ARGS...: in the background, until N more lines are written
  local wanted=$(($(cat "$2" 2>/dev/null | wc -l) + $1)) output=$2
  "$dsv32" batch "${b[@]}" asked.jsonl -o "$output" "${@:3}" </dev/null >out 2>err &
  pid=$!
  is_written() { (($(cat "$output" 2>/dev/null | wc -l) >= wanted)); }
  await is_written
}
for n in 1 3 2 5; do
  batch_until $n killed.jsonl
  kill -KILL $pid
  wait $pid 2>/dev/null
done
expect "batch: killed four times" 0 batch "${b[@]}" asked.jsonl -o killed.jsonl
check "batch: killed four times: the same answers" same_answers killed.jsonl ref.jsonl
batch_until 1 stopped.jsonl
run_ batch "${b[@]}" asked.jsonl -o stopped.jsonl
check "batch: a second writer is refused" test "$code" = 2
check "batch: a second writer is refused: says so" has err "another process writes to stopped.jsonl"
kill -INT $pid
wait $pid
check "batch: SIGINT is 130" test $? = 130
check "batch: SIGINT: what was running is written" test "$(wc -l <stopped.jsonl)" -ge 8 -a "$(wc -l <stopped.jsonl)" -lt 24
check "batch: SIGINT: whole lines" ends_line stopped.jsonl
expect "batch: goes on after SIGINT" 0 batch "${b[@]}" asked.jsonl -o stopped.jsonl
check "batch: goes on after SIGINT: the same answers" same_answers stopped.jsonl ref.jsonl
{  # once the first is answered, the second runs
  echo '{"prompt":"hello","max_tokens":1,"thinking":false}'
  echo '{"prompt":"hello","temperature":0,"thinking":false}'
} >endless.jsonl
"$dsv32" batch "${m[@]}" -c 16000 --no-cache endless.jsonl -o endless.out </dev/null >out 2>err &
pid=$!
await test -s endless.out
kill -INT $pid
check "batch: SIGINT says what it waits for" await has err "finishing the 1 that are running"
kill -INT $pid
wait $pid
check "batch: a second SIGINT is 130 at once" test $? = 130
check "batch: a second SIGINT: nothing half-written" lines endless.out 1

# --- run of many prompts ----------------------------------------------------------------------------------
printf 'one\n\ntwo\r\nthree' >three.txt
input=three.txt expect "run --lines" 0 run "${b[@]}" --lines --no-think --temp 0 -n 3 "Why?"
check "run --lines: a block each, in order" test "$(grep -a '^==>' out)" = $'==> 1 <==\n==> 3 <==\n==> 4 <=='
cp out blocks
run_ run "${b[@]}" --no-think --temp 0 -n 3 $'one\nWhy?'
check "run --lines: the first is the answer of run" test "$(sed -n 2p blocks)" = "$(cat out)"
expect "run --lines of a file, as JSON" 0 run "${b[@]}" -q --lines -f three.txt --no-think --temp 0 -n 3 --json
sed -E 's/("seed"|"created").*//; s/"chatcmpl-[^"]*"//' out | sed -E 's/"(id|request_id)":"[^"]*"//g' >many.json
check "run --lines as JSON: lines of batch" test "$(grep -ac '^{"id":"batch_req_.*"custom_id":"[134]",.*"error":null}$' out)" = 3
input=three.txt expect "batch --lines" 0 batch "${b[@]}" -q --lines --ordered - -o - --no-think --temp 0 -n 3
check "batch --lines: what run --lines says as JSON" test "$(sed -E 's/("seed"|"created").*//; s/"chatcmpl-[^"]*"//' out | sed -E 's/"(id|request_id)":"[^"]*"//g')" = "$(cat many.json)"
expect "run --each" 5 run "${b[@]}" --each -f file.txt -f absent.txt -f three.txt --no-think --temp 0 -n 3 "Why?"
check "run --each: a block each, by name" test "$(grep -a '^==>' out)" = $'==> file.txt <==\n==> three.txt <=='
check "run --each: what failed is told" has err "absent.txt: cannot read absent.txt"
expect "run --each with a schema, and no answer asked for" 0 run "${b[@]}" --each -f file.txt --schema '{"type":"object"}' -n 0 hi
usage_error "run --each without files" run "${b[@]}" --each hi
usage_error "run --each and --lines" run "${b[@]}" --each --lines -f three.txt
usage_error "run --lines of two files" run "${b[@]}" --lines -f three.txt -f file.txt
usage_error "run --lines with - as a word" run "${b[@]}" --lines -f three.txt -

# --- check ------------------------------------------------------------------------------------------------
expect "check" 0 check "${m[@]}" -c 150 --backend cpu
check "check: one line for each comparison" lines out 3
check "check: the buffer had to fetch rows" \
  grep -aqE '^passed +cpu, top-k buffer .* 64 rows, [1-9][0-9]* of [0-9]+ rows fetched, the same bits$' out
check "check: the prompt was cut" grep -aqE '^passed +cpu, a prompt in any chunks: 150 tokens .* 3 ways, the same bits$' out
check "check: what is left out is said" grep -aqxE 'skipped +cuda: not checked because of --backend cpu' out
check "check: silent on standard error" empty err
expect "check as json" 0 check "${m[@]}" -c 150 --backend cpu --kv-type bf16 --topk-buffer 70 --json
check "check: one object" lines out 1
for part in '{"passed":true,"tokens":150,"checks":[{' '"result":"passed"' '"buffer_rows":70,"decode_steps":64,' \
  '"first_unequal_pos":-1}' '"result":"skipped"'; do
  check "check: json has $part" has out "$part"
done
expect "check of a prompt that fits the buffer" 0 check "${m[@]}" --backend cpu a few words
check "check: says that nothing was compared" grep -aqE '^skipped +cpu, .* tokens fit 64 rows$' out
usage_error "check: a buffer smaller than top-k" check "${m[@]}" --topk-buffer 3
usage_error "check: more context than the model's" check "${m[@]}" -c 2000000000
usage_error "check: another backend" check "${m[@]}" --backend tpu
usage_error "check: an empty prompt" check "${m[@]}" -p ""
usage_error "check: a flag of another command" check "${m[@]}" --temp 1
expect "check without a model" 3 check -m absent.gguf

# --- model files that are none ----------------------------------------------------------------------------
: >empty.gguf
printf 'GGUF' >short.gguf
head -c 1000 /dev/urandom >noise.gguf
head -c 5000 "$model" >cut.gguf
ln -s loop.gguf loop.gguf
mkfifo pipe
for bad in absent.gguf empty.gguf short.gguf noise.gguf cut.gguf loop.gguf pipe /dev/zero /dev/stdin; do
  for command in "run hi" "inspect model" "inspect plan" "inspect tokens hi"; do
    # shellcheck disable=SC2086
    timeout 5 "$dsv32" $command -m $bad </dev/null >out 2>err
    check "$command with $bad" test $? = 3
    check "$command with $bad: nothing on standard output" empty out
  done
done
sed 's/\(\x03.......\)h e/\1'"$esc"' e/' "$model" >unsound.gguf
for command in "run -n 0 hi" "inspect tokens the"; do
  # shellcheck disable=SC2086
  expect "$command with a merge that joins no token" 0 $command -m unsound.gguf
  check "$command: one warning names it" test "$(grep -ac '^warning: 1 of .*merges .*, "\\e e"$' err)" = 1
done
expect "a merge that joins no token, --quiet" 0 run -n 0 hi -m unsound.gguf --quiet
check "a merge that joins no token, --quiet: no warning" empty err
expect "a name with an escape sequence" 3 run -m "x$esc[31m.gguf" hi
check "a name with an escape sequence is shown escaped" lacks err "$esc"
run_ run "--f$esc[31moo"
check "a flag with an escape sequence is shown escaped" lacks err "$esc"

# --- signals ----------------------------------------------------------------------------------------------
interrupt() {  # SIGNAL ARGS...: sends it once something has been said
  local signal=$1
  shift
  : >out
  : >err
  "${hears_hangup[@]}" "$dsv32" run "${m[@]}" --seed 7 "$@" </dev/null >out 2>err &
  local pid=$!
  await test -s out -o -s err
  kill "-$signal" $pid
  wait $pid
  code=$?
}
hears_hangup=(env --default-signal=HUP)  # the tests may have been started where it is ignored
endless=(--temp 0 --no-think hello)      # greedy: it runs in circles
interrupt INT "${endless[@]}"
check "SIGINT is 130" test $code = 130
check "SIGINT: what was said stays, and ends its line" ends_line out
interrupt TERM "${endless[@]}"
check "SIGTERM is 143" test $code = 143
interrupt HUP "${endless[@]}"
check "SIGHUP is 129" test $code = 129
check "SIGHUP: what was said stays, and ends its line" ends_line out
(trap '' HUP; hears_hangup=(); interrupt HUP -n 60 "${endless[@]}"; exit $code)
check "SIGHUP that was ignored stays ignored" test $? = 0
interrupt INT --color always --temp 0 hello
check "SIGINT while thinking in colour is 130" test $code = 130
check "SIGINT: colours are reset" \
  test "$(grep -ao "${esc}\[2m" err | wc -l)" = "$(grep -ao "${esc}\[0m" err | wc -l)"

# --- a terminal -------------------------------------------------------------------------------------------
# Without pseudo-terminals (a container, a sandbox) the cases are counted as skipped.
terminal_cases() {
  on_terminal "'$dsv32' run -m '$model' --no-think --seed 7 -n 300 hi 2>/dev/null </dev/null"
  check "a terminal gets no control characters" \
    test "$(tr -d '\r\n\t' <out | tr -cd '\000-\037\177' | wc -c)" = 0
  run_ run "${m[@]}" --no-think --seed 7 -n 300 hi
  check "a pipe gets them unchanged" test "$(tr -d '\r\n\t' <out | tr -cd '\000-\037\177' | wc -c)" -gt 0
  on_terminal "'$dsv32' run -m '$model' --no-think --seed 7 -n 2 hi </dev/null"
  check "a terminal is told the speed and the seed" has out "seed: 7"
  on_terminal "'$dsv32' run -m '$model'"
  check "a terminal without a prompt: exit code 2, no waiting" test $code = 2
  on_terminal "until grep -qs 'reading standard input' out; do sleep 0.1; done | '$dsv32' inspect tokens -m '$model' hi"
  check "who waits for input at a terminal is told" has out "reading standard input"
  on_terminal "NO_COLOR=1 '$dsv32' run -m '$model' --seed 7 -n 2 --think-max 2 hi </dev/null"
  check "NO_COLOR" lacks out "${esc}[2m"
  on_terminal "TERM=dumb '$dsv32' run -m '$model' --seed 7 -n 2 --think-max 2 hi </dev/null"
  check "TERM=dumb: no escape sequence at all" lacks out "$esc"

  printf '%s\n' 'hello' '/stats' '/think off' '/thinc' 'two \' 'lines' '"""three' 'more' 'lines"""' '/regen' '/clear' \
    ' unkept' '/bye' >typed
  input=typed on_terminal "'$dsv32' chat -m '$model' --seed 7 -n 8 --think-max 4"
  check "chat ends with 0" test $code = 0
  check "chat: /stats" has out "context: "
  check "chat: /think off" has out "thinking is off"
  check "chat: nearest command" has out "did you mean /think?"
  check "chat: the history is kept" has state/dsv32/history hello
  check "chat: but not lines that begin with a space" lacks state/dsv32/history unkept
  check "chat: the history is its owner's alone" \
    test "$(stat -c %a state/dsv32 state/dsv32/history | tr '\n' ' ')" = "700 600 "
  printf 'hello\n' >typed
  input=typed on_terminal "'$dsv32' chat -m '$model' --seed 7 -n 8 --think-max 4 <typed"
  check "chat with its input from a file" test $code = 0
  check "chat with its input from a file: no prompt" lacks out "> "
  printf 'hello\n' >typed
  input=typed on_terminal "'$dsv32' chat -m '$model' --seed 7 -n 8 --no-think"
  check "chat: Ctrl-D typed ahead leaves" test $code = 0
  printf 'one two three four five six seven eight nine ten eleven\n' >typed
  on_terminal "'$dsv32' chat -m '$model' -c 16 --seed 7 <typed"
  check "chat: a full context names /clear" has out "/clear"

  mkfifo keys
  timeout 60 script -qec "'$dsv32' chat -m '$model' ${endless[*]:0:3} --color never" /dev/null <keys >out 2>err &
  chat=$!
  exec 5>keys
  # Behind what was erased last stand more characters than a line of progress has.
  answering() { awk 'BEGIN { RS = "\033[[][KJ]" } { n = length($0) } END { exit n <= 100 }' out; }
  check "chat: a prompt" await has out "> "
  printf 'hello\n' >&5
  check "chat: an answer" await answering
  printf '\003' >&5
  sleep 0.3
  printf '/stats\n' >&5
  check "chat: Ctrl-C ends the answer, and the conversation goes on" await has out "context: "
  printf 'abc' >&5
  check "chat: typing" await has out "abc"
  for _ in $(seq 20); do
    kill -0 $chat 2>/dev/null || break
    printf '\003' >&5
    sleep 0.3
  done
  exec 5>&-
  wait $chat
  check "chat: Ctrl-C twice at the prompt leaves" test $? = 130
  check "chat: a talk is kept without a flag" grep -aqF '"content":"hello"' state/dsv32/talks/*.json
  rm -r state/dsv32/talks

  # Talks that are resumed: each chat is a process of its own.
  talks=state/dsv32/talks
  talk() { on_terminal "XDG_CACHE_HOME='$work/cache' '$dsv32' chat -m '$model' --seed 7 -n 4 --think-max 4 --color never $1 <typed"; }
  n_context() { grep -ao 'context: [0-9,]* of' out | tr -dc 0-9; }
  printf '/stats\n' >typed
  talk --continue
  check "no talk to continue: exit code 2" test $code = 2
  check "no talk to continue: a hint" has out "dsv32 chat begins one"
  on_terminal "env -u HOME XDG_STATE_HOME= '$dsv32' chat -m '$model' --session work <typed"
  check "no place for talks: exit code 2" test $code = 2
  check "no place for talks: says so" has out "neither XDG_STATE_HOME nor HOME"
  printf '%s\n' "$(seq -s ' ' 1 120)" /stats >typed
  talk "--session work --no-think --system 'Be brief.'"
  check "a new talk" has out "talk work begins"
  check "a new talk: /stats names it" has out "talk: work"
  check "a new talk: saved" has $talks/work.json '{"role":"user","content":"1 2 3 4 5'
  check "a new talk: its owner's alone" \
    test "$(stat -c %a $talks $talks/work.json | tr '\n' ' ')" = "700 600 "
  first_context=$(n_context)
  printf '%s\n' 'more\' "$esc[31m" /think /stats >typed
  talk "--session work -v"
  check "a talk resumed" has out "talk work resumed: 1 turn, used "
  check "a talk resumed: its last message, cut" has out "  you: 1 2 3 4 5"
  check "a talk resumed: the former turns are in the prompt" test "$(n_context)" -gt "$first_context"
  check "a talk resumed: and come from the cache" grep -aqE 'tokens \([1-9][0-9]* from cache\)' out
  check "a talk resumed: thinking as it was" has out "thinking is off"
  check "a talk resumed: the system prompt is kept" has $talks/work.json '"content":"Be brief."'
  check "a talk resumed: saved with both turns" test "$(grep -ao '"role":"assistant"' $talks/work.json | wc -l)" = 2
  printf 'one more\n' >typed
  talk "--session another --no-think -q"
  check "a quiet talk: nothing about it" lacks out "talk another"
  printf '/think\n' >typed
  talk "--session work --think"
  check "a talk resumed: what was typed is shown escaped" has out '  you: more\n\e[31m'
  check "a talk resumed: --think counts" has out "thinking is on"
  ln -s "$model" other.gguf
  cp -p $talks/another.json former.json
  printf '/clear\n' >typed
  on_terminal "'$dsv32' chat -m other.gguf --no-cache --continue --system 'In verse.' <typed"
  check "--continue: the talk that was saved last" has out "talk another resumed: 1 turn"
  check "--continue: with another model" has out "note: the talk was held with $(basename "$model" .gguf)"
  check "/clear leaves the talk as it was" same former.json $talks/another.json
  : >typed
  talk "--continue -q"
  check "quiet: nothing about the talk" lacks out resumed
  cut=$(head -c 20 $talks/work.json)
  printf '%s' "$cut" >$talks/work.json
  talk "--session work"
  check "a damaged talk: exit code 2" test $code = 2
  check "a damaged talk: the file and the reason" has out "$talks/work.json: it is damaged, "
  check "a damaged talk: left as it is" test "$(cat $talks/work.json)" = "$cut"
  talk --continue
  check "--continue does not pass over a damaged talk that is the last" has out "$talks/work.json: it is damaged, "

  timeout 60 script -qec "'$dsv32' chat -m '$model' --no-cache --no-think --seed 7 -n 4 -q --session lost --color never" \
    /dev/null <keys >out 2>err &
  chat=$!
  exec 5>keys
  check "a talk that cannot be saved: a prompt" await has out "> "
  rm -r $talks
  printf 'one\n/stats\ntwo\n/stats\n' >&5
  both() { [[ $(grep -ac "context: " out) == 2 ]]; }
  check "a talk that cannot be saved goes on" await both
  check "a talk that cannot be saved: one warning" test "$(grep -ac "warning: cannot save the talk" out)" = 1
  printf '/bye\n' >&5
  exec 5>&-
  wait $chat
  check "a talk that was not saved at last: exit code 1" test $? = 1
  check "a talk that was not saved at last: says so" test "$(grep -ac "cannot save the talk" out)" = 2

  # start ARGS...: a chat that reads from the descriptor 5, with its process in $dsv32_pid and its terminal's in $script_pid.
  start() {
    rm -f pid
    : >out  # of the chat before
    # In a shell of its own, which keeps to itself that it was killed.
    (timeout 60 script -qec "echo \$\$ \$PPID >pid; exec '$dsv32' chat -m '$model' --no-cache --no-think --color never $*" \
      /dev/null <keys >out 2>err; exit $?) 2>/dev/null &
    chat=$!
    exec 5<>keys  # that nobody may read any more
    check "chat $*: a prompt" await has out "> "
    read -r dsv32_pid script_pid <pid
  }
  finish() { exec 5>&-; wait $chat; code=$?; }

  # Each line is kept when it is typed, whatever other chats and the end of this one do.
  start --seed 7 -n 4 --think-max 4
  printf '/think on\n' >&5
  check "history of two chats: the first one's line" await has out "thinking is on"
  mv out first_out
  printf 'of another\n/bye\n' >typed
  input=typed on_terminal "'$dsv32' chat -m '$model' --no-cache --no-think -n 4"
  mv first_out out
  printf '/bye\n' >&5
  finish
  check "history of two chats: the first one's" has state/dsv32/history '/think\040on'
  check "history of two chats: the second one's" has state/dsv32/history 'of\040another'

  # Two chats with one talk.
  start --seed 7 -n 4 --session both
  mv out first_out
  printf 'of the second\n' >typed
  talk "--session both --no-think"
  check "a talk held elsewhere: said" has out "the talk both is held in another chat; this one is kept as both-2"
  talk "--continue -q --no-think"
  mv first_out out
  printf 'of the first\n/bye\n' >&5
  finish
  check "two chats, one talk: the first one's turn" has $talks/both.json '"content":"of the first"'
  check "two chats, one talk: the second one's turn" has $talks/both-2.json '"content":"of the second"'
  start --temp 0 --session both
  check "a talk is free when its chat has ended" lacks out "another chat"
  printf '/bye\n' >&5
  finish
  start --temp 0 --session killed
  printf 'hello\n' >&5
  # An answer is kept a second after it has begun.
  check "a chat that is killed leaves its question" await has $talks/killed.json '{"role":"user","content":"hello"'
  kill -KILL "$dsv32_pid"
  finish
  : >typed
  talk "--session killed"
  check "a talk is free when its chat was killed" lacks out "another chat"
  check "a question without an answer: said" has out "no answer yet: /retry asks for it"
  printf '/regen\n' >typed
  talk "--session killed --no-think"
  check "/regen answers it" test "$(grep -ao '"role":"assistant"' $talks/killed.json | wc -l)" = 1

  # Talks outside of a chat.
  expect "run in a talk that begins" 0 run "${answer[@]}" --no-cache --talk piped "the first question"
  expect "run in a talk" 0 run "${answer[@]}" --no-cache --talk piped "the second question"
  check "run in a talk: its answer is all there is on standard output" lines out 1
  check "run in a talk: two turns" test "$(grep -ao '"role":"assistant"' $talks/piped.json | wc -l)" = 2
  expect "run --continue" 0 run "${answer[@]}" --no-cache --continue -v "the third question"
  check "run --continue: the former turns are in the prompt" test "$(grep -ao 'prompt: [0-9]*' err | tr -dc 0-9)" -gt 60
  echo '{' >$talks/damaged.json
  expect "talks list" 0 talks list
  check "talks list: the one used last comes first" grep -aqE '^piped +3 turns, used just now +the first question$' <(head -n 1 out)
  check "talks list: a damaged one too" grep -aqE '^damaged +cannot read the talk damaged from .*it is damaged' out
  expect "talks list as JSON" 0 talks list --json
  check "talks list as JSON: a line for each" test "$(wc -l <out)" = "$(find $talks -name '*.json' | wc -l)"
  flock -o $talks/.piped.lock sleep 20 &
  holder=$!
  while flock -n $talks/.piped.lock true; do sleep 0.1; done
  expect "talks delete: one that is held" 2 talks delete piped
  check "talks delete: one that is held: says so" has err "is held in a chat"
  kill $holder
  wait $holder 2>/dev/null
  expect "talks delete" 0 talks delete piped both-2 damaged
  check "talks delete: gone, their locks too" test -z "$(find $talks -name '*piped*' -o -name '*both-2*')"
  check "talks delete: no other" test -e $talks/both.json
  full_disk talks list

  # What ends a chat in an answer lets it save first.
  for signal in HUP TERM; do
    start --temp 0 --session "by$signal"
    printf 'asked of %s\n' $signal >&5
    check "SIG$signal in a chat: an answer" await answering
    kill -$signal "$dsv32_pid"
    finish
    check "SIG$signal in a chat ends it" test $code = $((128 + $(kill -l $signal)))
    check "SIG$signal in a chat: the question is saved" has $talks/by$signal.json "asked of $signal"
    check "SIG$signal in a chat: the answer is saved" grep -aqE '"assistant","content":"[^"]{20}' $talks/by$signal.json
    check "SIG$signal in a chat: the history too" has state/dsv32/history "asked\\040of\\040$signal"
  done
  start --temp 0 --session closed
  printf 'hello\n' >&5
  check "a terminal that is closed: an answer" await answering
  kill -KILL "$script_pid"
  ended() { ! kill -0 "$dsv32_pid" 2>/dev/null; }
  check "a terminal that is closed ends the chat" await ended
  finish
  check "a terminal that is closed: the answer is saved" grep -aqE '"assistant","content":"[^"]{20}' $talks/closed.json

  # Ctrl-C ends reading and never the talk, however often it comes.
  start -c 4096 --chunk 4096 --temp 0 -n 4
  printf '%s\n' "$(seq -s " " 1 120)" >&5
  check "Ctrl-C twice while reading: it reads" await has out "reading prompt 0 / "
  printf '\003' >&5
  sleep 0.1
  printf '\003' >&5
  check "Ctrl-C twice while reading: said" await has out "ended before the answer began: /retry asks again"
  sleep 1.1
  printf '/stats\n' >&5
  check "Ctrl-C twice while reading: the chat goes on" await has out "context: "
  printf '/bye\n' >&5
  finish
  check "Ctrl-C twice while reading: and ends with 0" test $code = 0
}
if has_terminal; then
  terminal_cases
else
  skip terminal_cases "there is no pseudo-terminal"
fi

# --- prefixes on disk -------------------------------------------------------------------------------------
# A prompt of some 500 tokens: more than are always computed rather than read.
for i in $(seq 30); do echo "Line $i says that the row of a token is read again."; done >long.txt
cached=(run "${m[@]}" --no-think --seed 7 --json --temp 0 -n 8 -f long.txt)
n_cached() { grep -o '"cached_tokens":[0-9]*' out | cut -d: -f2; }
answer_of() { sed 's/.*"content":"\([^"]*\)".*/\1/' out; }
rm -rf cache
expect "cache: none yet" 0 cache list
check "cache: looking makes no folder" test ! -e cache
expect "cache: first run" 0 "${cached[@]}"
check "cache: first run computes all" test "$(n_cached)" = 0
first=$(answer_of)
expect "cache: second run" 0 "${cached[@]}"
check "cache: second run begins behind them" test "$(n_cached)" -gt 256
check "cache: the same answer" test "$(answer_of)" = "$first"
expect "cache: another question after the same text" 0 "${cached[@]}" "and then?"
check "cache: which is read up to where they differ" test "$(n_cached)" -gt 256
expect "cache: --no-cache" 0 "${cached[@]}" --no-cache
check "cache: --no-cache computes all" test "$(n_cached)" = 0
check "cache: --no-cache, the same answer" test "$(answer_of)" = "$first"
expect "cache: other sizes" 0 "${cached[@]}" -c 1000 -t 1 --chunk 64 --topk-buffer 100
check "cache: another context, other threads and steps find the same" test "$(n_cached)" -gt 256
check "cache: the folder is its owner's alone" test "$(stat -c %a cache/dsv32)" = 700
check "cache: and so are its files" test -z "$(find cache -type f ! -perm 600)"
check "cache: nothing half written" test -z "$(find cache -name 'tmp-*')"
expect "cache list" 0 cache list --json
check "cache list: one model" test "$(grep -o '"fingerprint"' out | wc -l)" = 1
check "cache list: no text of prompts" lacks out "Line"
check "cache list: the model's name and the last use" grep -aqE '"model":"tiny","last_use_ms":[0-9]{13},' out
expect "cache list, for people" 0 cache list
check "cache list, for people: a header and a row" test "$(grep -acE '^(FINGERPRINT +MODEL +LAST USE|[0-9a-f]{16} +tiny +just now +[0-9,]+ )' out)" = 2
expect "cache verify" 0 cache verify
check "cache verify: nothing damaged" has out " 0 damaged"
pages() { find cache -name '*-*' -regextype egrep -regex '.*/[0-9a-f]{32}-[0-9a-f]{32}'; }
page=$(pages | head -n 1)
printf 'x' | dd of="$page" bs=1 seek=$(($(stat -c %s "$page") / 2)) conv=notrunc 2>/dev/null
expect "cache verify: damage, looked at" 1 cache verify --dry-run
check "cache verify: damage, looked at: it is there" test -e "$page"
check "cache verify: damage, looked at: named" has out "it would be removed"
expect "cache verify: damage" 1 cache verify
check "cache verify: one page" has out "1 damaged"
check "cache verify: which, and that it went" has out "$(basename "$page") is damaged; removed"
check "cache verify: it went" test ! -e "$page"
expect "cache: a run after damage" 0 "${cached[@]}"
check "cache: the same answer after damage" test "$(answer_of)" = "$first"
usage_error "cache prune without a size" cache prune
expect "cache prune" 0 cache prune 1M
check "cache prune: small enough" test "$(du -s --block-size=1K cache | cut -f1)" -le 1124
check "cache: what is known of the model's bytes" test -n "$(find cache -name 'model-*')"
expect "cache clear" 0 cache clear
check "cache clear: no pages, and nothing known of models" test -z "$(pages; find cache -name 'model-*')"
usage_error "cache: unknown word" cache lsit
mkdir no_cache
touch no_cache/mine
for command in list verify "prune 1M" clear; do
  # shellcheck disable=SC2086
  usage_error_with_hint "cache $command on a folder that is none" cache $command --cache-dir no_cache
done
check "commands on a folder that is no cache leave nothing there" test "$(ls -A no_cache)" = mine
usage_error "cache without a word" cache
one_warning() { [[ $(grep -avc "^note: the answer is cut" err) == 1 ]] && has err "warning: "; }
mkdir -m 0777 shared_cache
expect "cache: a folder that others may write" 0 "${cached[@]}" --cache-dir "$work/shared_cache"
check "cache: is not used, and one line says so" one_warning
check "cache: nothing in it" test -z "$(ls shared_cache)"
echo text >a_file
expect "cache: a file in its place" 0 "${cached[@]}" --cache-dir "$work/a_file"
check "cache: a file: one line" one_warning
check "cache: a file: the same answer" test "$(answer_of)" = "$first"
rm -rf cache
(ulimit -f 64 && exec timeout 60 "$dsv32" "${cached[@]}" </dev/null >out 2>err)
check "cache: files limited in size: goes on" test $? = 0
check "cache: files limited in size: the same answer" test "$(answer_of)" = "$first"
check "cache: files limited in size: one line" one_warning
# Where threads or memory are few a run ends as it does without the cache. To root no number of threads applies.
few=(run -m few/model.gguf --no-think --seed 7 --json --temp 0 -n 1 -t 2 -c 512 --chunk 64 -f few/text)
keeping=(--cache-dir few/cache --cache-wait all)
mkdir few
head -n 12 long.txt >few/text
cp "$dsv32" few/dsv32
cp "$model" few/model.gguf
as_user=(env)
if [[ $(id -u) == 0 ]]; then
  as_user=(setpriv --reuid=65534 --clear-groups)
  chown -R 65534 few 2>/dev/null
  chmod 711 "$work"
fi
thread_cases() {
  local n
  for n in 100 4 1; do
    timeout 60 "${as_user[@]}" prlimit "--nproc=$n" few/dsv32 "${few[@]}" "${keeping[@]}" </dev/null >out 2>err
    check "cache: $n threads: goes on" test $? = 0
  done
}
memory_cases() {
  local kb code
  chown -R "$(id -u)" few
  timeout 60 few/dsv32 "${few[@]}" "${keeping[@]}" </dev/null >out 2>err
  check "cache: a prefix for runs of little memory" test $? = 0
  for kb in 110000 210000 270000; do
    (ulimit -v $kb && exec timeout 60 few/dsv32 "${few[@]}" --no-cache </dev/null >out 2>err)
    code=$?
    (ulimit -v $kb && exec timeout 60 few/dsv32 "${few[@]}" "${keeping[@]}" </dev/null >out 2>err)
    check "cache: $kb KiB of memory: ends as without it, with $code" test $? = $code
  done
  (ulimit -v 16000000 && exec timeout 60 few/dsv32 "${few[@]}" "${keeping[@]}" </dev/null >out 2>err)
  check "cache: memory enough: it is in use" test "$(n_cached)" -gt 0
}
if grep -aq __asan_init "$dsv32"; then
  skip thread_cases "limits of the system do not suit the sanitizers"
  skip memory_cases "limits of the system do not suit the sanitizers"
else
  if "${as_user[@]}" test -x few/dsv32; then thread_cases; else skip thread_cases "there is no other user who could be limited"; fi
  memory_cases
fi
for bad in "--cache-policy mru" "--cache-write never" "--cache-wait long" "--cache-size some"; do
  # shellcheck disable=SC2086
  usage_error "$bad" run "${m[@]}" $bad hi
done

# --- the lab: hits of the top-k buffer --------------------------------------------------------------------
if [[ -x $lab ]]; then
  product=$dsv32 dsv32=$lab  # for run_ and those above it
  text=$(printf 'row %s and its key. ' {1..12})
  for ask in "Which key?" "Which row?"; do
    echo "{\"passage\": \"$text\", \"questions\": [{\"ask\": \"$ask\"}, {\"ask\": \"And then?\"}]}"
  done >passages.jsonl
  buffer=(buffer "${m[@]}")
  expect "lab buffer" 0 "${buffer[@]}" --passages 1 passages.jsonl
  check "lab buffer: four sizes" has out "4 x top-k ="
  check "lab buffer: the mean over layers" grep -aq '^mean ' out
  expect "lab buffer as json" 0 "${buffer[@]}" --json passages.jsonl
  check "lab buffer: json: one line" lines out 1
  for part in '"passages":2' '"rows_per_topk":1.5' '"lru":' '"fifo":' '"optimal":' '"overlap":' '"mean":'; do
    check "lab buffer: json has $part" has out "$part"
  done
  for bad in "no json" '{"passage": "p"}' '{"passage": "p", "questions": []}' '{"passage": 1, "questions": [{"ask": "a"}]}'; do
    { head -n 1 passages.jsonl && echo "$bad"; } >bad.jsonl
    expect "lab buffer: $bad" 2 "${buffer[@]}" bad.jsonl
    check "lab buffer: $bad: which line" has err "line 2 of bad.jsonl"
  done
  usage_error "lab buffer without questions" "${buffer[@]}"
  echo '{"passage": "short", "questions": [{"ask": "a"}]}' >short.jsonl
  usage_error "lab buffer: a passage that top-k holds" "${buffer[@]}" short.jsonl

  # Answers to questions.
  answers=(answers "${m[@]}" --passages 1)
  expect "lab answers, every chooser" 0 "${answers[@]}" --chooser all passages.jsonl
  check "lab answers: a heading and a line for each" lines out 6
  for chooser in indexer dense quest recent random; do
    check "lab answers: $chooser" grep -aqE "^ *[0-9]+ +$chooser +2 +0 +0.0%" out
  done
  expect "lab answers as json" 0 "${answers[@]}" --json passages.jsonl
  check "lab answers: json: one line" lines out 1
  for part in '"chooser":"indexer"' '"thinking":false' '"questions":2' '"right":0' '"answers":["'; do
    check "lab answers: json has $part" has out "$part"
  done
  expect "lab answers: thinking" 0 "${answers[@]}" --think passages.jsonl
  usage_error "lab answers without questions" "${answers[@]}"
  usage_error "lab answers: an unknown chooser" "${answers[@]}" --chooser best passages.jsonl

  # Products.
  expect "lab matvec" 0 matvec --rows 16 --cols 256 --runs 1 --type q8_0 --type F32
  check "lab matvec: a line for each format" test "$(grep -acE '^(Q8_0|F32) +[0-9.]+ ' out)" = 2
  usage_error "lab matvec: columns that no format has" matvec --cols 300
  usage_error "lab matvec: a word" matvec Q8_0
  usage_error "lab: an unknown command" matvecs

  # Prompts that are known on disk.
  expect "lab prefixes" 0 prefixes "${m[@]}" --backend cpu --contexts 300
  check "lab prefixes: a line for each prompt" grep -aqE '^ +300 +[0-9.]+ +[0-9.]+ ' out
  check "lab prefixes: nothing is left" test -z "$(find . -name 'dsv32-lab-*')"
  usage_error "lab prefixes: a prompt without tokens" prefixes --synthetic --contexts 0
  expect "lab" 0
  check "lab: its commands" has out "lab answers"
  dsv32=$product
else
  skip_checks 1 "there is no $(dirname "$dsv32")/lab"
fi

# --- speed against the machine ----------------------------------------------------------------------------
bench=("${m[@]}" --backend cpu --contexts 0,64)
expect "bench" 0 bench "${bench[@]}" --chunk 16 --decode 2
check "bench: a line for each context" grep -aqE '^ +64 +1 +full +[0-9.]+ +[0-9.]+ ' out
expect "bench as json" 0 bench "${bench[@]}" --chunk 16 --decode 2 --json
for part in '"backend":"cpu"' '"memory_gbps":' '"context":64,' '"decode_tokens_per_second":'; do
  check "bench: json has $part" has out "$part"
done
together=(bench "${m[@]}" --backend cpu --contexts 128,400 --chunk 64)
n_before=1000000
for memory in 64M 48M; do
  expect "bench: capacity in $memory" 0 "${together[@]}" --capacity --host-mem "$memory"
  check "bench: fewer fit $memory" awk -v before="$n_before" '$1 == 400 { n = $2 } $1 == 128 { shorter = $2 }
    END { exit !(0 < n && n < before && n <= shorter) }' out
  n_before=$(awk '$1 == 400 { print $2 }' out)
done
expect "bench: capacity as json" 0 "${together[@]}" --capacity --json
check "bench: capacity as json: each context" grep -aqE '^\{"capacity":\[\{"context":128,"sequences":[0-9]+\},\{"context":400,' out
expect "bench: sequences together" 0 "${together[@]}" --topk-buffer 192 --sequences 1,3,1000000 --decode 2 --locality 1
check "bench: sequences together: a line for each batch" test "$(grep -acE '^ +(128|400) +[13] +(192|full) +- .* [0-9.]+$' out)" = 4
check "bench: sequences together: a length that the buffer holds is resident" test "$(grep -c '^ *128 .* full ' out)" = 2
check "bench: sequences together: progress on standard error" has err "400 tokens: 3 at a time"
check "bench: sequences together: those that do not fit" has err "400 tokens: at most "
expect "bench: sequences together, as json" 0 "${together[@]}" --topk-buffer 192 --sequences 2 --decode 2 --locality 1 --json
for part in '"sequences":2,' '"decode_tokens_per_second":' '"step_ms":' '"hit_rate":1.0' '"hit_rate":null' \
  '"fetched_bytes_per_step":0.0' '"buffer_rows":192' '"buffer_rows":null' '"prefill_tokens_per_second":null'; do
  check "bench: sequences together, as json: $part" has out "$part"
done
expect "bench: no room for so many" 4 "${together[@]}" --sequences 2 --host-mem 1M
check "bench: no room for so many: said so" has err "none of these batches fits"
usage_error "bench: a prompt of made up contexts" "${together[@]}" --sequences 2 --prompt 7

# --- a full disk ------------------------------------------------------------------------------------------
expect "a prefix for the tables" 0 "${cached[@]}"
for command in help --version "run --help" "bench --help" "cache list" "cache verify" "cache prune 1G" \
  "cache clear" "cache list --json" "cache verify --json"; do
  # shellcheck disable=SC2086
  full_disk $command
done
for command in "inspect model" "inspect plan" "inspect tokens hi" "check --backend cpu hi" \
  "run --no-think --seed 7 -n 4 hi"; do
  # shellcheck disable=SC2086
  full_disk $command "${m[@]}"
  # shellcheck disable=SC2086
  full_disk $command "${m[@]}" --json
done
full_disk bench "${bench[@]}" --chunk 16 --decode 1
full_disk "${together[@]}" --capacity
if [[ -x $lab ]]; then
  dsv32=$lab full_disk matvec --rows 16 --cols 256 --runs 1 --type Q8_0
  dsv32=$lab full_disk "${buffer[@]}" --passages 1 passages.jsonl
  dsv32=$lab full_disk "${answers[@]}" passages.jsonl
  dsv32=$lab full_disk prefixes "${m[@]}" --backend cpu --contexts 64
fi

# --- speed ------------------------------------------------------------------------------------------------
best=9999
for _ in 1 2 3; do
  begin=$(date +%s%N)
  run_ run "${m[@]}" -q --no-think --seed 7 -n 1 hi
  took=$((($(date +%s%N) - begin) / 1000000))
  ((took < best)) && best=$took
done
echo "start-up to first token: $best ms"
if grep -aq __asan_init "$dsv32"; then
  skip_checks 1 "under the sanitizers times mean nothing"
else
  check "start-up to first token under a second" test $best -lt 1000
fi

# --- a subject each: tests/cli -----------------------------------------------------------------------------
for subject in "$tests"/cli/*.sh; do
  [[ -f $subject ]] || continue
  mkdir -p "$work/$(basename "$subject" .sh)" && cd "$work/$(basename "$subject" .sh)" || exit 1
  # shellcheck source=/dev/null
  . "$subject"
  take_folders
done

echo "tally: $passed $failed $skipped"
((failed == 0))
