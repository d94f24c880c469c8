# Drafts: the flag, answers with and without them, what is told of guesses, benches. Sourced by test_cli.sh. The models have
# random weights, so that some guesses are wrong.
block=$tests/golden/draft_shared.gguf blockless=$tests/golden/forward_small.gguf
drafting=(--backend cpu --no-think --seed 3 -n 60 --no-cache)

# --- the same answer, and what is told ---
expect "no drafts" 0 run -m "$block" "${drafting[@]}" --warm never --draft off -v hello
check "no drafts: nothing told of guesses" lacks err "guesses:"
mv out undrafted
for n in auto 1 2 3; do
  expect "--draft $n" 0 run -m "$block" "${drafting[@]}" --warm never --draft $n -v hello
  check "--draft $n: the same answer" same out undrafted
  check "--draft $n: the guesses" grep -aqE '^guesses: [0-9]+ of [0-9]+ right \([0-9]+ %\)$' err
done
expect "drafts are the default" 0 run -m "$block" "${drafting[@]}" --warm never -v hello
check "drafts are the default: the guesses" has err "guesses: "

expect "drafts as JSON" 0 run -m "$block" "${drafting[@]}" --warm never --draft 2 --json hello
check "drafts as JSON: usage" grep -aqE '"accepted_prediction_tokens":[0-9]+,"rejected_prediction_tokens":[1-9]' out
expect "no drafts as JSON" 0 run -m "$block" "${drafting[@]}" --warm never --draft 0 --json hello
check "no drafts as JSON: nothing in usage" lacks out "prediction_tokens"

echo '{"prompt":"hello"}' >asked.jsonl
expect "drafts in a batch" 0 batch asked.jsonl -o - -m "$block" --backend cpu -n 60 --no-cache --draft 1 -v
check "drafts in a batch: usage" has out '"rejected_prediction_tokens":'
check "drafts in a batch: the guesses" has err "guesses: "
drafts_in_a_chat() {
  printf '%s\n' hello /stats >typed
  input=typed on_terminal "'$dsv32' chat -m '$block' ${drafting[*]} -c 512 --no-save --no-history --draft 3"
  check "drafts in a chat: /stats" grep -aqE 'guesses: [0-9]+ of [0-9]+ right' out
}
if has_terminal; then drafts_in_a_chat; else skip drafts_in_a_chat "there is no terminal"; fi

# --- a model without a block ---
expect "auto without a block" 0 run -m "$blockless" "${drafting[@]}" --warm never -v hello
check "auto without a block: no guesses" lacks err "guesses:"
expect "JSON without a block" 0 run -m "$blockless" "${drafting[@]}" --warm never --json hello
check "JSON without a block: nothing in usage" lacks out "prediction_tokens"
usage_error_with_hint "a number without a block" run -m "$blockless" "${drafting[@]}" --warm never --draft 2 hello
check "a number without a block: why" has err "--draft is 2, but the model has no block for drafts"
usage_error_with_hint "bench: a number without a block" bench -m "$blockless" --backend cpu --contexts 64 --draft 1

# --- a warm process ---
expect "a warm process drafts" 0 warm start -m "$block" --backend cpu --no-cache --draft 2
expect "a warm process drafts: asked" 0 run -m "$block" "${drafting[@]}" --warm only --draft 2 hello
check "a warm process drafts: the same answer" same out undrafted
expect "a warm process drafts: as JSON" 0 run -m "$block" "${drafting[@]}" --warm only --draft 2 --json hello
check "a warm process drafts: usage" grep -aqE '"accepted_prediction_tokens":[0-9]+,"rejected_prediction_tokens":[1-9]' out
expect "a warm process is another's with another number" 1 run -m "$block" "${drafting[@]}" --warm only hello
expect "a warm process drafts: ends" 0 warm stop

# --- benches ---
bench=(bench -m "$block" --backend cpu --contexts 128 --chunk 64 --decode 24)
expect "bench: all right" 0 "${bench[@]}" --draft 2 --accept 1
check "bench: all right: said so" grep -aqE '^ +guesses: ([0-9]+) of \1 right \(100 %\), [12]\.[0-9]+ tokens a step' out
expect "bench: all wrong" 0 "${bench[@]}" --draft 2 --accept 0
check "bench: all wrong: said so" grep -aqE '^ +guesses: 0 of [0-9]+ right \(0 %\), 1\.00 tokens a step' out
expect "bench: auto" 0 "${bench[@]}" --draft auto --accept 0.85,0.7 --json
check "bench: auto: its speed" has out '"decode_tokens_per_second":'
expect "bench: no drafts" 0 "${bench[@]}" --json
check "bench: no drafts: no guesses" lacks out '"guesses"'
expect "bench: drafts of several" 0 bench -m "$block" --backend cpu --contexts 600 --chunk 64 --decode 8 --sequences 2 \
  --topk-buffer 128 --draft 2 --accept 0.5 --json
check "bench: drafts of several: some are right" grep -aq '"accepted":[1-9]' out
