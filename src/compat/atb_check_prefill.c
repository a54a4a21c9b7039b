/*
 * atb_check_prefill.c - the tensors of a prefill call, in ATB's order and with its codes.
 */
#include <inttypes.h>

#include "atb_internal.h"

static int32_t check_dtypes(const atb_call *call)
{
    for (atb_slot slot = 0; slot < ATB_N_TENSOR; slot++) {
        ATB_TRY(mla_atb_slot_on_host(slot) ? mla_atb_check_dtype(call, slot, MLA_ATB_INT32)
                                           : mla_atb_check_float(call, slot));
        ATB_TRY(mla_atb_check_format(call, slot, MLA_ATB_FORMAT_ND));
    }
    return MLA_ATB_NO_ERROR;
}

static int32_t check_ranks(const atb_call *call)
{
    const mla_atb_tensor *q = call->tensor[ATB_Q], *mask = call->tensor[ATB_MASK];
    if (q->ndim != 2 && q->ndim != 3) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM_NUM, "q has %d dims and must have 2 or 3", q->ndim);
    }
    ATB_TRY(mla_atb_check_rank(call, ATB_Q_ROPE, q->ndim));
    for (atb_slot slot = ATB_KV; slot <= ATB_V; slot++) {
        ATB_TRY(mla_atb_check_rank(call, slot, 3));
    }
    ATB_TRY(mla_atb_check_rank(call, ATB_Q_LEN, 1));
    ATB_TRY(mla_atb_check_rank(call, ATB_KV_LEN, 1));
    return mask != NULL && mask->ndim == 3 ? MLA_ATB_NO_ERROR /* refused later, with a code of its own */
                                           : mla_atb_check_rank(call, ATB_MASK, 2);
}

/* [T, H * d] or [T, H, d] */
static int32_t check_queries(const atb_call *call, atb_slot slot, int64_t d)
{
    const mla_atb_tensor *t = call->tensor[slot];
    ATB_TRY(mla_atb_check_dim(call, slot, 0, call->n_token, "the tokens of q"));
    if (t->ndim == 2) {
        return mla_atb_check_dim(call, slot, 1, call->n_head * d, "[T, H * d]");
    }
    ATB_TRY(mla_atb_check_dim(call, slot, 1, call->n_head, "[T, H, d]"));
    return mla_atb_check_dim(call, slot, 2, d, "[T, H, d]");
}

/* [B, S, N * d] or rows of [N, d]; the two look alike when N = S = 1, then the number of rows decides. */
static int32_t check_keys(atb_call *call)
{
    const mla_atb_tensor *k = call->tensor[ATB_KV];
    int64_t n_kv_head = call->param->kv_head_num, d = ATB_PREFILL_NOPE;
    bool batched = k->dim[0] == call->n_seq && k->dim[2] == n_kv_head * d;
    bool packed = k->dim[1] == n_kv_head && k->dim[2] == d && call->param->mask_type != MLA_ATB_MASK_CAUSAL;
    if (!batched && !packed) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM,
                            "k has dims [%" PRId64 ", %" PRId64 ", %" PRId64 "] and must be [B = %" PRId64
                            ", S, %" PRId64 "]%s",
                            k->dim[0], k->dim[1], k->dim[2], call->n_seq, n_kv_head * d,
                            call->param->mask_type == MLA_ATB_MASK_CAUSAL ? "" : " or [rows, N, 128]");
    }
    call->packed = packed; /* if both: settled once the lengths are known */
    for (int32_t i = 0; i < 3; i++) {
        ATB_TRY(mla_atb_check_dim(call, ATB_K_ROPE, i, i < 2 ? k->dim[i] : k->dim[2] / 2, "k with half the columns"));
    }
    for (int32_t i = 0; i < 3; i++) {
        ATB_TRY(mla_atb_check_dim(call, ATB_V, i, k->dim[i], "the dims of k"));
    }
    return MLA_ATB_NO_ERROR;
}

static int32_t check_dims(atb_call *call)
{
    call->n_token = call->tensor[ATB_Q]->dim[0];
    call->n_head = call->param->head_num;
    call->n_seq = call->n_used = call->tensor[ATB_Q_LEN]->dim[0];
    if (call->n_seq > ATB_MAX_BATCH) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM, "qSeqLen.dims[0] = %" PRId64 " must be at most %d",
                            call->n_seq, ATB_MAX_BATCH);
    }
    ATB_TRY(mla_atb_check_dim(call, ATB_KV_LEN, 0, call->n_seq, "as long as qSeqLen"));
    ATB_TRY(check_queries(call, ATB_Q, ATB_PREFILL_NOPE));
    ATB_TRY(check_queries(call, ATB_Q_ROPE, ATB_ROPE));
    ATB_TRY(check_keys(call));
    const mla_atb_tensor *mask = call->tensor[ATB_MASK];
    for (int32_t i = 0; i < 2 && mask != NULL && mask->ndim == 2 && call->param->mask_type == MLA_ATB_MASK_FREE; i++) {
        ATB_TRY(mla_atb_check_dim(call, ATB_MASK, i, ATB_PREFILL_TEMPLATE, "[512, 512]"));
    }
    ATB_TRY(mla_atb_check_rank(call, ATB_OUT, call->tensor[ATB_Q]->ndim));
    return check_queries(call, ATB_OUT, ATB_PREFILL_NOPE);
}

