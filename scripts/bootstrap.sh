#!/bin/sh
# bootstrap.sh build|test - installs the tools that are missing, by apt-get; does nothing when all are there. Without
# apt-get, or without the right to use it, it says what is missing and fails.
set -eu

case ${1-} in
build | test) wanted=$1 ;;
*)
    echo "usage: scripts/bootstrap.sh build|test" >&2
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

if [ "$wanted" = test ]; then
    need g++ "tests that the headers also suit C++" have c++
    need binutils "nm, readelf and objdump: tests of symbols and instructions" have objdump
    need libcmocka-dev "the C tests' framework" pkg-config --exists cmocka
    need python3 "adds up the test counts, runs the Python tests" have python3
    need python3-venv "keeps the Python tests' packages in build/venv" has_venv
    need python3-dev "compiles the Python binding" has_python_h
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
