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

#define OP_FLASH_MLA "flash_mla_with_kvcache"
#define OP_PROBLEM "mla_attention"
#define RECORDED_BY "recorded_by"

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool read_tensor(const capture *c, const char *name, uint32_t dtypes, int32_t ndim, bool optional, mla_tensor *t,
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
    if (ndim != 0 && entry->ndim != ndim) {
        snprintf(error, error_size, "tensor '%s' has %d dimensions instead of %d", name, (int)entry->ndim, (int)ndim);
        return false;
    }
    if (entry->ndim < 1 || entry->ndim > MLA_MAX_NDIM) {
        snprintf(error, error_size, "tensor '%s' has %d dimensions, not 1 to %d", name, (int)entry->ndim, MLA_MAX_NDIM);
        return false;
    }
    void *data = safetensors_read(c->file, entry, error, error_size);
    if (data == NULL) {
        return false;
    }
    *t = mla_tensor_make(data, entry->dtype, entry->ndim, entry->dim);
    t->name = entry->name;
    return true;
}

bool capture_load(capture *c, const char *name, uint32_t dtypes, int32_t ndim, bool optional, mla_tensor *t,
                  char *error, size_t error_size)
{
    if (!read_tensor(c, name, dtypes, ndim, optional, t, error, error_size)) {
        return false;
    }
    if (t->ndim != 0) {
        c->input[c->n_input++] = *t;
    }
    return true;
}

bool capture_number(const capture *c, const char *key, float *value, char *error, size_t error_size)
{
    const char *text = safetensors_metadata(c->file, key);
    if (text == NULL) {
        return true;
    }
    char *end;
    *value = (float)strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(*value)) {
        snprintf(error, error_size, "its metadata '%s' is '%.80s', and must be a finite number", key, text);
        return false;
    }
    return true;
}

bool capture_flag(const capture *c, const char *key, bool *value, char *error, size_t error_size)
{
    const char *text = safetensors_metadata(c->file, key);
    if (text == NULL) {
        return true;
    }
    *value = strcmp(text, "true") == 0 || strcmp(text, "1") == 0 || strcmp(text, "True") == 0;
    if (!*value && strcmp(text, "false") != 0 && strcmp(text, "0") != 0 && strcmp(text, "False") != 0) {
        snprintf(error, error_size, "its metadata '%s' is '%.80s', and must be true or false", key, text);
        return false;
    }
    return true;
}

bool capture_integer(const capture *c, const char *key, int64_t *value, char *error, size_t error_size)
{
    const char *text = safetensors_metadata(c->file, key);
    if (text == NULL) {
        return true;
    }
    char *end;
    *value = strtoll(text, &end, 10);
    if (end == text || *end != '\0') {
        snprintf(error, error_size, "its metadata '%s' is '%.80s', and must be a whole number", key, text);
        return false;
    }
    return true;
}

