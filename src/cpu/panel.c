/*
 * panel.c - the way of many rows: a block of keys is converted once and used by all row panels.
 *
 * For each block: scores of all panels, online softmax with slack, probabilities times values. Formats end in the load
 * kernels, addresses in rows.c; what remains here is the order of things and who may see what.
 */
#include <math.h>
#include <string.h>

#include "panel.h"

enum { WIDEST_COL_PANEL = 64 };

void mla_panel_pack(mla_task_state *t, double descale)
{
    const mla_problem *p = t->run->problem;
    const mla_shape *shape = t->run->shape;
    const mla_cpu_kernels *kernels = t->run->kernels;
    memset(t->scale, 0, sizeof t->scale);
    memset(t->nope_factor, 0, sizeof t->nope_factor);
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        const void *nope[MLA_ROW_PANEL], *rope[MLA_ROW_PANEL];
        float nope_factor[MLA_ROW_PANEL], rope_factor[MLA_ROW_PANEL];
        int32_t n_row = mla_task_panel_rows(t, panel);
        for (int32_t r = 0; r < n_row; r++) {
            int64_t i = panel * MLA_ROW_PANEL + r;
            float power = mla_task_split_scale(t, i, descale);
            mla_task_query(t, i, &nope[r], &rope[r]);
            bool no_nope = t->nope_apart && t->nope_factor[i] == 0; /* its scores are 0, however large q.k may be */
            nope_factor[r] = no_nope ? 0 : power;
            rope_factor[r] = power;
        }
        float *to = t->q + panel * shape->d_k * MLA_ROW_PANEL;
        kernels->pack[mla_format_of(p->q.dtype)](nope, nope_factor, n_row, shape->d_nope, to);
        if (mla_tensor_present(&p->q_rope)) {
            kernels->pack[mla_format_of(p->q_rope.dtype)](rope, rope_factor, n_row, shape->d_rope,
                                                          to + shape->d_nope * MLA_ROW_PANEL);
        }
    }
}

/* The first n_col columns of stored rows, into columns [col, col + n_col) of a block. */
static void load_columns(const mla_task_state *t, mla_dtype dtype, const mla_pieces *pieces, const void *const *row,
                         int64_t n_key, int64_t n_col, int64_t col, float *block)
{
    mla_load_kernel load = t->run->kernels->load[mla_format_of(dtype)];
    int64_t panel_stride = t->run->layout.panel_stride, width = pieces ? pieces->columns : n_col;
    const void *piece[MLA_KEY_BLOCK_MAX];
    for (int64_t c = 0; c < n_col; c += width) {
        for (int64_t n = 0; c > 0 && n < n_key; n++) {
            piece[n] = (const char *)row[n] + c / width * pieces->stride * (int64_t)mla_dtype_size(dtype);
        }
        load(c > 0 ? piece : row, n_key, width < n_col - c ? width : n_col - c, col + c, block, panel_stride);
    }
}

static bool values_apart(const mla_task_state *t, int32_t g)
{
    return t->run->layout.v_apart || mla_tensor_present(&t->run->problem->segment[g].v);
}

void mla_panel_load_block(const mla_task_state *t, int32_t g, const mla_key_rows *rows, unsigned what)
{
    const mla_shape *shape = t->run->shape;
    const mla_segment *segment = &t->run->problem->segment[g];
    const mla_segment_shape *s = &shape->segment[g];
    bool apart = values_apart(t, g);
    if (what & MLA_LOAD_KEYS) {
        load_columns(t, segment->k.dtype, &s->k_pieces, rows->k, rows->n_key, shape->d_nope, 0, t->k_block);
        if (mla_tensor_present(&segment->k_rope)) {
            load_columns(t, segment->k_rope.dtype, &s->k_rope_pieces, rows->rope, rows->n_key, shape->d_rope,
                         t->run->layout.rope_col, t->k_block);
        }
    }
    if (!(what & MLA_LOAD_VALUES) || (what & MLA_LOAD_KEYS && !apart)) {
        return;
    }
    float *block = apart ? t->v_block : t->k_block;
    if (mla_tensor_present(&segment->v)) {
        load_columns(t, segment->v.dtype, NULL, rows->v, rows->n_key, shape->d_v, 0, block);
        return;
    }
    int64_t n_nope = shape->d_v < shape->d_nope ? shape->d_v : shape->d_nope;
    load_columns(t, segment->k.dtype, &s->k_pieces, rows->k, rows->n_key, n_nope, 0, block);
    if (shape->d_v > n_nope) {
        load_columns(t, segment->k_rope.dtype, &s->k_rope_pieces, rows->rope, rows->n_key, shape->d_v - n_nope, n_nope,
                     block);
    }
}

