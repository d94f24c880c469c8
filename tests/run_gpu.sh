#!/usr/bin/env bash
# tests/run_gpu.sh BUILD_DIR: the tests that need an NVIDIA GPU, and one line that adds them up.
#
# Without a GPU every case is skipped and counted so. With compute-sanitizer on the machine and SANITIZE=1 the kernel tests run
# under it too. Logs and figures go to $OUT, or to BUILD_DIR/gpu_logs.
set -u
build=$(realpath "${1:?usage: tests/run_gpu.sh BUILD_DIR}")
cd "$(dirname "$0")/.." || exit 1
logs=${OUT:-$build/gpu_logs}
mkdir -p "$logs"
passed=0 failed=0 skipped=0

"$build/gpu_tests" --log_level=test_suite 2>&1 | tee "$logs/gpu_tests.log" | grep -vE 'Entering|Leaving'
read -r _ p f s < <(grep -E '^(.*)?tally: [0-9]+ [0-9]+ [0-9]+$' "$logs/gpu_tests.log" | tail -n 1 | sed 's/.*tally/tally/')
if [ -z "${s:-}" ]; then
  echo "FAILED gpu_tests: no tally"
  p=0 f=1 s=0
fi
passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))

if [ -n "${SANITIZE:-}" ]; then
  for tool in memcheck racecheck initcheck; do
    if ! command -v compute-sanitizer >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
      skipped=$((skipped + 1))
    elif compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/gpu_tests" --run_test="!@timing" >"$logs/$tool.log" 2>&1; then
      passed=$((passed + 1))
    else
      echo "FAILED $tool:"; grep -m 5 -A 6 '=========' "$logs/$tool.log"
      failed=$((failed + 1))
    fi
  done
fi
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
