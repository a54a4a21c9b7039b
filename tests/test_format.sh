#!/bin/sh
# test_format.sh - the C, C++ and CUDA files are formatted as `make fmt` does it.
. "$(dirname "$0")/tap.sh"
cd "$root" || exit 1
formatter=build/tools/bin/clang-format

formatted()
{
    git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | xargs "$formatter" --dry-run 2>&1 \
        | sed -n 's/:[0-9]*:[0-9]*: .*/ needs make fmt/p' | sort -u >"$scratch/unformatted"
    is_empty "$scratch/unformatted"
}

if [ ! -x "$formatter" ]; then
    skip "C files are formatted" "$formatter is missing: make test and make fmt install it"
elif ! git rev-parse --git-dir >/dev/null 2>&1; then
    skip "C files are formatted" "not a git checkout, so the list of files is unknown"
else
    check "C files are formatted" formatted
fi
finish
