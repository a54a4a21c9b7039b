/*
 * quant_sparse_flash_mla.c - the operator: lowers its arguments to a mla_problem of one or two segments.
 */
#include "mla/quant_sparse_flash_mla.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/shape.h"
#include "core/sized.h"
#include "core/tensor.h"
#include "cuda/cuda_ascend.h"
#include "cuda/cuda_device.h"
#include "quant_sparse_flash_mla_rules.h"

#define P_TILE 128

void mla_quant_sparse_flash_mla_init_sized(mla_quant_sparse_flash_mla_args *args, size_t struct_size)
{
    if (!mla_sized_init(args, struct_size, sizeof *args)) {
        return;
    }
    args->quant_mode = 1;
    args->softmax_scale = 1;
    args->cmp_ratio = 1;
    args->ori_win_left = -1;
    args->ori_win_right = -1;
    args->layout_q = "BSND";
    args->layout_kv = "BSND";
    args->topk_value_mode = 1;
}

/* ---- lengths that no tensor holds -------------------------------------------------------------------------------- */

/* Where derived lengths are written, piece by piece. */
typedef struct scratch_space {
    int32_t *at; /* on the device of the tensors */
    int64_t left;
    bool running; /* on a GPU: the stream may be given work */
    void *stream;
} scratch_space;

static bool on_gpu(const qsfm_args *args)
{
    return args->q.device.type != MLA_DEVICE_CPU;
}

/* A new i32 [n] beside q; the caller fills it in through *values. */
static mla_status take(scratch_space *scratch, int64_t n, const mla_tensor *q, const char *name, int32_t **values,
                       mla_tensor *taken)
{
    if (q->device.type != MLA_DEVICE_CPU && !scratch->running) {
        return mla_fail(MLA_STATUS_UNSUPPORTED,
                        "%s must be given for tensors on a GPU: lowering queues no work that could derive it", name);
    }
    if (scratch->at == NULL || scratch->left < n) {
        return mla_fail(MLA_STATUS_WORKSPACE_TOO_SMALL,
                        "n_scratch: %" PRId64 " entries are left, but %s needs %" PRId64,
                        scratch->at == NULL ? 0 : scratch->left, name, n);
    }
    *values = scratch->at;
    *taken = mla_tensor_make(scratch->at, MLA_DTYPE_I32, 1, &n);
    taken->name = name;
    taken->device = q->device;
    scratch->at += n;
    scratch->left -= n;
    return MLA_STATUS_OK;
}

/* Tokens in the pages that row b of a table names before its first entry that names none. */
static int32_t mapped_tokens(const mla_cuda_lengths *l, int64_t b)
{
    int64_t n = 0;
    const int32_t *row = l->table + b * l->max_page;
    while (n < l->max_page && row[n] >= 0 && row[n] < l->n_page) {
        n++;
    }
    return mla_ascend_length(mla_ascend_tokens(n, l->page_size));
}

/* Lengths [batch] of a PA_BBND side without seqused: from ori_length if it is given, else from the table. */
static mla_status derive_length(const qsfm_args *args, const mla_tensor *table, const mla_tensor *kv,
                                const mla_tensor *ori_length, int64_t batch, const char *name, scratch_space *scratch,
                                mla_tensor *length)
{
    mla_cuda_lengths l = {.table = table->data,
                          .n_seq = batch,
                          .max_page = table->dim[1],
                          .n_page = kv->dim[0],
                          .page_size = kv->dim[1],
                          .ratio = args->cmp_ratio,
                          .ori_length = ori_length != NULL ? ori_length->data : NULL};
    MLA_TRY(take(scratch, batch, &args->q, name, &l.length, length));
    if (on_gpu(args)) {
        return mla_cuda_ascend_lengths(args->q.device.id, &l, scratch->stream);
    }
    int64_t capacity = mla_ascend_tokens(l.max_page, l.page_size);
    for (int64_t b = 0; b < batch; b++) {
        l.length[b] =
            l.ori_length != NULL ? mla_ascend_compressed(l.ori_length[b], l.ratio, capacity) : mapped_tokens(&l, b);
    }
    return MLA_STATUS_OK;
}

