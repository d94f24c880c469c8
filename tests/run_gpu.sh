#!/usr/bin/env bash
# tests/run_gpu.sh BUILD_DIR: the tests that need an NVIDIA GPU, and one line that adds them up.
#
# Without a GPU every case is skipped and counted so. With SANITIZE=1 the kernels' cases run under the tools of
# compute-sanitizer too, side by side; SANITIZE="memcheck racecheck" takes some of the tools. Each tool counts as one test,
# skipped where it is not installed. Logs and figures go to $OUT, or to BUILD_DIR/gpu_logs.
set -u
build=$(realpath "${1:?usage: tests/run_gpu.sh BUILD_DIR}")
cd "$(dirname "$0")/.." || exit 1
logs=${OUT:-$build/gpu_logs}
mkdir -p "$logs"
rm -f "$logs"/sanitizers.*
passed=0 failed=0 skipped=0

"$build/gpu_tests" --log_level=test_suite 2>&1 | tee "$logs/gpu_tests.log" | grep -vE 'Entering|Leaving'
read -r _ p f s < <(grep -E '^(.*)?tally: [0-9]+ [0-9]+ [0-9]+$' "$logs/gpu_tests.log" | tail -n 1 | sed 's/.*tally/tally/')
if [ -z "${s:-}" ]; then
  echo "FAILED gpu_tests: no tally"
  p=0 f=1 s=0
fi
passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))

# The tools are up to a hundred times slower: cases that only measure ("timing") or do more of what others do ("large") are
# left out, and whole models, but for memcheck one that is tiny; of cases that differ in numbers alone some are. Each suite is a process of its own, and as many run side by
# side as there are cores.
sanitize() {  # TOOL SUITE
  local options=() arguments=(-- brief) log=$logs/$1.$2.log begin=$SECONDS
  case $1 in
    # Kernels whose threads wait at an mbarrier where one lane arrives for its warp, or where copies arrive by themselves.
    # Racecheck reports what passes there as hazards: that of CUDA 13.0 is 2025.3, and the notes of 2025.4, 2026.1 and 2026.3
    # tell of false reports with mbarriers and complete-tx mended. nvjet: cuBLASLt's.
    racecheck) for kernel in score_prefill_kernel mla_hopper_kernel mla_weigh_kernel mla_add_kernel mla_few_add_kernel multiply_pairs_kernel decode_wide_kernel nvjet; do
      options+=(--kernel-name-exclude "kernel_substring=$kernel"); done ;;
    initcheck) arguments+=(uninitialized) ;;  # scratch memory that nobody has filled
  esac
  OMP_NUM_THREADS=2 timeout "${SANITIZE_SECONDS:-480}" compute-sanitizer --tool "$1" --error-exitcode 9 "${options[@]}" \
    "$build/gpu_tests" --run_test="$2:!@timing:!@large" "${arguments[@]}" >"$log" 2>&1
  local code=$?
  echo "$1 $2: exit code $code, $((SECONDS - begin)) s" | tee -a "$logs/sanitizers.log"
  ((code == 0)) || grep -m 5 -A 6 -E '========= [^C]|error: in' "$log"
  return $code
}

if [ -n "${SANITIZE:-}" ]; then
  tools=${SANITIZE/#1/memcheck racecheck initcheck}
  for tool in $tools; do
    if ! command -v compute-sanitizer >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
      skipped=$((skipped + 1))
      continue
    fi
    for suite in $("$build/gpu_tests" --list_content 2>&1 | grep -oE '^gpu_[a-z_]+' | grep -vE '^gpu_(constrained|long_context|memory|demo_model)$'); do
      [ "$suite" != gpu_forward ] || [ "$tool" = memcheck ] || continue
      while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n; done
      sanitize "$tool" "$suite" || echo "$tool" >>"$logs/sanitizers.failed" &
    done
  done
  wait
  for tool in $tools; do
    grep -q "^$tool " "$logs/sanitizers.log" 2>/dev/null || continue
    if grep -qx "$tool" "$logs/sanitizers.failed" 2>/dev/null; then
      failed=$((failed + 1))
    else
      passed=$((passed + 1))
    fi
  done
fi
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
