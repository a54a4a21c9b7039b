#!/bin/sh
# test_install.sh build-folder cmake - installs into an empty prefix and uses the result as strangers do: pkg-config
# alone, find_package() from CMake, the command.
. "$(dirname "$0")/tap.sh"
build=$1
cmake=$2
cc=${CC:-cc}
prefix=$scratch/prefix
DESTDIR=
export DESTDIR

check "cmake --install into an empty prefix" "$cmake" --install "$build" --prefix "$prefix"

# A prefix that was moved afterwards must still work.
mv "$prefix" "$scratch/moved"
prefix=$scratch/moved
pc=$(find "$prefix" -name mla.pc)
libdir=$(dirname "$(dirname "$pc")")
PKG_CONFIG_PATH=$(dirname "$pc")
LD_LIBRARY_PATH=$libdir
export PKG_CONFIG_PATH LD_LIBRARY_PATH

same_headers() { diff -r "$root/include/mla" "$prefix/include/mla"; }
build_shared() { "$cc" "$tests_dir/install/consumer.c" $(pkg-config --cflags --libs mla) -o "$scratch/shared"; }
build_static()
{
    # Only the archive is offered, so that -lmla cannot mean the shared library.
    mkdir "$scratch/archive" && cp "$libdir/libmla.a" "$scratch/archive" || return
    "$cc" "$tests_dir/install/consumer.c" $(pkg-config --cflags mla) -L"$scratch/archive" \
        $(pkg-config --static --libs-only-l mla) -o "$scratch/static"
}
uses_shared() { readelf -d "$scratch/shared" | grep -q 'NEEDED.*libmla\.so\.'; }
uses_static() { ! readelf -d "$scratch/static" | grep -q 'NEEDED.*libmla'; }
build_cmake()
{
    "$cmake" -S "$tests_dir/install" -B "$scratch/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
        && "$cmake" --build "$scratch/cmake"
}

check "the installed headers are the public ones" same_headers
check "pkg-config knows the version" test "$(pkg-config --modversion mla)" = \
    "$(sed -n 's/^#define MLA_VERSION_STRING "\(.*\)"$/\1/p' "$root/include/mla/mla_version.h")"
check "a C program builds with cc and pkg-config alone" build_shared
check "it is linked with the shared library" uses_shared
check "it runs" "$scratch/shared"
check "the same program builds with pkg-config --static" build_static
check "it does not need the shared library" uses_static
check "it runs" "$scratch/static"
check "a CMake project finds mla::mla and mla::mla_static" build_cmake
check "its program with the shared library runs" "$scratch/cmake/consumer"
check "its program with the static library runs" "$scratch/cmake/consumer_static"
unset LD_LIBRARY_PATH
if [ -e "$build/mla" ]; then
    check "the installed command finds its library by itself" "$prefix/bin/mla" --version
else
    skip "the installed command finds its library by itself" "this build has no command"
fi
finish
