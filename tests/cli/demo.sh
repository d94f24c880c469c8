# The trained model that comes along, as a person meets it: a fact of one's own, and what its file recommends to draw by.
# Free text has many likely continuations, so that draws differ from seed to seed.
free=(-m "$demo" --no-cache --raw "The" -n 16)

for thinking in --no-think "--thinking hide"; do
  for question in "The cook of the Blue Star is Anna Reed. Who is the cook of the Blue Star?|Anna Reed" \
                  "Zorblex is the capital of Quandria. What is the capital of Quandria?|Zorblex"; do
    # shellcheck disable=SC2086
    expect "a fact of one's own, $thinking" 0 run -m "$demo" --no-cache $thinking "${question%|*}"
    check "a fact of one's own, $thinking: its value" test "$(cat out)" = "${question#*|}"
  done
done

# The example of README.md.
cook='{"type": "object", "properties": {"cook": {"enum": ["Tom Hill", "Anna Reed"]}}, "required": ["cook"], "additionalProperties": false}'
expect "a document" 0 run -m "$demo" --no-cache --thinking hide --schema "$cook" "The cook of the Blue Star is Anna Reed. Who is the cook of the Blue Star?"
check "a document: its value" test "$(tr -d ' ' <out)" = '{"cook":"AnnaReed"}'

expect "as the file recommends" 0 run "${free[@]}" --seed 1 -v
check "as the file recommends: no seed to tell" lacks err "seed:"
mv out recommended
for seed in 2 3; do
  run_ run "${free[@]}" --seed $seed
  check "as the file recommends: nothing is drawn, seed $seed" same out recommended
done
expect "a temperature of one's own" 0 run "${free[@]}" --temp 1.5 --seed 1 -v
check "a temperature of one's own: the seed is told" has err "seed: 1"
check "a temperature of one's own: wins over the file" test "$(cmp out recommended >/dev/null; echo $?)" = 1

echo '{"prompt": "The"}' >asked.jsonl
for seed in 1 2; do
  run_ batch asked.jsonl -o - -m "$demo" --no-cache --raw -n 16 --seed $seed
  grep -o '"text":"[^"]*"\|"content":"[^"]*"' out >answer.$seed
done
check "batch, as the file recommends" test -s answer.1
check "batch, as the file recommends: nothing is drawn" same answer.1 answer.2

mkdir -p "$XDG_CONFIG_HOME/dsv32"
echo "--temp=1.5" >"$XDG_CONFIG_HOME/dsv32/config"
run_ run "${free[@]}" --seed 1
check "a setting wins over the file" test "$(cmp out recommended >/dev/null; echo $?)" = 1
rm -r "$XDG_CONFIG_HOME/dsv32"

expect "a warm process of it" 0 warm start -m "$demo" --no-cache
for seed in 1 2; do
  expect "a warm process, seed $seed" 0 run "${free[@]}" --warm only --seed $seed
  check "a warm process, as the file recommends, seed $seed" same out recommended
done
expect "a warm process, a temperature of one's own" 0 run "${free[@]}" --warm only --temp 1.5 --seed 1
check "a warm process, a temperature of one's own" test "$(cmp out recommended >/dev/null; echo $?)" = 1
expect "a warm process of it ends" 0 warm stop

# As it is asked for by hand: a make above would tell this one its flags, and its variables as variables of the environment.
env -i HOME="$HOME" PATH="$PATH" make -s -n -C "${demo%/models/*}" demo >out 2>err
check "make demo ends with what to try next" test "$(grep -c 'build/dsv32 chat' out)" -ge 1