/* The list's length per query token. More than there are entries counts as all of them, which the core would refuse. */
static mla_status lower_list_length(const qsfm_args *args, const mla_tensor *given, const char *name, int64_t n_entry,
                                    scratch_space *scratch, mla_tensor *length)
{
    *length = mla_qsfm_named(given, name);
    if (!mla_tensor_present(length)) {
        return MLA_STATUS_OK;
    }
    length->ndim--; /* N2 */
    if (on_gpu(args)) {
        return MLA_STATUS_OK; /* kernels clip */
    }
    const int32_t *value = length->data;
    int64_t count = mla_qsfm_count(length), i = 0;
    while (i < count && value[i] <= n_entry) {
        i++;
    }
    if (i == count) {
        return MLA_STATUS_OK;
    }
    int32_t *clipped;
    mla_tensor flat;
    MLA_TRY(take(scratch, count, &args->q, name, &clipped, &flat));
    for (i = 0; i < count; i++) {
        clipped[i] = value[i] <= n_entry ? value[i] : (int32_t)n_entry;
    }
    length->data = clipped;
    return MLA_STATUS_OK;
}

/* ---- lowering ---------------------------------------------------------------------------------------------------- */

/* Without the dim of extent 1 at `axis`. */
static mla_tensor without_axis(mla_tensor t, int32_t axis)
{
    for (int32_t i = axis; i + 1 < t.ndim; i++) {
        t.dim[i] = t.dim[i + 1];
        t.stride[i] = t.stride[i + 1];
    }
    t.ndim--;
    return t;
}

static mla_status lower_list(const qsfm_args *args, const mla_tensor *given, const mla_tensor *given_length,
                             const char *name, const char *length_name, scratch_space *scratch, mla_segment *segment)
{
    segment->list = without_axis(mla_qsfm_named(given, name), given->ndim - 2);
    segment->list_rule = MLA_LIST_STOP;
    return lower_list_length(args, given_length, length_name, given->dim[given->ndim - 1], scratch,
                             &segment->list_length);
}

static mla_status lower_ori(const qsfm_args *args, uint32_t facts, scratch_space *scratch, mla_segment *ori)
{
    ori->k = mla_qsfm_named(&args->ori_kv, "ori_kv");
    ori->k_begin = mla_qsfm_named(&args->cu_seqlens_ori_kv, "cu_seqlens_ori_kv");
    ori->page_table = mla_qsfm_named(&args->ori_block_table, "ori_block_table");
    ori->length = mla_qsfm_named(&args->seqused_ori_kv, "seqused_ori_kv");
    ori->descale = mla_qsfm_named(&args->ori_kv_descale, "ori_kv_descale");
    if ((facts & QSFM_KV_PA) && !mla_tensor_present(&ori->length)) {
        /* only lists choose, so the length is merely what an entry may name */
        MLA_TRY(derive_length(args, &args->ori_block_table, &args->ori_kv, NULL, mla_qsfm_batch(args, facts),
                              "seqused_ori_kv", scratch, &ori->length));
    }
    switch (args->ori_mask_mode) {
    case 3: ori->visible.rule = MLA_VISIBLE_CAUSAL; break;
    case 4:
        ori->visible.rule = MLA_VISIBLE_WINDOW;
        ori->visible.left = args->ori_win_left;
        ori->visible.right = args->ori_win_right;
        break;
    default: ori->visible.rule = MLA_VISIBLE_ALL; break;
    }
    if (facts & QSFM_ORI_BY_LIST) {
        MLA_TRY(lower_list(args, &args->ori_sparse_indices, &args->ori_topk_length, "ori_sparse_indices",
                           "ori_topk_length", scratch, ori));
    }
    return MLA_STATUS_OK;
}

