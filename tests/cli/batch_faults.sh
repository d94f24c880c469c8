# Faults of a batch: one line never ends it, nothing that changes an answer is passed over, and no answer is lost.
b=("${m[@]}" -c 256 --no-cache --warm never)
of_line() { grep -a "\"custom_id\":\"$2\"" "$1"; }  # FILE ID: its line in a file of answers
status_of() { of_line "$1" "$2" | grep -ao '"status_code":[0-9]*' | tr -dc 0-9; }
said() { of_line "$1" "$2" | grep -ao '"choices":.*"finish_reason"'; }

# --- bounds ---
{
  echo '{"custom_id":"plain","prompt":"Hello","max_tokens":4,"thinking":false,"seed":7}'
  for k in 1000000001 2147483647 -1 0 0.0; do
    echo "{\"custom_id\":\"k$k\",\"prompt\":\"Hello\",\"max_tokens\":4.0,\"thinking\":false,\"seed\":7.0,\"top_k\":$k}"
  done
  echo '{"custom_id":"more","prompt":"Hello","max_tokens":4,"thinking":false,"top_k":2147483648}'
  echo '{"custom_id":"random","prompt":"Hello","max_tokens":4,"thinking":false,"seed":-1}'
  echo '{"custom_id":"last","prompt":"Hello","max_tokens":4,"thinking":false}'
} >bounds.jsonl
expect "batch: bounds" 5 batch "${b[@]}" bounds.jsonl -o bounds.out
check "batch: bounds: a line for each" lines bounds.out 9
for k in 1000000001 2147483647 -1 0 0.0; do
  check "batch: top_k $k is all" test "$(said bounds.out "k$k")" = "$(said bounds.out plain)" -a -n "$(said bounds.out plain)"
done
check "batch: top_k beyond every bound is that line's error" test "$(status_of bounds.out more)" = 400
check "batch: seed -1 is told in the answer" grep -aqE '"custom_id":"random".*"seed":[0-9]+,' bounds.out
check "batch: stderr names the first that failed" has err \
  "1 line failed with status 400, the first is more: line 7: top_k is 2147483648, expected an integer from -1 to 2147483647"
expect "batch: seed -1 is the same line" 5 batch "${b[@]}" bounds.jsonl -o bounds.out
check "batch: seed -1 is the same line: nothing new" lines bounds.out 9
check "batch: stderr tells of failures of before" has err "1 line failed in an earlier run, --retry-failed asks for them again"
expect "run: top-k as a batch has it" 0 run "${b[@]}" --no-think --seed 7 -n 2 --top-k 2147483647 hi
expect "run: top-k -1 is all" 0 run "${b[@]}" --no-think --seed 7 -n 2 --top-k -1 hi
run_ run "${b[@]}" --no-think -n 2 --seed -1 --json hi  # random, so that it may end with its first token
check "run: seed -1 is told" grep -aq '"seed":[0-9]' out
for bad in "--top-k 2147483648" "--top-k -2" "--seed -2" "--temp 101" "--temp nan"; do
  # shellcheck disable=SC2086
  usage_error "run $bad" run "${b[@]}" $bad hi
done
usage_error "batch --seed -1: a rerun would not know its lines" batch "${b[@]}" --seed -1 bounds.jsonl -o x.out

# --- fields ---
hello='"messages":[{"role":"user","content":"Hello"}],"temperature":0'
{
  echo "{\"custom_id\":\"plain\",$hello,\"max_tokens\":6,\"thinking\":false}"
  echo "{\"custom_id\":\"kwargs\",$hello,\"max_tokens\":6,\"chat_template_kwargs\":{\"thinking\":false}}"
  echo "{\"custom_id\":\"enable\",$hello,\"max_tokens\":6,\"enable_thinking\":false}"
  echo "{\"custom_id\":\"budget\",$hello,\"max_tokens\":12,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2}}"
  for field in '"repeat_penalty":1.3' '"guided_json":7' '"grammar":"x"' '"json_schema":7' '"structured_outputs":{"x":1}' \
    '"min_tokens":30' '"ignore_eos":true' '"stop_token_ids":[1]'; do
    echo "{\"custom_id\":\"${field//\"/}\",$hello,\"max_tokens\":6,$field}"
  done | sed 's/"custom_id":"\([a-z_]*\)[^"]*"/"custom_id":"\1"/'
  echo '{"custom_id":"misspelt","messages":[{"role":"user","contents":"Hello"}],"max_tokens":6}'
  printf '%s\n' '{"custom_id":"surrogate","prompt":"a \ud83d b"}' '{"custom_id":"nan","prompt":"a","temperature":NaN}' \
    '{"prompt":"a","temperature":1e400,"custom_id":"large"}'
} >fields.jsonl
expect "batch: fields" 5 batch "${b[@]}" fields.jsonl -o fields.out
check "batch: fields: a line for each" lines fields.out 16
check "batch: a misspelt name is told" has fields.out "messages[0].contents is not supported"
for id in kwargs enable; do
  check "batch: $id: no thinking" test "$(said fields.out $id)" = "$(said fields.out plain)" -a -n "$(said fields.out plain)"
