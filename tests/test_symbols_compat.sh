#!/bin/sh
# test_symbols_compat.sh libmla_compat.so - what the library of the vendors' names exports, and what it asks of others.
. "$(dirname "$0")/tap.sh"
shared=$1

# Names as in the headers: of atb::CreateContext(atb::Context**) it is CreateContext.
nm -D --defined-only "$shared" | awk '$2 != "A" { sub("@.*", "", $3); print $3 }' | c++filt \
    | sed -E 's/[<(].*//; s/^int //' >"$scratch/qualified"
sed 's/.*:://' "$scratch/qualified" | sort -u >"$scratch/exported"
nm -D -u "$shared" | awk '{ sub("@.*", "", $2); print $2 }' | sort -u >"$scratch/wanted"
find "$root/include/compat" -name '*.h' -exec cat {} + | grep -v '^#define' | tr '\n' ' ' \
    | grep -o 'MLA_COMPAT_API [^;(]*(' | grep -o '[A-Za-z0-9_]*($' | tr -d '(' | sort -u >"$scratch/declared"

comm -23 "$scratch/declared" "$scratch/exported" >"$scratch/missing"
comm -13 "$scratch/declared" "$scratch/exported" >"$scratch/undeclared"
grep -v -E '^(acl|AtbMLA|atb::)' "$scratch/qualified" >"$scratch/foreign"
printing='v?f?printf|v?dprintf|f?puts|f?putc|putchar|fwrite|perror|psignal|syslog|stdout|stderr|errx?|warnx?|error'
ending='abort|exit|_exit|quick_exit|assert_fail|raise|kill|signal|sigaction|longjmp'
grep -E "^(__)?($printing|$ending)(_chk|_unlocked)?\$" "$scratch/wanted" >"$scratch/forbidden"
readelf -d "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' \
    | grep -v -E '^(libmla|libc|libm|libpthread|libstdc\+\+|libgcc_s|libc\+\+(abi)?|ld-linux.*)\.so' >"$scratch/foreign_needed"
soname=$(readelf -d "$shared" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
version() { sed -n "s/^#define MLA_VERSION_$1 //p" "$root/include/mla/mla_version.h"; }
major=$(version MAJOR)
[ "$major" -gt 0 ] && suffix=$major || suffix=0.$(version MINOR)

check "the headers declare functions" test -s "$scratch/declared"
check "libmla_compat.so exports every declared function" is_empty "$scratch/missing"
check "libmla_compat.so exports nothing else" is_empty "$scratch/undeclared"
check "all of it has a vendor's name" is_empty "$scratch/foreign"
check "it uses of libmla what libmla exports" grep -q -E '^mla_' "$scratch/wanted"
check "the library never prints, exits, aborts or touches signals" is_empty "$scratch/forbidden"
check "libmla_compat.so needs only libmla, libc and the C++ run time" is_empty "$scratch/foreign_needed"
check "the soname is libmla_compat.so.$suffix" test "$soname" = "libmla_compat.so.$suffix"
finish
