/*
 * problem_check.c - the one checker: from a mla_problem to a mla_shape, or to the first broken rule.
 */
#include "problem_check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "sized.h"

/* ---- defaults ---------------------------------------------------------------------------------------------------- */

void mla_problem_init_sized(mla_problem *problem, size_t struct_size)
{
    if (!mla_sized_init(problem, struct_size, sizeof *problem)) {
        return;
    }
    problem->n_segment = 1;
    for (int32_t g = 0; g < MLA_MAX_SEGMENT; g++) {
        problem->segment[g].visible.left = -1;
        problem->segment[g].visible.right = -1;
        problem->segment[g].visible.ratio = 1;
    }
}

/* ---- scalars ----------------------------------------------------------------------------------------------------- */

static mla_status check_enum(int32_t g, const char *name, int value, int last)
{
    if (value >= 0 && value <= last) {
        return MLA_STATUS_OK;
    }
    mla_field field = mla_segment_field(NULL, name, g);
    return mla_fail(MLA_STATUS_BAD_VALUE, "%s = %d must be between 0 and %d", mla_field_label(&field).text, value,
                    last);
}

static mla_status check_segment_scalars(const mla_segment *segment, int32_t g)
{
    const mla_visible *visible = &segment->visible;
    MLA_TRY(check_enum(g, "layout", (int)segment->layout, MLA_KEY_LAYOUT_NZ));
    MLA_TRY(check_enum(g, "list_address", (int)segment->list_address, MLA_LIST_PHYSICAL));
    MLA_TRY(check_enum(g, "list_rule", (int)segment->list_rule, MLA_LIST_STOP));
    MLA_TRY(check_enum(g, "visible.rule", (int)visible->rule, MLA_VISIBLE_COMPRESSED));
    if (visible->rule == MLA_VISIBLE_WINDOW && (visible->left < -1 || visible->right < -1)) {
        bool left = visible->left < -1;
        return mla_fail(MLA_STATUS_BAD_VALUE, "segment[%" PRId32 "].visible.%s = %" PRId64 " must be at least -1", g,
                        left ? "left" : "right", left ? visible->left : visible->right);
    }
    if (visible->rule == MLA_VISIBLE_COMPRESSED && visible->ratio < 1) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "segment[%" PRId32 "].visible.ratio = %" PRId64 " must be at least 1", g,
                        visible->ratio);
    }
    return MLA_STATUS_OK;
}

static mla_status check_scalars(const mla_problem *p)
{
    if (p->n_segment < 1 || p->n_segment > MLA_MAX_SEGMENT) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "n_segment = %" PRId32 " must be between 1 and %d", p->n_segment,
                        MLA_MAX_SEGMENT);
    }
    for (int32_t g = 0; g < p->n_segment; g++) {
        MLA_TRY(check_segment_scalars(&p->segment[g], g));
    }
    if (!isfinite(p->softmax_scale)) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "softmax_scale = %g must be finite", (double)p->softmax_scale);
    }
    MLA_TRY(check_enum(-1, "lse_base", (int)p->lse_base, MLA_LSE_BASE2));
    MLA_TRY(check_enum(-1, "lse_empty", (int)p->lse_empty, MLA_LSE_EMPTY_ZERO));
    MLA_TRY(check_enum(-1, "p_rounding", (int)p->p_rounding, MLA_P_ROUND_HIF8));
    MLA_TRY(check_enum(-1, "arithmetic", (int)p->arithmetic, MLA_ARITHMETIC_BF16X2));
    if (p->arithmetic == MLA_ARITHMETIC_F16) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "arithmetic = %d must not be F16, which only plans say",
                        (int)p->arithmetic);
    }
    bool none = p->p_rounding == MLA_P_ROUND_NONE;
    if (none ? p->p_tile != 0 : p->p_tile < 1 || p->p_tile > 512) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "p_tile = %" PRId32 " must be %s with p_rounding = %d (%s)", p->p_tile,
                        none ? "0" : "between 1 and 512", (int)p->p_rounding, mla_p_rounding_word(p->p_rounding));
    }
    return MLA_STATUS_OK;
}

