/*
 * aclnn_validation_table.h - the rules of the operator and of its metadata operator: one broken argument a row, the
 * code, and words of the sentence, which name the parameter.
 */
#ifndef ACLNN_VALIDATION_TABLE_H
#define ACLNN_VALIDATION_TABLE_H

#include "aclnn_call.h"

enum { MAX_PATCH = 10 };

typedef struct patch {
    size_t offset, size; /* size 0: no patch */
    int64_t value;       /* written in the width of the member */
    const char *text;    /* or this string */
    double real;         /* or this number, when size is 0x100 */
} patch;

#define PATCH_REAL 0x100
#define SIZE_OF(type, member) sizeof(((type *)NULL)->member)
#define SET(member, number) {offsetof(call, member), SIZE_OF(call, member), (int64_t)(number), NULL, 0}
#define TEXT(member, string) {offsetof(call, member), SIZE_OF(call, member), 0, string, 0}
#define SCALE(number) {offsetof(call, scale), PATCH_REAL, 0, NULL, number}
#define DROP(tensor) SET(t[tensor].absent, 1)
#define EMPTY(tensor) SET(t[tensor].absent, 0), SET(t[tensor].n_dim, 1), SET(t[tensor].dim[0], 0)
/* An i32 tensor of one dim where there was none; nobody looks at its memory. */
#define ADD(tensor, n)                                                                              \
    SET(t[tensor].absent, 0), SET(t[tensor].type, ACL_INT32), SET(t[tensor].format, ACL_FORMAT_ND), \
        SET(t[tensor].n_dim, 1), SET(t[tensor].dim[0], n), SET(t[tensor].data, 64)

typedef struct row {
    call_mode mode;
    call_layout layout;
    aclnnStatus code;
    const char *words;
    patch patches[MAX_PATCH];
} row;

#define NULLPTR ACLNN_ERR_PARAM_NULLPTR
#define INVALID ACLNN_ERR_PARAM_INVALID