static const float *value_block(const mla_task_state *t, int32_t g)
{
    return values_apart(t, g) ? t->v_block : t->k_block;
}

static bool all_finite(const float *v, int64_t n)
{
    uint32_t worst = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, v + i, sizeof bits);
        bits &= 0x7f800000u;
        worst = bits > worst ? bits : worst;
    }
    return worst != 0x7f800000u;
}

void mla_panel_seen_by_all(const mla_task_state *t, bool masked, int64_t n_key, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = masked ? 0 : n_key;
    for (int64_t i = 0; i < t->n_row; i++) {
        *begin = t->block_begin[i] > *begin ? t->block_begin[i] : *begin;
        *end = t->block_end[i] < *end ? t->block_end[i] : *end;
    }
}

/*
 * A probability of 0 keeps a hidden key away from a row only while the key's value is finite: 0 * NaN is NaN. True when
 * a value that some row may not see is not finite. With a mask any value may be hidden.
 */
static bool hidden_values_bite(const mla_task_state *t, bool masked, const float *v, int64_t n_key)
{
    int64_t cp = t->run->kernels->col_panel, d_v = t->run->shape->d_v;
    int64_t seen_begin, seen_end;
    mla_panel_seen_by_all(t, masked, n_key, &seen_begin, &seen_end);
    for (int64_t n = 0; n < n_key; n++) {
        if (n >= seen_begin && n < seen_end) {
            continue;
        }
        for (int64_t c = 0; c < d_v; c += cp) {
            int64_t width = d_v - c < cp ? d_v - c : cp;
            if (!all_finite(v + c / cp * t->run->layout.panel_stride + n * cp, width)) {
                return true;
            }
        }
    }
    return false;
}

bool mla_panel_apart(const mla_task_state *t, int32_t g, const mla_key_rows *rows, bool partial)
{
    bool masked = mla_tensor_present(&t->run->problem->segment[g].mask);
    return (partial || masked) && hidden_values_bite(t, masked, value_block(t, g), rows->n_key);
}

/* pv for one row panel and one column panel in which rows must be kept apart: each token's rows go over a copy of the
 * values in which those hidden from the token are 0, into a copy of the accumulators, from which only these rows are
 * taken back. Bit for bit what pv gives when hidden values are finite. */
static void pv_apart(const mla_task_state *t, int32_t g, const mla_key_rows *rows, int64_t panel, const float *p,
                     const float *v, int32_t n_col, float *o, mla_prefetch *ahead)
{
    int64_t cp = t->run->kernels->col_panel, n_key = rows->n_key;
    int32_t n_row = mla_task_panel_rows(t, panel);
    _Alignas(64) float value[MLA_KEY_BLOCK_MAX * WIDEST_COL_PANEL], sum[MLA_ROW_PANEL * WIDEST_COL_PANEL];
    for (int32_t r = 0, next; r < n_row; r = next) {
        int64_t i = panel * MLA_ROW_PANEL + r;
        next = r + 1;
        while (next < n_row && mla_task_token(t, panel * MLA_ROW_PANEL + next) == mla_task_token(t, i)) {
            next++;
        }
        for (int64_t n = 0; n < n_key; n++) {
            if (mla_task_sees(t, g, rows, i, n)) {
                memcpy(value + n * cp, v + n * cp, (size_t)cp * sizeof(float));
            } else {
                memset(value + n * cp, 0, (size_t)cp * sizeof(float));
            }
        }
        memcpy(sum, o, (size_t)(MLA_ROW_PANEL * cp) * sizeof(float));
        t->run->kernels->pv(p, value, n_key, n_row, n_col, sum, ahead);
        memcpy(o + r * cp, sum + r * cp, (size_t)((next - r) * cp) * sizeof(float));
    }
}

