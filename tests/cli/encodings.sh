# Text that is not UTF-8 is refused by the name of its encoding wherever text is read; a byte order mark is dropped.

bom=$'\xef\xbb\xbf'
printf '\xff\xfeh\0i\0\n\0' >UTF-16
printf '\xfe\xff\0h\0i' >big.UTF-16
printf 'h\0i\0\n\0' >UTF-16LE
printf '\0h\0i' >UTF-16BE
printf '\xff\xfe\0\0h\0\0\0' >UTF-32
printf 'h\0\0\0' >UTF-32LE
printf '\0\0\0h' >UTF-32BE

# refused NAME FILE ARGS...: told before anything is loaded (there is no such model), with what converts it.
refused() {
  usage_error_with_hint "$1" "${@:3}"
  check "$1: named" grep -aqE "^dsv32: .* is ${2##*.}, expected UTF-8$" err
  check "$1: what converts it" has err "hint: iconv -f ${2##*.} -t UTF-8 converts it"
}
for file in UTF-16 big.UTF-16 UTF-16LE UTF-16BE UTF-32 UTF-32LE UTF-32BE; do
  refused "$file with -f" $file run -m absent.gguf -f $file hi
done
input=UTF-16 refused "UTF-16 on standard input" UTF-16 run -m absent.gguf hi
input=UTF-16 refused "UTF-16 for inspect tokens" UTF-16 inspect tokens -m absent.gguf
refused "UTF-16 as a system prompt" UTF-16 run -m absent.gguf --system-file UTF-16 hi
refused "UTF-16 as lines" UTF-16LE run -m absent.gguf --lines -f UTF-16LE
refused "UTF-16 as requests" UTF-16 batch -m absent.gguf UTF-16 -o answers.jsonl
refused "UTF-16 as requests, in a pipe" UTF-16 batch "${m[@]}" <(cat UTF-16) -o answers.jsonl
mkdir -p config/dsv32
cp UTF-16 config/dsv32/config
XDG_CONFIG_HOME=$PWD/config refused "UTF-16 as settings" UTF-16 run -m absent.gguf hi

printf 'hi' >wanted.txt
prompt_ "${m[@]}" -f wanted.txt the question
mv out wanted
printf '%shi' "$bom" >marked.txt
prompt_ "${m[@]}" -f marked.txt the question
check "a byte order mark in a file" same out wanted
input=marked.txt prompt_ "${m[@]}" the question
check "a byte order mark on standard input" same out wanted
# Bytes that are no text, wherever text is read: an early NUL, and any byte that is no UTF-8.
printf 'a\0b' >nul.bin
printf 'caf\xe9\n' >latin.bin
{ printf '%8192s' . && printf '\0b'; } >late.txt
for file in nul latin; do
  for how in "run -m absent.gguf hi -f $file.bin" "run -m absent.gguf hi --system-file $file.bin" \
    "run -m absent.gguf --messages $file.bin" "run -m absent.gguf --schema $file.bin hi" \
    "run -m absent.gguf --tools $file.bin hi"; do
    # shellcheck disable=SC2086
    usage_error_with_hint "$how" $how
    check "$how: said so" grep -aqE "^dsv32: $file.bin is no text: byte [24] is (NUL|no UTF-8)$" err
    check "$how: what to do" grep -aq "^hint: iconv .*a PDF" err
  done
  input=$file.bin usage_error_with_hint "$file on standard input" run -m absent.gguf hi
  input=$file.bin usage_error_with_hint "$file for inspect tokens" inspect tokens -m absent.gguf
done
input=late.txt expect "a late NUL is text" 0 inspect tokens "${m[@]}"
for how in "run --lines -f nul.bin" "batch --lines nul.bin -o x.jsonl" "batch nul.bin -o x.jsonl"; do
  # shellcheck disable=SC2086
  usage_error_with_hint "$how" $how -m absent.gguf
done
{ cat latin.bin && echo fine; } >mixed.txt
expect "a line that is no UTF-8" 5 batch "${m[@]}" --lines --no-think -n 1 mixed.txt -o mixed.jsonl
check "a line that is no UTF-8: that line's error" has mixed.jsonl '"message":"line 1: it is no text: byte 4 is no UTF-8; iconv'
check "a line that is no UTF-8: the other is answered" grep -aq '"custom_id":"2".*"status_code":200' mixed.jsonl
# A text far beyond the context is refused before all of it is encoded, and before anything is loaded.
head -c 15000000 /dev/urandom | base64 -w 0 >huge.txt
begin=$SECONDS
expect "20 MB of text" 2 run -m "$demo" --warm never -f huge.txt hi
check "20 MB of text: at once ($((SECONDS - begin)) s)" test $((SECONDS - begin)) -le 3
check "20 MB of text: said so" has err "the prompt has more than 65536 tokens, the context holds 32768"
head -c 40000 huge.txt >large.txt
expect "a text that is somewhat too long" 2 run -m "$demo" --warm never -f large.txt hi
check "a text that is somewhat too long: by how much" grep -aqE "the prompt has [3-6][0-9]{4} tokens, the context holds 32768" err
printf '%s--no-think\n%s--no-such=1\n' "$bom" "$bom" >config/dsv32/config
XDG_CONFIG_HOME=$PWD/config usage_error "byte order marks in settings" run -m absent.gguf hi
check "byte order marks in settings: dropped in each line" has err "config:2: unknown flag --no-such"
printf '%shi there\n%shi there\nhi there\n' "$bom" "$bom" >lines.txt
expect "byte order marks in lines" 0 batch "${m[@]}" --lines --no-think -n 1 lines.txt -o lines.jsonl
check "byte order marks in lines: dropped in each" \
  test "$(grep -o '"prompt_tokens":[0-9]*' lines.jsonl | sort | uniq -c | wc -l) $(wc -l <lines.jsonl)" = "1 3"

encoding_terminal_cases() {
  printf '/file UTF-16\n' >typed
  on_terminal "'$dsv32' chat -m '$model' --no-cache --no-save <typed"
  check "UTF-16 as /file" has out "UTF-16 is UTF-16, expected UTF-8"
  printf '/file nul.bin\nsee @./latin.bin\n' >typed
  on_terminal "'$dsv32' chat -m '$model' --no-cache --no-save <typed"
  check "NUL as /file" has out "nul.bin is no text: byte 2 is NUL"
  check "no UTF-8 as @file" has out "latin.bin is no text: byte 4 is no UTF-8"
  printf '%shello\n%sthere\n' "$bom" "$bom" >typed
  on_terminal "'$dsv32' chat -m '$model' --no-cache --no-think -n 1 --seed 7 --session marked <typed"
  check "byte order marks in lines of a chat" test "$(grep -ao '"content":"[a-z]*"' "$XDG_STATE_HOME/dsv32/talks/marked.json" | grep -ac 'hello\|there')" = 2
}
if has_terminal; then encoding_terminal_cases; else skip encoding_terminal_cases "there is no pseudo-terminal"; fi
