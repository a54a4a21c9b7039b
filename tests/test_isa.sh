#!/bin/sh
# test_isa.sh object... - no instruction above its level in any object file, and nothing in an instruction-set folder
# that the linker could put in place of a function compiled for the baseline.
#
# A baseline x86-64 file has no AVX instruction: no mnemonic that begins with a v (save the old verr and verw) and no
# ymm or zmm register. An avx2 file has no AVX-512 one: no zmm, no xmm16..31 or ymm16..31, no mask register.
. "$(dirname "$0")/tap.sh"

if [ "$(uname -m)" != x86_64 ]; then
    skip "instructions stay inside their level" "this check reads x86-64 code"
    finish
fi
if "${CC:-cc}" -dM -E -x c /dev/null | grep -q '__AVX__'; then
    skip "instructions stay inside their level" "this compiler's baseline already includes AVX"
    finish
fi

evex='%zmm|%[xy]mm(1[6-9]|2[0-9]|3[01])|%k[0-7]'
vex="^v([^e]|e[^r])|%ymm|$evex"

: >"$scratch/baseline"
: >"$scratch/avx2"
: >"$scratch/replaceable"
seen=0
for object in "$@"; do
    seen=$((seen + 1))
    objdump -d --no-show-raw-insn "$object" | cut -s -f 2- >"$scratch/code"
    case $object in
    */src/cpu/avx2/*)
        level=avx2
        grep -E -m 3 "$evex" "$scratch/code" | sed "s|^|$object: |" >>"$scratch/avx2"
        ;;
    */src/cpu/avx512/*) level=avx512 ;;
    *)
        level=
        grep -E -m 3 "$vex" "$scratch/code" | sed "s|^|$object: |" >>"$scratch/baseline"
        ;;
    esac
    # The suffix keeps a name from colliding with another level's; weak and common symbols may be merged.
    [ -z "$level" ] || nm --defined-only "$object" \
        | awk -v suffix="_$level\$" '$2 ~ /[WVCuw]/ || ($2 ~ /[A-Z]/ && $3 !~ suffix)' | sed "s|^|$object: |" \
        >>"$scratch/replaceable"
done

check "there are object files to look at" test "$seen" -gt 0
check "baseline code holds no AVX instruction" is_empty "$scratch/baseline"
check "avx2 code holds no AVX-512 instruction" is_empty "$scratch/avx2"
check "a level's files define only strong symbols that end in its name" is_empty "$scratch/replaceable"
finish
