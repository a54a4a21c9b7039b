/*
 * capture.c - see capture.h.
 */
#include "capture.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define OP "flash_mla_with_kvcache"
#define RECORDED_BY "recorded_by"
#define FLOAT_TYPES (1u << MLA_DTYPE_F32 | 1u << MLA_DTYPE_F16 | 1u << MLA_DTYPE_BF16)

/* The tensor `name` with `ndim` dims and a dtype out of the mask, read into memory. An optional one may be absent. */
static bool load_tensor(const capture *c, const char *name, uint32_t dtypes, int32_t ndim, bool optional, mla_tensor *t,
                        char *error, size_t error_size)
{
    const safetensors_entry *entry = safetensors_find(c->file, name);
    if (entry == NULL) {
        if (!optional) {
            snprintf(error, error_size, "it has no tensor '%s', which a capture needs", name);
        }
        return optional;
    }
    if ((dtypes >> entry->dtype & 1u) == 0 || entry->dtype == MLA_DTYPE_NONE) {
        snprintf(error, error_size, "tensor '%s' has dtype %s, not one that a capture may have there", name,
                 entry->dtype_name);
        return false;
    }
    if (entry->ndim != ndim) {
        snprintf(error, error_size, "tensor '%s' has %d dimensions instead of %d", name, (int)entry->ndim, (int)ndim);
        return false;
    }
    void *data = safetensors_read(c->file, entry, error, error_size);
    if (data == NULL) {
        return false;
    }
    *t = mla_tensor_make(data, entry->dtype, ndim, entry->dim);
    t->name = name;
    return true;
}

static bool same_dims(const char *name, const mla_tensor *t, const int64_t *dim, char *error, size_t error_size)
{
    for (int32_t i = 0; i < t->ndim; i++) { /* none when it is absent */
        if (t->dim[i] != dim[i]) {
            snprintf(error, error_size, "%s.dim[%d] = %" PRId64 " must be %" PRId64 ", to fit q and head_dim_v", name,
                     (int)i, t->dim[i], dim[i]);
            return false;
        }
    }
    return true;
}

static bool parse_metadata(capture *c, char *error, size_t error_size)
{
    const char *op = safetensors_metadata(c->file, "op");
    if (op == NULL || strcmp(op, OP) != 0) {
        snprintf(error, error_size, "its metadata 'op' is %s%.80s%s, and must be '" OP "'", op != NULL ? "'" : "",
                 op != NULL ? op : "missing", op != NULL ? "'" : "");
        return false;
    }
    char *end;
    const char *text = safetensors_metadata(c->file, "head_dim_v");
    long long d_v = text != NULL ? strtoll(text, &end, 10) : 0;
    if (text == NULL || end == text || *end != '\0' || d_v < 1 || d_v > c->d_k) {
        snprintf(error, error_size,
                 "its metadata 'head_dim_v' is %s%.80s%s, and must be a whole number from 1 to d = %" PRId64,
                 text != NULL ? "'" : "", text != NULL ? text : "missing", text != NULL ? "'" : "", c->d_k);
        return false;
    }
    c->d_v = d_v;
    c->softmax_scale = (float)(1 / sqrt((double)c->d_k));
    text = safetensors_metadata(c->file, "softmax_scale");
    if (text != NULL) {
        double scale = strtod(text, &end);
        c->softmax_scale = (float)scale;
        if (end == text || *end != '\0' || !isfinite(c->softmax_scale)) {
            snprintf(error, error_size, "its metadata 'softmax_scale' is '%.80s', and must be a finite number", text);
            return false;
        }
    }
    text = safetensors_metadata(c->file, "causal");
    if (text != NULL) {
        c->causal = strcmp(text, "true") == 0 || strcmp(text, "1") == 0 || strcmp(text, "True") == 0;
        if (!c->causal && strcmp(text, "false") != 0 && strcmp(text, "0") != 0 && strcmp(text, "False") != 0) {
            snprintf(error, error_size, "its metadata 'causal' is '%.80s', and must be true or false", text);
            return false;
        }
    }
    c->source = safetensors_metadata(c->file, "source");
    c->recorded_by = safetensors_metadata(c->file, RECORDED_BY);
    return true;
}