/* ---- lengths ----------------------------------------------------------------------------------------------------- */

static int32_t check_pairs(const atb_call *call)
{
    bool causal = call->param->mask_type == MLA_ATB_MASK_CAUSAL;
    for (int64_t b = 0; b < call->n_seq; b++) {
        int64_t n_q = mla_atb_length(call, ATB_Q_LEN, b), n_kv = mla_atb_length(call, ATB_KV_LEN, b);
        if (causal ? n_kv < n_q : n_kv != n_q) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM,
                                "qSeqLen[%" PRId64 "] = %" PRId64 " must be %s kvSeqLen[%" PRId64 "] = %" PRId64
                                " with maskType = %d",
                                b, n_q, causal ? "at most" : "equal to", b, n_kv, call->param->mask_type);
        }
    }
    return MLA_ATB_NO_ERROR;
}

/* What ATB finds out while it prepares the kernel, hence the code, where there is a mask. */
static int32_t check_values(atb_call *call)
{
    const mla_atb_tensor *mask = call->tensor[ATB_MASK];
    int32_t code = mask != NULL ? MLA_ATB_ERROR_RT_FAIL : MLA_ATB_ERROR_INVALID_PARAM;
    int64_t sum_q = 0;
    for (int64_t b = 0; b < call->n_seq; b++) {
        int64_t n_q = mla_atb_length(call, ATB_Q_LEN, b), n_kv = mla_atb_length(call, ATB_KV_LEN, b);
        if (n_q < 0) {
            return mla_atb_fail(code, "qSeqLen[%" PRId64 "] = %" PRId64 " is negative", b, n_q);
        }
        sum_q += n_q;
        call->sum_kv += n_kv;
        call->max_q = n_q > call->max_q ? n_q : call->max_q;
        call->max_kv = n_kv > call->max_kv ? n_kv : call->max_kv;
    }
    if (mask != NULL && call->max_kv == 0) {
        return mla_atb_fail(code, "kvSeqLen is 0 for every sequence");
    }
    if (mask != NULL && mask->ndim != 2) {
        return mla_atb_fail(code, "mask has %d dims and must have 2", mask->ndim);
    }
    if (sum_q > call->n_token) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM,
                            "qSeqLen sums up to %" PRId64 ", but q.dims[0] = %" PRId64, sum_q, call->n_token);
    }
    return MLA_ATB_NO_ERROR;
}

/* Where each sequence's keys begin. Packed rows that are as many as B times the longest length are padded ones. */
static int32_t place_keys(atb_call *call)
{
    const mla_atb_tensor *k = call->tensor[ATB_KV];
    int64_t rows = k->dim[0];
    bool both = call->packed && rows == call->n_seq && k->dim[1] == 1 && call->param->kv_head_num == 1;
    call->packed = call->packed && !(both && rows != call->sum_kv);
    if (!call->packed) {
        call->kv_stride = k->dim[1];
        if (call->max_kv > k->dim[1]) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM,
                                "k.dims[1] = %" PRId64 " must be at least %" PRId64 ", the largest of kvSeqLen",
                                k->dim[1], call->max_kv);
        }
        return MLA_ATB_NO_ERROR;
    }
    if (rows != call->sum_kv && rows == call->n_seq * call->max_kv) {
        call->kv_stride = call->max_kv;
        return MLA_ATB_NO_ERROR;
    }
    if (rows < call->sum_kv) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM,
                            "k.dims[0] = %" PRId64 " must be at least %" PRId64 ", the sum of kvSeqLen", rows,
                            call->sum_kv);
    }
    return MLA_ATB_NO_ERROR;
}

static int32_t check_window_mask(const atb_call *call)
{
    const mla_atb_tensor *mask = call->tensor[ATB_MASK];
    if (call->param->mask_type != MLA_ATB_MASK_SWA_NORM) {
        return MLA_ATB_NO_ERROR;
    }
    if (mask->dim[0] < call->max_q || mask->dim[1] < call->max_kv || mask->dim[0] > mask->dim[1]) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM,
                            "mask has dims [%" PRId64 ", %" PRId64 "] and must be at least [%" PRId64 ", %" PRId64
                            "], with no more rows than columns",
                            mask->dim[0], mask->dim[1], call->max_q, call->max_kv);
    }
    return MLA_ATB_NO_ERROR;
}

int32_t mla_atb_check_prefill(atb_call *call, bool need_addresses)
{
    ATB_TRY(mla_atb_check_present(call));
    ATB_TRY(check_dtypes(call));
    ATB_TRY(check_ranks(call));
    ATB_TRY(check_dims(call));
    ATB_TRY(mla_atb_check_addresses(call, need_addresses));
    ATB_TRY(check_pairs(call));
    ATB_TRY(check_values(call));
    ATB_TRY(place_keys(call));
    return check_window_mask(call);
}