static bool read_flash_mla(capture *c, char *error, size_t error_size)
{
    mla_problem *p = &c->call;
    const uint32_t i32 = 1u << MLA_DTYPE_I32;
    if (!capture_load(c, "q", CAPTURE_FLOATS, 4, false, &p->q, error, error_size)) {
        return false;
    }
    char *end;
    const char *text = safetensors_metadata(c->file, "head_dim_v");
    long long d_v = text != NULL ? strtoll(text, &end, 10) : 0;
    if (text == NULL || end == text || *end != '\0' || d_v < 1 || d_v > p->q.dim[3]) {
        snprintf(error, error_size,
                 "its metadata 'head_dim_v' is %s%.80s%s, and must be a whole number from 1 to d = %" PRId64,
                 text != NULL ? "'" : "", text != NULL ? text : "missing", text != NULL ? "'" : "", p->q.dim[3]);
        return false;
    }
    p->d_v = d_v;
    p->softmax_scale = (float)(1 / sqrt((double)p->q.dim[3]));
    bool causal = false;
    if (!capture_number(c, "softmax_scale", &p->softmax_scale, error, error_size) ||
        !capture_flag(c, "causal", &causal, error, error_size) ||
        !capture_load(c, "k_cache", 1u << p->q.dtype, 4, false, &p->segment[0].k, error, error_size) ||
        !capture_load(c, "block_table", i32, 2, false, &p->segment[0].page_table, error, error_size) ||
        !capture_load(c, "cache_seqlens", i32, 1, false, &p->segment[0].length, error, error_size)) {
        return false;
    }
    p->segment[0].visible.rule = causal && p->q.dim[1] > 1 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
    c->out_dtype = p->q.dtype;
    c->lse_by_head = true;
    return true;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

bool capture_count(const capture *c, size_t *n_pair, size_t *n_value)
{
    *n_pair = 1;
    for (int32_t i = 0; i < c->call.q.ndim - 1; i++) {
        if (__builtin_mul_overflow(*n_pair, (size_t)c->call.q.dim[i], n_pair)) {
            return false;
        }
    }
    return !__builtin_mul_overflow(*n_pair, (size_t)c->call.d_v, n_value);
}

/* The dims of out, d_v last, and those of lse as the file has them. */
static int32_t out_dims(const capture *c, int64_t *dim)
{
    const mla_tensor *q = &c->call.q;
    memcpy(dim, q->dim, (size_t)q->ndim * sizeof *dim);
    dim[q->ndim - 1] = c->call.d_v;
    return q->ndim;
}

static int32_t lse_dims(const capture *c, int64_t *dim)
{
    int32_t ndim = out_dims(c, dim) - 1;
    if (c->lse_by_head) {
        int64_t n_q = dim[1];
        dim[1] = dim[2];
        dim[2] = n_q;
    }
    return ndim;
}

/* lse as the file stores it, seen in the order of out. */
static mla_tensor lse_view(const capture *c, float *lse)
{
    int64_t dim[4];
    mla_tensor t = mla_tensor_make(lse, MLA_DTYPE_F32, lse_dims(c, dim), dim);
    if (c->lse_by_head) {
        mla_tensor stored = t;
        for (int i = 1; i <= 2; i++) {
            t.dim[i] = stored.dim[3 - i];
            t.stride[i] = stored.stride[3 - i];
        }
    }
    t.name = "lse";
    return t;
}

static bool same_dims(const mla_tensor *t, int32_t ndim, const int64_t *dim, char *error, size_t error_size)
{
    for (int32_t i = 0; t->ndim != 0 && i < ndim; i++) {
        if (t->dim[i] != dim[i]) {
            snprintf(error, error_size, "%s.dim[%d] = %" PRId64 " must be %" PRId64 ", to fit q and d_v", t->name,
                     (int)i, t->dim[i], dim[i]);
            return false;
        }
    }
    return true;
}

static bool read_results(capture *c, char *error, size_t error_size)
{
    int64_t o_dim[MLA_MAX_NDIM], l_dim[MLA_MAX_NDIM];
    int32_t o_ndim = out_dims(c, o_dim), l_ndim = lse_dims(c, l_dim);
    uint32_t out_dtypes = 1u << c->out_dtype | 1u << MLA_DTYPE_F32;
    mla_tensor *lse = &c->recorded_lse;
    if (!read_tensor(c, "out", out_dtypes, o_ndim, true, &c->recorded_out, error, error_size) ||
        !read_tensor(c, "lse", 1u << MLA_DTYPE_F32, l_ndim, true, lse, error, error_size) ||
        !same_dims(&c->recorded_out, o_ndim, o_dim, error, error_size) ||
        !same_dims(lse, l_ndim, l_dim, error, error_size)) {
        return false;
    }
    if (lse->ndim != 0) {
        *lse = lse_view(c, lse->data);
    }
    return true;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

bool capture_open(const char *path, capture *c, char *error, size_t error_size)
{
    *c = (capture){0};
    mla_problem_init(&c->call);
    c->file = safetensors_open(path, error, error_size);
    if (c->file == NULL) {
        return false;
    }
    const char *op = safetensors_metadata(c->file, "op");
    bool flash_mla = op != NULL && strcmp(op, OP_FLASH_MLA) == 0;
    if (!flash_mla && (op == NULL || strcmp(op, OP_PROBLEM) != 0)) {
        snprintf(error, error_size,
                 "its metadata 'op' is %s%.80s%s, and must be '" OP_FLASH_MLA "' or '" OP_PROBLEM "'",
                 op != NULL ? "'" : "", op != NULL ? op : "missing", op != NULL ? "'" : "");
        return false;
    }
    c->source = safetensors_metadata(c->file, "source");
    c->recorded_by = safetensors_metadata(c->file, RECORDED_BY);
    if (!(flash_mla ? read_flash_mla(c, error, error_size) : capture_read_problem(c, error, error_size)) ||
        !read_results(c, error, error_size)) {
        return false;
    }
    size_t known = c->n_input + (c->recorded_out.ndim != 0) + (c->recorded_lse.ndim != 0);
    c->n_ignored = safetensors_count(c->file) - known;
    return true;
}

void capture_close(capture *c)
{
    for (size_t i = 0; i < c->n_input; i++) {
        free(c->input[i].data);
    }
    free(c->recorded_out.data);
    free(c->recorded_lse.data);
    safetensors_close(c->file);
    *c = (capture){0};
}

mla_problem capture_problem(const capture *c, void *o, float *lse)
{
    mla_problem p = c->call;
    int64_t dim[MLA_MAX_NDIM];
    int32_t ndim = out_dims(c, dim);
    p.o = mla_tensor_make(o, c->out_dtype, ndim, dim);
    p.o.name = "out";
    p.lse = lse_view(c, lse);
    return p;
}

bool capture_write(const capture *c, const char *path, const char *by, const void *o, const float *lse, char *error,
                   size_t error_size)
{
    int64_t o_dim[MLA_MAX_NDIM], l_dim[MLA_MAX_NDIM];
    int32_t o_ndim = out_dims(c, o_dim), l_ndim = lse_dims(c, l_dim);
    safetensors_output output[CAPTURE_MAX_TENSOR + 2];
    size_t n_output = 0;
    for (size_t size = 4; size > 0; size /= 2) { /* wide types first: that keeps every tensor aligned in the file */
        if (size == 4) {
            output[n_output++] = (safetensors_output){"lse", MLA_DTYPE_F32, l_ndim, l_dim, lse};
        }
        for (size_t i = 0; i < c->n_input; i++) {
            const mla_tensor *t = &c->input[i];
            if (mla_dtype_size(t->dtype) == size) {
                output[n_output++] = (safetensors_output){t->name, t->dtype, t->ndim, t->dim, t->data};
            }
        }
        if (mla_dtype_size(c->out_dtype) == size) {
            output[n_output++] = (safetensors_output){"out", c->out_dtype, o_ndim, o_dim, o};
        }
    }
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
    bool good = safetensors_write(path, output, n_output, (const char *const(*)[2])metadata, used, error, error_size);
    free(metadata);
    return good;
}
