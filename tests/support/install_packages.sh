#!/bin/sh
# Installs the named Debian packages that are missing; quiet and offline when none is.
set -eu
missing=""
for package in "$@"; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    case "$status" in "install ok installed") ;; *) missing="$missing $package" ;; esac
done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null; then
    echo "missing packages:$missing (no apt-get here: install their equivalents)" >&2
    exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086 # the list is meant to be split
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
