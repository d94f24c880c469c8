# What a terminal is shown of bytes that others chose: no control character, and JSON that is the same JSON. Pipes get
# the bytes.

attack=$'\e]0;x\a\xc2\x9b31m\x7f'  # a title, a colour begun by a C1 character, DEL
named=$'c\xc2\x9b31m\x7f.gguf'
ln -s "$model" "$named"
raw() { grep -aqF -e $'\e' -e $'\a' -e $'\xc2\x9b' -e $'\x7f' "$1"; }
tame() { ! raw "$1"; }

run_ run "${m[@]}" --no-think --no-cache -n 1 --talk attack "$attack"
escape_terminal_cases() {
  local words
  for words in "talks list" "talks list --json" \
    "inspect model" "inspect model --json" "inspect tokens --json '$attack'" "inspect prompt '$attack'" \
    "inspect prompt --json '$attack'" "run -v --no-think -n 0 hi" "run --json --no-think -n 0 hi" "run --no-think -n 0 'x.gguf$attack'" \
    "config" "cache path --cache-dir '$attack'" "cache path --json --cache-dir '$attack'" "cache list" "cache list --json" \
    "talks delete '$attack'" "'$attack'" "run '--$attack'"; do
    DSV32_MODEL=$named TERM=dumb on_terminal "'$dsv32' $words </dev/null"
    check "a terminal, $words: no control character" tame out
    check "a terminal, $words: something is said" test -s out
  done
  DSV32_MODEL=$named on_terminal "'$dsv32' run --json --no-think -n 0 hi </dev/null"
  check "a model's name in JSON" has out '"model":"c\u009b31m\u007f"'
  on_terminal "'$dsv32' talks list --json"
  tr -d '\r' <out | sed $'s/\\\\u009b/\xc2\x9b/g; s/\\\\u007f/\x7f/g' >shown
  run_ talks list --json
  check "JSON on a terminal is the JSON of a pipe" same shown out
}
run_ inspect prompt "${m[@]}" "$attack"
check "a pipe gets the bytes" grep -aqF "$attack" out
if has_terminal; then escape_terminal_cases; else skip escape_terminal_cases "there is no pseudo-terminal"; fi
