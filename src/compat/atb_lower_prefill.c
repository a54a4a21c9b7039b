/*
 * atb_lower_prefill.c - a prefill call as jobs: one problem where no mask tensor is read, else one for each 128 query
 * tokens of a sequence, in which the mask is a plain view.
 */
#include "atb_internal.h"
#include "cuda/cuda_ascend.h"

static const int64_t ELEMENT = sizeof(uint16_t);

/* ---- views of one sequence, or of all ---------------------------------------------------------------------------- */

/* q, q_rope or o, tokens [from, from + n): packed when `rank` is 3, else one sequence. */
static void bind_queries(atb_job *job, const atb_call *call, mla_tensor *tensor, atb_slot slot, int64_t d, int32_t rank,
                         int64_t from, int64_t n)
{
    const int64_t dim[] = {1, n, call->n_head, d};
    mla_atb_bind(job, tensor, slot, from * call->n_head * d * ELEMENT,
                 mla_atb_slot_view(call, slot, rank, dim + 4 - rank));
}

static void bind_all_queries(atb_job *job, const atb_call *call, int32_t rank, int64_t from, int64_t n)
{
    mla_problem *p = &job->problem;
    bind_queries(job, call, &p->q, ATB_Q, ATB_PREFILL_NOPE, rank, from, n);
    bind_queries(job, call, &p->q_rope, ATB_Q_ROPE, ATB_ROPE, rank, from, n);
    bind_queries(job, call, &p->o, ATB_OUT, ATB_PREFILL_NOPE, rank, from, n);
    p->softmax_scale = call->param->qk_scale;
    p->d_v = ATB_PREFILL_NOPE;
}

/* k, k_rope and v of a segment as [n][rows][N][d], sequences `stride` rows apart, from row `from` on; packed
 * [rows][N][d] when n is 0. */
static void bind_keys(atb_job *job, const atb_call *call, mla_segment *segment, int64_t from, int64_t n, int64_t rows,
                      int64_t stride)
{
    mla_tensor *tensor[] = {&segment->k, &segment->k_rope, &segment->v};
    const atb_slot slot[] = {ATB_KV, ATB_K_ROPE, ATB_V};
    const int64_t width[] = {ATB_PREFILL_NOPE, ATB_ROPE, ATB_PREFILL_NOPE};
    for (int i = 0; i < 3; i++) {
        const int64_t dim[] = {n, rows, call->param->kv_head_num, width[i]};
        mla_tensor view = mla_atb_slot_view(call, slot[i], n == 0 ? 3 : 4, n == 0 ? dim + 1 : dim);
        view.stride[0] = n == 0 ? view.stride[0] : stride * call->param->kv_head_num * width[i];
        mla_atb_bind(job, tensor[i], slot[i], from * call->param->kv_head_num * width[i] * ELEMENT, view);
    }
}

/* ---- without a mask tensor: one problem -------------------------------------------------------------------------- */

static int32_t lower_whole(mla_atb_op *op, const atb_call *call)
{
    const int64_t n_seq = call->n_seq;
    int32_t *q_begin = mla_atb_numbers_new(&op->work, 3 * n_seq + 2);
    atb_job *job = q_begin == NULL ? NULL : mla_atb_job_add(&op->work);
    if (job == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_OUT_OF_HOST_MEMORY, "the op does not fit into memory");
    }
    int32_t *kv_begin = q_begin + n_seq + 1, *length = kv_begin + n_seq + 1;
    for (int64_t b = 0; b < n_seq; b++) {
        length[b] = (int32_t)mla_atb_length(call, ATB_KV_LEN, b);
        q_begin[b + 1] = q_begin[b] + (int32_t)mla_atb_length(call, ATB_Q_LEN, b);
        kv_begin[b + 1] = kv_begin[b] + length[b];
    }
    mla_problem *p = &job->problem;
    mla_segment *segment = &p->segment[0];
    bind_all_queries(job, call, 3, 0, call->n_token);
    mla_atb_bind_numbers(op, job, &p->q_begin, q_begin, "begins of qSeqLen", n_seq + 1);
    if (call->kv_stride == 0) {
        bind_keys(job, call, segment, 0, 0, call->tensor[ATB_KV]->dim[0], 0);
        mla_atb_bind_numbers(op, job, &segment->k_begin, kv_begin, "begins of kvSeqLen", n_seq + 1);
    } else {
        bind_keys(job, call, segment, 0, n_seq, call->kv_stride, call->kv_stride);
    }
    mla_atb_bind_numbers(op, job, &segment->length, length, "kvSeqLen", n_seq);
    segment->visible.rule = call->param->mask_type == MLA_ATB_MASK_CAUSAL ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
    return MLA_ATB_NO_ERROR;
}