static mla_status lower_cmp(const qsfm_args *args, uint32_t facts, scratch_space *scratch, mla_segment *cmp)
{
    cmp->k = mla_qsfm_named(&args->cmp_kv, "cmp_kv");
    cmp->k_begin = mla_qsfm_named(&args->cu_seqlens_cmp_kv, "cu_seqlens_cmp_kv");
    cmp->page_table = mla_qsfm_named(&args->cmp_block_table, "cmp_block_table");
    cmp->length = mla_qsfm_named(&args->seqused_cmp_kv, "seqused_cmp_kv");
    cmp->descale = mla_qsfm_named(&args->cmp_kv_descale, "cmp_kv_descale");
    if ((facts & QSFM_KV_PA) && !mla_tensor_present(&cmp->length)) {
        const mla_tensor *ori = mla_qsfm_given(&args->seqused_ori_kv) ? &args->seqused_ori_kv : NULL;
        MLA_TRY(derive_length(args, &args->cmp_block_table, &args->cmp_kv, ori, mla_qsfm_batch(args, facts),
                              "seqused_cmp_kv", scratch, &cmp->length));
    }
    if (facts & QSFM_CMP_MASK_3) {
        cmp->visible.rule = MLA_VISIBLE_COMPRESSED;
        cmp->visible.ratio = args->cmp_ratio;
        if (args->cmp_ratio > 1) { /* nothing is left over of single tokens */
            cmp->visible.residual = mla_qsfm_named(&args->cmp_residual_kv, "cmp_residual_kv");
        }
    } else if (facts & QSFM_CMP_LIST) {
        /* all keys too, but as a range, which bounds how many entries are looked at; ALL would not */
        cmp->visible.rule = MLA_VISIBLE_WINDOW;
        cmp->visible.left = cmp->visible.right = -1;
    }
    if (facts & QSFM_CMP_LIST) {
        MLA_TRY(lower_list(args, &args->cmp_sparse_indices, &args->cmp_topk_length, "cmp_sparse_indices",
                           "cmp_topk_length", scratch, cmp));
    }
    return MLA_STATUS_OK;
}

static mla_status lower(const qsfm_args *args, uint32_t facts, scratch_space *scratch, mla_problem *p)
{
    mla_problem_init(p);
    p->q = mla_qsfm_named(&args->q, "q");
    p->q_begin = mla_qsfm_named(&args->cu_seqlens_q, "cu_seqlens_q");
    p->q_length = mla_qsfm_named(&args->seqused_q, "seqused_q");
    p->q_descale = mla_qsfm_named(&args->q_descale, "q_descale");
    p->sink = mla_qsfm_named(&args->sinks, "sinks");
    p->o = mla_qsfm_named(&args->attn_out, "attn_out");
    if (facts & QSFM_LSE) {
        p->lse = without_axis(mla_qsfm_named(&args->softmax_lse, "softmax_lse"), facts & QSFM_Q_TND ? 0 : 1);
    }
    p->d_v = args->q.dim[args->q.ndim - 1];
    p->softmax_scale = (float)args->softmax_scale;
    p->lse_empty = MLA_LSE_EMPTY_ZERO;
    p->lse_with_sink = true;
    if (!(args->options & MLA_SPARSE_FLASH_MLA_EXACT_P)) {
        p->p_rounding = facts & QSFM_HIF8 ? MLA_P_ROUND_HIF8 : MLA_P_ROUND_16BIT;
        p->p_tile = P_TILE;
    }
    MLA_TRY(lower_ori(args, facts, scratch, &p->segment[0]));
    if (facts & QSFM_CMP) {
        p->n_segment = 2;
        MLA_TRY(lower_cmp(args, facts, scratch, &p->segment[1]));
    }
    return MLA_STATUS_OK;
}

/* Entries that lowering may take; an upper bound, for whether list lengths are clipped depends on their values. */
static int64_t scratch_of(const qsfm_args *args, uint32_t facts)
{
    int64_t batch = mla_qsfm_batch(args, facts), n = 0;
    n += (facts & QSFM_KV_PA) && !mla_qsfm_given(&args->seqused_ori_kv) ? batch : 0;
    n += (facts & QSFM_KV_PA) && (facts & QSFM_CMP) && !mla_qsfm_given(&args->seqused_cmp_kv) ? batch : 0;
    if (on_gpu(args)) {
        return n;
    }
    n += (facts & QSFM_ORI_BY_LIST) && mla_qsfm_given(&args->ori_topk_length) ? mla_qsfm_count(&args->ori_topk_length)
                                                                              : 0;
    n += (facts & QSFM_CMP_LIST) && mla_qsfm_given(&args->cmp_topk_length) ? mla_qsfm_count(&args->cmp_topk_length) : 0;
    return n;
}

int64_t mla_quant_sparse_flash_mla_scratch(const mla_quant_sparse_flash_mla_args *args)
{
    uint32_t facts;
    return mla_qsfm_check(args, &facts) == MLA_STATUS_OK && !on_gpu(args) ? scratch_of(args, facts) : 0;
}

