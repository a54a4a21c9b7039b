/*
 * dense_few_64_causal_sm90.cu - dense decode for 33 to 64 query rows of several tokens, of which each sees its own keys.
 */
#include "dense_few_wide_sm90.cuh"

DENSE_FEW_64_SM90(dense_few_causal_sm90_bf16_576_64, __nv_bfloat16, 576, true)
DENSE_FEW_64_SM90(dense_few_causal_sm90_bf16_512_64, __nv_bfloat16, 512, true)
DENSE_FEW_64_SM90(dense_few_causal_sm90_f16_576_64, __half, 576, true)
DENSE_FEW_64_SM90(dense_few_causal_sm90_f16_512_64, __half, 512, true)
