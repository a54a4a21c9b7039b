#!/bin/sh
# bootstrap.sh build|python|test|arm64 - installs the tools that are missing, by apt-get; does nothing when all are there.
# Each word includes the ones before it. Without apt-get, or the right to use it, it says what is missing and fails; only
# what the tests can do without, those for 64-bit Arm, may be missing.
#
# arm64 makes Debian's arm64 a foreign architecture of this machine and installs a few of its libraries.
set -eu

case ${1-} in
build) level=1 ;;
python) level=2 ;;
test) level=3 ;;
arm64) level=4 ;;
*)
    echo "usage: scripts/bootstrap.sh build|python|test|arm64" >&2
    exit 2
    ;;
esac

packages=
wishes=
reasons=

# need PACKAGE "REASON" COMMAND...: the Debian package is missing unless the command succeeds. The command looks for the
# thing itself, so that a tool from elsewhere is as good. wish: the same for what one can do without.
need()
{
    name=$1
    reason=$2
    shift 2
    "$@" >/dev/null 2>&1 && return
    packages="$packages $name"
    reasons="$reasons    $name: $reason
"
}
wish()
{
    name=$1
    reason=$2
    shift 2
    "$@" >/dev/null 2>&1 && return
    wishes="$wishes $name"
    reasons="$reasons    $name: $reason (optional)
"
}

have() { command -v "$1"; }
has_qemu() { have qemu-aarch64-static || have qemu-aarch64; }
has_libc() { echo '#include <stdio.h>' | cc -x c -fsyntax-only -; }
has_venv() { python3 -c 'import venv, ensurepip'; }
has_python_h() { python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'; }

need gcc "compiles the library" have cc
need libc6-dev "the C library's headers" has_libc
need make "runs this Makefile" have make
need cmake "the build, 3.25 or newer" have cmake
need ninja-build "runs the compiler for CMake" have ninja
need pkg-config "finds libraries" have pkg-config
need libcjson-dev "JSON for the mla command" pkg-config --exists libcjson

if [ "$level" -ge 2 ]; then
    need python3 "builds and runs the Python packages and the tests" have python3
    need python3-venv "keeps Python packages that are needed here in build/" has_venv
    need python3-dev "compiles the Python binding" has_python_h
    need binutils "readelf, nm and objdump: the wheel's library name, tests of symbols and instructions" have objdump
fi
if [ "$level" -ge 3 ]; then
    need g++ "tests that the headers also suit C++" have c++
    need libcmocka-dev "the C tests' framework" pkg-config --exists cmocka
    need git "lists the files whose format is checked" have git
    if [ "$(uname -m)" != aarch64 ]; then
        wish gcc-aarch64-linux-gnu "compiles for 64-bit Arm" have aarch64-linux-gnu-gcc
        wish g++-aarch64-linux-gnu "the same, ATB's interface" have aarch64-linux-gnu-g++
        wish libc6-dev-arm64-cross "the C library for it" test -e /usr/aarch64-linux-gnu/include/stdio.h
        wish qemu-user-static "runs what was compiled for it" has_qemu
    fi
fi
if [ "$level" -ge 4 ] && [ "$(uname -m)" != aarch64 ]; then
    lib=/usr/lib/aarch64-linux-gnu
    wish libcmocka-dev:arm64 "C tests on 64-bit Arm" test -e $lib/libcmocka.so
    wish libcjson-dev:arm64 "the mla command there" test -e $lib/libcjson.so
    wish libgomp1:arm64 "OpenMP there, beside the C library that these bring" test -e $lib/libgomp.so.1
    wish libstdc++6:arm64 "the same for C++" test -e $lib/libstdc++.so.6
fi

[ -n "$packages$wishes" ] || exit 0

echo "Missing:"
printf '%s' "$reasons"
if ! have apt-get >/dev/null; then
    echo "There is no apt-get here: please install these (Debian's names) yourself." >&2
    [ -n "$packages" ] && exit 1 || exit 0
elif [ "$(id -u)" -eq 0 ]; then
    as_root=
elif have sudo >/dev/null; then
    as_root="sudo --preserve-env=DEBIAN_FRONTEND"
else
    echo "Installing needs root, and there is no sudo. As root: apt-get install$packages$wishes" >&2
    [ -n "$packages" ] && exit 1 || exit 0
fi

DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
install() { $as_root apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null; }
echo "Installing with apt-get:$packages$wishes"
case $wishes in
*:arm64*) $as_root dpkg --add-architecture arm64 || true ;;
esac
$as_root apt-get update -qq || [ -z "$packages" ]
# shellcheck disable=SC2086 # lists of words
[ -z "$packages" ] || install $packages
# One after the other, so that one that cannot be had keeps no other away; and none may drive out what is installed.
for name in $wishes; do
    install --no-remove "$name" || echo "$name could not be installed; what needs it will be skipped."
done