done
check "batch: budget_tokens as --think-max" test "$(of_line fields.out budget | grep -ao '"reasoning_tokens":[0-9]*')" = '"reasoning_tokens":3'
run_ run "${b[@]}" --temp 0 -n 9 --think-max 2 --json Hello
check "batch: budget_tokens: run --think-max says the same" test "$(grep -ao '"reasoning_tokens":[0-9]*' out)" = '"reasoning_tokens":3'
for id in repeat_penalty guided_json grammar json_schema structured_outputs min_tokens ignore_eos stop_token_ids misspelt \
  surrogate nan large; do
  check "batch: $id is refused under its own id" test "$(status_of fields.out $id)" = 400
done
for part in 'stop_token_ids is not supported' 'one half of a character' 'NaN is no number of JSON' "'1e400'"; do
  check "batch: fields: $part" has fields.out "$part"
done

# --- the file of answers ---
for i in $(seq 400); do echo "{\"prompt\":\"What is $i?\",\"max_tokens\":8,\"thinking\":false}"; done >asked.jsonl
has_three() { (($(cat "$1" 2>/dev/null | wc -l) >= 3)); }  # lines
for how in removed replaced moved; do
  mkdir "$how"
  "$dsv32" batch "${b[@]}" asked.jsonl -o "$how/out" </dev/null >out 2>err &
  pid=$!
  await has_three "$how/out"
  case $how in
    removed) rm "$how/out" ;;
    replaced) echo mine >new && mv new "$how/out" ;;
    moved) mv "$how/out" "$how/kept" ;;
  esac
  wait $pid
  check "batch: output $how: exit code 1" test $? = 1
  check "batch: output $how: one line" lines err 1
  check "batch: output $how: it is named" has err "$how/out was removed, moved or replaced"
done
check "batch: output moved: answers are there" test "$(grep -ac '"error":null}$' moved/kept)" -ge 3
check "batch: output replaced: the other file stays" test "$(cat replaced/out)" = mine
mv moved/kept moved/out
head -n 5 asked.jsonl >five.jsonl
expect "batch: goes on with what was kept" 0 batch "${b[@]}" five.jsonl -o moved/out
check "batch: goes on with what was kept: knows it" grep -aqE '\([0-9,]+ before\)' err

echo nonsense >bad.jsonl
run_ batch "${b[@]}" bad.jsonl -o bad.out
echo precious >bad.out.tmp
expect "batch --retry-failed beside a file of the user's" 5 batch "${b[@]}" -q bad.jsonl -o bad.out --retry-failed
check "batch -q: what failed is told" has err "1 line failed with status 400, the first is line 1: invalid JSON at byte 2"
check "batch --retry-failed: that file stays" test "$(cat bad.out.tmp)" = precious
check "batch --retry-failed: nothing else is left" test "$(echo bad.out*)" = "bad.out bad.out.tmp"

# --- inputs that are something else, and errors of several kinds ---
array='[\n {"custom_id":"a","prompt":"x"},\n {"custom_id":"b","prompt":"y"}\n]\n'
printf "$array" >array.json
printf '[{"prompt":"x"}]' >short.json
printf '\n{\n "prompt": "x"\n}\n' >broken.json
for file in array short broken; do
  usage_error_with_hint "batch: $file.json" batch "${b[@]}" $file.json -o none.out
  check "batch: $file.json: what makes lines of it" has err "hint: jq -c "
  check "batch: $file.json: nothing is written" test ! -e none.out
done
expect "batch: an array in a pipe" 2 batch "${b[@]}" <(printf "$array") -o none.out
check "batch: an array in a pipe: nothing is written" empty none.out
printf 'What is a row?\nAnd a key?\n' >text.txt
expect "batch: a text file" 5 batch "${b[@]}" text.txt -o text.out
check "batch: a text file: hint" has err "dsv32 batch --lines takes each line as a prompt"
check "batch: a text file: one kind of error" has err "2 lines failed with status 400, the first is line 1: invalid JSON"
for text in '[INST] hello' '{{name}} is what?' '[ ] milk'; do
  echo "$text" >brackets.txt
  expect "batch: a text that begins with '${text::2}'" 5 batch "${b[@]}" brackets.txt -o "brackets.${text:2:1}.out"
  check "batch: a text that begins with '${text::2}': hint" has err "dsv32 batch --lines takes each line as a prompt"
done
{
  echo '{"prompt":"a","top_k":-5}' && echo '{"prompt":"a","top_k":-7}' && echo '{"prompt":"a","n":2}'
  echo '{"prompt":""}' && echo '{"prompt":"a","seed":"x"}' && echo '{"messages":7}'
} >kinds.jsonl
expect "batch: errors of several kinds" 5 batch "${b[@]}" kinds.jsonl -o kinds.out
check "batch: errors of several kinds: each told" test "$(grep -ac 'failed with status 400, the first is' err)" = 5
check "batch: errors of several kinds: alike together" has err "2 lines failed with status 400, the first is line 1: top_k is -5"

# --- an interruption ---
for i in $(seq 300); do echo "{\"prompt\":\"What is $i?\",\"max_tokens\":8,\"thinking\":false}"; done >asked.jsonl
"$dsv32" batch "${b[@]}" asked.jsonl -o stopped.out </dev/null >out 2>err &
pid=$!
await has_three stopped.out
kill -INT $pid
wait $pid
left=$((300 - $(wc -l <stopped.out)))
check "batch: interrupted: what remains" has err "$left lines remain; the same command goes on"
