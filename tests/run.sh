#!/usr/bin/env bash
# tests/run.sh BUILD_DIR: every test that needs no GPU, and one line that adds them up.
#
# Each suite ends with a line "tally: PASSED FAILED SKIPPED". A suite without one has crashed: one failure. Its lines
# "skipped: COUNT REASON" are kept for the end.
set -u
build=$(realpath "${1:?usage: tests/run.sh BUILD_DIR}")
cd "$(dirname "$0")/.." || exit 1
notes=$(mktemp -d)  # of each suite its tally and its reasons
trap 'rm -rf "$notes"' EXIT
passed=0 failed=0 skipped=0

suite() {  # NAME COMMAND...: what it says, at once, but for its tally and its reasons; its exit code is kept
  local line
  echo "$1:"
  "${@:2}" 2>&1 | while IFS= read -r line || [ -n "$line" ]; do
    case $line in
      "tally: "*) echo "${line#tally: }" >"$notes/$1.tally" ;;
      "skipped: "[0-9]*) echo "${line#skipped: }" >>"$notes/$1.reasons" ;;
      *) printf '%s\n' "$line" ;;
    esac
  done
  echo "${PIPESTATUS[0]}" >"$notes/$1.status"
}

add_up() {  # NAME
  local name=$1 status p f s
  status=$(cat "$notes/$name.status" 2>/dev/null)
  if ! read -r p f s < <(tail -n 1 "$notes/$name.tally" 2>/dev/null); then
    echo "FAILED $name: no tally, exit code $status"
    p=0 f=1 s=0
  elif [ "$status" != 0 ] && ((f == 0)); then  # leaks and the like are told by the exit code alone
    echo "FAILED $name: exit code $status after a tally without failures"
    f=1
  fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

export CUDA_VISIBLE_DEVICES=  # what is tested here is the CPU, also on a machine with a GPU

# Of a build with sanitizers.
export LSAN_OPTIONS="suppressions=$PWD/tests/support/leaks_of_others.txt:print_suppressions=0"

# Two cores have three things to do, because many tests wait for files and programs: these are by themselves. With sanitizers
# models compute for minutes, and race tests have a sanitizer of their own. A suite that is named runs its disabled tests too,
# unless they are named as not to be run.
models=constrained_answers,constrained_calls,demo_model,engine_places,equalities,forward,link_share_of_host_experts,loop,mixed_types,roles_in_the_cache,stages
waiting='chat_*,many_requests,model_digest,prefix_*,warm*'
of_suites() { suite "$1" "$build/unit_tests" --run_test="$2" --run_test='!@eval' --run_test='!@long'; }
suites=(unit_tests unit_tests_that_wait unit_tests_of_models test_cli)
has_race_tests() { [ "$(basename "$build")" != san ]; }
has_race_tests && suites+=(race_tests)
suite test_cli tests/test_cli.sh "$build/dsv32" &
{
  has_race_tests && suite race_tests build/races/race_tests
  of_suites unit_tests_that_wait "$waiting"
  of_suites unit_tests_of_models "$models"
} &
suite unit_tests "$build/unit_tests" --run_test="!$models,$waiting"
wait
for name in "${suites[@]}"; do add_up "$name"; done
cat "$notes"/*.reasons 2>/dev/null | awk '{ n = $1; sub(/^[0-9]+ /, ""); of[$0] += n } END { for (reason in of) print "skipped " of[reason] ": " reason }' | sort
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
