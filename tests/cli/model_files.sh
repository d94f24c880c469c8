# Where models are found, and what is said of files and homes that are not as they should be. Sourced by test_cli.sh, in a
# folder of its own.

m_answer=(run -q --no-think --temp 0 -n 2 --ctx 64 Hello)

# --- models in folders of folders -------------------------------------------------------------------------
mkdir -p models/Big-GGUF/Q8_0 elsewhere/one
ln -s "$model" models/Big-GGUF/Q8_0/big.gguf
ln -s "$model" models/small.gguf
expect "a model in a folder's folder" 0 "${m_answer[@]}" -m big
cp out first.txt
expect "a model in a folder's folder, by the folder's name" 0 "${m_answer[@]}" -m q8_0
check "a model by its folder's name: the same" same out first.txt
usage_error "a name that none has, with a folder's model told" "${m_answer[@]}" -m absent
check "a name that none has: models of folders are listed" has err "models/Big-GGUF/Q8_0/big.gguf ("
expect "a folder with one model" 0 "${m_answer[@]}" -m models/Big-GGUF
check "a folder with one model: the same" same out first.txt
DSV32_MODEL=models/Big-GGUF expect "a folder with one model, from the environment" 0 "${m_answer[@]}"
usage_error "a folder with several models" "${m_answer[@]}" -m models
check "a folder with several models: which" has err "models/small.gguf ("
usage_error "a folder without a model" "${m_answer[@]}" -m elsewhere
check "a folder without a model: says so" has err "elsewhere is a folder without a model"
rm models/small.gguf
expect "the only model, in a folder's folder" 0 "${m_answer[@]}"
check "the only model: the same" same out first.txt
ln -s . models/loop
expect "links that go round end" 2 "${m_answer[@]}" -m absent
rm -r models elsewhere

# --- homes ------------------------------------------------------------------------------------------------
# at_home HOME ARGS...: with that home and no folder of XDG named.
at_home() {
  local home=$1
  shift
  env -u XDG_STATE_HOME -u XDG_RUNTIME_DIR -u XDG_CACHE_HOME -u XDG_DATA_HOME -u XDG_CONFIG_HOME HOME="$home" \
    timeout 60 "$dsv32" "$@" </dev/null >out 2>err
  code=$?
}
at_home "$PWD/nobody" "${m_answer[@]}" -m "$model"
check "a home that is not there: runs" test $code = 0
check "a home that is not there is not made" test ! -e nobody
for words in "warm start -m $model" "run --warm only -m $model hi" "warm status"; do
  at_home "$PWD/nobody" $words
  check "no folder for sockets: ${words%% -*} fails" test $code = 1
  check "no folder for sockets: ${words%% -*} says so" has err "neither XDG_RUNTIME_DIR nor HOME names a folder for sockets"
done

mkdir home
: >home/.local  # stands in a folder's place, for the superuser too
at_home "$PWD/home" run --no-think --temp 0 -n 2 --ctx 64 --talk a -m "$model" Hello
check "a file in a folder's place: no talk" test $code = 1
check "a file in a folder's place: said so" has err "home/.local: File exists"

# As a user who may not write there, whoever runs this.
unwritable=$(mktemp -d)
chmod 755 "$unwritable"
cp "$dsv32" "$unwritable/dsv32"
cp "$model" "$unwritable/model.gguf"
chmod 644 "$unwritable/model.gguf"
mkdir -m 555 "$unwritable/home"
as_user=(env)
[[ $(id -u) != 0 ]] || as_user=(setpriv --reuid=54321 --regid=54321 --clear-groups)
homes_() {
  in_home=("${as_user[@]}" env -i HOME="$unwritable/home" timeout 60 "$unwritable/dsv32" run --no-think --temp 0 -n 2 --ctx 64 -m "$unwritable/model.gguf")
  "${in_home[@]}" Hello </dev/null >out 2>err
  code=$?
  check "a home that may not be written: runs" test $code = 0
  check "a home that may not be written: the cache's reason" has err "home/.cache/dsv32: Permission denied"
  "${in_home[@]}" --talk a Hello </dev/null >out 2>err
  code=$?
  check "a home that may not be written: no talk" test $code = 1
  check "a home that may not be written: the talk's reason" has err "home/.local: Permission denied"
}
if "${as_user[@]}" true 2>/dev/null; then homes_; else skip homes_; fi
rm -r "$unwritable"
