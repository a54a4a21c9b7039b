/*
 * atb_lower.c - a decode call as jobs: usually one problem over all sequences, several where neighbours obey different
 * rules.
 */
#include <stdlib.h>
#include <string.h>

#include "atb_internal.h"
#include "cuda/cuda_ascend.h"

/* ---- views ------------------------------------------------------------------------------------------------------- */

atb_job *mla_atb_job_add(atb_work *work)
{
    if (work->n_job == work->capacity) {
        int64_t capacity = work->capacity > 0 ? 2 * work->capacity : 1;
        atb_job *grown = realloc(work->job, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        work->job = grown;
        work->capacity = capacity;
    }
    atb_job *job = &work->job[work->n_job++];
    memset(job, 0, sizeof *job);
    mla_problem_init(&job->problem);
    return job;
}

/* A view without address: dtype and dims, row-major. name: what sentences call it. */
static mla_tensor view_of(const char *name, int32_t dtype, int32_t ndim, const int64_t *dim)
{
    mla_tensor view = mla_tensor_make(NULL, mla_atb_dtype_of(dtype), ndim, dim);
    view.name = name;
    return view;
}

void mla_atb_bind(atb_job *job, mla_tensor *tensor, atb_slot slot, int64_t byte_offset, mla_tensor view)
{
    *tensor = view;
    job->binding[job->n_binding++] = (atb_binding){.field = (size_t)((char *)tensor - (char *)&job->problem),
                                                   .slot = slot,
                                                   .byte_offset = byte_offset};
}

mla_tensor mla_atb_slot_view(const atb_call *call, atb_slot slot, int32_t ndim, const int64_t *dim)
{
    const mla_atb_tensor *t = call->tensor[slot];
    mla_tensor view = view_of(mla_atb_slot_name(call->param, slot), t->dtype, ndim, dim);
    view.device = t->device;
    return view;
}

/* A tensor of the call as it is. */
static mla_tensor whole(const atb_call *call, atb_slot slot)
{
    return mla_atb_slot_view(call, slot, call->tensor[slot]->ndim, call->tensor[slot]->dim);
}

/* Its first or last columns. */
static mla_tensor columns(mla_tensor view, int64_t n)
{
    view.dim[view.ndim - 1] = n;
    return view;
}

int32_t *mla_atb_numbers_new(atb_work *work, int64_t n)
{
    work->numbers = calloc((size_t)n, sizeof *work->numbers);
    work->n_number = n;
    return work->numbers;
}

void mla_atb_bind_numbers(const mla_atb_op *op, atb_job *job, mla_tensor *tensor, const int32_t *first,
                          const char *name, int64_t n)
{
    mla_tensor view = view_of(name, MLA_ATB_INT32, 1, &n);
    view.device = op->device;
    mla_atb_bind(job, tensor, ATB_NUMBERS, (first - op->work.numbers) * (int64_t)sizeof *first, view);
}

/* ---- MASK_FREE --------------------------------------------------------------------------------------------------- */

/* The last two blocks of a sequence (ascend.h) become a segment of their own, with a page table [B][2] and a mask
 * [T][256] that are made when the op is executed. */
static int64_t tail_mask_offset(int64_t n_seq)
{
    return (n_seq * MLA_ATB_TAIL_BLOCKS * (int64_t)sizeof(int32_t) + 511) / 512 * 512;
}

static int64_t blocks_of(int64_t n_key)
{
    return (n_key + ATB_BLOCK - 1) / ATB_BLOCK;
}

static void derive_tail_of(const mla_cuda_atb_tail *t, int64_t b)
{
    const size_t bytes = ATB_BLOCK * sizeof(uint16_t);
    for (int64_t i = 0; i < MLA_ATB_TAIL_BLOCKS; i++) {
        t->pages[b * MLA_ATB_TAIL_BLOCKS + i] = mla_atb_tail_page(t, b, i);
    }
    for (int64_t j = 0; j < t->begin[b + 1] - t->begin[b]; j++) {
        for (int64_t i = 0; i < mla_atb_tail_count(t, b); i++) {
            uint16_t *to = t->rows + ((t->begin[b] + j) * MLA_ATB_TAIL_BLOCKS + i) * ATB_BLOCK;
            const uint16_t *row = mla_atb_template_row(t, b, j, i);
            if (row != NULL) {
                memcpy(to, row, bytes);
            } else {
                memset(to, 0, bytes);
            }
        }
    }
}

static mla_status derive_tail(const mla_atb_op *op, void *const address[ATB_N_SLOT], void *stream)
{
    const mla_atb_tensor *mask = &op->tensor[ATB_MASK];
    const int32_t *begin = address[ATB_NUMBERS], *head = begin + op->n_used + 1;
    const mla_cuda_atb_tail t = {.begin = begin,
                                 .head = head,
                                 .tail = head + op->n_used,
                                 .table = address[ATB_BLOCK_TABLES],
                                 .mask = address[ATB_MASK],
                                 .n_seq = op->n_used,
                                 .table_columns = op->tensor[ATB_BLOCK_TABLES].dim[1],
                                 .mask_rows = mask->dim[mask->ndim - 2],
                                 .per_sequence = mask->ndim == 3,
                                 .pages = address[ATB_WORKSPACE],
                                 .rows = (uint16_t *)((char *)address[ATB_WORKSPACE] + tail_mask_offset(op->n_seq))};
    if (op->device.type != MLA_DEVICE_CPU) {
        return mla_cuda_atb_tail_mask(op->device.id, &t, stream);
    }
    for (int64_t b = 0; b < t.n_seq; b++) {
        derive_tail_of(&t, b);
    }
    return MLA_STATUS_OK;
}

/* ---- a job ------------------------------------------------------------------------------------------------------- */

static void lower_queries(atb_job *job, const atb_call *call)
{
    mla_problem *p = &job->problem;
    mla_atb_bind(job, &p->q, ATB_Q, 0, whole(call, ATB_Q));
    if (call->tensor[ATB_Q_ROPE] != NULL) {
        mla_atb_bind(job, &p->q_rope, ATB_Q_ROPE, 0, whole(call, ATB_Q_ROPE));
    }
    mla_atb_bind(job, &p->o, ATB_OUT, 0, whole(call, ATB_OUT));
    if (call->tensor[ATB_LSE] != NULL) {
        mla_tensor lse = whole(call, ATB_LSE);
        lse.ndim = 2; /* [T][H][1] */
        mla_atb_bind(job, &p->lse, ATB_LSE, 0, lse);
    }
    p->lse_empty = MLA_LSE_EMPTY_NEG_INF;
    p->softmax_scale = call->param->qk_scale;
    p->d_v = ATB_NOPE;
    if (call->tensor[ATB_QK_DESCALE] != NULL) {
        mla_atb_bind(job, &p->qk_descale, ATB_QK_DESCALE, 0, whole(call, ATB_QK_DESCALE));
        mla_atb_bind(job, &p->pv_descale, ATB_PV_DESCALE, 0, whole(call, ATB_PV_DESCALE));
        p->p_rounding = MLA_P_ROUND_INT8;
        p->p_tile = mla_atb_path_of(call) == ATB_PATH_C ? ATB_BLOCK : 4 * ATB_BLOCK;
    }
}

static void lower_cache(atb_job *job, const atb_call *call, mla_segment *segment)
{
    mla_tensor kv = whole(call, ATB_KV);
    switch (call->param->cache_mode) {
    case MLA_ATB_KVCACHE: /* rope behind the latent row; apart only if the queries are */
        if (call->tensor[ATB_Q_ROPE] != NULL) {
            mla_tensor rope = columns(kv, ATB_ROPE);
            rope.name = "ctKV (rope columns)";
            mla_atb_bind(job, &segment->k_rope, ATB_KV, ATB_NOPE * (int64_t)sizeof(uint16_t), rope);
            kv = columns(kv, ATB_NOPE);
        }
        mla_atb_bind(job, &segment->k, ATB_KV, 0, kv);
        return;
    case MLA_ATB_INT8_NZCACHE:
    case MLA_ATB_NZCACHE: segment->layout = MLA_KEY_LAYOUT_NZ; break;
    default: break;
    }
    mla_atb_bind(job, &segment->k, ATB_KV, 0, kv);
    mla_atb_bind(job, &segment->k_rope, ATB_K_ROPE, 0, whole(call, ATB_K_ROPE));
}

/* Sequences [from, to), which all obey `rule`. */
static int32_t add_job(mla_atb_op *op, const atb_call *call, int64_t from, int64_t to, mla_visible_rule rule)
{
    atb_work *work = &op->work;
    atb_job *job = mla_atb_job_add(work);
    if (job == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_OUT_OF_HOST_MEMORY, "the op does not fit into memory");
    }
    const int32_t *begin = work->numbers, *head = begin + call->n_used + 1, *tail_length = head + call->n_used;
    const int64_t n = to - from;
    mla_problem *p = &job->problem;
    mla_segment *segment = &p->segment[0];
    lower_queries(job, call);
    mla_atb_bind_numbers(op, job, &p->q_begin, begin + from, "begins of qSeqLen", n + 1);
    lower_cache(job, call, segment);
    segment->visible.rule = rule;
    mla_atb_bind_numbers(op, job, &segment->length, head + from, "contextLens", n);
    mla_tensor table = whole(call, ATB_BLOCK_TABLES);
    table.dim[0] = n;
    mla_atb_bind(job, &segment->page_table, ATB_BLOCK_TABLES, from * table.stride[0] * (int64_t)sizeof(int32_t), table);
    if (!mla_atb_reads_mask(call)) {
        return MLA_ATB_NO_ERROR;
    }

    int32_t dtype = call->tensor[ATB_MASK]->dtype;
    if (call->param->mask_type == MLA_ATB_MASK_SPEC) {
        mla_tensor mask = whole(call, ATB_MASK);
        if (call->param->flags & MLA_ATB_STRICT) {
            mask.dim[1] = mask.stride[0] = call->max_kv;
        }
        mla_atb_bind(job, &segment->mask, ATB_MASK, 0, mask);
        return MLA_ATB_NO_ERROR;
    }
    mla_segment *tail = &p->segment[1];
    p->n_segment = 2;
    lower_cache(job, call, tail);
    tail->visible.rule = rule;
    mla_atb_bind_numbers(op, job, &tail->length, tail_length + from, "contextLens", n);
    mla_tensor pages = view_of("last blocks of blockTables", MLA_ATB_INT32, 2, (int64_t[]){n, MLA_ATB_TAIL_BLOCKS});
    mla_tensor mask = view_of("mask", dtype, 2, (int64_t[]){call->n_token, MLA_ATB_TAIL_BLOCKS * ATB_BLOCK});
    pages.device = mask.device = op->device;
    mla_atb_bind(job, &tail->page_table, ATB_WORKSPACE, from * MLA_ATB_TAIL_BLOCKS * (int64_t)sizeof(int32_t), pages);
    mla_atb_bind(job, &tail->mask, ATB_WORKSPACE, tail_mask_offset(call->n_seq), mask);
    return MLA_ATB_NO_ERROR;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* begin [n_used + 1], keys of the first segment [n_used], keys of the second [n_used]: 0 without MASK_FREE */
static int32_t capture_lengths(atb_work *work, const atb_call *call, bool split_tail)
{
    if (mla_atb_numbers_new(work, 3 * call->n_used + 1) == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_OUT_OF_HOST_MEMORY, "the op does not fit into memory");
    }
    int32_t *begin = work->numbers, *head = begin + call->n_used + 1, *tail_length = head + call->n_used;
    for (int64_t b = 0; b < call->n_used; b++) {
        int64_t n_key = mla_atb_length(call, ATB_KV_LEN, b), n_block = blocks_of(n_key);
        begin[b + 1] = begin[b] + (int32_t)mla_atb_n_query(call, b);
        head[b] = (int32_t)n_key;
        if (split_tail) {
            head[b] = n_block > MLA_ATB_TAIL_BLOCKS ? (int32_t)((n_block - MLA_ATB_TAIL_BLOCKS) * ATB_BLOCK) : 0;
            tail_length[b] = (int32_t)n_key - head[b];
        }
    }
    return MLA_ATB_NO_ERROR;
}

