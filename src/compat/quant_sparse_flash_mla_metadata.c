/*
 * quant_sparse_flash_mla_metadata.c - the metadata operator: what it checks, what it writes, and how that is
 * recognised.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/shape.h"
#include "core/sized.h"
#include "cuda/cuda_ascend.h"
#include "mla/mla_gpu.h"
#include "quant_sparse_flash_mla_rules.h"

void mla_quant_sparse_flash_mla_metadata_init_sized(mla_quant_sparse_flash_mla_metadata_args *args, size_t struct_size)
{
    if (!mla_sized_init(args, struct_size, sizeof *args)) {
        return;
    }
    args->quant_mode = 1;
    args->cmp_ratio = 1;
    args->ori_win_left = -1;
    args->ori_win_right = -1;
    args->layout_q = "BSND";
    args->layout_kv = "BSND";
    args->has_ori_kv = true;
    args->has_cmp_kv = true;
}

/* ---- the check --------------------------------------------------------------------------------------------------- */

/* The same arguments in the operator's struct, for the rules that both share. */
static void to_args(const qsfm_metadata_args *m, qsfm_args *args)
{
    mla_quant_sparse_flash_mla_init(args);
    args->cu_seqlens_q = m->cu_seqlens_q;
    args->cu_seqlens_ori_kv = m->cu_seqlens_ori_kv;
    args->cu_seqlens_cmp_kv = m->cu_seqlens_cmp_kv;
    args->seqused_q = m->seqused_q;
    args->seqused_ori_kv = m->seqused_ori_kv;
    args->seqused_cmp_kv = m->seqused_cmp_kv;
    args->cmp_residual_kv = m->cmp_residual_kv;
    args->ori_topk_length = m->ori_topk_length;
    args->cmp_topk_length = m->cmp_topk_length;
    args->metadata = m->metadata;
    args->cmp_ratio = m->cmp_ratio;
    args->ori_mask_mode = m->ori_mask_mode;
    args->cmp_mask_mode = m->cmp_mask_mode;
    args->ori_win_left = m->ori_win_left;
    args->ori_win_right = m->ori_win_right;
    args->layout_q = m->layout_q;
    args->layout_kv = m->layout_kv;
}

typedef struct number_rule {
    size_t offset;
    const char *name;
    int64_t low, high;
} number_rule;

#define NUMBER(member) offsetof(qsfm_metadata_args, member), #member

static const number_rule NUMBERS[] = {
    {NUMBER(num_heads_q), 1, 128},
    {NUMBER(num_heads_kv), 1, 1},
    {NUMBER(head_dim), 512, 512},
    {NUMBER(quant_mode), 1, 2},
    {NUMBER(batch_size), 0, INT64_MAX},
    {NUMBER(max_seqlen_q), 0, INT64_MAX},
    {NUMBER(max_seqlen_ori_kv), 0, INT64_MAX},
    {NUMBER(max_seqlen_cmp_kv), 0, INT64_MAX},
    {NUMBER(ori_topk), 0, INT64_MAX},
    {NUMBER(cmp_topk), 0, INT64_MAX},
};

static mla_status check_numbers(const qsfm_metadata_args *m)
{
    for (size_t i = 0; i < sizeof NUMBERS / sizeof NUMBERS[0]; i++) {
        const number_rule *rule = &NUMBERS[i];
        int64_t value;
        memcpy(&value, (const char *)m + rule->offset, sizeof value);
        if (value >= rule->low && value <= rule->high) {
            continue;
        }
        if (rule->high == INT64_MAX) {
            return mla_fail(MLA_STATUS_BAD_VALUE, "%s = %" PRId64 " must be at least %" PRId64, rule->name, value,
                            rule->low);
        }
        if (rule->low == rule->high) {
            return mla_fail(MLA_STATUS_BAD_VALUE, "%s = %" PRId64 " must be %" PRId64, rule->name, value, rule->low);
        }
        return mla_fail(MLA_STATUS_BAD_VALUE, "%s = %" PRId64 " must be between %" PRId64 " and %" PRId64, rule->name,
                        value, rule->low, rule->high);
    }
    return MLA_STATUS_OK;
}

static int64_t metadata_batch(const qsfm_metadata_args *m)
{
    if (mla_qsfm_given(&m->seqused_q)) {
        return m->seqused_q.dim[0];
    }
    if (mla_qsfm_given(&m->cu_seqlens_q)) {
        return m->cu_seqlens_q.dim[0] - 1;
    }
    return m->batch_size > 0 ? m->batch_size : -1;
}

