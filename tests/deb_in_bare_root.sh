#!/usr/bin/env bash
# tests/deb_in_bare_root.sh BUILD_DIR: the package in BUILD_DIR is installed in a bare Debian, answers there, and is removed
# without a trace. Needs root, debootstrap and Debian's servers; without the first two it is skipped.
set -u
deb=$(realpath "$(ls "${1:?usage: tests/deb_in_bare_root.sh BUILD_DIR}"/dsv32_*.deb)") || exit 2
cd "$(dirname "$0")/.." || exit 2
n_passed=0 n_failed=0
check() { # NAME COMMAND...
  local name=$1
  shift
  if "$@" >"$work/out" 2>"$work/err"; then n_passed=$((n_passed + 1)); else
    n_failed=$((n_failed + 1))
    echo "FAILED: $name" && tail -n 5 "$work/out" "$work/err"
  fi
}
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
  echo "0 passed, 0 failed, 1 skipped" && exit 0
fi
work=$(mktemp -d) root=$work/root
trap 'rm -rf "$work"' EXIT

. tests/support/bare_root.sh
files() { (cd "$root" && find . -xdev -path ./var -prune -o -path ./tmp -prune -o -print | sort); } # the package manager's own apart
answers() { inside dsv32 run -m /root/demo.gguf --temp 0 -n 8 --no-cache "What is 2 + 2?" && test -s "$work/out"; }

check "a bare root" make_root "$(. /etc/os-release && echo "$VERSION_CODENAME")"
cp models/demo.gguf "$root/root/" && cp "$deb" "$root/tmp/"
inside ldconfig
files >"$work/before"
check "it installs, with its libraries" inside apt-get install -y --no-install-recommends "/tmp/$(basename "$deb")"
check "it runs" inside dsv32 --version
check "it answers" answers
check "manual page" test -s "$root/usr/share/man/man1/dsv32.1.gz"
check "completion" test -s "$root/usr/share/bash-completion/completions/dsv32"
check "its licence" grep -q Permission "$root/usr/share/doc/dsv32/copyright"
check "it is removed, with its libraries" inside apt-get purge -y --autoremove dsv32
inside ldconfig
rm -rf "$root/root/.cache" "$root/root/.local"
files >"$work/after"
check "nothing is left" diff "$work/before" "$work/after"
echo "$n_passed passed, $n_failed failed, 0 skipped"
[ "$n_failed" = 0 ]
