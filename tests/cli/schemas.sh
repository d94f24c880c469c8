# Answers that are JSON: what a schema may be given as, what is refused before a model is opened, and answers that are cut.
person='{"type":"object","properties":{"name":{"type":"string","minLength":40}},"required":["name"]}'
echo "$person" >person.json
quiet=("${m[@]}" --no-cache --no-think --seed 7 -c 256 --warm never)

# --- refused ---
for bad in "--schema {" "--schema 7,x.y" "--schema {\"uniqueItems\":true}" "--schema true --stop x" \
  "--schema true --thinking stdout" "--schema - -f -" "--schema person.json --stop x"; do
  # shellcheck disable=SC2086
  usage_error "run $bad" run -m absent.gguf $bad hi
done
usage_error "batch: the requests and the schema are standard input" batch -m absent.gguf --schema - - -o -
expect "schema: no such file" 2 run -m absent.gguf --schema absent.json hi
check "schema: no such file: the short form in the hint" has err "hint: the short form"
mkdir -p "$XDG_CONFIG_HOME/dsv32"
echo "--schema=person.json" >"$XDG_CONFIG_HOME/dsv32/config"
usage_error "a schema is no setting" run "${quiet[@]}" hi
rm -r "$XDG_CONFIG_HOME/dsv32"

# --- whole, or told as cut ---
expect "a document that -n cuts" 6 run "${quiet[@]}" --schema person.json -n 5 hi
check "a document that -n cuts: says so" test "$(cat err)" = "dsv32: the answer is cut: the 5 tokens of -n are used up"
input=person.json expect "the schema is standard input" 6 run "${quiet[@]}" --schema - -n 5 hi
check "the schema is standard input: it is no part of the prompt" has err "the answer is cut"
expect "a document that -n cuts, of lines" 6 run "${quiet[@]}" --schema "$person" -n 5 --lines -f <(printf 'one\ntwo\n')
check "a document that -n cuts, of lines: says so of each" test "$(grep -c '^note: .*: the answer is cut$' err)" = 2
expect "a document that -n cuts, of lines, as JSON" 0 run "${quiet[@]}" --schema "$person" -n 5 --lines --json -f <(printf 'one\ntwo\n')
check "a document that -n cuts, of lines, as JSON: says so of each" test "$(grep -c '"finish_reason":"length"' out)" = 2
expect "a schema and -n 0" 0 run "${quiet[@]}" --schema "$person" -n 0 hi

# --- lines of a batch ---
{
  echo '{"custom_id":"cut","prompt":"hi","max_tokens":5,"response_format":{"type":"json_schema","json_schema":{"schema":'"$person"'}}}'
  echo '{"custom_id":"text","prompt":"hi","max_tokens":5,"response_format":{"type":"text"}}'
  echo '{"custom_id":"plain","prompt":"hi","max_tokens":5}'
  echo '{"custom_id":"refused","prompt":"hi","response_format":{"type":"json_schema","json_schema":{"schema":{"uniqueItems":true}}}}'
} >asked.jsonl
expect "batch: schemas" 5 batch "${quiet[@]}" asked.jsonl -o answers.jsonl
check "batch: schemas: a cut document is told as cut" grep -q '"custom_id":"cut".*"finish_reason":"length"' answers.jsonl
check "batch: schemas: one that is not supported is that line's error" grep -q '"custom_id":"refused".*"status_code":400.*uniqueItems' answers.jsonl
answer_of() { grep "\"custom_id\":\"$1\"" answers.jsonl | grep -o '"message":{[^}]*}'; }
check "batch: schemas: text is text" test -n "$(answer_of text)"