static mla_status check(const qsfm_metadata_args *m, uint32_t *facts)
{
    if (m == NULL) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "args is NULL");
    }
    MLA_TRY(mla_sized_check(m->struct_size, sizeof *m, "args", "mla_quant_sparse_flash_mla_metadata_init",
                            "quant_sparse_flash_mla.h"));
    if (!mla_qsfm_given(&m->metadata)) { /* not NULL_POINTER: the vendor has 161002 here */
        return mla_fail(MLA_STATUS_BAD_VALUE, "metadata is missing or empty: the result needs a place");
    }
    if (m->layout_q == NULL || m->layout_kv == NULL) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "%s is NULL", m->layout_q == NULL ? "layout_q" : "layout_kv");
    }
    MLA_TRY(check_numbers(m));
    qsfm_args args;
    to_args(m, &args);
    qsfm_lists lists = {.has_cmp = m->has_cmp_kv,
                        .ori_list = m->ori_topk > 0,
                        .cmp_list = m->has_cmp_kv && m->cmp_topk > 0,
                        .ori_topk_length = mla_qsfm_given(&m->ori_topk_length)};
    MLA_TRY(mla_qsfm_check_attributes(&args, QSFM_METADATA, &lists, facts));
    if (!m->has_ori_kv) {
        *facts &= ~(uint32_t)QSFM_ORI_NEEDS_LEN;
    }
    MLA_TRY(mla_qsfm_check_existence(&args, QSFM_METADATA, *facts));
    qsfm_sizes sizes = {.batch = metadata_batch(m), .s1 = -1, .t1 = -1, .n1 = -1};
    return mla_qsfm_check_tensors(&args, QSFM_METADATA, *facts, &sizes);
}

mla_status mla_quant_sparse_flash_mla_metadata_check(const mla_quant_sparse_flash_mla_metadata_args *args)
{
    uint32_t facts;
    return check(args, &facts);
}

/* ---- numbers inside the tensors ---------------------------------------------------------------------------------- */

static const int32_t *values_of(const mla_tensor *t)
{
    return mla_qsfm_given(t) ? t->data : NULL;
}

static mla_status check_begins(const mla_tensor *t, const char *name)
{
    const int32_t *begin = values_of(t);
    for (int64_t b = 0; begin != NULL && b < t->dim[0]; b++) {
        if (b == 0 ? begin[b] != 0 : begin[b] < begin[b - 1]) {
            return mla_fail(MLA_STATUS_OUT_OF_RANGE, "%s[%" PRId64 "] = %" PRId32 " must be %s", name, b, begin[b],
                            b == 0 ? "0" : "at least the one before it");
        }
    }
    return MLA_STATUS_OK;
}

/* Lengths from 0 to the slot of a packed sequence, else to the largest length that the caller named. */
static mla_status check_lengths(const mla_tensor *t, const char *name, const mla_tensor *begins, int64_t max)
{
    const int32_t *length = values_of(t), *begin = values_of(begins);
    for (int64_t b = 0; length != NULL && b < t->dim[0]; b++) {
        int64_t limit = begin != NULL ? (int64_t)begin[b + 1] - begin[b] : max > 0 ? max : INT64_MAX;
        if (length[b] < 0 || length[b] > limit) {
            return mla_fail(MLA_STATUS_OUT_OF_RANGE, "%s[%" PRId64 "] = %" PRId32 " must be between 0 and %" PRId64,
                            name, b, length[b], limit);
        }
    }
    return MLA_STATUS_OK;
}

static mla_status check_list_lengths(const mla_tensor *t, const char *name, const mla_tensor *begins)
{
    const int32_t *length = values_of(t), *begin = values_of(begins);
    if (length == NULL) {
        return MLA_STATUS_OK;
    }
    int64_t rows = t->dim[0] * (t->ndim == 3 ? t->dim[1] : 1);
    if (begin != NULL && begin[begins->dim[0] - 1] > rows) {
        return mla_fail(MLA_STATUS_OUT_OF_RANGE,
                        "%s.dim[0] = %" PRId64 " has no row for each of %" PRId32 " query tokens", name, rows,
                        begin[begins->dim[0] - 1]);
    }
    for (int64_t i = 0; i < rows; i++) {
        if (length[i] < 0) {
            return mla_fail(MLA_STATUS_OUT_OF_RANGE, "%s[%" PRId64 "] = %" PRId32 " is negative", name, i, length[i]);
        }
    }
    return MLA_STATUS_OK;
}

