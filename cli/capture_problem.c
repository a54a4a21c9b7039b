/*
 * capture_problem.c - captures of any problem: tensors and metadata have the names of mla_problem's fields.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "capture.h"

#define FLOATS CAPTURE_FLOATS
/* what HiFloat8 is called in a file that has no name for it */
#define STORED (CAPTURE_FLOATS | 1u << MLA_DTYPE_I8 | 1u << MLA_DTYPE_U8)
#define F32 (1u << MLA_DTYPE_F32)
#define I32 (1u << MLA_DTYPE_I32)
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

typedef struct field {
    const char *name;
    size_t offset;
    uint32_t dtypes;
} field;

static const field PROBLEM_FIELDS[] = {
    {"q", offsetof(mla_problem, q), STORED},
    {"q_rope", offsetof(mla_problem, q_rope), FLOATS},
    {"q_begin", offsetof(mla_problem, q_begin), I32},
    {"q_length", offsetof(mla_problem, q_length), I32},
    {"q_descale", offsetof(mla_problem, q_descale), F32},
    {"qk_descale", offsetof(mla_problem, qk_descale), F32},
    {"pv_descale", offsetof(mla_problem, pv_descale), F32},
    {"sink", offsetof(mla_problem, sink), F32},
};

static const field SEGMENT_FIELDS[] = {
    {"k", offsetof(mla_segment, k), STORED},
    {"k_rope", offsetof(mla_segment, k_rope), FLOATS},
    {"v", offsetof(mla_segment, v), STORED},
    {"k_begin", offsetof(mla_segment, k_begin), I32},
    {"page_table", offsetof(mla_segment, page_table), I32},
    {"length", offsetof(mla_segment, length), I32},
    {"list", offsetof(mla_segment, list), I32},
    {"list_length", offsetof(mla_segment, list_length), I32},
    {"visible.residual", offsetof(mla_segment, visible.residual), I32},
    {"mask", offsetof(mla_segment, mask), FLOATS},
    {"descale", offsetof(mla_segment, descale), F32},
};

_Static_assert(COUNT(PROBLEM_FIELDS) + MLA_MAX_SEGMENT * COUNT(SEGMENT_FIELDS) <= CAPTURE_MAX_TENSOR,
               "a capture has room for every field");

static bool load_field(capture *c, const field *f, const char *name, void *base, char *error, size_t error_size)
{
    mla_tensor *t = (mla_tensor *)(void *)((char *)base + f->offset);
    if (!capture_load(c, name, f->dtypes, 0, true, t, error, error_size)) {
        return false;
    }
    if (t->dtype == MLA_DTYPE_U8) {
        t->dtype = MLA_DTYPE_HIF8;
    }
    return true;
}

/* One of some words; *value is its place, untouched where the key is absent. */
static bool read_word(const capture *c, const char *key, const char *const *words, size_t n, int *value, char *error,
                      size_t error_size)
{
    const char *text = safetensors_metadata(c->file, key);
    if (text == NULL) {
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        if (strcmp(text, words[i]) == 0) {
            *value = (int)i;
            return true;
        }
    }
    int used = snprintf(error, error_size, "its metadata '%s' is '%.40s', and must be", key, text);
    for (size_t i = 0; i < n && used > 0 && (size_t)used < error_size; i++) {
        used += snprintf(error + used, error_size - (size_t)used, "%s '%s'",
                         i == 0      ? ""
                         : i + 1 < n ? ","
                                     : " or",
                         words[i]);
    }
    return false;
}

#define READ_WORD(c, key, words, value, error, size) read_word(c, key, words, COUNT(words), value, error, size)