mla_status mla_quant_sparse_flash_mla_lower(const mla_quant_sparse_flash_mla_args *args, int32_t *scratch,
                                            int64_t n_scratch, mla_problem *problem)
{
    uint32_t facts;
    if (problem == NULL) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "problem is NULL");
    }
    MLA_TRY(mla_qsfm_check(args, &facts));
    scratch_space space = {.at = scratch, .left = n_scratch};
    return lower(args, facts, &space, problem);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Bytes from one row of an output to the next; rows are its dims from `axis` on. */
static int64_t row_bytes(const mla_tensor *t, int32_t axis)
{
    return t->stride[axis] * (int64_t)mla_dtype_size(t->dtype);
}

static void clear_rows(const mla_tensor *t, int32_t axis, int64_t begin, int64_t end)
{
    int64_t bytes = row_bytes(t, axis);
    memset((char *)t->data + begin * bytes, 0, (size_t)((end - begin) * bytes));
}

/* Tokens of a packed q that belong to no sequence are no part of the problem, but every element of the outputs is to be
 * written. After a run, so on the CPU cu_seqlens_q has been found to be in order. */
static mla_status clear_unowned(const qsfm_args *args, uint32_t facts, void *stream)
{
    if (!(facts & QSFM_Q_TND)) {
        return MLA_STATUS_OK;
    }
    const int32_t *begin = args->cu_seqlens_q.data;
    int64_t batch = mla_qsfm_batch(args, facts), n_token = args->q.dim[0];
    if (on_gpu(args)) {
        mla_cuda_unowned rows = {.begin = begin, .n_seq = batch, .n_token = n_token};
        rows.out = args->attn_out.data;
        rows.out_bytes = row_bytes(&args->attn_out, 0);
        if (facts & QSFM_LSE) {
            rows.lse = args->softmax_lse.data;
            rows.lse_bytes = row_bytes(&args->softmax_lse, 1);
        }
        return mla_cuda_ascend_clear(args->q.device.id, &rows, stream);
    }
    clear_rows(&args->attn_out, 0, 0, begin[0]);
    clear_rows(&args->attn_out, 0, begin[batch], n_token);
    if (facts & QSFM_LSE) {
        clear_rows(&args->softmax_lse, 1, 0, begin[0]);
        clear_rows(&args->softmax_lse, 1, begin[batch], n_token);
    }
    return MLA_STATUS_OK;
}

/* Memory for derived lengths on q's device, and its end, in the order of the stream. */
static mla_status allocate_scratch(const qsfm_args *args, const mla_plan_options *options, int64_t n, void **memory)
{
    size_t bytes = (size_t)n * sizeof(int32_t);
    if (n == 0) {
        return MLA_STATUS_OK;
    }
    if (on_gpu(args) && options->allocator == NULL) {
        return mla_cuda_pool_allocate(args->q.device.id, bytes, options->stream, memory);
    }
    *memory = on_gpu(args) ? options->allocator->allocate(options->allocator->context, bytes, options->stream)
                           : malloc(bytes);
    return *memory != NULL ? MLA_STATUS_OK
                           : mla_fail(MLA_STATUS_OUT_OF_MEMORY, "%" PRId64 " lengths do not fit into memory", n);
}

static void release_scratch(const qsfm_args *args, const mla_plan_options *options, void *memory)
{
    if (!on_gpu(args) || memory == NULL) {
        free(memory);
    } else if (options->allocator == NULL) {
        mla_cuda_pool_release(args->q.device.id, memory, options->stream);
    } else if (options->allocator->release != NULL) {
        options->allocator->release(options->allocator->context, memory, options->stream);
    }
}

mla_status mla_quant_sparse_flash_mla(const mla_quant_sparse_flash_mla_args *args, const mla_plan_options *options)
{
    static const mla_plan_options defaults = {0};
    uint32_t facts;
    void *memory = NULL;
    options = options != NULL ? options : &defaults;
    MLA_TRY(mla_qsfm_check(args, &facts));
    int64_t n = scratch_of(args, facts);
    MLA_TRY(allocate_scratch(args, options, n, &memory));
    scratch_space scratch = {.at = memory, .left = n, .running = true, .stream = options->stream};
    mla_problem problem;
    mla_status status = lower(args, facts, &scratch, &problem);
    if (status == MLA_STATUS_OK) {
        status = mla_attention(&problem, options);
    }
    if (status == MLA_STATUS_OK) {
        status = clear_unowned(args, facts, options->stream);
    }
    release_scratch(args, options, memory);
    return status;
}