/* ---- every tensor alone ------------------------------------------------------------------------------------------ */

enum {
    FIELD_REQUIRED = 1,
    FIELD_ANY_STRIDE = 2, /* else the innermost stride must be 1 */
    FIELD_OUTPUT = 4
};

typedef struct field_rule {
    const char *path;
    size_t offset;
    unsigned dtypes, flags;
} field_rule;

#define DTYPES_I32 MLA_DTYPE_BIT(MLA_DTYPE_I32)
#define DTYPES_F32 MLA_DTYPE_BIT(MLA_DTYPE_F32)
#define DTYPES_STORED (MLA_DTYPES_FLOAT | MLA_DTYPES_8BIT)
#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* Every tensor of mla_problem outside its segments. */
static const field_rule PROBLEM_FIELDS[] = {
    {"q", offsetof(mla_problem, q), DTYPES_STORED, FIELD_REQUIRED},
    {"q_rope", offsetof(mla_problem, q_rope), MLA_DTYPES_FLOAT, 0},
    {"q_begin", offsetof(mla_problem, q_begin), DTYPES_I32, 0},
    {"q_length", offsetof(mla_problem, q_length), DTYPES_I32, 0},
    {"q_descale", offsetof(mla_problem, q_descale), DTYPES_F32, 0},
    {"qk_descale", offsetof(mla_problem, qk_descale), DTYPES_F32, 0},
    {"pv_descale", offsetof(mla_problem, pv_descale), DTYPES_F32, 0},
    {"sink", offsetof(mla_problem, sink), DTYPES_F32, 0},
    {"o", offsetof(mla_problem, o), MLA_DTYPES_FLOAT, FIELD_REQUIRED | FIELD_OUTPUT},
    {"lse", offsetof(mla_problem, lse), MLA_DTYPES_FLOAT, FIELD_OUTPUT | FIELD_ANY_STRIDE},
    {"max", offsetof(mla_problem, max), DTYPES_F32, FIELD_OUTPUT | FIELD_ANY_STRIDE},
};

/* Every tensor of mla_segment. */
static const field_rule SEGMENT_FIELDS[] = {
    {"k", offsetof(mla_segment, k), DTYPES_STORED, FIELD_REQUIRED},
    {"k_rope", offsetof(mla_segment, k_rope), MLA_DTYPES_FLOAT, 0},
    {"v", offsetof(mla_segment, v), DTYPES_STORED, 0},
    {"k_begin", offsetof(mla_segment, k_begin), DTYPES_I32, 0},
    {"page_table", offsetof(mla_segment, page_table), DTYPES_I32, 0},
    {"length", offsetof(mla_segment, length), DTYPES_I32, 0},
    {"list", offsetof(mla_segment, list), DTYPES_I32, 0},
    {"list_length", offsetof(mla_segment, list_length), DTYPES_I32, 0},
    {"visible.residual", offsetof(mla_segment, visible.residual), DTYPES_I32, 0},
    {"mask", offsetof(mla_segment, mask), MLA_DTYPES_FLOAT, FIELD_ANY_STRIDE},
    {"descale", offsetof(mla_segment, descale), DTYPES_F32, 0},
};

/* The fields of the problem, then those of its segments; false after the last one. */
static bool next_field(const mla_problem *p, int *cursor, mla_field *field, const field_rule **rule)
{
    int i = (*cursor)++;
    if (i < COUNT(PROBLEM_FIELDS)) {
        *rule = &PROBLEM_FIELDS[i];
        *field = mla_problem_field((const mla_tensor *)((const char *)p + (*rule)->offset), (*rule)->path);
        return true;
    }
    int32_t g = (i - COUNT(PROBLEM_FIELDS)) / COUNT(SEGMENT_FIELDS);
    if (g >= p->n_segment) {
        return false;
    }
    *rule = &SEGMENT_FIELDS[(i - COUNT(PROBLEM_FIELDS)) % COUNT(SEGMENT_FIELDS)];
    *field = mla_segment_field((const mla_tensor *)((const char *)&p->segment[g] + (*rule)->offset), (*rule)->path, g);
    return true;
}

