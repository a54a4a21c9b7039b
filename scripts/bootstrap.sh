#!/bin/sh
# bootstrap.sh build|python|test - installs the tools that are missing, by apt-get; does nothing when all are there. Each
# word includes the ones before it. Without apt-get, or the right to use it, it says what is missing and fails.
set -eu

case ${1-} in
build) level=1 ;;
python) level=2 ;;
test) level=3 ;;
*)
    echo "usage: scripts/bootstrap.sh build|python|test" >&2
    exit 2
    ;;
esac

packages=
reasons=

# need PACKAGE "REASON" COMMAND...: the Debian package is missing unless the command succeeds. The command looks for the
# thing itself, so that a tool from elsewhere is as good.
need()
{
    package=$1
    reason=$2
    shift 2
    if ! "$@" >/dev/null 2>&1; then
        packages="$packages $package"
        reasons="$reasons    $package: $reason
"
    fi
}

have() { command -v "$1"; }
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
fi

[ -n "$packages" ] || exit 0

echo "Missing:"
printf '%s' "$reasons"
if ! have apt-get >/dev/null; then
    echo "There is no apt-get here: please install these (Debian's names) yourself." >&2
    exit 1
elif [ "$(id -u)" -eq 0 ]; then
    as_root=
elif have sudo >/dev/null; then
    as_root="sudo --preserve-env=DEBIAN_FRONTEND"
else
    echo "Installing needs root, and there is no sudo. As root: apt-get install$packages" >&2
    exit 1
fi

DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
echo "Installing with apt-get:$packages"
$as_root apt-get update -qq
$as_root apt-get install -y -qq --no-install-recommends $packages </dev/null >/dev/null
