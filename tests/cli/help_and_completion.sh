# What the program says of itself: help that fits its window, what shells complete, the manual page, what make takes.

order() { [[ $(grep -o "^ [A-Z][a-z ]* options:" out | xargs) == "$1" ]]; }
fits() { [[ $(tr -d '\r' <out | awk '{ if (length($0) > n) n = length($0) } END { print n }') -le $1 ]]; }
for words in "--help" "run --help" "cache --help" "bench --help" "help"; do
  # shellcheck disable=SC2086
  expect "$words in a pipe" 0 $words
  check "$words in a pipe: 80 columns" fits 80
done
run_ run --help
check "help begins with what people use, and ends with the model" \
  order "Prompt options: Answer options: Output options: Talk options: Many prompts options: Warm process options: Prefix cache options: Model options:"
tr -s ' \n' '\n' <out >words_of_help
help_terminal_cases() {
  local columns words
  for columns in 80 120; do
    for words in "--help" "run --help" "talks --help"; do
      on_terminal "stty cols $columns; '$dsv32' $words"
      check "$words: $columns columns" fits $columns
    done
  done
  on_terminal "stty cols 62; '$dsv32' run --help"
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