void mla_panel_values(const mla_task_state *t, int32_t g, const mla_key_rows *rows, bool apart, int64_t panel,
                      int64_t c, const float *p, float *o, mla_prefetch *ahead)
{
    int64_t cp = t->run->kernels->col_panel, left = t->run->shape->d_v - c;
    const float *v = value_block(t, g) + c / cp * t->run->layout.panel_stride;
    int32_t n_col = (int32_t)(left < cp ? left : cp);
    if (apart) {
        pv_apart(t, g, rows, panel, p, v, n_col, o, ahead);
    } else {
        t->run->kernels->pv(p, v, rows->n_key, mla_task_panel_rows(t, panel), n_col, o, ahead);
    }
}

/* So that the next block's lines are spread over all the arithmetic of this one. */
mla_prefetch mla_panel_prefetch(const mla_task_state *t, int32_t g, const mla_key_rows *next, unsigned passes)
{
    const mla_pieces *pieces = &t->run->shape->segment[g].k_pieces;
    int64_t size = (int64_t)mla_dtype_size(t->run->problem->segment[g].k.dtype), steps = 0;
    mla_prefetch ahead = {.row = (const char *const *)next->k, .n_row = next->n_key};
    ahead.row_bytes = pieces->columns * size;
    ahead.row_step = ahead.row_bytes < 64 ? 64 / ahead.row_bytes : 1;
    ahead.n_piece = t->run->shape->d_nope / pieces->columns;
    ahead.piece_bytes = pieces->stride * size;
    int64_t lines =
        ahead.n_piece * ((ahead.n_row + ahead.row_step - 1) / ahead.row_step) * ((ahead.row_bytes + 63) / 64);
    steps += passes & MLA_LOAD_VALUES ? t->n_panel * t->run->layout.n_v_panel * 4 : 0;
    steps += passes & MLA_LOAD_KEYS ? t->n_panel * t->run->layout.n_col_panel * 2 : 0;
    ahead.lines_per_step = lines / steps + 1;
    return ahead;
}

/* Scores of n_col columns in the panels from `panel` on. Column c of q is column `col` of the block. */
static void score_panels(const mla_task_state *t, int64_t panel, int64_t c, int64_t col, int64_t n_col, int64_t n_key,
                         float *s, int64_t s_stride, mla_prefetch *ahead)
{
    const mla_cpu_kernels *kernels = t->run->kernels;
    const float *block = t->k_block + col / kernels->col_panel * t->run->layout.panel_stride;
    for (; panel < t->n_panel; panel++) {
        kernels->qk(t->q + (panel * t->run->shape->d_k + c) * MLA_ROW_PANEL, block, t->run->layout.panel_stride, n_col,
                    n_key, mla_task_panel_rows(t, panel), c > 0, s + panel * s_stride, ahead);
    }
}

/* Scores of the columns [from, to), added to s where it holds some already. Column `from` of q is column `col` of the
 * block. */
static void add_scores(const mla_task_state *t, int64_t from, int64_t to, int64_t col, int64_t n_key, float *s,
                       int64_t s_stride, mla_prefetch *ahead)
{
    int64_t step = t->run->kernels->qk_columns;
    for (int64_t c = from; c < to; c += step) {
        score_panels(t, 0, c, col + c - from, to - c < step ? to - c : step, n_key, s, s_stride, ahead);
    }
}

void mla_panel_scores(const mla_task_state *t, int64_t n_key, float *s, int64_t s_stride, mla_prefetch *ahead)
{
    const mla_shape *shape = t->run->shape;
    if (!t->nope_apart) {
        add_scores(t, 0, shape->d_k, 0, n_key, s, s_stride, ahead);
        return;
    }
    add_scores(t, 0, shape->d_nope, 0, n_key, s, s_stride, ahead);
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        const float *factor = t->nope_factor + panel * MLA_ROW_PANEL;
        float *score = s + panel * s_stride;
        for (int64_t n = 0; n < n_key; n++, score += MLA_ROW_PANEL) {
            for (int r = 0; r < MLA_ROW_PANEL; r++) {
                score[r] *= factor[r];
            }
        }
    }
    add_scores(t, shape->d_nope, shape->d_k, t->run->layout.rope_col, n_key, s, s_stride, ahead);
}

