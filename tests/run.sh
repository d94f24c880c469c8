#!/usr/bin/env bash
# tests/run.sh BUILD_DIR: every test that needs no GPU, and one line that adds them up.
#
# Each suite ends with a line "tally: PASSED FAILED SKIPPED". A suite without one has crashed: one failure. Its lines
# "skipped: COUNT REASON" are kept for the end.
set -u
build=$(realpath "${1:?usage: tests/run.sh BUILD_DIR}")
cd "$(dirname "$0")/.." || exit 1
tally=$(mktemp) second_tally=$(mktemp) reasons=$(mktemp)
trap 'rm -f "$tally" "$second_tally" "$reasons"' EXIT
passed=0 failed=0 skipped=0

suite() {  # NAME COMMAND...
  echo "$1:"
  run "$tally" "${@:2}"
  add_up "$1" $? "$tally"
}

run() {  # TALLY COMMAND...: what it says, at once, but for the tally, which goes to the file, and reasons
  local line
  : >"$1"
  "${@:2}" 2>&1 | while IFS= read -r line || [ -n "$line" ]; do
    case $line in
      "tally: "*) echo "${line#tally: }" >"$1" ;;
      "skipped: "[0-9]*) echo "${line#skipped: }" >>"$reasons" ;;
      *) printf '%s\n' "$line" ;;
    esac
  done
  return "${PIPESTATUS[0]}"
}

add_up() {  # NAME STATUS TALLY
  local name=$1 status=$2 p f s
  if ! read -r p f s < <(tail -n 1 "$3"); then
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

# With sanitizers models compute for minutes, on one core mostly: their tests beside all others. A suite that is
# named runs its disabled tests too, unless they are named as not to be run.
models=demo_model,engine_places,equalities,forward,link_share_of_host_experts,loop,mixed_types,roles_in_the_cache,stages
if [ "$(basename "$build")" = san ]; then
  run "$second_tally" "$build/unit_tests" --run_test="$models" --run_test='!@eval' --run_test='!@long' &
  run_of_models=$!
  suite "unit_tests but of models" "$build/unit_tests" --run_test="!$models"
  wait $run_of_models
  add_up "unit_tests of models" $? "$second_tally"
else
  suite unit_tests "$build/unit_tests"
fi
suite race_tests build/races/race_tests
suite test_cli tests/test_cli.sh "$build/dsv32"
awk '{ n = $1; sub(/^[0-9]+ /, ""); of[$0] += n } END { for (reason in of) print "skipped " of[reason] ": " reason }' "$reasons" | sort
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
