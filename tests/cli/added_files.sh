# A model whose indexer lies in a file of its own: the demo model as deepseek2 without it, and the indexer alone. Sourced by
# test_cli.sh, in a folder of its own.
mkdir main beside
"$(dirname "$dsv32")/make_tiny_model" --split "$demo" main/dense.gguf beside/demo-indexer.gguf
# More tokens than the indexer selects rows.
long="$(head -c 4000 "${demo%/models/*}/prompts/town.txt"). Where is the Golden Cloud bound for?"
asked=(--no-think --temp 0 -n 12 -c 2048 --backend cpu --logprobs 3 --json)
with=(-m main/dense.gguf --with beside/demo-indexer.gguf)
logits() { grep -ao '"logprobs":.*' out | sed 's/"usage".*//'; }

expect "the whole demo model" 0 run -m "$demo" --no-cache "${asked[@]}" "$long"
logits >whole
expect "its two files" 0 run "${with[@]}" --no-cache "${asked[@]}" "$long"
logits >joined
check "its two files: the same log-probabilities" same joined whole
check "its two files: some" test -s whole
check "its two files: no warning" lacks err warning
expect "the file without the indexer" 0 run -m main/dense.gguf --no-cache "${asked[@]}" "$long"
check "the file without the indexer: others" test "$(logits | cmp - whole >/dev/null; echo $?)" = 1
check "the file without the indexer: dense, and no file beside it to name" lacks err "--with"
check "the file without the indexer: says so" has err "no indexer: attention runs dense"

# --- prefixes: of both files ------------------------------------------------------------------------------
cached() { grep -ao '"cached_tokens":[0-9]*' out | tr -dc 0-9; }
for turn in first second; do expect "prefixes, $turn" 0 run "${with[@]}" --cache-dir kept "${asked[@]}" "$long"; done
check "prefixes: found again" test "$(cached)" -gt 64
expect "prefixes of the dense model" 0 run -m main/dense.gguf --cache-dir kept "${asked[@]}" "$long"
check "prefixes of the dense model: its own" test "$(cached)" = 0
cp beside/demo-indexer.gguf other.gguf
printf '\x01' | dd of=other.gguf bs=1 seek=$(($(stat -c %s other.gguf) - 9)) conv=notrunc status=none
expect "prefixes with another indexer" 0 run -m main/dense.gguf --with other.gguf --cache-dir kept "${asked[@]}" "$long"
check "prefixes with another indexer: its own" test "$(cached)" = 0

# --- other commands ---------------------------------------------------------------------------------------
expect "inspect model" 0 inspect model "${with[@]}" --json
check "inspect model: two parts" has out '"parts":2'
check "inspect model: the indexer's keys" has out 'attention.indexer.top_k'
expect "inspect plan" 0 inspect plan "${with[@]}" -c 2048 --backend cpu --json
echo "{\"prompt\": \"$(tr -d '\n"' <<<"$long")\", \"max_tokens\": 8}" >asked.jsonl
expect "batch" 0 batch asked.jsonl -o - "${with[@]}" --no-cache --no-think
expect "bench" 0 bench "${with[@]}" --backend cpu --contexts 300 --decode 2 --chunk 64
expect "check" 0 check "${with[@]}" --backend cpu -c 300
expect "a warm process" 0 warm start "${with[@]}" --no-cache -c 2048 --backend cpu
expect "a warm process: asked, by other paths" 0 run -m "$PWD/main/dense.gguf" --draft-model "$PWD/beside/demo-indexer.gguf" --warm only --no-cache "${asked[@]}" "$long"
logits >joined
check "a warm process: the same log-probabilities" same joined whole
expect "a warm process: not for the dense model" 1 run -m main/dense.gguf --warm only --no-cache "${asked[@]}" "$long"
expect "a warm process: ends" 0 warm stop
mkdir -p "$XDG_CONFIG_HOME/dsv32"
echo "--with=$PWD/beside/demo-indexer.gguf" >"$XDG_CONFIG_HOME/dsv32/config"
expect "a settings line" 0 run -m main/dense.gguf --no-cache "${asked[@]}" "$long"
logits >joined
check "a settings line: the same log-probabilities" same joined whole
rm -r "$XDG_CONFIG_HOME/dsv32"

# --- an indexer beside the model --------------------------------------------------------------------------
mkdir models
cp main/dense.gguf models/v3.2.gguf
cp beside/demo-indexer.gguf models/v3.2-Indexer.gguf
for name in "" v3.2; do
  expect "beside it, -m '$name'" 0 run ${name:+-m $name} --no-cache "${asked[@]}" hello
  check "beside it, -m '$name': named with its flag" has err "; --with models/v3.2-Indexer.gguf adds one"
done
expect "beside it, used" 0 run --with models/v3.2-Indexer.gguf --no-cache "${asked[@]}" hello
check "beside it, used: no warning" lacks err warning

# --- wrong files ------------------------------------------------------------------------------------------
refuses() {  # NAME TEXT ARGS...
  expect "$1" 3 run --no-cache "${asked[@]}" hello "${@:3}"
  check "$1: why" has err "$2"
  check "$1: one line and a hint" lines err 2
}
refuses "an indexer that is there already" "demo.gguf too" -m "$demo" --with beside/demo-indexer.gguf
refuses "an indexer twice" "demo-indexer.gguf too" "${with[@]}" --with other.gguf
refuses "an indexer of another model" "demo-indexer.gguf: " -m "$model" --with beside/demo-indexer.gguf
refuses "an indexer as the model" "holds nothing but an indexer" -m beside/demo-indexer.gguf
expect "an indexer that is missing" 3 run -m main/dense.gguf --with absent.gguf hello
usage_error_with_hint "a plan without a model: nothing to add to" inspect plan --on 2xH200+256G --type Q2_K --with beside/demo-indexer.gguf