static const row REFUSED[] = {
    /* ---- mandatory ---- */
    {SWA, TND_PA, NULLPTR, "q is missing", {DROP(Q)}},
    {SWA, TND_PA, NULLPTR, "attn_out is missing", {DROP(OUT)}},
    {SWA, TND_PA, NULLPTR, "ori_kv is missing", {DROP(ORI_KV)}},
    {SWA, TND_PA, NULLPTR, "q_descale is missing", {DROP(Q_DESCALE)}},
    {SWA, TND_PA, NULLPTR, "ori_kv_descale is missing", {DROP(ORI_KV_DESCALE)}},
    {SWA, TND_PA, NULLPTR, "sinks is missing", {DROP(SINKS)}},
    {SWA, TND_PA, NULLPTR, "metadata is missing", {DROP(METADATA)}},
    {SWA, TND_PA, NULLPTR, "softmax_lse is missing", {DROP(LSE)}},
    {SWA, TND_PA, INVALID, "q.dim[0] = 0", {EMPTY(Q)}},
    {SWA, TND_PA, INVALID, "attn_out.dim[0] = 0", {EMPTY(OUT)}},
    {SWA, TND_PA, INVALID, "ori_kv.dim[0] = 0", {EMPTY(ORI_KV)}},
    {SWA, TND_PA, INVALID, "q_descale.dim[0] = 0", {EMPTY(Q_DESCALE)}},
    {SWA, TND_PA, INVALID, "ori_kv_descale.dim[0] = 0", {EMPTY(ORI_KV_DESCALE)}},
    {SWA, TND_PA, INVALID, "sinks.dim[0] = 0", {EMPTY(SINKS)}},
    {SWA, TND_PA, INVALID, "sinks.dim[0] = 0", {SET(t[SINKS].n_dim, 0)}},
    {SWA, TND_PA, INVALID, "metadata.dim[0] = 0", {EMPTY(METADATA)}},
    {SWA, TND_PA, NULLPTR, "q.data is NULL", {SET(t[Q].data, 0)}},

    /* ---- all tensors: format, dims, strides ---- */
    {SWA, TND_PA, INVALID, "q: format 0 must be ND", {SET(t[Q].format, ACL_FORMAT_NCHW)}},
    {CSA, BSND_PA, INVALID, "cmp_kv: format 29 must be ND", {SET(t[CMP_KV].format, ACL_FORMAT_FRACTAL_NZ)}},
    {SWA, TND_PA, INVALID, "metadata: format -1 must be ND", {SET(t[METADATA].format, ACL_FORMAT_UNDEFINED)}},
    {SWA, BSND_BSND, INVALID, "q.dim[1] = 0 must be at least 1", {SET(t[Q].dim[1], 0)}},
    {SWA, BSND_BSND, INVALID, "ori_kv.dim[1] = 0 must be at least 1", {SET(t[ORI_KV].dim[1], 0)}},
    {CSA, TND_PA, INVALID, "cmp_sparse_indices.dim[2] = 0 must be at least 1", {SET(t[CMP_LIST].dim[2], 0)}},
    {SWA, TND_PA, INVALID, "ori_block_table.dim[1] = 0 must be at least 1", {SET(t[ORI_TABLE].dim[1], 0)}},
    {SWA,
     TND_PA,
     INVALID,
     "q.stride[0] = 4096 must be 2048",
     {SET(t[Q].stride[0], 2 * N1 * D), SET(t[Q].stride[1], D), SET(t[Q].stride[2], 1)}},
    {SWA,
     TND_PA,
     INVALID,
     "ori_kv.stride[1] = 1024 must be 512",
     {SET(t[ORI_KV].stride[0], BLOCK *D), SET(t[ORI_KV].stride[1], 1024), SET(t[ORI_KV].stride[2], D),
      SET(t[ORI_KV].stride[3], 1)}},
    {SWA,
     BSND_BSND,
     INVALID,
     "ori_kv.stride[0] = 8192 must be 6144",
     {SET(t[ORI_KV].stride[0], 8192), SET(t[ORI_KV].stride[1], D), SET(t[ORI_KV].stride[2], D),
      SET(t[ORI_KV].stride[3], 1)}},
    {SWA, TND_PA, INVALID, "seqused_ori_kv.stride[0] = 2 must be 1", {SET(t[USED_ORI].stride[0], 2)}},
    {SWA, TND_PA, INVALID, "q: offset -1", {SET(t[Q].offset, -1)}},
    {SWA, TND_PA, INVALID, "sinks.data", {SET(t[SINKS].data, 2)}},
    {SWA, TND_PA, INVALID, "q reaches over more bytes", {SET(t[Q].dim[0], INT64_MAX)}},

    /* ---- types ---- */
    {SWA, TND_PA, INVALID, "q.dtype = f16 must be hif8", {SET(t[Q].type, ACL_FLOAT16)}},
    {SWA, TND_PA, INVALID, "q.dtype = u8 must be hif8", {SET(t[Q].type, ACL_UINT8)}},
    {SWA, TND_PA, INVALID, "q: data type 36", {SET(t[Q].type, ACL_FLOAT8_E4M3FN)}},
    {SWA, TND_PA, INVALID, "q: data type 99", {SET(t[Q].type, 99)}},
    {SWA, TND_PA, INVALID, "ori_kv.dtype = i8 must be hif8", {SET(t[ORI_KV].type, ACL_INT8)}},
    {CSA, TND_PA, INVALID, "cmp_kv.dtype = bf16 must be hif8", {SET(t[CMP_KV].type, ACL_BF16)}},
    {SWA, TND_PA, INVALID, "attn_out.dtype = f16 must be bf16", {SET(t[OUT].type, ACL_FLOAT16)}},
    {SWA, TND_PA, INVALID, "q_descale.dtype = f16 must be f32", {SET(t[Q_DESCALE].type, ACL_FLOAT16)}},
    {SWA, TND_PA, INVALID, "ori_kv_descale.dtype = f16 must be f32", {SET(t[ORI_KV_DESCALE].type, ACL_FLOAT16)}},
    {CSA, TND_PA, INVALID, "cmp_kv_descale.dtype = bf16 must be f32", {SET(t[CMP_KV_DESCALE].type, ACL_BF16)}},
    {SWA, TND_PA, INVALID, "cu_seqlens_q.dtype = i64 must be i32", {SET(t[CU_Q].type, ACL_INT64)}},
    {SWA, TND_TND, INVALID, "cu_seqlens_ori_kv.dtype = i64", {SET(t[CU_ORI].type, ACL_INT64)}},
    {CSA, TND_TND, INVALID, "cu_seqlens_cmp_kv.dtype = f32", {SET(t[CU_CMP].type, ACL_FLOAT)}},
    {SWA, BSND_PA, INVALID, "seqused_q.dtype = f32", {ADD(USED_Q, B), SET(t[USED_Q].type, ACL_FLOAT)}},
    {SWA, TND_PA, INVALID, "seqused_ori_kv.dtype = i64", {SET(t[USED_ORI].type, ACL_INT64)}},
    {CSA, TND_PA, INVALID, "seqused_cmp_kv.dtype = i64", {SET(t[USED_CMP].type, ACL_INT64)}},
    {SWA, TND_PA, INVALID, "ori_block_table.dtype = i64", {SET(t[ORI_TABLE].type, ACL_INT64)}},
    {HCA, TND_PA, INVALID, "cmp_block_table.dtype = i64", {SET(t[CMP_TABLE].type, ACL_INT64)}},
    {ORI_SPARSE, TND_PA, INVALID, "ori_sparse_indices.dtype = i64", {SET(t[ORI_LIST].type, ACL_INT64)}},
    {CSA, TND_PA, INVALID, "cmp_sparse_indices.dtype = f32", {SET(t[CMP_LIST].type, ACL_FLOAT)}},
    {ORI_SPARSE, TND_PA, INVALID, "ori_topk_length.dtype = i64", {SET(t[ORI_TOPK].type, ACL_INT64)}},
    {SWA, TND_PA, INVALID, "sinks.dtype = bf16 must be f32", {SET(t[SINKS].type, ACL_BF16)}},
    {SWA, TND_PA, INVALID, "metadata.dtype = f32 must be i32", {SET(t[METADATA].type, ACL_FLOAT)}},
    {SWA, TND_PA, INVALID, "softmax_lse.dtype = bf16 must be f32", {SET(t[LSE].type, ACL_BF16)}},

    /* ---- ranks ---- */
    {SWA, TND_PA, INVALID, "q.ndim = 2 must be 3: (T1, N1, D)", {SET(t[Q].n_dim, 2)}},
    {SWA, BSND_PA, INVALID, "q.ndim = 3 must be 4: (B, S1, N1, D)", {SET(t[Q].n_dim, 3)}},
    {SWA, TND_PA, INVALID, "ori_kv.ndim = 3 must be 4", {SET(t[ORI_KV].n_dim, 3)}},
    {SWA, TND_TND, INVALID, "ori_kv.ndim = 4 must be 3", {SET(t[ORI_KV].n_dim, 4), SET(t[ORI_KV].dim[3], 1)}},
    {SWA, BSND_BSND, INVALID, "ori_kv.ndim = 3 must be 4", {SET(t[ORI_KV].n_dim, 3)}},
    {CSA, TND_PA, INVALID, "cmp_kv.ndim = 3 must be 4", {SET(t[CMP_KV].n_dim, 3)}},
    {SWA, TND_PA, INVALID, "cu_seqlens_q.ndim = 2 must be 1", {SET(t[CU_Q].n_dim, 2), SET(t[CU_Q].dim[1], 1)}},
    {SWA, TND_PA, INVALID, "seqused_ori_kv.ndim = 2", {SET(t[USED_ORI].n_dim, 2), SET(t[USED_ORI].dim[1], 1)}},
    {SWA, TND_PA, INVALID, "ori_block_table.ndim = 1 must be 2", {SET(t[ORI_TABLE].n_dim, 1)}},
    {CSA, TND_PA, INVALID, "cmp_block_table.ndim = 1 must be 2", {SET(t[CMP_TABLE].n_dim, 1)}},
    {CSA, TND_PA, INVALID, "cmp_sparse_indices.ndim = 2 must be 3", {SET(t[CMP_LIST].n_dim, 2)}},
    {ORI_SPARSE, BSND_PA, INVALID, "ori_sparse_indices.ndim = 3 must be 4", {SET(t[ORI_LIST].n_dim, 3)}},
    {ORI_SPARSE, BSND_PA, INVALID, "ori_topk_length.ndim = 2 must be 3", {SET(t[ORI_TOPK].n_dim, 2)}},

    /* ---- layouts ---- */
    {SWA, TND_PA, INVALID, "layout_q = \"BNSD\" must be", {TEXT(layout_q, "BNSD")}},
    {SWA, TND_PA, INVALID, "layout_q = \"tnd\" must be", {TEXT(layout_q, "tnd")}},
    {SWA, TND_PA, INVALID, "layout_q = \"PA_BBND\" must be", {TEXT(layout_q, "PA_BBND")}},
    {SWA, TND_PA, INVALID, "layout_q = \"\" must be", {TEXT(layout_q, "")}},
    {SWA, TND_PA, INVALID, "layout_kv = \"PA_BSND\" must be", {TEXT(layout_kv, "PA_BSND")}},
    {SWA, TND_TND, INVALID, "layout_kv = \"BSND\" must be", {TEXT(layout_kv, "BSND")}},
    {SWA, BSND_BSND, INVALID, "layout_kv = \"TND\" must be", {TEXT(layout_kv, "TND")}},

    /* ---- extents ---- */
    {SWA, TND_PA, INVALID, "q.dim[1] = 129 must be between 1 and 128 (N1)", {SET(t[Q].dim[1], 129)}},
    {SWA, BSND_PA, INVALID, "q.dim[2] = 0 must be between 1 and 128 (N1)", {SET(t[Q].dim[2], 0)}},
    {SWA, TND_PA, INVALID, "q.dim[2] = 256 must be D = 512", {SET(t[Q].dim[2], 256)}},
    {SWA, TND_PA, INVALID, "ori_kv.dim[3] = 576 must be D = 512", {SET(t[ORI_KV].dim[3], 576)}},
    {CSA, TND_TND, INVALID, "cmp_kv.dim[2] = 511 must be D = 512", {SET(t[CMP_KV].dim[2], 511)}},
    {SWA, TND_PA, INVALID, "ori_kv.dim[2] = 2 must be 1", {SET(t[ORI_KV].dim[2], 2)}},
    {CSA, BSND_BSND, INVALID, "cmp_kv.dim[2] = 4 must be 1", {SET(t[CMP_KV].dim[2], 4)}},
    {SWA, BSND_BSND, INVALID, "ori_kv.dim[0] = 3 must be B = 2", {SET(t[ORI_KV].dim[0], 3)}},
    {HCA, BSND_BSND, INVALID, "cmp_kv.dim[0] = 1 must be B = 2", {SET(t[CMP_KV].dim[0], 1)}},
    {SWA,
     TND_PA,
     INVALID,
     "ori_kv.dim[1] = 1025 must be between 1 and 1024 (block_size)",
     {SET(t[ORI_KV].dim[1], 1025)}},
    {CSA,
     TND_PA,
     INVALID,
     "cmp_kv.dim[1] = 1025 must be between 1 and 1024 (block_size)",
     {SET(t[CMP_KV].dim[1], 1025)}},
    {SWA, TND_PA, INVALID, "q_descale.dim[0] = 2 must be 1", {SET(t[Q_DESCALE].dim[0], 2)}},
    {SWA, TND_PA, INVALID, "ori_kv_descale.dim[0] = 2 must be 1", {SET(t[ORI_KV_DESCALE].dim[0], 2)}},
    {CSA, TND_PA, INVALID, "cmp_kv_descale.dim[0] = 4 must be 1", {SET(t[CMP_KV_DESCALE].dim[0], 4)}},
    {SWA, TND_PA, INVALID, "attn_out.dim[0] = 5 must be T1 = 6", {SET(t[OUT].dim[0], 5)}},
    {SWA, BSND_PA, INVALID, "attn_out.dim[2] = 3 must be N1 = 4", {SET(t[OUT].dim[2], 3)}},
    {SWA, TND_PA, INVALID, "sinks.dim[0] = 64 must be N1 = 4", {SET(t[SINKS].dim[0], 64)}},
    {SWA, TND_PA, INVALID, "metadata.dim[0] = 1023 must be 1024", {SET(t[METADATA].dim[0], 1023)}},
    {SWA,
     TND_PA,
     INVALID,
     "softmax_lse.dim[0] = 6 must be 1",
     {SET(t[LSE].dim[0], T1), SET(t[LSE].dim[1], N1), SET(t[LSE].dim[2], 1)}},
    {SWA,
     BSND_PA,
     INVALID,
     "softmax_lse.dim[1] = 3 must be 1",
     {SET(t[LSE].dim[1], S1), SET(t[LSE].dim[2], N1), SET(t[LSE].dim[3], 1)}},
    {CSA, BSND_PA, INVALID, "cmp_sparse_indices.dim[1] = 2 must be S1 = 3", {SET(t[CMP_LIST].dim[1], 2)}},
    {CSA, TND_PA, INVALID, "cmp_sparse_indices.dim[0] = 5 must be T1 = 6", {SET(t[CMP_LIST].dim[0], 5)}},
    {CSA, TND_PA, INVALID, "cmp_sparse_indices.dim[1] = 2 must be 1", {SET(t[CMP_LIST].dim[1], 2)}},
    {ORI_SPARSE, BSND_PA, INVALID, "ori_sparse_indices.dim[2] = 2 must be 1", {SET(t[ORI_LIST].dim[2], 2)}},
    {ORI_SPARSE, BSND_PA, INVALID, "ori_topk_length.dim[1] = 1 must be S1 = 3", {SET(t[ORI_TOPK].dim[1], 1)}},
    {ORI_SPARSE, TND_PA, INVALID, "ori_topk_length.dim[1] = 5 must be 1", {SET(t[ORI_TOPK].dim[1], K1)}},
    {CSA, TND_PA, INVALID, "cmp_topk_length.ndim = 1 must be 2", {ADD(CMP_TOPK, T1)}},

    /* ---- B of all tensors ---- */
    {SWA, TND_PA, INVALID, "ori_block_table.dim[0] = 3 must be B = 2", {SET(t[ORI_TABLE].dim[0], 3)}},
    {CSA, BSND_PA, INVALID, "cmp_block_table.dim[0] = 1 must be B = 2", {SET(t[CMP_TABLE].dim[0], 1)}},
    {SWA, TND_PA, INVALID, "seqused_ori_kv.dim[0] = 3 must be B = 2", {SET(t[USED_ORI].dim[0], 3)}},
    {CSA, TND_PA, INVALID, "seqused_cmp_kv.dim[0] = 1 must be B = 2", {SET(t[USED_CMP].dim[0], 1)}},
    {SWA, TND_PA, INVALID, "seqused_q.dim[0] = 3 must be B = 2", {ADD(USED_Q, 3)}},
    {CSA, TND_PA, INVALID, "cmp_residual_kv.dim[0] = 3 must be B = 2", {ADD(RESIDUAL, 3)}},
    {SWA, TND_TND, INVALID, "cu_seqlens_ori_kv.dim[0] = 4 must be B + 1 = 3", {SET(t[CU_ORI].dim[0], 4)}},
    {CSA, TND_TND, INVALID, "cu_seqlens_cmp_kv.dim[0] = 2 must be B + 1 = 3", {SET(t[CU_CMP].dim[0], 2)}},
    {SWA, TND_PA, INVALID, "seqused_ori_kv.dim[0] = 2 must be B = 3", {SET(t[CU_Q].dim[0], 4)}},

    /* ---- attributes ---- */
    {SWA, TND_PA, INVALID, "quant_mode = 2 must be 1", {SET(quant_mode, 2)}},
    {SWA, TND_PA, INVALID, "quant_mode = 0 must be 1", {SET(quant_mode, 0)}},
    {SWA, TND_PA, INVALID, "topk_value_mode = 2 must be 1", {SET(topk_value_mode, 2)}},
    {SWA, TND_PA, INVALID, "softmax_scale = nan must be finite", {SCALE(NAN)}},
    {SWA, TND_PA, INVALID, "softmax_scale = -inf must be finite", {SCALE(-INFINITY)}},
    {SWA, TND_PA, INVALID, "softmax_scale = 1e+300 must be finite", {SCALE(1e300)}},
    {CSA, TND_PA, INVALID, "cmp_ratio = 0 must be between 1 and 128", {SET(cmp_ratio, 0)}},
    {CSA, TND_PA, INVALID, "cmp_ratio = 129 must be between 1 and 128", {SET(cmp_ratio, 129)}},
    {SWA, TND_PA, INVALID, "cmp_ratio = 4 must be 1: there is no cmp_kv", {SET(cmp_ratio, 4)}},
    {SWA, TND_PA, INVALID, "ori_mask_mode = 1 must be 0, 3 or 4", {SET(ori_mask, 1)}},
    {SWA, TND_PA, INVALID, "ori_mask_mode = 2 must be", {SET(ori_mask, 2)}},
    {SWA, TND_PA, INVALID, "ori_mask_mode = 5 must be", {SET(ori_mask, 5)}},
    {SWA, TND_PA, INVALID, "ori_mask_mode = -1 must be", {SET(ori_mask, -1)}},
    {CSA, TND_PA, INVALID, "cmp_mask_mode = 4 must be 0 or 3", {SET(cmp_mask, 4)}},
    {CSA, TND_PA, INVALID, "cmp_mask_mode = 1 must be", {SET(cmp_mask, 1)}},
    {SWA, TND_PA, INVALID, "cmp_mask_mode = 3 must be 0: there is no cmp_kv", {SET(cmp_mask, 3)}},
    {SWA, TND_PA, INVALID, "ori_win_left = -2 must be at least -1", {SET(win_left, -2)}},
    {SWA, TND_PA, INVALID, "ori_win_right = -9223372036854775808 must", {SET(win_right, INT64_MIN)}},
    {SWA, TND_PA, INVALID, "ori_win_left = 3 must be -1: ori_mask_mode is not 4", {SET(ori_mask, 3)}},
    {SWA, TND_PA, INVALID, "ori_win_right = 0 must be -1", {SET(ori_mask, 0), SET(win_left, -1)}},

    /* ---- existence ---- */
    {SWA, TND_PA, INVALID, "cu_seqlens_q is missing: layout_q is TND", {DROP(CU_Q)}},
    {SWA, TND_PA, INVALID, "cu_seqlens_q is missing: layout_q is TND", {EMPTY(CU_Q)}},
    {SWA, BSND_PA, INVALID, "cu_seqlens_q must be absent: layout_q is BSND", {ADD(CU_Q, B + 1)}},
    {SWA, TND_TND, INVALID, "cu_seqlens_ori_kv is missing: layout_kv is TND", {DROP(CU_ORI)}},
    {SWA, BSND_BSND, INVALID, "cu_seqlens_ori_kv must be absent: layout_kv is BSND", {ADD(CU_ORI, B + 1)}},
    {SWA, TND_PA, INVALID, "cu_seqlens_ori_kv must be absent: layout_kv is PA_BBND", {ADD(CU_ORI, B + 1)}},
    {CSA, TND_TND, INVALID, "cu_seqlens_cmp_kv is missing: layout_kv is TND", {DROP(CU_CMP)}},
    {SWA, TND_TND, INVALID, "cu_seqlens_cmp_kv must be absent: there is no cmp_kv", {ADD(CU_CMP, B + 1)}},
    {CSA, BSND_BSND, INVALID, "cu_seqlens_cmp_kv must be absent: layout_kv is BSND", {ADD(CU_CMP, B + 1)}},
    {CSA, TND_PA, INVALID, "cu_seqlens_cmp_kv must be absent: layout_kv is PA_BBND", {ADD(CU_CMP, B + 1)}},
    {SWA, TND_PA, INVALID, "seqused_ori_kv is missing: layout_kv is PA_BBND", {DROP(USED_ORI)}},
    {CSA, TND_PA, INVALID, "seqused_ori_kv is missing", {DROP(USED_ORI)}},
    {HCA, BSND_PA, INVALID, "seqused_ori_kv is missing", {DROP(USED_ORI)}},
    {ORI_SPARSE, TND_PA, INVALID, "seqused_ori_kv is missing", {DROP(USED_ORI), SET(ori_mask, 3)}},
    {FULL_SPARSE, TND_PA, INVALID, "seqused_ori_kv is missing", {DROP(USED_ORI)}}, /* cmp_mask_mode is 3 */
    {SWA, TND_PA, INVALID, "seqused_cmp_kv must be absent: there is no cmp_kv", {ADD(USED_CMP, B)}},
    {SWA, TND_PA, INVALID, "ori_block_table is missing: layout_kv is PA_BBND", {DROP(ORI_TABLE)}},
    {SWA, BSND_BSND, INVALID, "ori_block_table must be absent: layout_kv is BSND", {ADD(ORI_TABLE, B)}},
    {SWA, TND_TND, INVALID, "ori_block_table must be absent: layout_kv is TND", {ADD(ORI_TABLE, B)}},
    {CSA, TND_PA, INVALID, "cmp_block_table is missing: layout_kv is PA_BBND", {DROP(CMP_TABLE)}},
    {SWA, TND_PA, INVALID, "cmp_block_table must be absent: there is no cmp_kv", {ADD(CMP_TABLE, B)}},
    {CSA, BSND_BSND, INVALID, "cmp_block_table must be absent: layout_kv is BSND", {ADD(CMP_TABLE, B)}},
    {CSA, TND_TND, INVALID, "cmp_block_table must be absent: layout_kv is TND", {ADD(CMP_TABLE, B)}},
    {SWA, TND_PA, INVALID, "cmp_sparse_indices must be absent: there is no cmp_kv", {ADD(CMP_LIST, T1)}},
    {SWA, TND_PA, INVALID, "cmp_topk_length must be absent: there is no cmp_kv", {ADD(CMP_TOPK, T1)}},
    {SWA, TND_PA, INVALID, "cmp_residual_kv must be absent: there is no cmp_kv", {ADD(RESIDUAL, B)}},
    {SWA, TND_PA, INVALID, "cmp_kv_descale must be absent: there is no cmp_kv", {ADD(CMP_KV_DESCALE, 1)}},
    {CSA, TND_PA, INVALID, "cmp_kv_descale is missing: cmp_kv is given", {DROP(CMP_KV_DESCALE)}},
    {SWA, TND_PA, INVALID, "ori_topk_length must be absent: there are no ori_sparse_indices", {ADD(ORI_TOPK, T1)}},
    {HCA, TND_PA, INVALID, "cmp_topk_length must be absent: there are no cmp_sparse_indices", {ADD(CMP_TOPK, T1)}},
    {ORI_SPARSE, TND_PA, INVALID, "ori_topk_length is missing: ori_sparse_indices are given and", {DROP(ORI_TOPK)}},
    {CSA, TND_PA, INVALID, "cmp_topk_length is missing: cmp_sparse_indices are given and", {SET(cmp_mask, 0)}},
};

