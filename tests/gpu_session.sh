#!/usr/bin/env bash
# tests/gpu_session.sh RUN_DIR: everything that a GPU is needed for, in one go: each test suite in a process of its own (an error
# in one kernel ends its process), then the benchmark. RUN_DIR holds gpu_tests and dsv32. Logs go to $OUT or RUN_DIR/logs.
set -u
run=$(realpath "${1:?usage: tests/gpu_session.sh RUN_DIR}")
cd "$(dirname "$0")/.." || exit 1
logs=${OUT:-$run/logs}
mkdir -p "$logs"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
suites=${SUITES:-$("$run/gpu_tests" --list_content 2>&1 | grep -oE '^[a-z][a-z_]+')}
for suite in $suites; do
  begin=$(date +%s)
  timeout "${SUITE_SECONDS:-120}" "$run/gpu_tests" --run_test="$suite" --log_level=error --color_output=no >"$logs/$suite.log" 2>&1
  echo "== $suite: exit $?, $(($(date +%s) - begin)) s"
  grep -avE '^(Running|tally|$|\*\*\* No errors)' "$logs/$suite.log" | cut -c1-400 | head -n "${LINES_OF_LOG:-40}"
done
[ -z "${BENCH:-}" ] || timeout "${BENCH_SECONDS:-200}" "$run/dsv32" bench --synthetic $BENCH 2>&1 | tee "$logs/bench.log"