static bool read_segment(capture *c, int32_t g, char *error, size_t error_size)
{
    static const char *const layouts[] = {"row", "nz"}, *const addresses[] = {"logical", "physical"};
    static const char *const list_rules[] = {"skip", "stop"};
    static const char *const rules[] = {"all", "causal", "window", "compressed"};
    mla_segment *segment = &c->call.segment[g];
    char key[64];
    for (size_t i = 0; i < COUNT(SEGMENT_FIELDS); i++) {
        snprintf(key, sizeof key, "segment[%d].%s", (int)g, SEGMENT_FIELDS[i].name);
        if (!load_field(c, &SEGMENT_FIELDS[i], key, segment, error, error_size)) {
            return false;
        }
    }
    int layout = 0, address = 0, list_rule = 0, rule = 0;
    snprintf(key, sizeof key, "segment[%d].layout", (int)g);
    bool good = READ_WORD(c, key, layouts, &layout, error, error_size);
    snprintf(key, sizeof key, "segment[%d].list_address", (int)g);
    good = good && READ_WORD(c, key, addresses, &address, error, error_size);
    snprintf(key, sizeof key, "segment[%d].list_rule", (int)g);
    good = good && READ_WORD(c, key, list_rules, &list_rule, error, error_size);
    snprintf(key, sizeof key, "segment[%d].visible.rule", (int)g);
    good = good && READ_WORD(c, key, rules, &rule, error, error_size);
    snprintf(key, sizeof key, "segment[%d].visible.left", (int)g);
    good = good && capture_integer(c, key, &segment->visible.left, error, error_size);
    snprintf(key, sizeof key, "segment[%d].visible.right", (int)g);
    good = good && capture_integer(c, key, &segment->visible.right, error, error_size);
    snprintf(key, sizeof key, "segment[%d].visible.ratio", (int)g);
    good = good && capture_integer(c, key, &segment->visible.ratio, error, error_size);
    segment->layout = (mla_key_layout)layout;
    segment->list_address = (mla_list_address)address;
    segment->list_rule = (mla_list_rule)list_rule;
    segment->visible.rule = (mla_visible_rule)rule;
    return good;
}

static bool read_scalars(capture *c, char *error, size_t error_size)
{
    static const char *const bases[] = {"e", "2"}, *const empties[] = {"+inf", "-inf", "0"};
    static const char *const roundings[] = {"none", "16bit", "int8", "hif8"};
    static const char *const dtypes[] = {"F32", "F16", "BF16"}; /* in the order of mla_dtype */
    mla_problem *p = &c->call;
    const mla_tensor *q = &p->q;
    bool narrow = mla_dtype_size(q->dtype) == 1;
    int base = 0, empty = 0, rounding = 0, dtype = (narrow ? MLA_DTYPE_BF16 : q->dtype) - MLA_DTYPE_F32;
    int64_t tile = 0;
    double d = (double)q->dim[q->ndim - 1];
    d += p->q_rope.ndim != 0 ? (double)p->q_rope.dim[p->q_rope.ndim - 1] : 0;
    p->softmax_scale = d > 0 ? (float)(1 / sqrt(d)) : 1;
    if (!capture_integer(c, "d_v", &p->d_v, error, error_size) ||
        !capture_number(c, "softmax_scale", &p->softmax_scale, error, error_size) ||
        !READ_WORD(c, "lse_base", bases, &base, error, error_size) ||
        !READ_WORD(c, "lse_empty", empties, &empty, error, error_size) ||
        !capture_flag(c, "lse_with_sink", &p->lse_with_sink, error, error_size) ||
        !READ_WORD(c, "p_rounding", roundings, &rounding, error, error_size) ||
        !capture_integer(c, "p_tile", &tile, error, error_size) ||
        !READ_WORD(c, "out_dtype", dtypes, &dtype, error, error_size)) {
        return false;
    }
    if (p->d_v < 1) {
        snprintf(error, error_size, "its metadata 'd_v' is %s, and must be a whole number of at least 1",
                 safetensors_metadata(c->file, "d_v") != NULL ? "less than that" : "missing");
        return false;
    }
    if (tile < 0 || tile > INT32_MAX) {
        snprintf(error, error_size, "its metadata 'p_tile' is %" PRId64 ", and must be a number of keys", tile);
        return false;
    }
    p->lse_base = (mla_lse_base)base;
    p->lse_empty = (mla_lse_empty)empty;
    p->p_rounding = (mla_p_rounding)rounding;
    p->p_tile = (int32_t)tile;
    c->out_dtype = (mla_dtype)(dtype + MLA_DTYPE_F32);
    return true;
}

bool capture_read_problem(capture *c, char *error, size_t error_size)
{
    for (size_t i = 0; i < COUNT(PROBLEM_FIELDS); i++) {
        if (!load_field(c, &PROBLEM_FIELDS[i], PROBLEM_FIELDS[i].name, &c->call, error, error_size)) {
            return false;
        }
    }
    int32_t ndim = c->call.q.ndim;
    if (ndim != 3 && ndim != 4) {
        snprintf(error, error_size,
                 ndim == 0 ? "it has no tensor 'q', which a capture needs"
                           : "tensor 'q' has %d dimensions instead of 3 or 4",
                 (int)ndim);
        return false;
    }
    c->call.n_segment = safetensors_find(c->file, "segment[1].k") != NULL ? 2 : 1;
    for (int32_t g = 0; g < c->call.n_segment; g++) {
        if (!read_segment(c, g, error, error_size)) {
            return false;
        }
    }
    return read_scalars(c, error, error_size);
}
