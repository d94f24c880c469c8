# A model file that is written to in place while it is in use (dd, rsync --inplace, a download that fills a
# preallocated file): the run ends with exit code 3, and nothing stays on the disk of what was computed.

overwritten() { dd if=/dev/zero of=changed.gguf bs=1M seek=6 count=6 conv=notrunc 2>dd; }
until_() { # COMMAND...: at most a minute
  local end=$((SECONDS + 60))
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.1
  done
}
n_stored() { find cache -regextype egrep -regex '.*/[0-9a-f]{32}-[0-9a-f]{32}' 2>/dev/null | wc -l; }
has_stored() { (($(n_stored) > 0)); }
says_changed() { [[ $(wc -l <err) == 1 ]] && has err "changed.gguf has changed since it was opened"; }

cached=(-m changed.gguf --cache-dir cache --no-think --temp 0)
ask=(run "${cached[@]}" --warm never -v -n 4)
for i in $(seq 1200); do echo "Line $i says that the row of token $((i * 7)) is read."; done >long.txt
head -n 40 long.txt >short.txt

# What another process stored of the file as it was stays; what the run stored goes, and is not found.
cp "$demo" changed.gguf
expect "changed model: as it was" 0 "${ask[@]}" -f short.txt "Which?"
stored=$(n_stored)
timeout 120 "$dsv32" run "${cached[@]}" --warm never -q -f long.txt "Which?" </dev/null >out 2>err &
running=$!
until_ eval '(($(n_stored) > stored))'
overwritten
wait "$running"
check "changed model: the run's exit code" test $? = 3
check "changed model: one line" says_changed
check "changed model: nothing that it stored stays" test "$(n_stored)" = "$stored"
cp "$demo" changed.gguf
head -n 80 long.txt >middle.txt
expect "changed model: the intact one" 0 "${ask[@]}" -f middle.txt "Which?"
check "changed model: finds what was computed before the change" grep -aqE '^prompt: .*\([1-9][0-9]* from cache\)' err
mv out cached
expect "changed model: without the cache" 0 run -m changed.gguf --no-cache --no-think --temp 0 --warm never -v -n 4 -f middle.txt "Which?"
check "changed model: the same answer as without the cache" same out cached

# Between two lines of a batch: the first is answered and stays so, the second is not answered at all.
mkfifo lines
timeout 60 "$dsv32" batch "${cached[@]}" --warm never -q -n 4 -o answers lines </dev/null >out 2>err &
running=$!
exec 7>lines
echo '{"custom_id":"before","prompt":"Who?"}' >&7
until_ test -s answers
overwritten
echo '{"custom_id":"after","prompt":"Where?"}' >&7
exec 7>&-
wait "$running"
check "changed model: the batch's exit code" test $? = 3
check "changed model: one line of the batch" says_changed
check "changed model: of the batch the first line is answered" lines answers 1

# Between two requests of a warm process: it ends by itself, its log says why, and who asks then loads the file.
cp "$demo" changed.gguf
expect "changed model: a warm process" 0 warm start "${cached[@]:0:4}"
expect "changed model: it answers" 0 run "${cached[@]}" --warm only -q -n 4 "Who?"
overwritten
has_ended() { ! "$dsv32" warm status >warm.status 2>warm.err; }
check "changed model: the warm process ends" until_ has_ended
check "changed model: its log says why" await grep -aqs "changed.gguf has changed since it was opened" "$XDG_RUNTIME_DIR"/dsv32/*.log
cp "$demo" changed.gguf
expect "changed model: who asks loads the file" 0 run "${cached[@]}" -q -n 4 "Who?"