/* What may look wrong and is not. */
static const row ACCEPTED[] = {
    {SWA, BSND_BSND, ACLNN_SUCCESS, "NULL layouts are BSND", {SET(null_layouts, 1)}},
    {SWA, TND_PA, ACLNN_SUCCESS, "an absent lse that nobody asked for", {SET(lse, 0), DROP(LSE)}},
    {SWA,
     TND_PA,
     ACLNN_SUCCESS,
     "a lse of any shape that nobody asked for",
     {SET(lse, 0), SET(t[LSE].type, ACL_INT4), SET(t[LSE].format, 77), SET(t[LSE].dim[0], 5)}},
    {SWA,
     TND_PA,
     ACLNN_SUCCESS,
     "blocks that lie apart",
     {SET(t[ORI_KV].dim[0], PAGES / 2), SET(t[ORI_KV].stride[0], 2 * BLOCK * D), SET(t[ORI_KV].stride[1], D),
      SET(t[ORI_KV].stride[2], D), SET(t[ORI_KV].stride[3], 1)}},
    {SWA, TND_PA, ACLNN_SUCCESS, "an empty cmp_kv is absent", {EMPTY(CMP_KV), SET(t[CMP_KV].type, ACL_FLOAT)}},
    {SWA, TND_PA, ACLNN_SUCCESS, "a cmp_kv without dims is absent", {SET(t[CMP_KV].absent, 0)}},
    {SWA, BSND_PA, ACLNN_SUCCESS, "an empty cu_seqlens_q is absent", {EMPTY(CU_Q), SET(t[CU_Q].format, 5)}},
    {SWA, TND_PA, ACLNN_SUCCESS, "a band without limits", {SET(win_left, -1), SET(win_right, -1)}},
    {SWA, TND_PA, ACLNN_SUCCESS, "mask 3", {SET(ori_mask, 3), SET(win_left, -1), SET(win_right, -1)}},
    {ORI_SPARSE, TND_PA, ACLNN_SUCCESS, "a list under mask 3, with lengths", {SET(ori_mask, 3)}},
    {ORI_SPARSE,
     TND_PA,
     ACLNN_SUCCESS,
     "a list under mask 4, without lengths",
     {SET(ori_mask, 4), SET(win_left, 2), DROP(ORI_TOPK)}},
    {ORI_SPARSE, TND_PA, ACLNN_SUCCESS, "no seqused_ori_kv: the list says it all", {DROP(USED_ORI)}},
    {FULL_SPARSE,
     TND_PA,
     ACLNN_SUCCESS,
     "no seqused_ori_kv with both masks 0",
     {DROP(USED_ORI), SET(cmp_mask, 0), ADD(CMP_TOPK, T1), SET(t[CMP_TOPK].n_dim, 2), SET(t[CMP_TOPK].dim[1], 1)}},
    {CSA, TND_PA, ACLNN_SUCCESS, "no seqused_cmp_kv", {DROP(USED_CMP)}},
    {CSA, TND_PA, ACLNN_SUCCESS, "cmp_ratio 1", {SET(cmp_ratio, 1)}},
    {CSA, TND_PA, ACLNN_SUCCESS, "cmp_ratio 128", {SET(cmp_ratio, 128)}},
    {HCA, TND_PA, ACLNN_SUCCESS, "cmp_mask_mode 0", {SET(cmp_mask, 0)}},
    {SWA, TND_PA, ACLNN_SUCCESS, "a scale of 0", {SCALE(0)}},
    {SWA, TND_PA, ACLNN_SUCCESS, "a negative scale", {SCALE(-1)}},
};

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

