# Tools: calls as lines and as JSON, results given back, conversations from a file. The model is untrained: what makes it
# call is tool_choice.
tool='{"type":"function","function":{"name":"weather","strict":true,"parameters":{"type":"object","properties":{"unit":{"enum":["C","F"]},"days":{"type":"integer","minimum":1,"maximum":9}},"required":["unit","days"],"additionalProperties":false}}}'
question='{"role":"user","content":"How is the weather?"}'
caller=("${m[@]}" --no-cache --no-think --seed 7 -c 2048 --warm never)
line='^\{"name":"weather","arguments":\{"unit": "[CF]", "days": [1-9]\}\}$'
echo "[$tool]" >tools.json
echo "{\"messages\":[$question],\"tools\":[$tool],\"tool_choice\":\"required\",\"parallel_tool_calls\":false}" >asked.json

# --- refused ---
for bad in "--tools absent.json hi" "--tools [7] hi" "--messages absent.json" "--messages asked.json hi" "--messages asked.json --tools tools.json" \
  "--messages tools.json" "--tools tools.json --schema true hi" "--tools tools.json --stop x hi" "--messages asked.json --schema true"; do
  # shellcheck disable=SC2086
  usage_error "run $bad" run -m absent.gguf $bad
done
echo "{\"messages\":[$question],\"echo\":0}" >more.json
usage_error "a field that --messages does not take" run -m absent.gguf --messages more.json
check "a field that --messages does not take: its name" has err "echo is not supported"

# --- options beside the messages, which win over flags ---
echo "{\"messages\":[$question],\"max_answer\":4,\"temperature\":0,\"seed\":5}" >few.json
expect "options of --messages" 0 run "${caller[@]}" --temp 1 -n 9 --messages few.json
mv out few
expect "options as flags" 0 run "${caller[@]}" --temp 0 -n 4 --messages <(echo "[$question]")
check "options of --messages: as flags" same out few
echo "{\"messages\":[$question],\"max_tokens\":3,\"tools\":[$tool]}" >limited.json
expect "a limit of --messages" 0 run "${caller[@]}" --messages limited.json
check "a limit of --messages: says so" has err "the answer is cut: the 3 tokens of max_tokens are used up"

# --- a call ---
expect "a call" 0 run "${caller[@]}" --messages asked.json
check "a call is a line of JSON" grep -qE "$line" out
check "a call is all there is" lines out 1
mv out call
input=asked.json expect "a conversation from standard input" 0 run "${caller[@]}" --messages -
check "a conversation from standard input: the same" same out call
expect "a call as JSON" 0 run "${caller[@]}" --messages asked.json --json
check "a call as JSON: why it ended" has out '"finish_reason":"tool_calls"'
check "a call as JSON: no text" has out '"content":null'
check "a call as JSON: what the model wrote" has out '"calls_text":"'
check "a call as JSON: the call" grep -qE '"tool_calls":\[\{"id":"call_[0-9a-f]+","type":"function","function":\{"name":"weather","arguments":"\{' out
grep -o '{"role":"assistant".*"calls_text":"[^"]*\(\\"[^"]*\)*"}' out >message
expect "a call in pieces" 0 run "${caller[@]}" --messages asked.json --json --stream
check "a call in pieces: the call" grep -qE '"delta":\{"tool_calls":\[\{"id":"call_[0-9a-f]+","type":"function","function":\{"name":"weather","arguments":"[^}]*\}"\},"index":0\}\]' out
check "a call in pieces: its text is no answer" lacks out '"delta":{"content"'
expect "a call that -n cuts" 6 run "${caller[@]}" --messages asked.json -n 5
check "a call that -n cuts: nothing of it" test -z "$(tr -d '\n' <out)"
check "a call that -n cuts: says so" has err "the answer is cut: the 5 tokens of -n are used up"

# --- its result ---
id=$(grep -o 'call_[0-9a-f]*' message | head -n 1)
echo "{\"messages\":[$question,$(cat message),{\"role\":\"tool\",\"tool_call_id\":\"$id\",\"content\":\"Rain.\"}],\"tools\":[$tool]}" >answered.json
expect "a call's result" 0 run "${caller[@]}" --messages answered.json -n 8
check "a call's result: an answer" test -s out
check "a call's result: text that -n cuts is no cut call" has err "note: the answer is cut"
expect "tools beside the conversation" 0 run "${caller[@]}" --messages <(echo "[$question]") --tools tools.json -n 8

# --- a batch ---
{
  echo "{\"custom_id\":\"call\",\"seed\":7,$(sed 's/^{//' asked.json)"
  echo "{\"custom_id\":\"none\",\"seed\":7,$(sed 's/^{//; s/"tool_choice":"required"/"tool_choice":"none"/; s/}$/,"max_tokens":4}/' asked.json)"
  echo "{\"custom_id\":\"plain\",\"seed\":7,\"messages\":[$question],\"max_tokens\":4}"
  echo "{\"custom_id\":\"answered\",\"seed\":7,\"max_tokens\":4,$(sed 's/^{//' answered.json)"
  echo "{\"custom_id\":\"open\",\"messages\":[$question,$(cat message)]}"
} >asked.jsonl
expect "batch: tools" 5 batch "${caller[@]}" asked.jsonl -o answers.jsonl
said_by() { grep -a "\"custom_id\":\"$1\"" answers.jsonl | grep -o '"message":{.*"finish_reason":"[a-z_]*"'; }
check "batch: tools: a call" grep -q '"finish_reason":"tool_calls"' <(said_by call)
check "batch: tools: the call that run gets" test "$(said_by call | grep -o '"arguments":"[^}]*}')" = "$(grep -o '"arguments":"[^}]*}' message)"
check "batch: tools: none is none" test "$(said_by none)" = "$(said_by plain)" -a -n "$(said_by plain)"
check "batch: tools: a result is answered" test -n "$(said_by answered)"
check "batch: tools: a call without a result is that line's error" grep -q '"custom_id":"open".*"status_code":400.*has no result' answers.jsonl