const float *mla_panel_mask(const mla_task_state *t, int32_t g, const mla_key_rows *rows, int64_t panel)
{
    const mla_tensor *mask = &t->run->problem->segment[g].mask;
    if (!mla_tensor_present(mask)) {
        return NULL;
    }
    for (int64_t n = 0; n < rows->n_key; n++) {
        for (int64_t r = 0; r < MLA_ROW_PANEL; r++) {
            t->mask[n * MLA_ROW_PANEL + r] = mla_task_mask_at(t, mask, rows, panel * MLA_ROW_PANEL + r, n);
        }
    }
    return t->mask;
}

void mla_panel_softmax(mla_task_state *t, int32_t g, const mla_key_rows *rows, bool partial, int64_t panel, float *s,
                       const mla_panel_result *result)
{
    const mla_cpu_kernels *kernels = t->run->kernels;
    int64_t first = panel * MLA_ROW_PANEL;
    float factor[MLA_ROW_PANEL];
    bool rescale = kernels->softmax(s, rows->n_key, t->scale + first, partial ? t->block_begin + first : NULL,
                                    partial ? t->block_end + first : NULL, mla_panel_mask(t, g, rows, panel),
                                    result->state, factor);
    if (rescale) {
        kernels->merge(result->o, NULL, factor, NULL, t->run->layout.n_v_panel, result->n_row);
    }
}

/* Can keys and values be used where they lie? Only while all rows of the task see all of the block: what they may not see
 * is kept apart in a converted one. */
static bool serves_rows(const mla_task_state *t, int32_t g, bool partial)
{
    const mla_segment *segment = &t->run->problem->segment[g];
    const mla_shape *shape = t->run->shape;
    const mla_tensor *v = mla_tensor_present(&segment->v) ? &segment->v : &segment->k;
    return t->n_panel == 1 && t->n_row > MLA_ROW_PANEL / 2 && !partial && !mla_tensor_present(&segment->mask) &&
           !mla_tensor_present(&segment->k_rope) && shape->segment[g].k_pieces.columns == shape->d_nope &&
           shape->d_k > 1 && shape->d_v % 16 == 0 && t->run->kernels->qk_rows[mla_format_of(segment->k.dtype)] &&
           t->run->kernels->pv_rows[mla_format_of(v->dtype)];
}

static void attend_rows(mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                        const mla_panel_result *result)
{
    const mla_segment *segment = &t->run->problem->segment[g];
    const mla_cpu_kernels *kernels = t->run->kernels;
    int64_t d_k = t->run->shape->d_k;
    bool own = mla_tensor_present(&segment->v);
    mla_prefetch ahead = mla_panel_prefetch(t, g, next, MLA_LOAD_KEYS | MLA_LOAD_VALUES);
    for (int64_t c = 0; c < d_k; c += kernels->qk_columns) {
        kernels->qk_rows[mla_format_of(segment->k.dtype)](t->q + c * MLA_ROW_PANEL, rows->k, c,
                                                          d_k - c < kernels->qk_columns ? d_k - c : kernels->qk_columns,
                                                          rows->n_key, c > 0, t->s, &ahead);
    }
    mla_panel_softmax(t, g, rows, false, 0, t->s, &result[0]);
    kernels->pv_rows[mla_format_of(own ? segment->v.dtype : segment->k.dtype)](t->s, own ? rows->v : rows->k,
                                                                               rows->n_key, result->n_row,
                                                                               t->run->shape->d_v, result->o, &ahead);
}

/* The kernel that converts a block while its first panel is scored; NULL: keys are not plain rows, or there is none. */
static mla_load_qk_kernel loads_meanwhile(const mla_task_state *t, int32_t g)
{
    const mla_segment *segment = &t->run->problem->segment[g];
    bool plain = !t->nope_apart && !mla_tensor_present(&segment->k_rope) &&
                 t->run->shape->segment[g].k_pieces.columns == t->run->shape->d_k;
    return plain ? t->run->kernels->load_qk[mla_format_of(segment->k.dtype)] : NULL;
}

