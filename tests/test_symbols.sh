#!/bin/sh
# test_symbols.sh libmla.so libmla.a - what the libraries export, and what they ask of others.
. "$(dirname "$0")/tap.sh"
shared=$1
static=$2

nm -D --defined-only "$shared" | awk '$2 != "A" { sub("@.*", "", $3); print $3 }' | sort -u >"$scratch/exported"
nm -g --defined-only "$static" | awk 'NF == 3 { print $3 }' | sort -u >"$scratch/global"
nm -u "$static" | awk '$1 == "U" { print $2 }' | sort -u >"$scratch/wanted"
# A declaration is MLA_API, a type, a name and a parenthesis; comments and line breaks do not matter.
grep -hv '^#define' "$root"/include/mla/*.h | tr '\n' ' ' | grep -o 'MLA_API [^;(]*(' \
    | grep -o '[a-z0-9_]*($' | tr -d '(' | sort -u >"$scratch/declared"

grep -v -E '^(mla|flash_mla)_' "$scratch/global" >"$scratch/foreign_global"
comm -23 "$scratch/declared" "$scratch/exported" >"$scratch/missing"
comm -13 "$scratch/declared" "$scratch/exported" >"$scratch/undeclared"
printing='v?f?printf|v?dprintf|f?puts|f?putc|putchar|fwrite|perror|psignal|syslog|stdout|stderr|errx?|warnx?|error'
ending='abort|exit|_exit|quick_exit|assert_fail|raise|kill|signal|sigaction|longjmp'
# Fortified names (__printf_chk) and unlocked kin count as the function itself.
grep -E "^(__)?($printing|$ending)(_chk|_unlocked)?\$" "$scratch/wanted" >"$scratch/forbidden"
readelf -d "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' \
    | grep -v -E '^(libc|libm|libgomp|libomp|libpthread|ld-linux.*)\.so' >"$scratch/foreign_needed"
soname=$(readelf -d "$shared" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
version() { sed -n "s/^#define MLA_VERSION_$1 //p" "$root/include/mla/mla_version.h"; }
major=$(version MAJOR)
[ "$major" -gt 0 ] && expected_soname=libmla.so.$major || expected_soname=libmla.so.0.$(version MINOR)

check "the headers declare functions" test -s "$scratch/declared"
check "libmla.so exports every declared function" is_empty "$scratch/missing"
check "libmla.so exports nothing else" is_empty "$scratch/undeclared"
check "libmla.a has no global outside mla_* and flash_mla_*" is_empty "$scratch/foreign_global"
check "the library never prints, exits, aborts or touches signals" is_empty "$scratch/forbidden"
check "libmla.so needs only libc, libm and OpenMP" is_empty "$scratch/foreign_needed"
check "the soname is $expected_soname" test "$soname" = "$expected_soname"
check "the three version numbers and the version string agree" \
    test "\"$major.$(version MINOR).$(version PATCH)\"" = "$(version STRING)"
finish
