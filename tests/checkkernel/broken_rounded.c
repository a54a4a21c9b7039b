/*
 * broken_rounded.c - rows whose probabilities are rounded, in the self-test's own attention: fp32, tile after tile.
 */
#include <math.h>
#include <string.h>

#include "broken_attention.h"

/* A row in the making. The maximum that probabilities are rounded against is kept beside the one that sums refer to, so
 * that bugs can have another one. */
typedef struct rounded_row {
    ck_broken *b;
    int64_t s, token, h;
    ck_broken_state *state;
    float m, l, m_round;
    int64_t n_tile;
    float score[512]; /* of the tile; b->v has the values */
    int64_t n, n_place, width;
    float descale; /* of its values */
} rounded_row;

static float exp_of(float a, float b)
{
    return a == b ? 1 : a == -INFINITY ? 0 : expf(a - b);
}

static float larger(float a, float b)
{
    return isnan(a) || a > b ? a : b;
}

/* p, or for INT8 the integer that a * n stands for. */
static float round_p(const ck_broken *b, float p, float a)
{
    if (b->bug == BUG_P_NOT_ROUNDED) {
        return b->p->p_rounding == MLA_P_ROUND_INT8 ? p / a : p;
    }
    mla_dtype dtype = b->p->q.dtype;
    switch (b->p->p_rounding) {
    case MLA_P_ROUND_16BIT:
        if (b->bug == BUG_P_OTHER_16BIT) {
            dtype = dtype == MLA_DTYPE_F16 ? MLA_DTYPE_BF16 : MLA_DTYPE_F16;
        }
        return ck_broken_round_16bit(dtype, p);
    case MLA_P_ROUND_HIF8:
        return b->bug == BUG_P_NO_FACTOR_16 ? ck_broken_round_hif8(p) : ck_broken_round_hif8(16 * p) / 16;
    default: return rintf(b->bug == BUG_P_INT8_ONE_ROUNDING ? p / a : ck_broken_round_16bit(MLA_DTYPE_F16, p / a));
    }
}

static void end_tile(rounded_row *r)
{
    ck_broken *b = r->b;
    ck_broken_state *state = r->state;
    int64_t d_v = b->shape.d_v;
    float t = -INFINITY;
    for (int64_t j = 0; j < r->n; j++) {
        t = larger(r->score[j], t);
    }
    if (r->n > 0 && t != -INFINITY) {
        /* the keys alone, for lse and max */
        float keys = larger(t, state->m);
        state->l *= exp_of(state->m, keys);
        state->m = keys;
        state->max = larger(t, state->max);

        float m = larger(t, r->m), rescale = exp_of(r->m, m);
        bool afresh = b->bug == BUG_P_TILE_MAX || (b->bug == BUG_P_SPLIT && r->n_tile % 2 == 1);
        r->m_round = b->bug == BUG_P_GLOBAL_MAX ? r->m_round : afresh ? t : larger(t, r->m_round);
        float back = exp_of(r->m_round, m); /* 1 without a bug */
        r->l *= rescale;
        r->m = m;
        float unit = 1;
        if (b->p->p_rounding == MLA_P_ROUND_INT8) {
            unit = (b->bug == BUG_P_INT8_ROW_UNIT ? 1 : exp_of(t, r->m_round)) * (1.0f / 127);
        }
        memset(b->part, 0, sizeof *b->part * (size_t)d_v);
        for (int64_t j = 0; j < r->n; j++) {
            if (r->score[j] == -INFINITY) {
                continue;
            }
            float p = exp_of(r->score[j], r->m_round);
            float rounded = unit > 0 ? round_p(b, p, unit) : 0;
            state->l += exp_of(r->score[j], state->m);
            r->l += back * (b->bug == BUG_P_SUM_ROUNDED ? rounded * unit : p);
            for (int64_t c = 0; c < d_v; c++) {
                b->part[c] += rounded * b->v[j * d_v + c];
            }
        }
        for (int64_t c = 0; c < d_v; c++) {
            state->o[c] = state->o[c] * rescale + b->part[c] * (unit * back * r->descale);
        }
    }
    r->n_tile += r->n_place > 0;
    r->n = r->n_place = 0;
}

/* All keys of a segment. */
static void add_segment(rounded_row *r, int32_t g)
{
    ck_broken *b = r->b;
    int64_t begin, end, other = b->bug == BUG_P_DESCALES_SWAPPED && b->shape.n_segment == 2 ? 1 - g : g;
    r->descale = b->bug == BUG_V_DESCALE ? 1 : ck_broken_factor(&b->p->segment[other].descale, 0);
    ck_broken_candidates(b, g, r->s, r->token, &begin, &end);
    for (int64_t j = begin; j < end; j++) {
        int64_t page, slot, position;
        bool seen = ck_broken_find_key(b, g, r->s, r->token, j, &page, &slot, &position);
        float mask = seen ? ck_broken_mask(b, g, r->s, r->token, position) : 0;
        if (seen && mask != -INFINITY) {
            float score = ck_broken_score(b, g, page, slot, r->h, b->v + r->n * b->shape.d_v);
            r->score[r->n++] = score + mask;
        }
        r->n_place += b->bug == BUG_P_LIST_PLACES ? 1 : b->bug == BUG_P_MASK_PLACES && mask == -INFINITY ? 0 : seen;
        bool aligned = b->bug == BUG_P_TILE_ALIGNED && (j + 1) % r->width == 0;
        if (r->n_place == r->width || aligned) {
            end_tile(r);
        }
    }
    if (b->bug != BUG_P_TILE_FILLED || g + 1 == b->shape.n_segment) {
        end_tile(r);
    }
}

void ck_broken_rounded_row(ck_broken *b, int64_t s, int64_t token, int64_t h, ck_broken_state *state)
{
    const mla_tensor *sinks = &b->p->sink;
    float sink = mla_tensor_present(sinks) ? ck_broken_load(b->bug, sinks, h * sinks->stride[0]) : -INFINITY;
    bool join = sink > -INFINITY && b->bug != BUG_P_SINK_OUTSIDE;
    rounded_row r = {.b = b, .s = s, .token = token, .h = h, .state = state, .width = b->p->p_tile};
    if (b->bug == BUG_P_TILE_WIDTH) {
        r.width = r.width == 1 ? 2 : (r.width + 1) / 2;
    }
    r.m = r.m_round = join ? sink : -INFINITY;
    if (b->bug == BUG_P_GLOBAL_MAX) { /* a first pass finds it */
        ck_bug bug = b->bug;
        b->bug = BUG_NONE;
        for (int32_t g = 0; g < b->shape.n_segment; g++) {
            add_segment(&r, g);
        }
        b->bug = bug;
        float *o = state->o;
        memset(o, 0, sizeof *o * (size_t)b->shape.d_v);
        *state = (ck_broken_state){.m = -INFINITY, .max = -INFINITY, .o = o};
        r.m_round = r.m;
        r.m = join ? sink : -INFINITY;
        r.n_tile = 0;
    }
    r.l = join ? 1 : 0;
    for (int32_t g = 0; g < b->shape.n_segment; g++) {
        add_segment(&r, g);
    }
    state->joined = b->bug == BUG_P_SINK_OUTSIDE ? 0 : r.l;
}
