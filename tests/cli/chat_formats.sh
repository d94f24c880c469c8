# The chat formats of other models than V3.2: which one a file gets, what overrules it, and thinking that it does not have.
# Sourced by test_cli.sh, in a folder of its own.

# A file with V3's vocabulary: no token is called <think>.
LC_ALL=C sed 's/<think>/<hole1>/; s/<\/think>/<\/hole1>/; s/｜DSML｜/｜HOLE｜/' "$model" >v3.gguf
v3=(-m v3.gguf --no-cache -q --temp 0 -n 4)
r1=(-m "$model" --chat-format r1 --no-cache -q --temp 0 -n 4)

expect "the format of V3.2's vocabulary" 0 inspect model -m "$model"
check "the format of V3.2's vocabulary: named" has out "chat format: v3.2: the "
expect "the format of V3's vocabulary" 0 inspect model -m v3.gguf
check "the format of V3's vocabulary: named, with the reason" has out "chat format: v3: the vocabulary has no <think>"

prompt_ -m v3.gguf --system "Be brief." Hello
printf '%s' '<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hello<｜Assistant｜>' >wanted.txt
check "V3: a prompt: no thinking" same out wanted.txt
expect "V3 answers" 0 run "${v3[@]}" Hello
cp out v3.txt
expect "V3 answers the rendered prompt" 0 run "${v3[@]}" '<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜>'
check "V3 answers the rendered prompt: the same" same out v3.txt
expect "V3 with --no-think" 0 run "${v3[@]}" --no-think Hello
check "V3 with --no-think: the same" same out v3.txt
usage_error_with_hint "V3 with --think" run "${v3[@]}" --think Hello
check "V3 with --think: says why" has err "the chat format v3 has no thinking"
usage_error_with_hint "V3 with --think, only looked at" inspect tokens -m v3.gguf --think Hello
expect "V3 as V3.2" 3 run "${v3[@]}" --chat-format v3.2 Hello
check "V3 as V3.2: says what it lacks" has err "the model's vocabulary has no token <think>"
check "V3 as V3.2: says for what" has err "the chat format v3.2 needs it; a prompt can still be given raw"

cat >asked.jsonl <<'END'
{"custom_id":"plain","messages":[{"role":"user","content":"Hello"}]}
{"custom_id":"asks","messages":[{"role":"user","content":"Hello"}],"thinking":true}
END
expect "V3: a line asks for thinking" 5 batch "${v3[@]}" --parallel 1 asked.jsonl -o answers.jsonl
check "V3: a line without is answered" has answers.jsonl '"custom_id":"plain","response":{"status_code":200,'
check "V3: a line with is refused" has answers.jsonl '"custom_id":"asks","response":{"status_code":400,'
check "V3: a line with is refused: says why" has answers.jsonl "the chat format v3 has no thinking"
usage_error_with_hint "V3: a batch with --think" batch "${v3[@]}" --think asked.jsonl -o refused.jsonl

prompt_ -m "$model" --chat-format r1 Hello
printf '%s\n' '<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜><think>' >wanted.txt
check "R1's format: thinks, behind a line end" same out wanted.txt
expect "R1 thinks" 0 run "${r1[@]}" --think-max 3 --json Hello
grep -ao '"message":{[^}]*}' out >r1.txt
check "R1 thinks: told apart" has out '"reasoning_tokens":4'
expect "R1's prompt, rendered, from a file" 0 run "${r1[@]}" --think-max 3 --json -f wanted.txt
grep -ao '"message":{[^}]*}' out >raw.txt
check "R1's prompt, rendered, from a file: thinks too" same raw.txt r1.txt
usage_error_with_hint "R1 with --no-think" run "${r1[@]}" --no-think Hello
check "R1 with --no-think: says why" has err "the chat format r1 always thinks"
usage_error "a format that there is not" run "${r1[@]}" --chat-format v4 Hello
check "a format that there is not: which there are" has err "v3, v3.1, r1 or v3.2"

if has_terminal; then
  printf '/think\n/think on\nHello\n/exit\n' >typed
  input=typed on_terminal "$dsv32 chat -m v3.gguf --no-cache --no-save --no-history --temp 0 -n 2"
  check "a chat with V3" test "$code" = 0
  check "a chat with V3: does not think" has out "thinking is off"
  check "a chat with V3: cannot" has out "the chat format v3 has no thinking"
else
  skip_checks 3 "there is no terminal"
fi
