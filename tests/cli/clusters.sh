# Batches on a cluster: which shard a process is, signals before time is over, and how long requests go on. Clusters
# themselves: tests/cluster_slurm.sh. Sourced by test_cli.sh, in a folder of its own.
b=(-q -m "$model" -c 256 --no-cache --no-think --temp 0 -n 4)
for i in $(seq 24); do echo "{\"prompt\": \"question $i\"}"; done >asked.jsonl
ids() { cat "$@" | grep -ao '"custom_id":"[0-9]*"' | sort; }
shards_of() {  # ARGS... : as the environment says; what standard error tells
  run_ batch asked.jsonl -o - -m "$model" -c 256 --no-cache --no-think --temp 0 -n 1 "$@"
  grep -a '^shard ' err
}
in_env() { local given; while [[ $1 == *=* ]]; do given+=("$1"); shift; done; (export "${given[@]}"; shards_of "$@"); }

# --- --shard auto -----------------------------------------------------------------------------------------
unset "${!SLURM_@}" "${!PMI_@}" "${!OMPI_@}" JOB_COMPLETION_INDEX
while IFS='|' read -r given flags wanted; do
  # shellcheck disable=SC2086
  check "--shard $flags with $given" test "$(in_env $given --shard $flags)" = "shard $wanted"
done <<'END'
SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=16 SLURM_ARRAY_TASK_MIN=0|auto|3/16, by SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT
SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=4 SLURM_ARRAY_TASK_MIN=1|auto|2/4, by SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT
SLURM_ARRAY_TASK_ID=12 SLURM_ARRAY_TASK_COUNT=4 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_STEP=4|auto|3/4, by SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT
SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=5|auto/16|5/16, by SLURM_ARRAY_TASK_ID
SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=2 SLURM_PROCID=0 SLURM_NTASKS=1|auto|1/2, by SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT
SLURM_PROCID=2 SLURM_NTASKS=3|auto|2/3, by SLURM_PROCID and SLURM_NTASKS
JOB_COMPLETION_INDEX=4|auto/5|4/5, by JOB_COMPLETION_INDEX
PMI_RANK=1 PMI_SIZE=2|auto|1/2, by PMI_RANK and PMI_SIZE
SLURM_PROCID=0 SLURM_NTASKS=2 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8|auto|3/8, by OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE
END
usage_error_with_hint "--shard auto on no cluster" batch "${b[@]}" --shard auto asked.jsonl -o x.out
JOB_COMPLETION_INDEX=4 usage_error_with_hint "--shard auto: Kubernetes says no number" batch "${b[@]}" --shard auto asked.jsonl -o x.out
PMI_RANK=2 PMI_SIZE=2 usage_error "--shard auto: a place that is none" batch "${b[@]}" --shard auto asked.jsonl -o x.out
check "--shard auto: a place that is none: which" has err "it is 2/2, by PMI_RANK"
SLURM_ARRAY_TASK_ID=3 SLURM_PROCID=0 SLURM_NTASKS=1 usage_error_with_hint "--shard auto: an array without a count" batch "${b[@]}" --shard auto asked.jsonl -o x.out
SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_COUNT=4 SLURM_ARRAY_TASK_MIN=1 usage_error "--shard auto: less than the least" batch "${b[@]}" --shard auto asked.jsonl -o x.out
SLURM_ARRAY_TASK_ID=x SLURM_PROCID=0 SLURM_NTASKS=1 usage_error_with_hint "--shard auto: an array's task is no number" batch "${b[@]}" --shard auto asked.jsonl -o x.out
PMI_RANK=x PMI_SIZE=2 usage_error_with_hint "--shard auto: no number" batch "${b[@]}" --shard auto asked.jsonl -o x.out
for bad in auto/ auto/0 auto/x auto/2/3 automatic; do
  PMI_RANK=0 PMI_SIZE=2 run_ batch "${b[@]}" --shard $bad asked.jsonl -o x.out
  check "--shard $bad" test $code = 2