bool capture_open(const char *path, capture *c, char *error, size_t error_size)
{
    *c = (capture){0};
    c->file = safetensors_open(path, error, error_size);
    if (c->file == NULL) {
        return false;
    }
    const uint32_t i32 = 1u << MLA_DTYPE_I32;
    if (!load_tensor(c, "q", FLOAT_TYPES, 4, false, &c->q, error, error_size)) {
        return false;
    }
    c->n_seq = c->q.dim[0];
    c->n_q = c->q.dim[1];
    c->n_head = c->q.dim[2];
    c->d_k = c->q.dim[3];
    if (!parse_metadata(c, error, error_size) ||
        !load_tensor(c, "k_cache", 1u << c->q.dtype, 4, false, &c->k_cache, error, error_size) ||
        !load_tensor(c, "block_table", i32, 2, false, &c->block_table, error, error_size) ||
        !load_tensor(c, "cache_seqlens", i32, 1, false, &c->cache_seqlens, error, error_size) ||
        !load_tensor(c, "out", 1u << c->q.dtype | 1u << MLA_DTYPE_F32, 4, true, &c->recorded_out, error, error_size)) {
        return false;
    }
    c->n_page = c->k_cache.dim[0];
    c->page_size = c->k_cache.dim[1];
    c->n_kv_head = c->k_cache.dim[2];
    mla_tensor lse = {0};
    if (!load_tensor(c, "lse", 1u << MLA_DTYPE_F32, 3, true, &lse, error, error_size)) {
        return false;
    }
    c->recorded_lse = lse; /* owned from here on, before anything else can fail */
    if (!same_dims("out", &c->recorded_out, (int64_t[]){c->n_seq, c->n_q, c->n_head, c->d_v}, error, error_size) ||
        !same_dims("lse", &lse, (int64_t[]){c->n_seq, c->n_head, c->n_q}, error, error_size)) {
        return false;
    }
    if (lse.ndim != 0) {
        c->recorded_lse = capture_lse_view(c, lse.data);
    }
    size_t known = 4 + (c->recorded_out.ndim != 0) + (c->recorded_lse.ndim != 0);
    c->n_ignored = safetensors_count(c->file) - known;
    return true;
}

void capture_close(capture *c)
{
    free(c->q.data);
    free(c->k_cache.data);
    free(c->block_table.data);
    free(c->cache_seqlens.data);
    free(c->recorded_out.data);
    free(c->recorded_lse.data);
    safetensors_close(c->file);
    *c = (capture){0};
}

mla_tensor capture_lse_view(const capture *c, float *lse)
{
    mla_tensor view = mla_tensor_make(lse, MLA_DTYPE_F32, 3, (int64_t[]){c->n_seq, c->n_q, c->n_head});
    if (__builtin_mul_overflow(c->n_head, c->n_q, &view.stride[0])) {
        view.stride[0] = 0; /* only an empty tensor can be that large; its strides do not matter */
    }
    view.stride[1] = 1;
    view.stride[2] = c->n_q;
    view.name = "lse";
    return view;
}

mla_problem capture_problem(const capture *c, void *o, mla_dtype o_dtype, float *lse)
{
    mla_problem p;
    mla_problem_init(&p);
    p.q = c->q;
    p.segment[0].k = c->k_cache;
    p.segment[0].page_table = c->block_table;
    p.segment[0].length = c->cache_seqlens;
    p.segment[0].visible.rule = c->causal && c->n_q > 1 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
    p.d_v = c->d_v;
    p.softmax_scale = c->softmax_scale;
    p.o = mla_tensor_make(o, o_dtype, 4, (int64_t[]){c->n_seq, c->n_q, c->n_head, c->d_v});
    p.o.name = "out";
    p.lse = capture_lse_view(c, lse);
    return p;
}

bool capture_write(const capture *c, const char *path, const char *by, const void *o, const float *lse, char *error,
                   size_t error_size)
{
    const int64_t o_dim[] = {c->n_seq, c->n_q, c->n_head, c->d_v};
    const int64_t lse_dim[] = {c->n_seq, c->n_head, c->n_q};
    /* wide types first: that keeps every tensor aligned in the file */
    const safetensors_output output[] = {
        {"lse", MLA_DTYPE_F32, 3, lse_dim, lse},
        {"block_table", MLA_DTYPE_I32, 2, c->block_table.dim, c->block_table.data},
        {"cache_seqlens", MLA_DTYPE_I32, 1, c->cache_seqlens.dim, c->cache_seqlens.data},
        {"q", c->q.dtype, 4, c->q.dim, c->q.data},
        {"k_cache", c->k_cache.dtype, 4, c->k_cache.dim, c->k_cache.data},
        {"out", c->q.dtype, 4, o_dim, o},
    };
    size_t n = safetensors_metadata_count(c->file);
    const char *(*metadata)[2] = cli_alloc(n + 1, sizeof *metadata);
    if (metadata == NULL) {
        snprintf(error, error_size, "not enough memory");
        return false;
    }
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        safetensors_metadata_at(c->file, i, &metadata[used][0], &metadata[used][1]);
        used += strcmp(metadata[used][0], RECORDED_BY) != 0; /* whoever it was, these results are others */
    }
    metadata[used][0] = RECORDED_BY;
    metadata[used++][1] = by;
    bool good = safetensors_write(path, output, sizeof output / sizeof output[0], (const char *const(*)[2])metadata,
                                  used, error, error_size);
    free(metadata);
    return good;
}

double capture_pairs(const capture *c)
{
    double pairs = 0;
    for (int64_t s = 0; s < c->n_seq; s++) {
        int64_t length = ((const int32_t *)c->cache_seqlens.data)[s];
        for (int64_t i = 0; i < c->n_q; i++) {
            int64_t seen = c->causal && c->n_q > 1 ? length - c->n_q + i + 1 : length;
            pairs += seen > 0 ? (double)seen : 0;
        }
    }
    return pairs;
}
