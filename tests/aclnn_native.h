/*
 * aclnn_native.h - a call of aclnn_call.h as arguments of libmla's own door.
 */
#ifndef ACLNN_NATIVE_H
#define ACLNN_NATIVE_H

#include "aclnn_call.h"
#include "mla/quant_sparse_flash_mla.h"

static inline mla_tensor view_of(const tensor_data *t)
{
    if (t->absent) {
        return (mla_tensor){0};
    }
    mla_dtype dtype = t->type == ACL_HIFLOAT8 ? MLA_DTYPE_HIF8
                      : t->type == ACL_INT32  ? MLA_DTYPE_I32
                      : t->type == ACL_BF16   ? MLA_DTYPE_BF16
                                              : MLA_DTYPE_F32;
    return mla_tensor_make(t->data, dtype, t->n_dim, t->dim);
}

static inline void native_args(mla_quant_sparse_flash_mla_args *args, const call *c)
{
    mla_quant_sparse_flash_mla_init(args);
    mla_tensor *const field[N_TENSOR] = {&args->q,
                                         &args->ori_kv,
                                         &args->cmp_kv,
                                         &args->q_descale,
                                         &args->ori_kv_descale,
                                         &args->cmp_kv_descale,
                                         &args->ori_sparse_indices,
                                         &args->cmp_sparse_indices,
                                         &args->ori_block_table,
                                         &args->cmp_block_table,
                                         &args->cu_seqlens_q,
                                         &args->cu_seqlens_ori_kv,
                                         &args->cu_seqlens_cmp_kv,
                                         &args->seqused_q,
                                         &args->seqused_ori_kv,
                                         &args->seqused_cmp_kv,
                                         &args->cmp_residual_kv,
                                         &args->ori_topk_length,
                                         &args->cmp_topk_length,
                                         &args->sinks,
                                         &args->metadata,
                                         &args->attn_out,
                                         &args->softmax_lse};
    for (int i = 0; i < N_TENSOR; i++) {
        *field[i] = view_of(&c->t[i]);
    }
    args->softmax_scale = c->scale;
    args->cmp_ratio = c->cmp_ratio;
    args->ori_mask_mode = c->ori_mask;
    args->cmp_mask_mode = c->cmp_mask;
    args->ori_win_left = c->win_left;
    args->ori_win_right = c->win_right;
    args->layout_q = c->layout_q;
    args->layout_kv = c->layout_kv;
    args->return_softmax_lse = c->lse != 0;
}

#endif
