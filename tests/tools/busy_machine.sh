#!/usr/bin/env bash
# tests/tools/busy_machine.sh BINARY [OTHER_BINARY]: what is left of dsv32's speed on two cores that others
# use too: decode and prompt rates of the demo model, idle, beside busy loops, beside a second instance and
# beside a compile of two jobs. With a second binary the two take turns, so that both meet the same machine.
#
# CORES=0,1 names the two cores (the first two that this shell may use by default), ROUNDS=3 the times that
# each is measured; the median counts. Takes about two minutes; other work on these cores falsifies it.
set -um  # -m: what runs beside has process groups of its own, to be ended whole
cd "$(dirname "$0")/../.." || exit 1
(($# == 1 || $# == 2)) || { sed -n '2,7s/^# //p' "$0"; exit 2; }
binaries=("$@")
rounds=${ROUNDS:-3}
model=models/demo.gguf

usable_cores() {  # two numbers of the shell's own list, such as 0-3,8
  taskset -pc $$ | sed 's/.*: //' | tr , '\n' | awk -F- '{ for (i = $1; i <= ($2 == "" ? $1 : $2); ++i) print i }'
}
cores=${CORES:-$(usable_cores | head -n 2 | paste -sd,)}
taskset -pc "$cores" $$ >/dev/null || exit 1

scratch=$(mktemp -d)
beside=()
stop_beside() {
  local pid
  for pid in "${beside[@]}"; do
    kill -- -"$pid"
    wait "$pid"
  done 2>/dev/null
  beside=()
}
trap 'stop_beside; rm -rf "$scratch"' EXIT

busy_loop() { while :; do :; done; }

compile_job() {
  while :; do CCACHE_DISABLE=1 g++ -std=c++20 -O2 -Isrc -DCXXOPTS_NO_REGEX -c src/cli/options/flags.cpp -o /dev/null; done
}

# BINARY -> decode and prompt, tokens a second.
rates() {
  timeout --foreground 60 "$1" bench -m "$model" --backend cpu --contexts 100 --chunk 256 --decode 60 --json 2>/dev/null |
    sed 's/.*"decode_tokens_per_second":\([0-9.e+]*\).*"prefill_tokens_per_second":\([0-9.e+]*\).*/\1 \2/'
}

median() { sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] + 0 }'; }

report() {  # NAME: medians of each binary, and what share they are of the same binary's idle ones
  local name=$1 i decode prompt
  for i in "${!binaries[@]}"; do
    decode=$(awk '{ print $1 }' "$scratch/$name.$i" | median)
    prompt=$(awk '{ print $2 }' "$scratch/$name.$i" | median)
    [[ $name == idle ]] && idle_decode[i]=$decode idle_prompt[i]=$prompt
    awk -v name="$name" -v binary="${binaries[i]}" -v d="$decode" -v p="$prompt" -v id="${idle_decode[i]}" \
      -v ip="${idle_prompt[i]}" 'BEGIN {
        printf "%-14s %8.1f %5.0f%% %9.1f %5.0f%%  %s\n", name, d, id ? 100 * d / id : 0, p, ip ? 100 * p / ip : 0, binary }'
  done
}

measure() {  # NAME, then what runs beside it, each a command of one word
  local name=$1 round i neighbour
  shift
  for ((round = 0; round < rounds; ++round)); do
    for i in "${!binaries[@]}"; do
      for neighbour in "$@"; do
        "$neighbour" &
        beside+=($!)
      done
      rates "${binaries[i]}" >>"$scratch/$name.$i"
      stop_beside
    done
  done
  report "$name"
}

measure_two_at_once() {  # NAME: both instances count
  local name=$1 round i
  for ((round = 0; round < rounds; ++round)); do
    for i in "${!binaries[@]}"; do
      rates "${binaries[i]}" >>"$scratch/$name.$i" &
      rates "${binaries[i]}" >>"$scratch/$name.$i"
      wait
    done
  done
  report "$name"
}

idle_decode=() idle_prompt=()
printf '%-14s %8s %6s %9s %6s  cores %s, %s rounds\n' beside decode idle prompt idle "$cores" "$rounds"
measure idle
measure busy_loop busy_loop
measure busy_loops busy_loop busy_loop
measure_two_at_once itself
measure compile compile_job compile_job