static mla_visible_rule rule_of(const atb_call *call, int64_t b)
{
    atb_path path = mla_atb_path_of(call);
    bool causal = call->tensor[ATB_Q_LEN] != NULL && (path == ATB_PATH_B || path == ATB_PATH_D);
    causal = causal && (call->tensor[ATB_MASK_USE] == NULL || mla_atb_length(call, ATB_MASK_USE, b) != 0);
    return causal ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
}

int32_t mla_atb_lower_decode(mla_atb_op *op, const atb_call *call)
{
    bool split_tail = mla_atb_reads_mask(call) && call->param->mask_type == MLA_ATB_MASK_FREE;
    bool skip_empty = call->param->flags & MLA_ATB_STRICT;
    ATB_TRY(capture_lengths(&op->work, call, split_tail));
    if (split_tail) {
        op->work.derive = derive_tail;
        op->work.derived_bytes =
            tail_mask_offset(call->n_seq) + call->n_token * MLA_ATB_TAIL_BLOCKS * ATB_BLOCK * (int64_t)sizeof(uint16_t);
    }
    for (int64_t from = 0, to; from < call->n_used; from = to) {
        to = from + 1;
        if (skip_empty && mla_atb_length(call, ATB_KV_LEN, from) == 0) {
            continue;
        }
        mla_visible_rule rule = rule_of(call, from);
        while (to < call->n_used && rule_of(call, to) == rule &&
               !(skip_empty && mla_atb_length(call, ATB_KV_LEN, to) == 0)) {
            to++;
        }
        ATB_TRY(add_job(op, call, from, to, rule));
    }
    return MLA_ATB_NO_ERROR;
}
