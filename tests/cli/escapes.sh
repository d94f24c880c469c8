# What a terminal is shown of bytes that others chose: no control character, and JSON that is the same JSON. Pipes get
# the bytes, but JSON has no such character there either.

attack=$'\e]0;x\a\xc2\x9b31m\x7f'  # a title, a colour begun by a C1 character, DEL
named=$'c\xc2\x9b31m\x7f.gguf'
ln -s "$model" "$named"
raw() { grep -aqF -e $'\e' -e $'\a' -e $'\xc2\x9b' -e $'\x7f' "$1"; }
tame() { ! raw "$1"; }
lacks_all() { tame "$1" && lacks "$1" $'\xe2\x80\xae'; }

run_ run "${m[@]}" --no-think --no-cache -n 1 --talk attack "$attack"
escape_terminal_cases() {
  local words
  for words in "talks list" "talks list --json" \
    "inspect model" "inspect model --json" "inspect tokens --json '$attack'" "inspect tokens '$attack'" \
    "run -v --no-think -n 0 hi" "run --json --no-think -n 0 hi" "run --no-think -n 0 'x.gguf$attack'" \
    "cache list --cache-dir '$attack'" "cache list --json --cache-dir '$attack'" "cache list" "cache list --json" \
    "talks delete '$attack'" "'$attack'" "run '--$attack'"; do
    DSV32_MODEL=$named TERM=dumb on_terminal "'$dsv32' $words </dev/null"
    check "a terminal, $words: no control character" tame out
    check "a terminal, $words: something is said" test -s out
  done
  DSV32_MODEL=$named on_terminal "'$dsv32' run --json --no-think -n 0 hi </dev/null"
  check "a model's name in JSON" has out '"model":"c\u009b31m\u007f"'
  on_terminal "'$dsv32' talks list --json"
  tr -d '\r' <out >shown
  run_ talks list --json
  check "JSON on a terminal is the JSON of a pipe" same shown out
}
hidden=$'h\xe2\x80\xaei\xc2\x9b31m\x7f.gguf'
ln -s "$model" "$hidden"
for words in "run --json --no-think -n 0 hi" "inspect model --json" "cache list --json" "inspect tokens --json $attack" \
  "talks list --json"; do
  # shellcheck disable=SC2086
  DSV32_MODEL=$hidden run_ $words
  check "JSON to a pipe, $words: no character that a terminal obeys or hides by" lacks_all out
done
DSV32_MODEL=$hidden run_ run --json --no-think -n 0 hi
check "JSON to a pipe: a model's name" has out '"model":"h\u202ei\u009b31m\u007f"'
run_ inspect tokens "${m[@]}" "$attack"
check "a pipe gets the bytes" grep -aqF "$attack" out
if has_terminal; then escape_terminal_cases; else skip escape_terminal_cases "there is no pseudo-terminal"; fi