static mla_status check_values(const qsfm_metadata_args *m)
{
    MLA_TRY(check_begins(&m->cu_seqlens_q, "cu_seqlens_q"));
    MLA_TRY(check_begins(&m->cu_seqlens_ori_kv, "cu_seqlens_ori_kv"));
    MLA_TRY(check_begins(&m->cu_seqlens_cmp_kv, "cu_seqlens_cmp_kv"));
    MLA_TRY(check_lengths(&m->seqused_q, "seqused_q", &m->cu_seqlens_q, m->max_seqlen_q));
    MLA_TRY(check_lengths(&m->seqused_ori_kv, "seqused_ori_kv", &m->cu_seqlens_ori_kv, m->max_seqlen_ori_kv));
    MLA_TRY(check_lengths(&m->seqused_cmp_kv, "seqused_cmp_kv", &m->cu_seqlens_cmp_kv, m->max_seqlen_cmp_kv));
    const int32_t *residual = values_of(&m->cmp_residual_kv);
    for (int64_t b = 0; residual != NULL && b < m->cmp_residual_kv.dim[0]; b++) {
        if (residual[b] < 0 || (m->has_cmp_kv && residual[b] >= m->cmp_ratio)) {
            return mla_fail(MLA_STATUS_OUT_OF_RANGE,
                            "cmp_residual_kv[%" PRId64 "] = %" PRId32 " must be between 0 and cmp_ratio - 1 = %" PRId64,
                            b, residual[b], m->cmp_ratio - 1);
        }
    }
    MLA_TRY(check_list_lengths(&m->ori_topk_length, "ori_topk_length", &m->cu_seqlens_q));
    return check_list_lengths(&m->cmp_topk_length, "cmp_topk_length", &m->cu_seqlens_q);
}

_Static_assert(MLA_METADATA_WORDS == MLA_QUANT_SPARSE_FLASH_MLA_METADATA_WORDS, "one size");

/* ---- what is written --------------------------------------------------------------------------------------------- */

/* What the fingerprint is made of: everything that both operators are told. `args` holds the tensors and attributes of
 * either. */
static mla_cuda_ascend_metadata contents_of(const qsfm_args *args, uint32_t facts, int64_t batch, int64_t n1,
                                            int64_t k1, int64_t k2)
{
    const mla_tensor *const tensors[MLA_METADATA_TENSORS] = {&args->cu_seqlens_q,      &args->cu_seqlens_ori_kv,
                                                             &args->cu_seqlens_cmp_kv, &args->seqused_q,
                                                             &args->seqused_ori_kv,    &args->seqused_cmp_kv,
                                                             &args->cmp_residual_kv,   &args->ori_topk_length,
                                                             &args->cmp_topk_length};
    const uint32_t layouts = QSFM_Q_BSND | QSFM_Q_TND | QSFM_KV_BSND | QSFM_KV_TND | QSFM_KV_PA | QSFM_CMP;
    const int64_t numbers[] = {batch,
                               n1,
                               k1,
                               k2,
                               facts & layouts,
                               facts & QSFM_CMP ? args->cmp_ratio : 1,
                               args->ori_mask_mode,
                               args->cmp_mask_mode,
                               args->ori_win_left,
                               args->ori_win_right};
    mla_cuda_ascend_metadata contents = {.hash = MLA_ASCEND_MAGIC};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        contents.hash = mla_hash_mix(contents.hash, (uint64_t)numbers[i]);
    }
    for (int i = 0; i < MLA_METADATA_TENSORS; i++) {
        const bool given = mla_qsfm_given(tensors[i]);
        contents.value[i] = given ? tensors[i]->data : NULL;
        contents.count[i] = given ? mla_qsfm_count(tensors[i]) : -1;
    }
    return contents;
}

/* Of contents in host memory. */
static uint64_t fingerprint(const mla_cuda_ascend_metadata *contents)
{
    uint64_t hash = contents->hash;
    for (int t = 0; t < MLA_METADATA_TENSORS; t++) {
        hash = mla_ascend_mix_count(hash, contents->count[t]);
        for (int64_t i = 0; i < contents->count[t]; i++) {
            hash = mla_hash_mix(hash, (uint32_t)contents->value[t][i]);
        }
    }
    return hash;
}

