# What the program says of itself: help that fits its window, what shells complete, the manual page, what make takes.

fits() { [[ $(tr -d '\r' <out | awk '{ if (length($0) > n) n = length($0) } END { print n }') -le $1 ]]; }
for words in "--help" "run --help" "cache --help" "bench batch --help" "help"; do
  # shellcheck disable=SC2086
  expect "$words in a pipe" 0 $words
  check "$words in a pipe: 80 columns" fits 80
done
run_ run --help
tr -s ' \n' '\n' <out >words_of_help
help_terminal_cases() {
  local columns words
  for columns in 40 60 120; do
    for words in "--help" "run --help" "talks --help"; do
      on_terminal "stty cols $columns; '$dsv32' $words"
      check "$words: $columns columns" fits $columns
    done
  done
  on_terminal "stty cols 50; '$dsv32' run --help"
  tr -d '\r' <out | tr -s ' \n' '\n' >shown
  check "help in a narrow window: every word" same shown words_of_help
  on_terminal "TERM=foobar '$dsv32' run -m '$model' --seed 7 --think-max 3 -n 2 hi </dev/null"
  check "an unknown terminal: no escape sequence at all" lacks out "$esc"
  printf 'hello\n/bye\n' >typed
  input=typed on_terminal "TERM=foobar '$dsv32' chat -m '$model' --seed 7 --think-max 3 -n 2 --no-save"
  check "a chat on an unknown terminal: no escape sequence at all" lacks out "$esc"
  check "a chat on an unknown terminal: nobody complains" lacks out "terminal type"
}
if has_terminal; then help_terminal_cases; else skip help_terminal_cases "there is no pseudo-terminal"; fi

expect "a prompt without its command" 2 Why is the sky blue
check "a prompt without its command: what to type" has err 'hint: dsv32 run "Why is the sky blue"'
expect "a prompt without its command, in quotes" 2 "Why is the sky blue?"
check "a prompt without its command, in quotes: what to type" has err 'hint: dsv32 run "Why is the sky blue?"'
expect "a slip in a command" 2 rnu
check "a slip in a command: no prompt" lacks err hint

# Values, as each shell offers them.
mkdir -p models share/dsv32/models
ln -s "$model" models/first.gguf
ln -s "$model" share/dsv32/models/second-00001-of-00002.gguf
run_ run "${m[@]}" --no-think -n 1 --no-cache --talk spoken hi
export XDG_DATA_HOME=$PWD/share
expect "names of models" 0 completion next -- run -m ""
check "names of models: all, and files" test "$(xargs <out)" = "files first second"
usage_error "no such shell" completion tcsh
PATH=$(dirname "$dsv32"):$PATH
offers() { # NAME WANTED WORDS...: by $by
  check "$by: $1" test "$("completed_by_$by" "${@:3}")" = "$2"
}
all_offers() {
  offers "a choice" "fp8" dsv32 run --kv-type fp
  offers "a choice behind a flag" "slru" dsv32 batch --cache-policy s
  offers "types" "Q4_0 Q4_1 Q4_K_S Q4_K_M Q4_0-pure Q4_1-pure Q4_K-pure" dsv32 inspect plan --type Q4
  offers "types of a bench" "Q4_0 Q4_1 Q4_K_S Q4_K_M Q4_0-pure Q4_1-pure Q4_K-pure" dsv32 bench --type Q4
  offers "types of matrices" "Q4_0 Q4_1 Q4_K" dsv32 bench --head-type Q4
  offers "a choice of a group's command" "full" dsv32 bench batch --topk-buffer f
  offers "backends" "cpu cuda" dsv32 run hi --backend c
  offers "talks" "spoken" dsv32 chat --talk spo
  offers "talks as words" "spoken" dsv32 talks delete spo
  offers "models" "first" dsv32 run -m fir
  offers "models by the long name" "second" dsv32 batch --model sec
  offers "commands as words" "chat check" dsv32 config ch
  offers "what completion takes" "fish" dsv32 completion fi
  offers "flags" "--kv-type" dsv32 run --kv
}
completed_by_bash() {
  bash -c 'source ./bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dsv32; echo "${COMPREPLY[@]}"' _ "$@"
}
run_ completion bash
mv out bash
by=bash all_offers
by=bash offers "a choice behind =" "fp8" dsv32 run --kv-type = fp
by=bash offers "all choices behind =" "fp8 bf16 f32" dsv32 run --kv-type =
by=bash offers "files with models" "first" dsv32 run -m f
value_cases_of_zsh() {
  completed_by_zsh() {
    zsh -fc 'compadd() { print -l -- ${(M)@:#$PREFIX*}; }; _describe() { print -l -- ${(M)${offers%%:*}:#$PREFIX*}; }
      compset() { PREFIX=${PREFIX#*=}; }; _files() {}; compdef() {}
      words=("$@[2,-1]"); CURRENT=$#words; PREFIX=$words[-1]; source $1; _dsv32' _ ./zsh "$@" | xargs
  }
  run_ completion zsh
  mv out zsh
  by=zsh all_offers
  by=zsh offers "a choice behind =" "fp8" dsv32 run --kv-type=fp
}
if command -v zsh >/dev/null; then value_cases_of_zsh; else skip_checks 13 "there is no zsh"; fi
value_cases_of_fish() {
  completed_by_fish() { fish -c "source ./fish; complete -C '$*'" | cut -f1 | LC_ALL=C sort | xargs; }
  run_ completion fish
  mv out fish
  by=fish all_offers
}
if command -v fish >/dev/null; then value_cases_of_fish; else skip_checks 12 "there is no fish"; fi

run_ completion man
for section in EXAMPLES FILES ENVIRONMENT "IN A CHAT"; do
  check "manual page: $section" grep -aqx ".SH $section" out
done
for part in '\fBdsv32 run \-f notes.txt' 'XDG_CACHE_HOME/dsv32' '\fBDSV32_MODELS' '\fB/retry, /regen' '\fB/set\fR \fI[NAME [VALUE]]'; do
  check "manual page: $part" has out "$part"
done

archs() { MAKEFLAGS= make -n -C "$tests/.." CUDA=1 BUILD="$PWD/none" "CUDA_ARCHS=$1" cuda_objects 2>/dev/null | grep -o 'code=sm_[0-9a-z]*' | sort -u | xargs; }
if compgen -G "$tests/../cuda/*.cu" >/dev/null; then
  check "CUDA_ARCHS: 90 is that with all instructions" test "$(archs "80 90 100 120")" = "code=sm_100 code=sm_120 code=sm_80 code=sm_90a"
  check "CUDA_ARCHS: the generic kernels for a Hopper" test "$(archs "80on90")" = "code=sm_90"
  check "CUDA_ARCHS: 90a stays" test "$(archs 90a)" = "code=sm_90a"
fi
