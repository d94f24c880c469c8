#!/usr/bin/env bash
# tests/cluster_slurm.sh DSV32 [MODEL]: batches on a Slurm of one node, which this script starts and stops: an array, tasks
# that are requeued in mid-run, and the script of docs/batch.md, whose time is over before its lines are answered.
#
# Needs root, and Debian's slurmctld, slurmd, slurm-client and munge; else everything is skipped, and counted so. Prints a
# line for each failure, and "tally: PASSED FAILED SKIPPED" at the end.
set -u
export LC_ALL=C
dsv32=$(realpath "${1:?usage: tests/cluster_slurm.sh DSV32 [MODEL]}")
tests=$(dirname "$(realpath "$0")")
model=$(realpath "${2:-$tests/../models/tiny.gguf}")
n_checks=18
for program in slurmctld slurmd munged sbatch; do
  PATH=$PATH:/usr/sbin command -v $program >/dev/null && [[ $(id -u) == 0 ]] && continue
  echo "skipped: $n_checks $program is missing, or this is not root"
  echo "tally: 0 0 $n_checks"
  exit 0
done
PATH=$PATH:/usr/sbin
work=$(mktemp -d /tmp/slurm.XXXXXX)
chmod 755 "$work" && cd "$work" && mkdir spool state || exit 1
daemons=()
end() {
  scancel --full -u root 2>/dev/null
  sleep 1
  ((${#daemons[@]} == 0)) || kill "${daemons[@]}" 2>/dev/null
  wait 2>/dev/null
  rm -rf "$work"
}
trap end EXIT
passed=0 failed=0
check() {
  local name=$1
  shift
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED $name: $*" && tail -n 4 limit.*.log slurmctld.log 2>/dev/null; fi
}
await() { for _ in $(seq 900); do "$@" && return; sleep 0.1; done; return 1; }

# --- a cluster of one node --------------------------------------------------------------------------------
node=$(hostname -s)
dd if=/dev/urandom of=munge.key bs=1 count=1024 status=none && chmod 400 munge.key
cat >slurm.conf <<END
ClusterName=one
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
KillWait=5
NodeName=$node NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=$node Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
END
export SLURM_CONF=$work/slurm.conf
unset "${!SLURM_ARRAY_@}" SLURM_PROCID SLURM_NTASKS
munged --foreground --force --socket="$work/munge.socket" --key-file="$work/munge.key" --log-file="$work/munged.log" \
  --pid-file="$work/munged.pid" --seed-file="$work/munged.seed" >/dev/null 2>&1 &
daemons+=($!)
await test -S munge.socket
slurmctld -D -f slurm.conf >/dev/null 2>&1 &
daemons+=($!)
slurmd -D -f slurm.conf >/dev/null 2>&1 &
daemons+=($!)
is_up() { [[ $(sinfo -h -o %T 2>/dev/null) == idle ]]; }
check "the cluster is up" await is_up
if ((failed)); then
  tail -n 5 ./*.log
  echo "tally: $passed $failed $((n_checks - 1))"
  exit 1
fi

# --- an array ---------------------------------------------------------------------------------------------
for i in $(seq 80); do echo "{\"prompt\": \"question $i\"}"; done >asked.jsonl
flags=(-m "$model" -c 256 --no-cache --no-think --temp 0 -n 12 -t 1)
"$dsv32" batch "${flags[@]}" asked.jsonl -o whole.jsonl --quiet || exit 1
answers() { cat "$@" | grep -aoE '^.*"custom_id":"[0-9]+"|"content":"([^"\\]|\\.)*"' | sed 's/^{.*"custom/"custom/' | paste - - | sort; }
answers whole.jsonl >whole
# Slurm lets a requeued task wait for two minutes; here it begins after three seconds. In the very second in which it ended,
# slurmd would refuse it: "Job credential revoked".
hasten() {
  local soon
  soon=$(date -d '10 seconds' +%FT%T)
  squeue -r -h -t PD -o '%i %S' | while read -r task start; do
    [[ $start == 2* && $start > $soon ]] && scontrol update JobId="$task" StartTime=now+3
  done
} 2>/dev/null
is_over() { hasten; [[ -z $(squeue -h -o %i 2>/dev/null) ]]; }
cat >job.sh <<END
#!/bin/bash
exec $dsv32 batch ${flags[*]} asked.jsonl -o "\$OUT.\$SLURM_ARRAY_TASK_ID.jsonl" --shard auto --parallel 2
END
OUT=array sbatch -Q --array=1-4 --output=array.%a.log job.sh
check "an array ends" await is_over
check "an array: all lines are answered, as by one run" cmp whole <(answers array.*.jsonl)
check "an array: what it takes is said" grep -q '^shard 3/4, by SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT$' array.4.log

# --- requeue in mid-run -----------------------------------------------------------------------------------
job=$(OUT=again sbatch --parsable --requeue --open-mode=append --array=0-3 --output=again.%a.log job.sh)
has_begun() { [[ -s again.1.jsonl && -s again.2.jsonl ]]; }
check "requeue: answers come" await has_begun
n_before=$(cat again.*.jsonl | wc -l)
for task in 1 2; do scontrol requeue "${job}_$task"; done
check "requeue: in mid-run" test "$n_before" -lt 80
check "requeue: it ends" await is_over
check "requeue: all lines are answered once, as by one run" cmp whole <(answers again.*.jsonl)

# --- time that is over: the script of docs/batch.md -------------------------------------------------------
sed -n '/^    #!\/bin\/bash$/,/^$/s/^    //p' "$tests/../docs/batch.md" >limit.sh
check "the script of docs/batch.md" test "$(wc -l <limit.sh)" -ge 5
sed -i "s|dsv32 batch asked.jsonl|$dsv32 batch ${flags[*]} -n 40 asked.jsonl --parallel 1|; s|-n 12||" limit.sh
sed -i 's/-c 256/-c 512/' limit.sh
# Two tasks; the signal is sent by scancel, as Slurm would send it.
job=$(sbatch --parsable --array=0-1 --time=10 --output=limit.%a.log limit.sh)
are_begun() { [[ -s answers.0.jsonl && -s answers.1.jsonl ]]; }
check "a time limit: answers come" await are_begun
n_before=$(cat answers.*.jsonl | wc -l)
scancel --batch --signal=USR1 "$job"
is_told() { grep -q 'the same command goes on' limit.0.log && grep -q 'the same command goes on' limit.1.log; }
check "a time limit: what remains is said" await is_told
check "a time limit: lines remain" test "$n_before" -lt 80
ran_again() { hasten; [[ $(grep -c '^shard 0/2' limit.0.log) -ge 2 && $(grep -c '^shard 1/2' limit.1.log) -ge 2 ]]; }
check "a time limit: requeued by itself" await ran_again
check "a time limit: it ends" await is_over
check "a time limit: each line is answered once" test "$(grep -aho '"custom_id":"[0-9]*"' answers.*.jsonl | sort -u | wc -l)-$(cat answers.*.jsonl | wc -l)" = 80-80

# --- time that is over by itself, and --drain -------------------------------------------------------------
cat >drain.sh <<END
#!/bin/bash
#SBATCH --time=1 --signal=B:USR1@50
trap 'sleep 5; kill -USR1 \$!' USR1  # the signal may come before the program can take it
$dsv32 batch -m $model -c 16100 -n 16000 --no-cache --no-think --temp 0 -t 1 asked.jsonl -o drained.jsonl --parallel 2 --drain 2s &
wait \$!; code=\$?
while kill -0 \$! 2>/dev/null; do wait \$!; code=\$?; done
echo "code \$code"
END
sbatch -Q --output=drain.log drain.sh
check "a limit of a minute: it ends" await is_over
check "a limit of a minute: --drain" grep -q 'the time of --drain is over' drain.log
check "a limit of a minute: its code" grep -q '^code 138$' drain.log

echo "tally: $passed $failed 0"
((failed == 0))