mla_status mla_quant_sparse_flash_mla_metadata_on(void *stream, const mla_quant_sparse_flash_mla_metadata_args *m)
{
    uint32_t facts;
    qsfm_args args;
    MLA_TRY(check(m, &facts));
    to_args(m, &args);
    const bool on_gpu = m->metadata.device.type != MLA_DEVICE_CPU;
    mla_cuda_ascend_metadata contents =
        contents_of(&args, facts, metadata_batch(m), m->num_heads_q, m->ori_topk, m->has_cmp_kv ? m->cmp_topk : 0);
    contents.word = m->metadata.data;
    if (on_gpu) {
        return mla_cuda_ascend_metadata_words(m->metadata.device.id, &contents, stream);
    }
    if (stream != NULL) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "stream must be NULL for tensors in host memory");
    }
    MLA_TRY(check_values(m));
    memset(contents.word, 0, MLA_METADATA_WORDS * sizeof *contents.word);
    mla_ascend_write_words(contents.word, fingerprint(&contents));
    return MLA_STATUS_OK;
}

mla_status mla_quant_sparse_flash_mla_metadata(const mla_quant_sparse_flash_mla_metadata_args *m)
{
    return mla_quant_sparse_flash_mla_metadata_on(NULL, m);
}

/* ---- how it is recognised ---------------------------------------------------------------------------------------- */

static int64_t width_of(const mla_tensor *list)
{
    return mla_qsfm_given(list) ? list->dim[list->ndim - 1] : 0;
}

/* Device memory as the host can read it: a copy at the start of *room, which moves on. */
static mla_status to_host(int32_t gpu, const void *from, int64_t count, int32_t **room)
{
    MLA_TRY(mla_gpu_copy(gpu, *room, from, (size_t)count * sizeof **room, NULL));
    *room += count;
    return MLA_STATUS_OK;
}

/* Replaces the addresses of the contents by those of copies in *memory, which the caller frees. Waits for the GPU. */
static mla_status fetch(int32_t gpu, mla_cuda_ascend_metadata *contents, int32_t **memory)
{
    int64_t n = MLA_METADATA_WORDS;
    for (int t = 0; t < MLA_METADATA_TENSORS; t++) {
        n += contents->count[t] > 0 ? contents->count[t] : 0;
    }
    int32_t *room = *memory = malloc((size_t)n * sizeof *room);
    if (room == NULL) {
        return mla_fail(MLA_STATUS_OUT_OF_MEMORY, "%" PRId64 " lengths do not fit into memory", n);
    }
    MLA_TRY(mla_gpu_synchronize_all(gpu)); /* whatever stream they come from */
    const void *words = contents->word;
    contents->word = (uint32_t *)room;
    MLA_TRY(to_host(gpu, words, MLA_METADATA_WORDS, &room));
    for (int t = 0; t < MLA_METADATA_TENSORS; t++) {
        if (contents->count[t] > 0) {
            const int32_t *from = contents->value[t];
            contents->value[t] = room;
            MLA_TRY(to_host(gpu, from, contents->count[t], &room));
        }
    }
    return mla_gpu_synchronize(gpu, NULL);
}

static mla_metadata_state judge(const mla_cuda_ascend_metadata *contents)
{
    const uint32_t *word = contents->word;
    if (word[MLA_METADATA_MAGIC] != MLA_ASCEND_MAGIC || word[MLA_METADATA_VERSION] != MLA_ASCEND_VERSION ||
        word[MLA_METADATA_CHECKSUM] != mla_ascend_checksum(word, MLA_ASCEND_VERSION)) {
        return MLA_METADATA_FOREIGN;
    }
    uint64_t print = fingerprint(contents);
    bool fresh = word[MLA_METADATA_FINGERPRINT_LOW] == (uint32_t)print &&
                 word[MLA_METADATA_FINGERPRINT_HIGH] == (uint32_t)(print >> 32);
    return fresh ? MLA_METADATA_FRESH : MLA_METADATA_STALE;
}

mla_status mla_quant_sparse_flash_mla_metadata_state(const mla_quant_sparse_flash_mla_args *args,
                                                     mla_metadata_state *state)
{
    uint32_t facts;
    if (state == NULL) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "state is NULL");
    }
    MLA_TRY(mla_qsfm_check(args, &facts));
    *state = MLA_METADATA_FOREIGN;
    if (!mla_qsfm_given(&args->metadata)) {
        return MLA_STATUS_OK;
    }
    mla_cuda_ascend_metadata contents =
        contents_of(args, facts, mla_qsfm_batch(args, facts), args->q.dim[args->q.ndim - 2],
                    width_of(&args->ori_sparse_indices), width_of(&args->cmp_sparse_indices));
    contents.word = args->metadata.data;
    int32_t *copies = NULL;
    mla_status status = MLA_STATUS_OK;
    if (args->q.device.type != MLA_DEVICE_CPU) {
        status = fetch(args->q.device.id, &contents, &copies);
    }
    if (status == MLA_STATUS_OK) {
        *state = judge(&contents);
    }
    free(copies);
    return status;
}
