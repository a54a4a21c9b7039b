# Toolchain: 64-bit Arm Linux from another machine, with Debian's cross compiler; what is built runs under qemu-user.
# `cmake --preset aarch64` uses it. The libraries that tests and the command need (cmocka, cJSON) are looked for where
# Debian puts those of a foreign architecture; without them the library and checkkernel can be built all the same.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# The run-time libraries are the foreign architecture's, where they are installed (`dpkg --add-architecture arm64`), else
# those that the cross compiler brought. Never a mixture: a loader and a C library of two packages do not fit.
find_program(MLA_QEMU NAMES qemu-aarch64-static qemu-aarch64 DOC "Runs what was built for 64-bit Arm")
if(MLA_QEMU AND EXISTS /lib/ld-linux-aarch64.so.1)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${MLA_QEMU})
elseif(MLA_QEMU)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${MLA_QEMU} -L /usr/aarch64-linux-gnu)
endif()

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig)
