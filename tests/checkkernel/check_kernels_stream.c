/*
 * check_kernels_stream.c - the stream kernels, a whole softmax step each, against fp64. See check_kernels.c.
 */
#include <math.h>
#include <string.h>

#include "kernel_tools.h"
#include "ref/number.h"

enum { ROWS = MLA_STREAM_ROWS, BLOCK = MLA_STREAM_BLOCK, BEHIND = MLA_STREAM_BEHIND };

static int64_t round_up(const kernel_case *k, int64_t n)
{
    int64_t step = k->table->stream_step;
    return (n + step - 1) / step * step;
}

/* Place of column c of a part within q or o. */
static int64_t place_of(const kernel_case *k, int64_t c)
{
    int64_t step = k->table->stream_step, x = c % step;
    if (k->table->stream_order[k->format] == MLA_STREAM_PLAIN) {
        return c;
    }
    return c - x + (x % 2 ? step / 2 + x / 2 : x / 2);
}

/* What one step is given. */
typedef struct step_shape {
    int64_t n_key, n_nope, n_rope, n_v; /* n_rope 0: one part */
    int32_t n_row;
    bool odd, own_v, addend;
    double spread; /* of the scores */
} step_shape;

typedef struct step {
    step_shape shape;
    mla_stream_block block;
    float *q, *o;
    mla_row_state *state;
} step;

/* Rows [0, n_key) and the readable ones behind them, all NaN. */
static const void **poison_rows(const kernel_case *k, int64_t n_key, int64_t n_col)
{
    const void **row = ck_buffer("row addresses", (size_t)(n_key + BEHIND) * sizeof *row);
    for (int64_t n = 0; n < n_key + BEHIND; n++) {
        row[n] = ck_buffer("row", (size_t)n_col * mla_dtype_size(k->dtype));
        for (int64_t c = 0; c < n_col; c++) {
            mla_ref_store((void *)(uintptr_t)row[n], k->dtype, c, NAN);
        }
    }
    return row;
}

static double part_value(const kernel_case *k, const mla_stream_part *part, int64_t n, int64_t c)
{
    return mla_ref_load(part->row[n], k->dtype, c);
}

static void make_step(const kernel_case *k, const step_shape *shape, step *t, ck_random *r)
{
    *t = (step){.shape = *shape};
    mla_stream_block *b = &t->block;
    int64_t rope_at = round_up(k, shape->n_nope), width = rope_at + round_up(k, shape->n_rope);
    int64_t v_width = round_up(k, shape->n_v) + k->table->stream_step;
    b->stride = width > v_width ? width : v_width;
    b->k[0] = (mla_stream_part){.row = poison_rows(k, shape->n_key, shape->n_nope), .n_col = shape->n_nope, .at = 0};
    b->n_k_part = 1;
    if (shape->n_rope > 0) {
        b->k[1] = (mla_stream_part){.row = poison_rows(k, shape->n_key, shape->n_rope),
                                    .n_col = shape->n_rope,
                                    .at = rope_at};
        b->n_k_part = 2;
    }
    b->n_v_part = 1;
    if (shape->own_v) {
        b->v[0] = (mla_stream_part){.row = poison_rows(k, shape->n_key, shape->n_v), .n_col = shape->n_v, .at = 0};
    } else { /* the first columns of the keys */
        b->v[0] = b->k[0];
        if (shape->n_v <= shape->n_nope) {
            b->v[0].n_col = shape->n_v;
        } else {
            b->v[1] = b->k[1];
            b->v[1].n_col = shape->n_v - shape->n_nope;
            b->n_v_part = 2;
        }
    }
    b->odd = shape->odd;
    b->fetch_again = ck_below(r, 2) == 0; /* changes no result */
    b->n_key = shape->n_key;
    b->n_row = shape->n_row;
    int64_t q_rows = shape->n_row + shape->n_row % 2; /* a row of zeros behind an odd number of them */
    t->q = kernel_floats("q", q_rows * b->stride);
    memset(t->q, 0, (size_t)(q_rows * b->stride) * sizeof *t->q);
    for (int32_t x = 0; x < shape->n_row; x++) {
        for (int i = 0; i < b->n_k_part; i++) {
            for (int64_t c = 0; c < b->k[i].n_col; c++) {
                t->q[x * b->stride + b->k[i].at + place_of(k, c)] = (float)ck_normal(r);
            }
        }
    }
    t->o = kernel_floats("o", q_rows * b->stride);
    memset(t->o, 0, (size_t)(q_rows * b->stride) * sizeof *t->o);
    t->state = ck_buffer("state", sizeof *t->state);
    float *scale = kernel_floats("scale", ROWS);
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        t->state->m[x] = t->state->max[x] = -INFINITY;
        t->state->l[x] = 0;
    }
    double size = sqrt((double)(shape->n_nope + shape->n_rope));
    for (int x = 0; x < ROWS; x++) {
        scale[x] = (float)(shape->spread / size * (0.5 + ck_uniform(r)));
    }
    b->q = t->q;
    b->o = t->o;
    b->scale = scale;
    b->state = t->state;
    if (shape->addend) {
        b->addend = kernel_floats("addend", shape->n_key * ROWS);
    }
}