static mla_status check_fields(const mla_problem *p)
{
    mla_field field, q = mla_problem_field(&p->q, "q");
    const field_rule *rule;
    for (int cursor = 0; next_field(p, &cursor, &field, &rule);) {
        const mla_tensor *t = field.tensor;
        if (!mla_tensor_present(t)) {
            if (rule->flags & FIELD_REQUIRED) {
                return mla_fail(MLA_STATUS_NULL_POINTER, "%s is missing", mla_field_label(&field).text);
            }
            continue;
        }
        MLA_TRY(mla_field_check(&field));
        MLA_TRY(mla_field_check_dtype(&field, rule->dtypes));
        MLA_TRY(mla_field_check_device(&field, &q));
    }
    return MLA_STATUS_OK;
}

/* Once dims are known to be right, for a wrong rank looks like a wrong stride. */
static mla_status check_strides(const mla_problem *p)
{
    mla_field field;
    const field_rule *rule;
    for (int cursor = 0; next_field(p, &cursor, &field, &rule);) {
        if (!mla_tensor_present(field.tensor)) {
            continue;
        }
        if (!(rule->flags & FIELD_ANY_STRIDE)) {
            MLA_TRY(mla_field_check_inner(&field));
        }
        if (rule->flags & FIELD_OUTPUT) {
            MLA_TRY(mla_field_check_output(&field));
        }
    }
    return MLA_STATUS_OK;
}

/* Outputs against every other tensor. */
static mla_status check_overlap(const mla_problem *p)
{
    mla_field field, other;
    const field_rule *rule, *other_rule;
    for (int cursor = 0; next_field(p, &cursor, &field, &rule);) {
        if (!(rule->flags & FIELD_OUTPUT) || !mla_tensor_present(field.tensor)) {
            continue;
        }
        for (int at = 0; next_field(p, &at, &other, &other_rule);) {
            if (other.tensor != field.tensor && mla_tensor_present(other.tensor)) {
                MLA_TRY(mla_field_check_apart(&field, &other));
            }
        }
    }
    return MLA_STATUS_OK;
}

/* ---- dims of the queries and outputs ----------------------------------------------------------------------------- */

mla_status mla_check_per_token(const mla_checker *c, const mla_field *field, const char *batched, const char *packed,
                               int32_t n_tail, const mla_extent *tail)
{
    mla_extent extent[MLA_MAX_NDIM];
    int32_t n = 0;
    if (c->shape.batched) {
        extent[n++] = c->n_seq;
        extent[n++] = c->n_q;
    } else {
        extent[n++] = c->n_token;
    }
    for (int32_t i = 0; i < n_tail; i++) {
        extent[n++] = tail[i];
    }
    return mla_field_check_dims(field, c->shape.batched ? batched : packed, n, extent);
}

/* Strides by [seq][token in seq][head], 0 for what there is not. */
static void per_token_strides(const mla_checker *c, const mla_tensor *t, int64_t *stride)
{
    memset(stride, 0, 3 * sizeof *stride);
    if (mla_tensor_present(t)) {
        bool batched = c->shape.batched;
        stride[0] = batched ? t->stride[0] : 0;
        stride[1] = t->stride[batched ? 1 : 0];
        stride[2] = t->stride[batched ? 2 : 1];
    }
}

static mla_status check_positive(const mla_field *field, int32_t axis)
{
    if (field->tensor->dim[axis] >= 1) {
        return MLA_STATUS_OK;
    }
    return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[%" PRId32 "] = 0 must be at least 1", mla_field_label(field).text,
                    axis);
}

