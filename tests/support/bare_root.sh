# A bare Debian to try things in. Sourced by a bash script that is root, on a machine with debootstrap, unshare and Debian's
# servers. $root is the folder that make_root fills; nothing of it is mounted once a command inside has ended, so `rm -rf` is safe.

# make_root SUITE [PACKAGE,...]: the smallest Debian of that name, with these packages, under $root.
make_root() {
  debootstrap --variant=minbase ${2:+--include="$2"} "$1" "$root" && cp /etc/resolv.conf "$root/etc/" &&
    echo "127.0.0.1 localhost $(hostname)" >"$root/etc/hosts" && inside apt-get update
}

# inside COMMAND...: root runs it there, with devices and processes of its own; what it leaves running is ended. The shell
# stays as their first process, since it takes those that have ended from the list; most programs do not.
inside() {
  # shellcheck disable=SC2016 # the inner shell expands it
  unshare --mount --pid --fork --kill-child sh -c 'root=$1 && shift && mount --rbind /dev "$root/dev" &&
      mount -t proc proc "$root/proc" && mount -t sysfs sysfs "$root/sys" &&
      chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; exit $?' \
    _ "$root" "$@"
}

# add_user NAME: someone who may become root, as on most people's machines.
add_user() { inside useradd --create-home --shell /bin/bash "$1" && echo "$1 ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$1"; }

# as_user NAME COMMAND...: that user runs it, in the home folder.
as_user() { inside runuser --login "$1" --command='"$0" "$@"' -- "${@:2}"; }
