#!/usr/bin/env bash
# tests/run.sh BUILD_DIR: every test that needs no GPU, and one line that adds them up.
#
# Each suite ends with a line "tally: PASSED FAILED SKIPPED". A suite without one has crashed: one failure.
set -u
build=$(realpath "${1:?usage: tests/run.sh BUILD_DIR}")
cd "$(dirname "$0")/.." || exit 1
tally=$(mktemp)
trap 'rm -f "$tally"' EXIT
passed=0 failed=0 skipped=0

suite() {  # NAME COMMAND...
  local name=$1 status p f s
  shift
  : >"$tally"
  "$@" | awk -v tally="$tally" '
    /^tally: [0-9]+ [0-9]+ [0-9]+$/ { print $2, $3, $4 > tally; next }
    { print; fflush() }'
  status=${PIPESTATUS[0]}
  if ! read -r p f s < <(tail -n 1 "$tally"); then
    echo "FAILED $name: no tally, exit code $status"
    p=0 f=1 s=0
  elif ((status != 0 && f == 0)); then  # leaks and the like are told by the exit code alone
    echo "FAILED $name: exit code $status after a tally without failures"
    f=1
  fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

export CUDA_VISIBLE_DEVICES=  # what is tested here is the CPU, also on a machine with a GPU

# Of a build with sanitizers.
export LSAN_OPTIONS="suppressions=$PWD/tests/support/leaks_of_others.txt:print_suppressions=0"

suite unit_tests "$build/unit_tests"
suite race_tests build/races/race_tests
suite test_cli tests/test_cli.sh "$build/dsv32"
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