/* q, q_rope, q_begin and q_length; fills in the sizes that the others are compared with. */
static mla_status check_queries(mla_checker *c)
{
    const mla_problem *p = c->p;
    mla_shape *shape = &c->shape;
    mla_field q = mla_problem_field(&p->q, "q"), q_rope = mla_problem_field(&p->q_rope, "q_rope");
    mla_field q_begin = mla_problem_field(&p->q_begin, "q_begin");
    mla_field q_length = mla_problem_field(&p->q_length, "q_length");
    int32_t ndim = p->q.ndim;
    if (ndim != 3 && ndim != 4) {
        return mla_fail(MLA_STATUS_BAD_SHAPE,
                        "%s.ndim = %" PRId32 " must be 4 ([n_seq][n_q][n_head][d]) or 3 ([n_token][n_head][d])",
                        mla_field_label(&q).text, ndim);
    }
    shape->batched = ndim == 4;
    MLA_TRY(check_positive(&q, ndim - 2));
    MLA_TRY(check_positive(&q, ndim - 1));
    c->n_head = mla_dim_extent(q, ndim - 2);
    c->d_nope = mla_dim_extent(q, ndim - 1);
    c->n_seq = mla_dim_extent(q, 0);
    if (shape->batched) {
        c->n_q = mla_dim_extent(q, 1);
        if (mla_tensor_present(&p->q_begin)) {
            return mla_fail(MLA_STATUS_BAD_VALUE, "%s belongs to a packed q, but %s has 4 dims",
                            mla_field_label(&q_begin).text, mla_field_label(&q).text);
        }
    } else {
        c->n_token = mla_dim_extent(q, 0);
        if (mla_tensor_present(&p->q_begin)) {
            MLA_TRY(mla_field_check_dims(&q_begin, "[n_seq + 1]", 1, (mla_extent[]){mla_any_extent()}));
            MLA_TRY(check_positive(&q_begin, 0));
            c->n_seq = mla_dim_extent(q_begin, 0);
            c->n_seq.less = 1;
            c->n_seq.value -= 1;
        }
    }
    if (mla_tensor_present(&p->q_rope)) {
        MLA_TRY(mla_check_per_token(c, &q_rope, "[n_seq][n_q][n_head][d_rope]", "[n_token][n_head][d_rope]", 2,
                                    (mla_extent[]){c->n_head, mla_any_extent()}));
        bool stored_in_8_bits = MLA_DTYPES_8BIT & MLA_DTYPE_BIT(p->q.dtype);
        MLA_TRY(mla_field_check_dtype(&q_rope, stored_in_8_bits ? MLA_DTYPES_FLOAT : MLA_DTYPE_BIT(p->q.dtype)));
        MLA_TRY(check_positive(&q_rope, ndim - 1));
        c->d_rope = mla_dim_extent(q_rope, ndim - 1);
    }
    if (mla_tensor_present(&p->q_length)) {
        MLA_TRY(mla_field_check_dims(&q_length, "[n_seq]", 1, &c->n_seq));
    }

    shape->n_seq = c->n_seq.value;
    shape->n_q = shape->batched ? c->n_q.value : 0;
    shape->n_token = shape->batched ? shape->n_seq * shape->n_q : c->n_token.value; /* q's size fits, n_head, d >= 1 */
    shape->n_head = c->n_head.value;
    shape->d_nope = c->d_nope.value;
    shape->d_rope = mla_tensor_present(&p->q_rope) ? c->d_rope.value : 0;
    if (__builtin_add_overflow(shape->d_nope, shape->d_rope, &shape->d_k)) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[%" PRId32 "] = %" PRId64 " is too large",
                        mla_field_label(&q).text, ndim - 1, shape->d_nope);
    }
    if (p->d_v < 1) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "d_v = %" PRId64 " must be at least 1", p->d_v);
    }
    c->d_v = mla_number_extent("d_v", p->d_v);
    shape->d_v = p->d_v;
    if (p->p_rounding == MLA_P_ROUND_16BIT) {
        MLA_TRY(mla_field_check_dtype(&q, MLA_DTYPES_16BIT));
    }
    per_token_strides(c, &p->q, shape->q_stride);
    per_token_strides(c, &p->q_rope, shape->q_rope_stride);
    return MLA_STATUS_OK;
}

