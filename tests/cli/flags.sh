# Flags that are given wrongly, or would do nothing, are errors that say what to do.

# hinted NAME HINT ARGS...: a usage error with this hint.
hinted() {
  usage_error_with_hint "$1" "${@:3}"
  check "$1: hint" grep -aqF -- "hint: $2" err
}

# --- a switch has no value, -h stands alone ---
for flag in --think=false --think=true --think=; do hinted "$flag" "--no-think is its opposite" run "${m[@]}" $flag hi; done
hinted "--no-think=false" "--think is its opposite" run "${m[@]}" --no-think=false hi
hinted "--nothink=1" "it stands alone" run "${m[@]}" --nothink=1 hi
usage_error_with_hint "a value that a letter cannot hold" run "${m[@]}" -n-1 hi
check "a value that a letter cannot hold: where it stands" has err "hint: the value of a letter stands in a word of its own"
hinted "--stream=no" "it stands alone, or is left out" run "${m[@]}" --stream=no --json hi
hinted "--capacity=2" "it stands alone" bench --synthetic --capacity=2
for group in -hf -qh -hq; do
  hinted "$group" "a model is a file or a part of its name, -m FILE" run $group user/repo
done
for word in -temp -temp=1 -file -session -no-think; do
  usage_error "$word" run "${m[@]}" $word 1
  check "$word: the long name" has err "did you mean -$(cut -d= -f1 <<<"$word")?"
done
usage_error "a flag as a value" run "${m[@]}" --system --json hi
check "a flag as a value: how it could be one" has err "--system=--json takes it as it stands"
usage_error "a flag as a value, a letter" batch "${m[@]}" in.jsonl -o -q
expect "a flag as a value, glued" 0 inspect tokens "${m[@]}" --system=--json hi
usage_error "a flag twice" run "${m[@]}" --temp 0 --temp 1 hi
check "a flag twice: both values" has err "--temp is given twice, as '0' and as '1'"
usage_error "a flag and its opposite" run "${m[@]}" --think --no-think hi

# --- a text that begins with a hyphen ---
for text in "-5 + 3?" "- an item" "-5" "--- three" "-h is what?" "-n is 5?"; do
  hinted "the text '$text'" "a text that begins with a hyphen stands after --" run "${m[@]}" "$text"
done
expect "a text behind --" 0 inspect tokens "${m[@]}" --no-think -- "-5 + 3?"
check "a text behind --: taken" has out "-5 + 3?"
hinted "a text in place of a command" 'dsv32 run -- "-5 + 3?" asks the model' "-5 + 3?"

# --- flags that do nothing ---
usage_error "--thinking with --json" run "${m[@]}" --json --thinking show hi
usage_error "--cache-dir with --no-cache" run "${m[@]}" --no-cache --cache-dir x hi
usage_error "--parallel for one prompt" run "${m[@]}" --parallel 2 hi
for flag in "--gpus 0" "--gpu-mem 1G" "--split rows" "--split layers" "--cpu-experts 1"; do
  # shellcheck disable=SC2086
  usage_error "$flag on the CPU" run "${m[@]}" --backend cpu $flag hi
  check "$flag on the CPU: said so" has err "${flag%% *} is for GPUs, and --backend is cpu"
done
for command in check "inspect plan" bench; do
  # shellcheck disable=SC2086
  usage_error "--gpus on the CPU, $command" $command "${m[@]}" --backend cpu --gpus 0
done
if ! "$dsv32" version | grep -q cuda; then
  usage_error "--gpus in a build for the CPU" run "${m[@]}" --gpus 0 hi
  check "--gpus in a build for the CPU: what has it" has err "build with CUDA=1"
fi
for flag in "--gpu-mem 1G" "--split rows" "--cpu-experts 1"; do
  # shellcheck disable=SC2086
  usage_error "$flag without GPUs in --on" inspect plan --type Q2_K --on 0+768G $flag
done
usage_error "--split of one GPU" inspect plan --type Q2_K --on 80G+768G --split rows

# At temperature 0 seed and bounds are values of a rule that takes the likeliest token whatever they are: scripts give all.
run_ run "${m[@]}" --no-think --temp 0 -n 8 hi && cp out greedy
for bound in "--seed 7" "--top-k 5" "--top-p 0.5" "--min-p 0.2"; do
  # shellcheck disable=SC2086
  expect "--temp 0 $bound" 0 run "${m[@]}" --no-think --temp 0 -n 8 $bound hi
  check "--temp 0 $bound: the same answer" same out greedy
done

# --- quotes ---
mkdir -p config/dsv32
echo '--system="Be brief."' >config/dsv32/config
XDG_CONFIG_HOME=$PWD/config expect "quotes in settings" 0 inspect tokens "${m[@]}" --no-think hi
check "quotes in settings: dropped" has out "<｜begin▁of▁sentence｜>Be brief.<｜User｜>hi"
expect "a stop text with an escape" 0 run "${m[@]}" --no-think --seed 7 -n 1 --stop '\n' hi
check "a stop text with an escape: what makes a line end" has err "\$'\\n'"
expect "a stop text with a line end" 0 run "${m[@]}" --no-think --seed 7 -n 1 --stop $'\n' hi
check "a stop text with a line end: nothing said" lacks err "note: --stop"