/* Raw scores of the block, which is converted and whose successor `next` is fetched meanwhile. */
static void load_and_score(const mla_task_state *t, mla_load_qk_kernel load_qk, int64_t size, const mla_key_rows *rows,
                           const mla_key_rows *next, float *s, int64_t s_stride)
{
    int64_t d_k = t->run->shape->d_k, step = t->run->kernels->qk_columns, n_key = rows->n_key;
    const void *row[MLA_KEY_BLOCK_MAX + MLA_LOAD_AHEAD];
    mla_prefetch nothing = {0};
    for (int64_t c = 0; c < d_k; c += step) {
        int64_t n_col = d_k - c < step ? d_k - c : step;
        for (int64_t n = 0; n < n_key + MLA_LOAD_AHEAD; n++) {
            const void *from = n < n_key                 ? rows->k[n]
                               : n - n_key < next->n_key ? next->k[n - n_key]
                                                         : rows->k[n_key - 1];
            row[n] = (const char *)from + c * size;
        }
        load_qk(t->q + c * MLA_ROW_PANEL, row, n_key, n_col, c, mla_task_panel_rows(t, 0), c > 0, t->k_block,
                t->run->layout.panel_stride, s);
        score_panels(t, 1, c, c, n_col, n_key, s, s_stride, &nothing);
    }
}

/* What a call needs is looked up once: between tiles nothing of it is in the first-level cache. */
static void add_values(const mla_task_state *t, int32_t g, const mla_key_rows *rows, bool apart,
                       const mla_panel_result *result, mla_prefetch *ahead)
{
    int64_t cp = t->run->kernels->col_panel, d_v = t->run->shape->d_v, n_panel = t->n_panel, n_key = rows->n_key;
    int64_t s_stride = t->run->layout.s_stride, panel_stride = t->run->layout.panel_stride;
    const float *s = t->s, *v = value_block(t, g);
    mla_pv_kernel pv = t->run->kernels->pv;
    for (int64_t c = 0; c < d_v; c += cp, v += panel_stride) {
        int32_t n_col = (int32_t)(d_v - c < cp ? d_v - c : cp);
        for (int64_t panel = 0; panel < n_panel; panel++) {
            const float *p = s + panel * s_stride;
            float *o = result[panel].o + c * MLA_ROW_PANEL;
            if (apart) {
                pv_apart(t, g, rows, panel, p, v, n_col, o, ahead);
            } else {
                pv(p, v, n_key, result[panel].n_row, n_col, o, ahead);
            }
        }
    }
}

void mla_panel_attend(mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                      const mla_panel_result *result)
{
    bool partial = mla_task_place_ranges(t, rows, t->run->shape->segment[g].has_list);
    if (serves_rows(t, g, partial)) {
        attend_rows(t, g, rows, next, result);
        return;
    }
    int64_t s_stride = t->run->layout.s_stride;
    mla_prefetch ahead = mla_panel_prefetch(t, g, next, MLA_LOAD_KEYS | MLA_LOAD_VALUES);
    mla_load_qk_kernel load_qk = loads_meanwhile(t, g);
    if (load_qk) {
        if (values_apart(t, g)) {
            mla_panel_load_block(t, g, rows, MLA_LOAD_VALUES);
        }
        load_and_score(t, load_qk, (int64_t)mla_dtype_size(t->run->problem->segment[g].k.dtype), rows, next, t->s,
                       s_stride);
        ahead = mla_panel_prefetch(t, g, next, MLA_LOAD_VALUES);
        int64_t lines = (ahead.row_bytes + 63) / 64; /* what a tile has no time for is fetched when it is converted */
        ahead.lines_per_step = ahead.lines_per_step < lines ? ahead.lines_per_step : lines;
    } else {
        mla_panel_load_block(t, g, rows, MLA_LOAD_KEYS | MLA_LOAD_VALUES);
        mla_panel_scores(t, rows->n_key, t->s, s_stride, &ahead);
    }

    bool apart = mla_panel_apart(t, g, rows, partial);
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        mla_panel_softmax(t, g, rows, partial, panel, t->s + panel * s_stride, &result[panel]);
    }

    add_values(t, g, rows, apart, result, &ahead);
}