done
check "--shard: no output after wrong use" test ! -e x.out
expect "no shards" 0 batch "${b[@]}" asked.jsonl -o whole.out
check "no shards: quiet" empty err
for i in 1 2 3; do
  SLURM_ARRAY_TASK_ID=$i SLURM_ARRAY_TASK_COUNT=3 SLURM_ARRAY_TASK_MIN=1 expect "shard $i" 0 batch "${b[@]}" --shard auto asked.jsonl -o shard.$i
done
check "shards: each line once" test "$(ids shard.?)" = "$(ids whole.out)"

gnu_parallel() {
  parallel -j 2 --retries 3 "$dsv32" batch "${b[@]}" asked.jsonl -o parallel.{}.out --shard {}/3 ::: 0 1 2 >out 2>err </dev/null
  check "GNU parallel: each line once" test "$(ids parallel.?.out)" = "$(ids whole.out)"
}
if parallel --version 2>&1 </dev/null | grep -q '^GNU parallel'; then gnu_parallel; else skip gnu_parallel "GNU parallel is not installed"; fi

# --- signals, and --drain ---------------------------------------------------------------------------------
echo '{"prompt": "hello", "max_tokens": 1, "temperature": 0, "thinking": false}' >endless.jsonl  # its answer tells that others run
for i in 1 2 3; do echo "{\"prompt\": \"hello $i\", \"temperature\": 0, \"thinking\": false}"; done >>endless.jsonl
endless() {  # OUTPUT ARGS...: in the background, until two requests run that do not end
  "$dsv32" batch -m "$model" -c 16000 --no-cache --parallel 2 endless.jsonl -o "$@" </dev/null >out 2>err &
  pid=$!
  await test -s "$1"
  sleep 0.5  # the place of the first is taken
}
endless used.out
kill -USR1 $pid
check "SIGUSR1 asks for an end" await has err "finishing the 2 that are running"
kill -USR1 $pid
wait $pid
check "a second SIGUSR1 is 138 at once" test $? = 138
check "a second SIGUSR1: said" has err "ended by SIGUSR1"
for signal in USR1 TERM INT; do
  endless drained.$signal --drain 2s
  kill -$signal $pid
  began=$SECONDS
  wait $pid
  check "--drain, SIG$signal: its code" test $? = $((128 + $(kill -l $signal)))
  check "--drain, SIG$signal: in time" test $((SECONDS - began)) -le 20
  check "--drain, SIG$signal: said" has err "the time of --drain is over: 2 running requests are left for a later run"
  check "--drain, SIG$signal: what remains" has err "3 lines remain; the same command goes on"
  check "--drain, SIG$signal: nothing half-written" lines drained.$signal 1
done
sed '2,$s/"thinking": false/"thinking": false, "max_tokens": 4/' endless.jsonl >ending.jsonl
expect "goes on after --drain" 0 batch "${b[@]}" ending.jsonl -o drained.TERM
check "goes on after --drain: all" lines drained.TERM 4
# In order: what is answered behind one that is left is left too.
sed '3s/"thinking": false/"thinking": false, "max_tokens": 1/' endless.jsonl >third.jsonl
"$dsv32" batch -m "$model" -c 16000 --no-cache --parallel 2 third.jsonl -o ordered.out --ordered --drain 2s </dev/null >out 2>err &
pid=$!
await test -s ordered.out
sleep 1.5
kill -USR1 $pid
wait $pid
check "--drain in order: its code" test $? = 138
check "--drain in order: what is written counts" has err "1 line: 1 answered, 0 failed"
check "--drain in order: what remains" has err "3 lines remain; the same command goes on"
check "--drain in order: the first alone is written" lines ordered.out 1
"$dsv32" batch -m "$model" -c 512 --no-cache --no-think --temp 0 -n 100 asked.jsonl -o finished.out --drain 100s --parallel 2 </dev/null >out 2>err &
pid=$!
await test -s finished.out
kill -TERM $pid
wait $pid
check "--drain that is long enough: its code" test $? = 143
check "--drain that is long enough: what was running is written" test "$(wc -l <finished.out)" -ge 2 -a "$(wc -l <finished.out)" -lt 24
check "--drain that is long enough: whole lines" ends_line finished.out
usage_error "--drain without a unit" batch "${b[@]}" --drain 5 asked.jsonl -o x.out
