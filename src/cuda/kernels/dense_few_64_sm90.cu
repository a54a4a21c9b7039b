/*
 * dense_few_64_sm90.cu - dense decode for 33 to 64 query rows that all see the same keys: one token, or no causal rule.
 */
#include "dense_few_wide_sm90.cuh"

DENSE_FEW_64_SM90(dense_few_sm90_bf16_576_64, __nv_bfloat16, 576, false)
DENSE_FEW_64_SM90(dense_few_sm90_bf16_512_64, __nv_bfloat16, 512, false)
DENSE_FEW_64_SM90(dense_few_sm90_f16_576_64, __half, 576, false)
DENSE_FEW_64_SM90(dense_few_sm90_f16_512_64, __half, 512, false)