/* New keys for the same step. Keys that no row sees keep their NaN. */
static void fill_keys(const kernel_case *k, step *t, ck_random *r)
{
    const step_shape *shape = &t->shape;
    float *addend = (float *)(uintptr_t)t->block.addend;
    for (int64_t n = 0; n < shape->n_key; n++) {
        bool seen = !addend;
        bool hidden = ck_chance(r, 0.3); /* from everybody */
        for (int x = 0; addend && x < ROWS; x++) {
            addend[n * ROWS + x] = hidden || ck_chance(r, 0.2) ? -INFINITY
                                   : ck_chance(r, 0.5)         ? 0
                                                               : (float)ck_normal(r);
            seen = seen || (x < shape->n_row && addend[n * ROWS + x] > -INFINITY);
        }
        for (int i = 0; i < 3; i++) {
            const mla_stream_part *part = i < 2 ? &t->block.k[i] : &t->block.v[0];
            if (i < t->block.n_k_part || (i == 2 && shape->own_v)) {
                for (int64_t c = 0; c < part->n_col; c++) {
                    mla_ref_store((void *)(uintptr_t)part->row[n], k->dtype, c, seen ? ck_normal(r) : NAN);
                }
            }
        }
    }
}

static void judge_step(const kernel_case *k, const step *t, const mla_row_state *old, const float *o_before, int call)
{
    const step_shape *shape = &t->shape;
    const mla_stream_block *b = &t->block;
    for (int32_t x = 0; x < shape->n_row; x++) {
        ck_context("%lld keys%s, columns %lld+%lld/%lld%s, %d rows%s, call %d, row %d", (long long)shape->n_key,
                   shape->odd ? " from an odd one on" : "", (long long)shape->n_nope, (long long)shape->n_rope,
                   (long long)shape->n_v, shape->own_v ? " of their own" : "", (int)shape->n_row,
                   shape->addend ? ", addend" : "", call, (int)x);
        double score[BLOCK], error[BLOCK], top = -INFINITY, worst = 0, d_k = (double)(shape->n_nope + shape->n_rope);
        int64_t n_record = 0;
        for (int64_t n = 0; n < shape->n_key; n++) {
            float add = b->addend ? b->addend[n * ROWS + x] : 0;
            score[n] = -INFINITY;
            error[n] = 0;
            if (add == -INFINITY) {
                continue;
            }
            double sum = 0, size = 0;
            for (int i = 0; i < b->n_k_part; i++) {
                for (int64_t c = 0; c < b->k[i].n_col; c++) {
                    double term =
                        (double)t->q[x * b->stride + b->k[i].at + place_of(k, c)] * part_value(k, &b->k[i], n, c);
                    sum += term;
                    size += fabs(term);
                }
            }
            score[n] = sum * (double)b->scale[x] + (double)add;
            /* the sum and its lanes, the product with scale, the addend */
            error[n] = 0x1p-24 * ((kernel_chain(d_k + 32) + 1) * size * fabs((double)b->scale[x]) + fabs(score[n]));
            worst = fmax(worst, error[n]);
            n_record += score[n] > top;
            top = fmax(top, score[n]);
        }
        double m = (double)t->state->m[x], old_m = (double)old->m[x], largest = fmax(top, (double)old->max[x]);
        if (largest == -INFINITY) {
            if (t->state->m[x] != -INFINITY || t->state->l[x] != 0 || t->state->max[x] != -INFINITY) {
                ck_fail("a row that has seen nothing has m %g, l %g", m, (double)t->state->l[x]);
            }
            continue;
        }
        kernel_near((double)t->state->max[x], largest, worst, "max");
        if (!(m <= largest + worst && m >= largest - (double)MLA_RESCALE_SLACK - worst && !(m < old_m))) {
            ck_fail("m = %g after %g with a largest score of %g", m, old_m, largest);
        }
        /* Weights: the score, the difference to m, the exponential, and a rescaling for each record at most. */
        double carried = old_m == -INFINITY ? 0 : exp2(old_m - m);
        double rescale =
            (KERNEL_EXP_ERROR + 2 * 0x1p-24) * (double)(n_record + 1) + 0x1p-24 * fabs(carried > 0 ? old_m - m : 0);
        double weight[BLOCK], off[BLOCK], l = (double)old->l[x] * carried, l_error = l * rescale;
        for (int64_t n = 0; n < shape->n_key; n++) {
            weight[n] = score[n] == -INFINITY ? 0 : exp2(score[n] - m);
            off[n] = weight[n] *
                     expm1(log(2.0) * (error[n] + 0x1p-24 * (fabs(score[n] - m) + 8)) + KERNEL_EXP_ERROR + rescale);
            off[n] = weight[n] > 0 ? off[n] : 0;
            l += weight[n];
            l_error += off[n];
        }
        double gathered = 0x1p-24 * kernel_chain((double)shape->n_key + 4);
        kernel_near((double)t->state->l[x], l, l_error + gathered * l + BLOCK * KERNEL_VANISHING, "l");
        for (int i = 0; i < b->n_v_part; i++) {
            for (int64_t c = 0; c < b->v[i].n_col; c++) {
                int64_t at = x * b->stride + b->v[i].at + place_of(k, c);
                double want = (double)o_before[at] * carried, size = fabs(want), slack = size * rescale;
                for (int64_t n = 0; n < shape->n_key; n++) {
                    if (score[n] > -INFINITY) {
                        double v = part_value(k, &b->v[i], n, c);
                        want += weight[n] * v;
                        size += weight[n] * fabs(v);
                        slack += (off[n] + KERNEL_VANISHING) * fabs(v);
                    }
                }
                kernel_near((double)t->o[at], want, slack + gathered * size, "o of part %d, column %lld", i,
                            (long long)c);
            }
        }
    }
    /* The panel has no rows but the step's: lanes behind them hold nothing, and a step works on MLA_STREAM_ROWS. */
    for (int x = ROWS; x < MLA_ROW_PANEL; x++) {
        if (t->state->m[x] != old->m[x] || t->state->l[x] != old->l[x] || t->state->max[x] != old->max[x]) {
            ck_fail("lane %d of the state changed", x);
        }
    }
}