static mla_status check_vector(const mla_tensor *t, const char *path, int32_t g, const char *layout, mla_extent extent)
{
    mla_field field = mla_segment_field(t, path, g);
    return mla_tensor_present(t) ? mla_field_check_dims(&field, layout, 1, &extent) : MLA_STATUS_OK;
}

/* Descales, sink and the outputs. */
static mla_status check_outputs(mla_checker *c)
{
    const mla_problem *p = c->p;
    MLA_TRY(check_vector(&p->q_descale, "q_descale", -1, "[1]", mla_number_extent("the only extent", 1)));
    for (int32_t g = 0; g < p->n_segment; g++) {
        MLA_TRY(check_vector(&p->segment[g].descale, "descale", g, "[1]", mla_number_extent("the only extent", 1)));
    }
    MLA_TRY(check_vector(&p->qk_descale, "qk_descale", -1, "[n_head]", c->n_head));
    MLA_TRY(check_vector(&p->pv_descale, "pv_descale", -1, "[n_head]", c->n_head));
    MLA_TRY(check_vector(&p->sink, "sink", -1, "[n_head]", c->n_head));

    mla_field o = mla_problem_field(&p->o, "o"), lse = mla_problem_field(&p->lse, "lse");
    mla_field max = mla_problem_field(&p->max, "max");
    MLA_TRY(mla_check_per_token(c, &o, "[n_seq][n_q][n_head][d_v]", "[n_token][n_head][d_v]", 2,
                                (mla_extent[]){c->n_head, c->d_v}));
    if (mla_tensor_present(&p->lse)) {
        MLA_TRY(mla_check_per_token(c, &lse, "[n_seq][n_q][n_head]", "[n_token][n_head]", 1, &c->n_head));
    }
    if (mla_tensor_present(&p->max)) {
        MLA_TRY(mla_check_per_token(c, &max, "[n_seq][n_q][n_head]", "[n_token][n_head]", 1, &c->n_head));
    }
    per_token_strides(c, &p->o, c->shape.o_stride);
    per_token_strides(c, &p->lse, c->shape.lse_stride);
    per_token_strides(c, &p->max, c->shape.max_stride);
    return MLA_STATUS_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

mla_status mla_problem_resolve(const mla_problem *problem, mla_shape *shape)
{
    if (problem == NULL) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "problem is NULL");
    }
    MLA_TRY(mla_sized_check(problem->struct_size, sizeof *problem, "problem", "mla_problem_init", "mla_problem.h"));
    mla_checker c = {.p = problem, .shape = {.n_segment = problem->n_segment}};
    MLA_TRY(check_scalars(problem));
    MLA_TRY(check_fields(problem));
    MLA_TRY(check_queries(&c));
    for (int32_t g = 0; g < problem->n_segment; g++) {
        MLA_TRY(mla_check_segment(&c, g));
    }
    MLA_TRY(check_outputs(&c));
    MLA_TRY(check_strides(problem));
    MLA_TRY(check_overlap(problem));
    if (problem->q.device.type == MLA_DEVICE_CPU) {
        MLA_TRY(mla_check_values(&c));
    }
    if (shape != NULL) {
        *shape = c.shape;
    }
    return MLA_STATUS_OK;
}

mla_status mla_problem_check(const mla_problem *problem)
{
    return mla_problem_resolve(problem, NULL);
}
