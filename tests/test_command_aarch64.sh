#!/bin/sh
# test_command_aarch64.sh MLA EMULATOR... - the command on 64-bit Arm: what it says of the core, and that it replays a
# capture. The rest of it is in tests/test_cli.py, as on the machine at hand.
. "$(dirname "$0")/tap.sh"

mla=$1
shift
# on "what is said" command argument...
on()
{
    said=$1
    shift
    "$@" >"$scratch/out" 2>&1 && grep "$said" "$scratch/out" || { cat "$scratch/out"; return 1; }
}

check "info: NEON with products of bf16 is in use" on "neonbf16  *in use" "$@" -cpu max "$mla" info
check "info: NEON without is, on a core that has none" on "neon  *in use" "$@" -cpu cortex-a53 "$mla" info
check "info: the core has its name" on "cpu  *Arm Cortex-A53" "$@" -cpu cortex-a53 "$mla" info
check "info: the core's features" on "features  *asimd .*asimddp .*sve2" "$@" -cpu max "$mla" info
check "run --check: the committed capture" on "recorded  *ok" "$@" "$mla" run --check --threads 2 \
    "$root/tests/data/deepseek_decode.safetensors"
finish
