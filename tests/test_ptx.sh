#!/bin/sh
# test_ptx.sh nvcc "flags" kernel.cu ... - the PTX that the library embeds for GPUs other than Hopper is accepted by the
# assembler for each generation since Turing, as the driver's own would be asked to on such a GPU.
. "$(dirname "$0")/tap.sh"
nvcc=$1
flags=$2
shift 2

assemble() # ptx, architecture
{
    "$nvcc" -cubin -arch="$2" -Werror all-warnings "$1" -o "$scratch/out.cubin"
}

for kernel in "$@"; do
    stem=$(basename "$kernel" .cu)
    ptx=$scratch/$stem.ptx
    # shellcheck disable=SC2086 # flags are several words
    check "$stem.cu becomes PTX for compute capability 7.5" "$nvcc" -ptx -arch=compute_75 $flags "$kernel" -o "$ptx"
    for architecture in sm_75 sm_80 sm_89 sm_90 sm_100 sm_120; do
        check "$stem.cu: $architecture" assemble "$ptx" $architecture
    done
done
finish