static void step_once(const kernel_case *k, const step_shape *shape, ck_random *r)
{
    size_t mark = ck_mark();
    step t;
    make_step(k, shape, &t, r);
    float *o_before = kernel_floats("o before", (shape->n_row + 1) * t.block.stride);
    for (int call = 0; call < 3; call++) {
        fill_keys(k, &t, r);
        mla_row_state old = *t.state;
        memcpy(o_before, t.o, (size_t)(shape->n_row * t.block.stride) * sizeof *t.o);
        k->table->stream[k->format](&t.block);
        judge_step(k, &t, &old, o_before, call);
    }
    ck_release(mark);
}

void kernel_check_stream(void)
{
    static const int64_t dims[][3] = {{576, 0, 512}, {512, 64, 512}, {64, 0, 64},   {1, 0, 1},   {7, 0, 3},
                                      {15, 0, 15},   {16, 0, 16},    {17, 0, 16},   {31, 1, 32}, {33, 40, 50},
                                      {100, 0, 99},  {48, 16, 48},   {128, 64, 128}};
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int i = 0; i < 13; i++) { /* dims, each with every count of rows and every kind of value */
        for (int32_t n_row = 1; n_row <= ROWS; n_row++) {
            step_shape shape = {.n_key = ck_between(&r, 1, i < 2 ? 24 : BLOCK),
                                .n_nope = dims[i][0],
                                .n_rope = dims[i][1],
                                .n_v = dims[i][2],
                                .n_row = n_row,
                                .odd = n_row % 2,
                                .addend = n_row % 3,
                                .own_v = n_row % 4 == 3,
                                .spread = 3};
            step_once(k, &shape, &r);
        }
    }
    for (int64_t n_key = 1; n_key <= BLOCK; n_key += n_key < 34 ? 1 : n_key < BLOCK - 6 ? 11 : 1) { /* counts of keys */
        for (int variant = 0; variant < 4; variant++) {
            step_shape shape = {.n_key = n_key,
                                .n_nope = 40,
                                .n_v = 33,
                                .n_row = (int32_t)ck_between(&r, 1, ROWS),
                                .odd = variant & 1,
                                .addend = variant & 2,
                                .spread = 3};
            step_once(k, &shape, &r);
        }
    }
    for (int variant = 0; variant < 12; variant++) { /* scores of every size */
        static const double spread[] = {1e-4, 60, 1e4};
        step_shape shape = {.n_key = 61,
                            .n_nope = 64,
                            .n_v = 64,
                            .n_row = 3,
                            .odd = variant & 1,
                            .addend = variant & 2,
                            .spread = spread[variant % 3]};
        step_once(k, &shape, &r);
    }
}
