#!/bin/sh
# test_isa.sh object... - no instruction above its level in any object file, and nothing in an instruction-set folder
# that the linker could put in place of a function compiled for the baseline.
#
# A baseline x86-64 file has no AVX instruction: no mnemonic that begins with a v (save the old verr and verw) and no
# ymm or zmm register. An avx2 or avxvnni file has no AVX-512 one: no zmm, no xmm16..31 or ymm16..31, no mask register. An
# avx512 file has no products of bf16, an avx512bf16 one no tiles.
#
# On 64-bit Arm no file has an instruction that came after the first version of the architecture: no register of SVE, no
# dot product, matrix product, multiply-add that widens, arithmetic in 16 bits or single-instruction atomic. A neonbf16
# file has those of bf16 and none of the others.
. "$(dirname "$0")/tap.sh"

case $("${CC:-cc}" -dumpmachine) in
x86_64*)
    tiles='^(tile|tdp|ldtilecfg|sttilecfg)|%tmm'
    bf16="^v(dpbf16|cvtne2?ps2?bf16)|$tiles"
    evex='%zmm|%[xy]mm(1[6-9]|2[0-9]|3[01])|%k[0-7]'
    above_baseline="^v([^e]|e[^r])|%ymm|$evex|$tiles"
    above_avx2=$evex
    if "${CC:-cc}" -dM -E -x c /dev/null | grep -q '__AVX__'; then
        skip "instructions stay inside their level" "this compiler's baseline already includes AVX"
        finish
    fi
    ;;
aarch64*)
    above_neonbf16='[^a-z0-9][zp][0-9]+[./]|^[su]+dot|^([su]+mmla|f[ml]+[as]l|sqrdml|cas|ldadd|ldset|ldclr|swp)'
    above_neonbf16="$above_neonbf16"'|^f[a-z]*[^a-z].*\.[48]h, v[0-9]+\.[48]h, v[0-9]+\.h?'
    above_baseline="$above_neonbf16|^bf"
    ;;
*)
    skip "instructions stay inside their level" "this check knows x86-64 and 64-bit Arm"
    finish
    ;;
esac

: >"$scratch/baseline"
: >"$scratch/avx2"
: >"$scratch/avx512"
: >"$scratch/neonbf16"
: >"$scratch/replaceable"
seen=0
for object in "$@"; do
    seen=$((seen + 1))
    "${OBJDUMP:-objdump}" -d --no-show-raw-insn "$object" | cut -s -f 2- >"$scratch/code"
    case $object in
    */src/cpu/avx2/*)
        level=avx2
        grep -E -m 3 "$above_avx2" "$scratch/code" | sed "s|^|$object: |" >>"$scratch/avx2"
        ;;
    */src/cpu/avxvnni/*)
        level=avxvnni
        grep -E -m 3 "$above_avx2" "$scratch/code" | sed "s|^|$object: |" >>"$scratch/avx2"
        ;;
    */src/cpu/avx512/*)
        level=avx512
        grep -E -m 3 "$bf16" "$scratch/code" | sed "s|^|$object: |" >>"$scratch/avx512"
        ;;
    */src/cpu/avx512bf16/*)
        level=avx512bf16
        grep -E -m 3 "$tiles" "$scratch/code" | sed "s|^|$object: |" >>"$scratch/avx512"
        ;;
    */src/cpu/amx/*) level=amx ;;
    */src/cpu/neon/*) level=neon ;;
    */src/cpu/neonbf16/*)
        level=neonbf16
        grep -E -m 3 "$above_neonbf16" "$scratch/code" | sed "s|^|$object: |" >>"$scratch/neonbf16"
        ;;
    *) level= ;;
    esac
    case $level in
    "" | neon) grep -E -m 3 "$above_baseline" "$scratch/code" | sed "s|^|$object: |" >>"$scratch/baseline" ;;
    esac
    # The suffix keeps a name from colliding with another level's; weak and common symbols may be merged.
    [ -z "$level" ] || "${NM:-nm}" --defined-only "$object" \
        | awk -v suffix="_$level\$" '$2 ~ /[WVCuw]/ || ($2 ~ /[A-Z]/ && $3 !~ suffix)' | sed "s|^|$object: |" \
        >>"$scratch/replaceable"
done

check "there are object files to look at" test "$seen" -gt 0
check "baseline code holds no instruction above the baseline" is_empty "$scratch/baseline"
check "avx2 and avxvnni code holds no AVX-512 instruction" is_empty "$scratch/avx2"
check "levels of AVX-512 hold no instruction of a higher one" is_empty "$scratch/avx512"
check "neonbf16 code holds no instruction beside those of bf16" is_empty "$scratch/neonbf16"
check "a level's files define only strong symbols that end in its name" is_empty "$scratch/replaceable"
finish
