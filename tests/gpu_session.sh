#!/usr/bin/env bash
# tests/gpu_session.sh RUN_DIR...: everything that a GPU is needed for, in one go. Each RUN_DIR holds gpu_tests and dsv32 of one
# build; both families of kernels belong to a run, CUDA_ARCHS=90 and 80on90, and the last line says which were there and what
# failed. Each test suite is a process of its own (an error in one kernel ends its process), SUITES_AT_ONCE side by side;
# gpu_memory is alone, since it counts what is taken. Then come `check` on models/demo.gguf, memcheck of MEMCHECK's suites if
# there is compute-sanitizer, and the benchmark with BENCH's flags. Logs go to $OUT or to RUN_DIR/logs.
set -u
(($#)) || { echo "usage: tests/gpu_session.sh RUN_DIR..." >&2; exit 2; }
runs=$(realpath "$@")
cd "$(dirname "$0")/.." || exit 1

run_suite() {  # RUN_DIR LOGS SUITE
  local begin=$(date +%s)
  timeout "${SUITE_SECONDS:-120}" "$1/gpu_tests" --run_test="$3" --log_level=error --color_output=no >"$2/$3.log" 2>&1
  local code=$?
  ((code == 0)) || echo "$3 of $(basename "$1")" >>"$failures"
  echo "== $3: exit $code, $(($(date +%s) - begin)) s"
  grep -avE '^(Running|tally|$|\*\*\* No errors)' "$2/$3.log" | cut -c1-400 | head -n "${LINES_OF_LOG:-40}"
}
memcheck() {  # RUN_DIR LOGS SUITE
  timeout "${SUITE_SECONDS:-120}" compute-sanitizer --tool memcheck --error-exitcode 9 "$1/gpu_tests" \
    --run_test="$3:!@timing:!@large" -- brief >"$2/memcheck.$3.log" 2>&1
  local code=$?
  ((code == 0)) || echo "memcheck $3 of $(basename "$1")" >>"$failures"
  echo "== memcheck $3: exit $code; $(grep -a 'ERROR SUMMARY' "$2/memcheck.$3.log")"
}
side_by_side() {  # FUNCTION RUN_DIR LOGS SUITE...
  local function=$1 run=$2 logs=$3
  shift 3
  for suite; do
    while (($(jobs -rp | wc -l) >= ${SUITES_AT_ONCE:-1})); do wait -n; done
    $function "$run" "$logs" "$suite" >"$logs/$function.$suite.said" 2>&1 &
  done
  wait
  for suite; do cat "$logs/$function.$suite.said"; done
}

failures=$(mktemp)
trap 'rm -f "$failures"' EXIT
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
for run in $runs; do
  logs=${OUT:+$OUT/$(basename "$run")}
  logs=${logs:-$run/logs}
  mkdir -p "$logs"
  echo "=== $run"
  [ ! -d "$run/lib" ] || export LD_LIBRARY_PATH=$run/lib
  suites=${SUITES:-$("$run/gpu_tests" --list_content 2>&1 | grep -oE '^[a-z][a-z_]+')}
  side_by_side run_suite "$run" "$logs" $(grep -vx gpu_memory < <(printf '%s\n' $suites))
  if [[ " "$(echo $suites)" " = *" gpu_memory "* ]]; then run_suite "$run" "$logs" gpu_memory; fi
  if [ -e models/demo.gguf ]; then
    "$run/dsv32" check -m models/demo.gguf --backend cuda >"$logs/check.log" 2>&1
    code=$?
    ((code == 0)) || echo "check of $(basename "$run")" >>"$failures"
    echo "== check: exit $code"
    tail -n 5 "$logs/check.log"
  fi
  if command -v compute-sanitizer >/dev/null; then side_by_side memcheck "$run" "$logs" ${MEMCHECK:-}; fi
  [ -z "${BENCH:-}" ] || timeout "${BENCH_SECONDS:-200}" "$run/dsv32" bench --synthetic $BENCH 2>&1 | tee "$logs/bench.log"
done

# "90a", "80on90": what a build says of itself.
archs=$(for run in $runs; do "$run/dsv32" --version | sed -n 's/^backends: .*cuda (\(.*\))/\1/p'; done | tr ' ' '\n')
absent=$(grep -vxF "$archs" <<<"90a"$'\n'"80on90")
echo "builds: $(echo $archs); not run: $(echo ${absent:-none}); failed: $(grep . "$failures" | paste -sd, | grep . || echo none)"
[ -z "$absent" ] && [ ! -s "$failures" ]
