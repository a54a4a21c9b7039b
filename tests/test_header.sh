#!/bin/sh
# test_header.sh - every public header compiles alone, twice in a row, as C11 and as C++17, without a warning. Those of
# ATB are C++ only.
. "$(dirname "$0")/tap.sh"

strict="-Wall -Wextra -pedantic -Wundef -Werror -fsyntax-only"

compiles() # header, compiler, flags...
{
    header=$1
    shift
    # The typedef: a header of macros alone would leave an empty translation unit, which ISO C forbids.
    printf '#include <%s>\n#include <%s>\ntypedef int not_empty;\n' "$header" "$header" \
        | "$@" $strict -I "$root/include" -I "$root/include/compat" -
}

for header in $(cd "$root/include" && echo mla/*.h) $(cd "$root/include/compat" && find . -name '*.h' | sed 's,^\./,,' | sort); do
    case $header in
    atb/* | opdev/*) ;;
    *) check "$header alone as C11" compiles "$header" "${CC:-cc}" -std=c11 -x c ;;
    esac
    check "$header alone as C++17" compiles "$header" "${CXX:-c++}" -std=c++17 -x c++
done
finish