#define M_SET(member, number) \
    {offsetof(metadata_call, member), SIZE_OF(metadata_call, member), (int64_t)(number), NULL, 0}
#define M_TEXT(member, string) {offsetof(metadata_call, member), SIZE_OF(metadata_call, member), 0, string, 0}
#define M_DROP(tensor) M_SET(t[tensor].absent, 1)
#define M_ADD(tensor, n)                                                                                  \
    M_SET(t[tensor].absent, 0), M_SET(t[tensor].type, ACL_INT32), M_SET(t[tensor].format, ACL_FORMAT_ND), \
        M_SET(t[tensor].n_dim, 1), M_SET(t[tensor].dim[0], n), M_SET(t[tensor].data, 64)

static const row METADATA_REFUSED[] = {
    {CSA, TND_PA, INVALID, "metadata is missing or empty", {M_DROP(M_METADATA)}},
    {CSA, TND_PA, INVALID, "metadata is missing or empty", {M_SET(t[M_METADATA].dim[0], 0)}},
    {CSA, TND_PA, INVALID, "metadata.dtype = f32 must be i32", {M_SET(t[M_METADATA].type, ACL_FLOAT)}},
    {CSA, TND_PA, INVALID, "metadata.dim[0] = 1000 must be 1024", {M_SET(t[M_METADATA].dim[0], 1000)}},
    {CSA, TND_PA, INVALID, "metadata.ndim = 2", {M_SET(t[M_METADATA].n_dim, 2), M_SET(t[M_METADATA].dim[1], 1)}},
    {CSA, TND_PA, INVALID, "metadata.data is NULL", {M_SET(t[M_METADATA].data, 0)}},
    {CSA, TND_PA, INVALID, "batch_size = -1 must be at least 0", {M_SET(number[BATCH_SIZE], -1)}},
    {CSA, TND_PA, INVALID, "max_seqlen_q = -1 must be at least 0", {M_SET(number[MAX_Q], -1)}},
    {CSA, TND_PA, INVALID, "max_seqlen_ori_kv = -5 must be", {M_SET(number[MAX_ORI], -5)}},
    {CSA, TND_PA, INVALID, "max_seqlen_cmp_kv = -1 must be", {M_SET(number[MAX_CMP], -1)}},
    {CSA, TND_PA, INVALID, "num_heads_q = 0 must be between 1 and 128", {M_SET(number[NUM_HEADS_Q], 0)}},
    {CSA, TND_PA, INVALID, "num_heads_q = 129 must be between 1 and 128", {M_SET(number[NUM_HEADS_Q], 129)}},
    {CSA, TND_PA, INVALID, "num_heads_kv = 2 must be 1", {M_SET(number[NUM_HEADS_KV], 2)}},
    {CSA, TND_PA, INVALID, "head_dim = 576 must be 512", {M_SET(number[HEAD_DIM], 576)}},
    {CSA, TND_PA, INVALID, "quant_mode = 3 must be between 1 and 2", {M_SET(number[QUANT_MODE], 3)}},
    {CSA, TND_PA, INVALID, "quant_mode = 0 must be between 1 and 2", {M_SET(number[QUANT_MODE], 0)}},
    {CSA, TND_PA, INVALID, "ori_topk = -1 must be at least 0", {M_SET(number[ORI_TOPK_WIDTH], -1)}},
    {CSA, TND_PA, INVALID, "cmp_topk = -1 must be at least 0", {M_SET(number[CMP_TOPK_WIDTH], -1)}},
    {CSA, TND_PA, INVALID, "ori_mask_mode = 2 must be 0, 3 or 4", {M_SET(ori_mask, 2)}},
    {CSA, TND_PA, INVALID, "cmp_mask_mode = 4 must be 0 or 3", {M_SET(cmp_mask, 4)}},
    {SWA, TND_PA, INVALID, "cmp_mask_mode = 3 must be 0", {M_SET(cmp_mask, 3)}},
    {CSA, TND_PA, INVALID, "ori_win_left = -2 must be at least -1", {M_SET(win_left, -2)}},
    {CSA, TND_PA, INVALID, "ori_win_right = -2 must be at least -1", {M_SET(win_right, -2)}},
    {CSA, TND_PA, INVALID, "ori_win_left = 3 must be -1", {M_SET(ori_mask, 3)}},
    {CSA, TND_PA, INVALID, "cmp_ratio = 0 must be between 1 and 128", {M_SET(cmp_ratio, 0)}},
    {CSA, TND_PA, INVALID, "cmp_ratio = 200 must be between 1 and 128", {M_SET(cmp_ratio, 200)}},
    {CSA, TND_PA, INVALID, "layout_q is NULL", {M_SET(null_layout_q, 1)}},
    {CSA, TND_PA, INVALID, "layout_kv is NULL", {M_SET(null_layout_kv, 1)}},
    {CSA, TND_PA, INVALID, "layout_q = \"NTD\" must be", {M_TEXT(layout_q, "NTD")}},
    {CSA, TND_PA, INVALID, "layout_kv = \"PA\" must be", {M_TEXT(layout_kv, "PA")}},
    {CSA, TND_PA, INVALID, "layout_kv = \"BSND\" must be", {M_TEXT(layout_kv, "BSND")}},
    {CSA, TND_PA, INVALID, "cu_seqlens_q is missing: layout_q is TND", {M_DROP(M_CU_Q)}},
    {CSA, BSND_PA, INVALID, "cu_seqlens_q must be absent: layout_q is BSND", {M_ADD(M_CU_Q, B + 1)}},
    {CSA, TND_TND, INVALID, "cu_seqlens_ori_kv is missing", {M_DROP(M_CU_ORI)}},
    {CSA, TND_TND, INVALID, "cu_seqlens_cmp_kv is missing", {M_DROP(M_CU_CMP)}},
    {SWA, TND_TND, INVALID, "cu_seqlens_cmp_kv must be absent: there is no cmp_kv", {M_ADD(M_CU_CMP, B + 1)}},
    {CSA, TND_PA, INVALID, "seqused_ori_kv is missing: layout_kv is PA_BBND", {M_DROP(M_USED_ORI)}},
    {SWA, TND_PA, INVALID, "seqused_cmp_kv must be absent: there is no cmp_kv", {M_ADD(M_USED_CMP, B)}},
    {CSA, TND_PA, INVALID, "cu_seqlens_q.dtype = i64 must be i32", {M_SET(t[M_CU_Q].type, ACL_INT64)}},
    {CSA, TND_PA, INVALID, "seqused_ori_kv.ndim = 2", {M_SET(t[M_USED_ORI].n_dim, 2), M_SET(t[M_USED_ORI].dim[1], 1)}},
    {CSA, TND_PA, INVALID, "seqused_ori_kv.dim[0] = 3 must be B = 2", {M_SET(t[M_USED_ORI].dim[0], 3)}},
    {CSA, TND_PA, INVALID, "cu_seqlens_q.dim[0] = 3 must be B + 1 = 4", {M_ADD(M_USED_Q, 3)}},
    {CSA, TND_PA, INVALID, "cmp_residual_kv.dim[0] = 5 must be B = 2", {M_ADD(M_RESIDUAL, 5)}},
    {CSA, BSND_PA, INVALID, "seqused_ori_kv.dim[0] = 2 must be B = 7", {M_SET(number[BATCH_SIZE], 7)}},
    {ORI_SPARSE, TND_PA, INVALID, "ori_topk_length.ndim = 1 must be 2", {M_SET(t[M_ORI_TOPK].n_dim, 1)}},
    {ORI_SPARSE, BSND_PA, INVALID, "ori_topk_length.dim[0] = 3 must be B = 2", {M_SET(t[M_ORI_TOPK].dim[0], 3)}},
    {ORI_SPARSE, BSND_PA, INVALID, "ori_topk_length.dtype = f32 must be i32", {M_SET(t[M_ORI_TOPK].type, ACL_FLOAT)}},
    {CSA, TND_PA, INVALID, "cu_seqlens_q: format 0 must be ND", {M_SET(t[M_CU_Q].format, ACL_FORMAT_NCHW)}},
};

static const row METADATA_ACCEPTED[] = {
    {SWA, TND_PA, ACLNN_SUCCESS, "a ratio that has no meaning", {M_SET(cmp_ratio, 500)}},
    {CSA, TND_PA, ACLNN_SUCCESS, "quant_mode 2", {M_SET(number[QUANT_MODE], 2)}},
    {CSA,
     BSND_PA,
     ACLNN_SUCCESS,
     "an empty tensor of another type is absent",
     {M_SET(t[M_CU_Q].absent, 0), M_SET(t[M_CU_Q].n_dim, 1), M_SET(t[M_CU_Q].type, ACL_FLOAT)}},
    {CSA,
     TND_PA,
     ACLNN_SUCCESS,
     "largest lengths that nobody knows",
     {M_SET(number[MAX_Q], 0), M_SET(number[MAX_ORI], 0), M_SET(number[MAX_CMP], 0)}},
    {ORI_SPARSE, TND_PA, ACLNN_SUCCESS, "no seqused_ori_kv: the list says it all", {M_DROP(M_USED_ORI)}},
    {CSA, BSND_PA, ACLNN_SUCCESS, "a batch that only other tensors tell", {M_SET(number[BATCH_SIZE], 0)}},
};

#endif
