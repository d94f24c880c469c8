# How a command ends that is killed, or whose weights are damaged: what is on standard output, and the one line beside it.

ended_by() { [[ $(grep -ac "ended by" err) == 1 ]] && grep -aqx "dsv32: ended by SIG$1" err; }
# begin ARGS...: the program in the background, hearing SIGHUP, with its input from $input.
begin() { : >out; : >err; env --default-signal=HUP "$dsv32" "$@" <"${input:-/dev/null}" >out 2>err & pid=$!; }
kill_and_wait() {
  kill "-$1" $pid
  wait $pid
  code=$?
}
mkfifo never_closed
exec 7<>never_closed
long_prompt=(-c 16000 --chunk 16000 --no-cache -n 4 "$(seq -s ' ' 1 2800)")
for signal in INT TERM HUP; do
  wanted=$((128 + $(kill -l $signal)))
  for form in "" "--json" "--json --stream"; do
    name="SIG$signal ${form:-without --json}"
    # shellcheck disable=SC2086
    input=never_closed begin run "${m[@]}" $form hi
    check "$name: who waits for standard input says so" await has err "reading standard input"
    kill_and_wait $signal
    check "$name, before the model is there: exit code" test $code = $wanted
    check "$name, before the model is there: nothing on standard output" empty out
    check "$name, before the model is there: said" ended_by $signal

    # shellcheck disable=SC2086
    begin run "${m[@]}" $form -v "${long_prompt[@]}"
    check "$name, in the prompt: the model is there" await has err "context: "
    kill_and_wait $signal
    check "$name, in the prompt: exit code" test $code = $wanted
    check "$name, in the prompt: nothing on standard output" empty out
    check "$name, in the prompt: said" ended_by $signal

    [[ $form == --json ]] && continue  # nobody sees when its answer begins
    # shellcheck disable=SC2086
    begin run "${m[@]}" $form -q --seed 7 --temp 0 --no-think hello
    check "$name, in the answer: it is there" await test -s out
    kill_and_wait $signal
    check "$name, in the answer: exit code" test $code = $wanted
    check "$name, in the answer: what was said ends its line" ends_line out
    check "$name, in the answer: said" ended_by $signal
    [[ -z $form ]] || check "$name, in the answer: its last object" grep -aqF '"finish_reason":"interrupted"' <(tail -n 1 out)
  done
done
exec 7>&-

# A norm's first weight is no number.
run_ inspect model "${m[@]}" --json
at=$(grep -ao '"name":"output_norm.weight"[^}]*' out | grep -o '"offset":[0-9]*' | tr -dc 0-9)
cp "$model" nan.gguf
printf '\x00\x00\xc0\x7f' | dd of=nan.gguf bs=1 seek="$at" conv=notrunc status=none
expect "run with damaged weights" 3 run -m nan.gguf --no-think -n 2 hi
check "run with damaged weights: says so" has err "hint: the weights in the file are damaged"
