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
pc_dir=$(dirname "$(find "$prefix" -name mla.pc)")
PKG_CONFIG_PATH=$pc_dir
LD_LIBRARY_PATH=$(dirname "$pc_dir")
export PKG_CONFIG_PATH LD_LIBRARY_PATH

same_headers() { diff -r "$root/include/mla" "$prefix/include/mla"; }
same_compat_headers() { diff -r "$root/include/compat" "$prefix/include/mla-compat"; }
build_client() # compiler and flags
{
    "$@" -Wall -Wextra -pedantic -Werror "$tests_dir/install/aclnn_client.c" -x none \
        $(pkg-config --cflags --libs mla-compat) -lm -o "$scratch/client"
}
build_atb_client()
{
    "${CXX:-c++}" -std=c++17 -Wall -Wextra -pedantic -Werror "$tests_dir/install/atb_client.cpp" \
        $(pkg-config --cflags --libs mla-compat) -o "$scratch/atb_client"
}
build_ring()
{
    "${CXX:-c++}" -std=c++17 "$root/examples/atb_ring_attention.cpp" $(pkg-config --cflags --libs mla-compat mla) \
        -o "$scratch/atb_ring_attention"
}
build_shared() { "$cc" "$tests_dir/install/consumer.c" $(pkg-config --cflags --libs mla) -o "$scratch/shared"; }
build_static()
{
    # In a copy without the shared library, so that -lmla can only mean the archive.
    cp -r "$prefix" "$scratch/archive" && find "$scratch/archive" -name 'libmla.so*' -delete || return
    export PKG_CONFIG_PATH="$scratch/archive/${pc_dir#"$prefix"}"
    "$cc" "$tests_dir/install/consumer.c" $(pkg-config --static --cflags --libs mla) -o "$scratch/static"
}
needs_library() { readelf -d "$1" | grep -q 'NEEDED.*libmla\.so\.'; }
needs_no_library() { [ -x "$1" ] && ! needs_library "$1"; }
build_example() { "$cc" "$root/examples/$1.c" $(pkg-config --cflags --libs "$2") -lm -o "$scratch/$1"; }
build_cmake()
{
    "$cmake" -S "$tests_dir/install" -B "$scratch/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
        && "$cmake" --build "$scratch/cmake"
}

check "the installed headers are the public ones" same_headers
check "the installed headers of the vendors' names are the public ones" same_compat_headers
check "pkg-config knows the version" test "$(pkg-config --modversion mla)" = \
    "$(sed -n 's/^#define MLA_VERSION_STRING "\(.*\)"$/\1/p' "$root/include/mla/mla_version.h")"
check "a C program builds with cc and pkg-config alone" build_shared
check "that program needs the shared library" needs_library "$scratch/shared"
check "that program runs" "$scratch/shared"
check "the same program builds with pkg-config --static" build_static
check "the static program needs no shared library" needs_no_library "$scratch/static"
check "the static program runs" "$scratch/static"
for example in native flash_mla aclnn_window; do
    [ "$example" = aclnn_window ] && package=mla-compat || package=mla
    check "examples/$example.c builds as its head says" build_example "$example" "$package"
    check "examples/$example.c gets the answer it expects" "$scratch/$example"
done
check "examples/native_cuda.c builds as its head says" build_example native_cuda mla
for language in c c++; do
    [ "$language" = c ] && client_cc="$cc -std=c11" || client_cc="${CXX:-c++} -std=c++17"
    check "a client of aclnn builds as $language with mla-compat alone" build_client $client_cc -x "$language"
    check "the client as $language gets the answer it expects" "$scratch/client"
done
check "a client of AtbMLA builds with mla-compat alone" build_atb_client
check "the client of AtbMLA gets the answers it expects" "$scratch/atb_client"
check "examples/atb_ring_attention.cpp builds as its head says" build_ring
emulated=$build/tests/emulated_cuda # a driver without a GPU, where the build has one, and kernels for it
on_gpu() { MLA_DEVICE=cuda LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$emulated" "$@"; }
check "examples/atb_ring_attention.cpp joins four parts into the whole" "$scratch/atb_ring_attention" \
    "$tests_dir/data/deepseek_decode.safetensors"
if [ -e "$emulated/libcuda.so.1" ] && [ -e "$build/cuda/ascend.fatbin" ]; then
    check "examples/native_cuda.c gets the answer it expects on an emulated GPU" on_gpu "$scratch/native_cuda"
    check "the client of aclnn gets its answer on an emulated GPU" on_gpu "$scratch/client"
    check "the client of AtbMLA gets its answers on an emulated GPU" on_gpu "$scratch/atb_client"
    check "examples/aclnn_window.c gets its answer on an emulated GPU" on_gpu "$scratch/aclnn_window"
    check "examples/atb_ring_attention.cpp joins its parts on an emulated GPU" on_gpu "$scratch/atb_ring_attention" \
        "$tests_dir/data/deepseek_decode.safetensors"
else
    skip "clients on an emulated GPU" "this build has no CUDA kernels, or no emulation"
fi
check "a CMake project finds mla::mla, mla::mla_static and mla::mla_compat" build_cmake
check "the CMake project's program with the shared library runs" "$scratch/cmake/consumer"
check "the CMake project's program with the static library runs" "$scratch/cmake/consumer_static"
check "the CMake project's client of aclnn runs" "$scratch/cmake/aclnn_client"
unset LD_LIBRARY_PATH
if [ -e "$build/mla" ]; then
    check "the installed command finds its library by itself" "$prefix/bin/mla" --version
else
    skip "the installed command finds its library by itself" "this build has no command"
fi
finish
