/*
 * dense_few_causal_sm90.cu - dense decode for few query rows of several tokens, of which each sees its own keys.
 */
#include "dense_few_decode_sm90.cuh"

DENSE_FEW_SM90(dense_few_causal_sm90_bf16_576_8, __nv_bfloat16, 576, 8, true)
DENSE_FEW_SM90(dense_few_causal_sm90_bf16_576_16, __nv_bfloat16, 576, 16, true)
DENSE_FEW_SM90(dense_few_causal_sm90_bf16_576_32, __nv_bfloat16, 576, 32, true)
DENSE_FEW_SM90(dense_few_causal_sm90_bf16_512_8, __nv_bfloat16, 512, 8, true)
DENSE_FEW_SM90(dense_few_causal_sm90_bf16_512_16, __nv_bfloat16, 512, 16, true)
DENSE_FEW_SM90(dense_few_causal_sm90_bf16_512_32, __nv_bfloat16, 512, 32, true)
DENSE_FEW_SM90(dense_few_causal_sm90_f16_576_8, __half, 576, 8, true)
DENSE_FEW_SM90(dense_few_causal_sm90_f16_576_16, __half, 576, 16, true)
DENSE_FEW_SM90(dense_few_causal_sm90_f16_576_32, __half, 576, 32, true)
DENSE_FEW_SM90(dense_few_causal_sm90_f16_512_8, __half, 512, 8, true)
DENSE_FEW_SM90(dense_few_causal_sm90_f16_512_16, __half, 512, 16, true)
DENSE_FEW_SM90(dense_few_causal_sm90_f16_512_32, __half, 512, 32, true)
