#!/bin/sh
# test_aarch64.sh BUILD CMAKE [OPTION...] - builds everything for 64-bit Arm in BUILD, with the options for CMake, and runs
# its tests under qemu-user: the kernels and every family of checks, C tests where cmocka is there for that architecture,
# the command where cJSON is.
#
# What stands in tests/CMakeLists.txt for a cross build is the list; tests/run_all adds up.
. "$(dirname "$0")/tap.sh"

build=$1
cmake=$2
shift 2
what="NEON under qemu"
for tool in aarch64-linux-gnu-gcc aarch64-linux-gnu-g++; do
    if ! command -v $tool >/dev/null; then
        skip "$what" "there is no $tool here (scripts/bootstrap.sh test installs it where it can)"
        finish
    fi
done
if ! command -v qemu-aarch64-static >/dev/null && ! command -v qemu-aarch64 >/dev/null; then
    skip "$what" "there is no qemu-aarch64 here (scripts/bootstrap.sh test installs it where it can)"
    finish
fi

pkgconfig=/usr/lib/aarch64-linux-gnu/pkgconfig
has() { [ -e "$pkgconfig/$1.pc" ] && echo ON || echo OFF; }
cd "$root" || exit 1
if ! "$cmake" --preset aarch64 -B "$build" "$@" -DMLA_BUILD_TESTS="$(has cmocka)" -DMLA_BUILD_CLI="$(has libcjson)" \
    >"$scratch/build.log" 2>&1 \
    || ! "$cmake" --build "$build" >>"$scratch/build.log" 2>&1; then
    check "builds for 64-bit Arm" sh -c "tail -n 40 $scratch/build.log; false"
    finish
fi
tests/run_all "$build"