/* ---- with one ---------------------------------------------------------------------------------------------------- */

static mla_status derive_mask(const mla_atb_op *op, void *const address[ATB_N_SLOT], void *stream)
{
    const mla_atb_tensor *mask = &op->tensor[ATB_MASK];
    const mla_cuda_atb_mask m = {.from = address[ATB_MASK],
                                 .to = address[ATB_WORKSPACE],
                                 .n = mask->dim[0] * mask->dim[1]};
    if (op->device.type != MLA_DEVICE_CPU) {
        return mla_cuda_atb_scaled_mask(op->device.id, &m, stream);
    }
    for (int64_t i = 0; i < m.n; i++) {
        m.to[i] = mla_atb_scale_mask(m.from[i]);
    }
    return MLA_STATUS_OK;
}

/* The mask's rows [row, row + n_q) and columns [column, column + n_key), as added to the scores. */
static void bind_mask(atb_job *job, const atb_call *call, mla_segment *segment, int64_t row, int64_t column,
                      int64_t n_q, int64_t n_key)
{
    const mla_atb_tensor *mask = call->tensor[ATB_MASK];
    mla_tensor view = mla_atb_slot_view(call, ATB_MASK, 3, (const int64_t[]){1, n_q, n_key});
    view.stride[1] = mask->dim[1];
    mla_atb_bind(job, &segment->mask, mask->dtype == MLA_ATB_BF16 ? ATB_WORKSPACE : ATB_MASK,
                 (row * mask->dim[1] + column) * ELEMENT, view);
}

/* Query tokens [first, first + n_q) of a sequence, first a multiple of 128; its queries begin at row q_row, its n_kv
 * keys at row kv_row. */
static int32_t lower_tile(mla_atb_op *op, const atb_call *call, int64_t q_row, int64_t kv_row, int64_t n_kv,
                          int64_t first, int64_t n_q)
{
    atb_job *job = mla_atb_job_add(&op->work);
    if (job == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_OUT_OF_HOST_MEMORY, "the op does not fit into memory");
    }
    int64_t tile = first / ATB_BLOCK, end = first + ATB_BLOCK < n_kv ? first + ATB_BLOCK : n_kv, begin = 0;
    mla_problem *p = &job->problem;
    bind_all_queries(job, call, 4, q_row + first, n_q);
    mla_segment *segment = &p->segment[0];
    if (call->param->mask_type == MLA_ATB_MASK_SWA_NORM) {
        int64_t reach = ((int64_t)call->param->window_size + ATB_BLOCK - 1) / ATB_BLOCK;
        begin = call->param->window_size < n_kv && tile > reach ? (tile - reach) * ATB_BLOCK : 0;
        bind_keys(job, call, segment, kv_row + begin, 1, end - begin, end - begin);
        bind_mask(job, call, segment, first, begin, n_q, end - begin);
        return MLA_ATB_NO_ERROR;
    }
    /* the template covers the square of 512 that the queries are in; earlier keys are all visible */
    begin = first / ATB_PREFILL_TEMPLATE * ATB_PREFILL_TEMPLATE;
    if (begin > 0) {
        bind_keys(job, call, segment, kv_row, 1, begin, begin);
        p->n_segment = 2;
        segment = &p->segment[1];
    }
    bind_keys(job, call, segment, kv_row + begin, 1, end - begin, end - begin);
    bind_mask(job, call, segment, first - begin, 0, n_q, end - begin);
    return MLA_ATB_NO_ERROR;
}

static int32_t lower_tiles(mla_atb_op *op, const atb_call *call)
{
    const mla_atb_tensor *mask = call->tensor[ATB_MASK];
    if (mask->dtype == MLA_ATB_BF16) {
        op->work.derive = derive_mask;
        op->work.derived_bytes = mask->dim[0] * mask->dim[1] * ELEMENT;
    }
    int64_t q_row = 0, kv_row = 0;
    for (int64_t b = 0; b < call->n_seq; b++) {
        int64_t n_q = mla_atb_length(call, ATB_Q_LEN, b), n_kv = mla_atb_length(call, ATB_KV_LEN, b);
        for (int64_t first = 0; first < n_q; first += ATB_BLOCK) {
            int64_t n = n_q - first < ATB_BLOCK ? n_q - first : ATB_BLOCK;
            ATB_TRY(lower_tile(op, call, q_row, kv_row, n_kv, first, n));
        }
        q_row += n_q;
        kv_row += call->kv_stride == 0 ? n_kv : call->kv_stride;
    }
    return MLA_ATB_NO_ERROR;
}

int32_t mla_atb_lower_prefill(mla_atb_op *op, const atb_call *call)
{
    return call->tensor[ATB_MASK] == NULL ? lower_whole(op, call) : lower_tiles(op, call);
}
