#!/bin/sh
# packaging/make_deb.sh BUILD_DIR: a Debian package of what was built, BUILD_DIR/dsv32_VERSION_ARCH.deb.
#
# It depends on the packages that hold the shared libraries the program names, as they are here.
set -eu
build=$1
root=$build/deb
rm -rf "$root" "$build"/dsv32_*.deb
make --no-print-directory install BUILD="$build" DESTDIR="$root" PREFIX=/usr
rm "$root/usr/share/doc/dsv32/folders"  # dpkg knows its own

# Packages of the libraries named, and of the C and C++ ones at least these versions.
depends=""
for library in $(objdump -p "$build/dsv32" | awk '/NEEDED/ { print $2 }'); do
    path=$(ldd "$build/dsv32" | awk -v name="$library" '$1 == name { print $3 }')
    [ -n "$path" ] || continue  # the loader itself
    real=$(realpath "$path")
    package=$(dpkg -S "$real" "${real#/usr}" 2>/dev/null | head -n 1 | cut -d: -f1)
    [ -n "$package" ] || { echo "no package holds $path" >&2; exit 1; }
    case "$package" in
        libc6 | libstdc++6) package="$package (>= $(dpkg-query -W -f '${Version}' "$package" | sed 's/-.*//'))" ;;
    esac
    case ", $depends, " in *", $package, "*) ;; *) depends="$depends${depends:+, }$package" ;; esac
done

version=$("$build/dsv32" --version | sed -n '1s/dsv32 \([^ ]*\) (\(.*\))/\1+\2/p' | tr - .)
architecture=$(dpkg --print-architecture)
mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: dsv32
Version: $version
Architecture: $architecture
Maintainer: dsv32 <dsv32@localhost>
Section: science
Priority: optional
Depends: $depends
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Description: runs DeepSeek-V3.2 from a GGUF file
 One program for the terminal and for pipes: run, batch, chat, and what is known of a model and a machine.
CONTROL
dpkg-deb --root-owner-group --build "$root" "$build/dsv32_${version}_$architecture.deb" >/dev/null
rm -rf "$root"
echo "$build/dsv32_${version}_$architecture.deb"
