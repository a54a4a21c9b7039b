/*
 * fixed.c - the way of fixed point. For each block: keys to integers, the rows' choice between integers and fp32, then
 * what panel.c does, with integer kernels. What decides for a row is its own query and the keys that it sees, at fixed
 * places, so its bits depend on nothing else.
 */
#include "fixed.h"

#include <math.h>
#include <string.h>

#include "panel.h"
#include "result.h"

enum { ALIGN = 64, ROWS_AT_WORK = 4 }; /* keys in fp32: a pair that is measured, one that is written */

bool mla_fixed_offered(const mla_cpu_kernels *kernels, const mla_problem *problem, const mla_shape *shape)
{
    if (kernels->fixed == NULL || problem->p_rounding != MLA_P_ROUND_NONE || mla_nope_apart(problem, shape)) {
        return false;
    }
    for (int32_t g = 0; g < shape->n_segment; g++) {
        if (mla_tensor_present(&problem->segment[g].v)) {
            return false; /* one set of integers serves scores and values */
        }
    }
    return true;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* The next `bytes` bytes of `memory`, which may be NULL when only sizes are asked for. */
static void *carve(char *memory, size_t *at, int64_t bytes)
{
    void *place = memory ? memory + *at : NULL;
    *at += (size_t)round_up(bytes, ALIGN);
    return place;
}

static size_t place_all(const mla_cpu_kernels *kernels, const mla_shape *shape, int64_t key_block, size_t o_bytes,
                        char *memory, mla_fixed_state *f)
{
    size_t at = 0;
    int64_t cp = kernels->col_panel, n_v_panel = (shape->d_v + cp - 1) / cp, d = round_up(shape->d_k, 2);
    int64_t n_key = round_up(key_block, MLA_FIXED_TILE), n_column = round_up(shape->d_k, cp) + cp;
    carve(memory, &at, sizeof *f);
    /* half a line more than whole ones: rows a power of two apart would fight for the same cache sets */
    f->k_stride = round_up(d, 32) + 32;
    f->v_stride = round_up(key_block, 2) * cp + 32;
    f->q = carve(memory, &at, MLA_TASK_PANELS * d * MLA_ROW_PANEL * (int64_t)sizeof *f->q);
    f->k = carve(memory, &at, n_key * f->k_stride * (int64_t)sizeof *f->k);
    f->v = carve(memory, &at, n_v_panel * f->v_stride * (int64_t)sizeof *f->v);
    f->p = carve(memory, &at, MLA_TASK_PANELS * round_up(key_block, 2) * MLA_ROW_PANEL * (int64_t)sizeof *f->p);
    f->row_stride = n_column;
    f->row = carve(memory, &at, ROWS_AT_WORK * n_column * (int64_t)sizeof *f->row);
    f->fold = carve(memory, &at, n_column * (int64_t)sizeof *f->fold);
    f->unfold = carve(memory, &at, n_column * (int64_t)sizeof *f->unfold);
    f->new_fold = carve(memory, &at, n_column * (int64_t)sizeof *f->new_fold);
    f->kept = carve(memory, &at, MLA_TASK_PANELS * (int64_t)(sizeof(mla_row_state) + o_bytes));
    return at;
}

size_t mla_fixed_bytes(const mla_cpu_kernels *kernels, const mla_shape *shape, int64_t key_block, size_t o_bytes)
{
    mla_fixed_state f;
    return place_all(kernels, shape, key_block, o_bytes, NULL, &f);
}

void mla_fixed_place(const mla_cpu_kernels *kernels, const mla_shape *shape, int64_t key_block, size_t o_bytes,
                     char *memory)
{
    mla_fixed_state *f = (mla_fixed_state *)memory;
    memset(f, 0, sizeof *f);
    place_all(kernels, shape, key_block, o_bytes, memory, f);
}

/* ---- a chunk ----------------------------------------------------------------------------------------------------- */

/* n columns of a stored row, side by side in fp32. */
static void load_piece(const mla_task_state *t, mla_dtype dtype, const void *row, int64_t n_col, float *to)
{
    const mla_cpu_kernels *kernels = t->run->kernels;
    /* panels of one key follow each other without a gap */
    kernels->load[mla_format_of(dtype)](&row, 1, n_col, 0, to, kernels->col_panel);
}

static void load_tensor(const mla_task_state *t, mla_dtype dtype, const mla_pieces *pieces, const void *row,
                        int64_t n_col, float *to)
{
    for (int64_t c = 0; c < n_col; c += pieces->columns) {
        const char *at = (const char *)row + c / pieces->columns * pieces->stride * (int64_t)mla_dtype_size(dtype);
        load_piece(t, dtype, at, n_col - c < pieces->columns ? n_col - c : pieces->columns, to + c);
    }
}

/* Key n of a block in fp32. */
static void load_key(const mla_task_state *t, int32_t g, const mla_key_rows *rows, int64_t n, float *y)
{
    const mla_shape *shape = t->run->shape;
    const mla_segment *segment = &t->run->problem->segment[g];
    load_tensor(t, segment->k.dtype, &shape->segment[g].k_pieces, rows->k[n], shape->d_nope, y);
    if (mla_tensor_present(&segment->k_rope)) {
        load_tensor(t, segment->k_rope.dtype, &shape->segment[g].k_rope_pieces, rows->rope[n], shape->d_rope,
                    y + shape->d_nope);
    }
}

static int32_t exponent_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int32_t)(bits >> 23 & 0xff);
}

/*
 * Factors for columns whose energy in the sample is far above the middle one's: the fourth root of the ratio, in powers
 * of two, from a ratio of 16 on. K gets smaller by it and Q larger, so that the root of the ratio of sizes is where the
 * product of their norms, and with it the error of scores, is least.
 */
static void find_fold(const mla_task_state *t, int32_t g, int64_t begin, float *fold)
{
    mla_fixed_state *f = t->fixed;
    const mla_run_context *run = t->run;
    int64_t d = run->shape->d_k;
    for (int64_t c = 0; c < d; c++) {
        fold[c] = 1;
    }
    if (mla_tensor_present(&run->problem->segment[g].mask)) {
        return; /* a mask may hide a key of the sample from one row and not from another */
    }
    mla_key_rows *sample = t->rows[1];
    mla_key_rows_find(run->problem, run->shape, g, t->item->seq, mla_task_token(t, 0), t->item->kv_head, begin,
                      begin + MLA_FIXED_SAMPLE, sample);
    float *energy = f->unfold; /* free until fold is known */
    memset(energy, 0, (size_t)d * sizeof *energy);
    for (int64_t n = 0; n < sample->n_key; n++) {
        load_key(t, g, sample, n, f->row);
        for (int64_t c = 0; c < d; c++) {
            energy[c] += f->row[c] * f->row[c];
        }
    }
    int64_t count[256] = {0}, below = 0;
    for (int64_t c = 0; c < d; c++) {
        count[exponent_of(energy[c])]++;
    }
    int32_t middle = 0;
    while (middle < 255 && (below += count[middle]) <= d / 2) {
        middle++;
    }
    for (int64_t c = 0; c < d && count[255] == 0; c++) {
        int32_t above = exponent_of(energy[c]) - middle;
        fold[c] = above < 4 || middle == 0 ? 1.0f : ldexpf(1.0f, (above + 2) / 4);
    }
}

static void pack_queries(mla_task_state *t)
{
    mla_fixed_state *f = t->fixed;
    int64_t d = t->run->shape->d_k, pair_columns = round_up(d, 2);
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        int64_t first = panel * MLA_ROW_PANEL;
        t->run->kernels->fixed->query(t->q + first * d, f->fold, d, f->q + first * pair_columns, f->query_unit + first);
        for (int64_t i = first; i < first + MLA_ROW_PANEL; i++) {
            f->scale[i] = isnan(f->query_unit[i]) ? 0 : f->query_unit[i] * t->scale[i];
        }
    }
    f->packed = true;
}

bool mla_fixed_begin(mla_task_state *t, int32_t g, int64_t begin)
{
    mla_fixed_state *f = t->fixed;
    int64_t d = t->run->shape->d_k, start = begin - begin % t->run->plan->geometry.split_keys;
    bool any = false;
    for (int64_t i = 0; i < t->n_row; i++) {
        f->eligible[i] = f->served && t->begin[i] <= start && t->end[i] >= start + MLA_FIXED_SAMPLE;
        any = any || f->eligible[i];
    }
    if (!any) {
        return false;
    }
    find_fold(t, g, start, f->new_fold);
    if (!f->packed || memcmp(f->fold, f->new_fold, (size_t)d * sizeof *f->fold) != 0) {
        memcpy(f->fold, f->new_fold, (size_t)d * sizeof *f->fold);
        pack_queries(t);
    }
    f->folded = false;
    for (int64_t c = 0; c < d; c++) {
        f->unfold[c] = 1 / f->fold[c];
        f->folded = f->folded || f->fold[c] != 1;
    }
    return true;
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* The kernel that reads the segment's keys as they are stored; NULL: they must be brought together in fp32 first. */
static mla_fixed_norm_kernel reads_keys(const mla_task_state *t, int32_t g)
{
    const mla_segment *segment = &t->run->problem->segment[g];
    bool plain =
        !mla_tensor_present(&segment->k_rope) && t->run->shape->segment[g].k_pieces.columns == t->run->shape->d_k;
    return plain ? t->run->kernels->fixed->norm[mla_format_of(segment->k.dtype)] : NULL;
}

/* Key n of the block to fp32 at y, unfolded, and what its integers will be; size: bytes of a stored number. */
static mla_fixed_key measure_key(const mla_task_state *t, int32_t g, const mla_key_rows *rows, int64_t n,
                                 mla_fixed_norm_kernel norm, size_t size, float *y)
{
    mla_fixed_state *f = t->fixed;
    int64_t d = t->run->shape->d_k, d_v = t->run->shape->d_v;
    const float *unfold = f->folded ? f->unfold : NULL, *rest_unfold = f->folded ? f->unfold + d_v : NULL;
    double limit = 12 * MLA_FIXED_DEVIATION * MLA_FIXED_DEVIATION / (double)d_v;
    float value_square = 0, rest_square = 0, largest = 0, factor;
    const void *from = rows->k[n];
    if (norm == NULL) {
        load_key(t, g, rows, n, y);
        norm = t->run->kernels->fixed->norm[MLA_FORMAT_F32];
        size = sizeof *y;
        from = y;
    }
    norm(from, unfold, d_v, y, &value_square, &largest);
    norm((const char *)from + (size_t)d_v * size, rest_unfold, d - d_v, y + d_v, &rest_square, &largest);
    bool sound = mla_fixed_factor(value_square + rest_square, largest, &factor);
    float unit = factor > 0 ? 1 / factor : 0;
    sound = sound && (value_square == 0 || (double)unit * (double)unit <= limit * (double)value_square);
    if (!sound) {
        memset(y, 0, (size_t)d * sizeof *y);
    }
    f->sound[n] = sound;
    f->unit[n] = sound ? unit : 0;
    f->largest[n] = sound ? largest : 0;
    return (mla_fixed_key){y, factor, f->k + n * f->k_stride};
}

/* Keys between a row's being fetched into the first level and measured: from the second level measuring waits for it. */
enum { MEASURE_AHEAD = 4 };

static void fetch_row(const void *row, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch((const char *)row + at, 0, 3);
    }
}

/* Keys of the block to integers, once for scores and once, by pairs, for values. */
static void load_block(const mla_task_state *t, int32_t g, const mla_key_rows *rows)
{
    mla_fixed_state *f = t->fixed;
    int64_t d = t->run->shape->d_k, d_v = t->run->shape->d_v, cp = t->run->kernels->col_panel;
    mla_fixed_norm_kernel norm = reads_keys(t, g);
    size_t size = mla_dtype_size(t->run->problem->segment[g].k.dtype);
    mla_fixed_key key[2][2] = {0};
    /* a pair is measured before the one before it is written: square roots and divisions wait for the last column */
    for (int64_t n = 0; n < rows->n_key + 2; n += 2) {
        mla_fixed_key *now = key[n / 2 % 2], *before = key[(n / 2 + 1) % 2];
        for (int64_t i = 0; i < 2 && n + i < rows->n_key; i++) {
            if (norm && n + i + MEASURE_AHEAD < rows->n_key) {
                fetch_row(rows->k[n + i + MEASURE_AHEAD], (size_t)d * size);
            }
            now[i] = measure_key(t, g, rows, n + i, norm, size, f->row + (n + i) % ROWS_AT_WORK * f->row_stride);
        }
        if (n > 0) {
            t->run->kernels->fixed->keys(&before[0], n - 1 < rows->n_key ? &before[1] : NULL, d, d_v,
                                         f->v + (n - 2) * cp, f->v_stride);
        }
    }
}

/* Do the row's scores with keys of this unit keep within the bound? */
static bool within_bound(const mla_fixed_state *f, int64_t i, float unit)
{
    const double limit = MLA_FIXED_DEVIATION * MLA_LOG2_E * 2.449489742783178 / (double)MLA_FIXED_NORM; /* sqrt(6) */
    return fabs((double)f->scale[i] * (double)unit) <= limit;
}

/* Sets f->by_fixed; returns how many rows go by fixed point. */
static int64_t choose(const mla_task_state *t, int32_t g, const mla_key_rows *rows)
{
    mla_fixed_state *f = t->fixed;
    float unit = 0;
    bool all_sound = true;
    for (int64_t n = 0; n < rows->n_key; n++) {
        unit = f->unit[n] > unit ? f->unit[n] : unit;
        all_sound = all_sound && f->sound[n];
    }
    int64_t count = 0, token = -1;
    float seen_unit = 0;
    bool seen_sound = true;
    for (int64_t i = 0; i < t->n_row; i++) {
        bool fit = f->eligible[i] && !isnan(f->query_unit[i]);
        if (fit && !(all_sound && within_bound(f, i, unit))) {
            if (token != mla_task_token(t, i)) { /* what its rows see, which may be less than what is there */
                token = mla_task_token(t, i);
                seen_unit = 0;
                seen_sound = true;
                for (int64_t n = 0; n < rows->n_key; n++) {
                    if (mla_task_sees(t, g, rows, i, n)) {
                        seen_unit = f->unit[n] > seen_unit ? f->unit[n] : seen_unit;
                        seen_sound = seen_sound && f->sound[n];
                    }
                }
            }
            fit = seen_sound && within_bound(f, i, seen_unit);
        }
        f->by_fixed[i] = fit;
        count += fit;
    }
    return count;
}

static void attend_fixed(mla_task_state *t, int32_t g, const mla_key_rows *rows, bool partial,
                         const mla_panel_result *result, mla_prefetch *ahead)
{
    mla_fixed_state *f = t->fixed;
    const mla_cpu_kernels *kernels = t->run->kernels;
    int64_t pair_columns = round_up(t->run->shape->d_k, 2), n_pair = (rows->n_key + 1) / 2, cp = kernels->col_panel;
    int64_t s_stride = t->run->layout.s_stride, p_stride = round_up(t->run->layout.key_block, 2) * MLA_ROW_PANEL;
    float weight[MLA_TASK_ROWS];
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        kernels->fixed->qk(f->q + panel * MLA_ROW_PANEL * pair_columns, f->k, f->k_stride, pair_columns / 2,
                           rows->n_key, f->unit, t->s + panel * s_stride, ahead);
    }
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        int64_t first = panel * MLA_ROW_PANEL;
        float factor[MLA_ROW_PANEL], *s = t->s + panel * s_stride;
        bool rescale = kernels->softmax(s, rows->n_key, f->scale + first, partial ? t->block_begin + first : NULL,
                                        partial ? t->block_end + first : NULL, mla_panel_mask(t, g, rows, panel),
                                        result[panel].state, factor);
        if (rescale) {
            kernels->merge(result[panel].o, NULL, factor, NULL, t->run->layout.n_v_panel, result[panel].n_row);
        }
        kernels->fixed->p(s, rows->n_key, f->unit, f->largest, f->p + panel * p_stride, weight + first);
    }
    for (int64_t c = 0; c < t->run->shape->d_v; c += cp) {
        int64_t left = t->run->shape->d_v - c;
        for (int64_t panel = 0; panel < t->n_panel; panel++) {
            kernels->fixed->pv(f->p + panel * p_stride, f->v + c / cp * f->v_stride, n_pair, result[panel].n_row,
                               (int32_t)(left < cp ? left : cp), weight + panel * MLA_ROW_PANEL, f->fold + c,
                               result[panel].o + c * MLA_ROW_PANEL, ahead);
        }
    }
}

static mla_panel_result kept_panel(const mla_task_state *t, int64_t panel)
{
    size_t bytes = sizeof(mla_row_state) + t->run->layout.o_bytes;
    return mla_result_at(t->fixed->kept + (size_t)panel * bytes, mla_task_panel_rows(t, panel));
}

/* Swaps a panel's partial result with the kept one. */
static void swap_kept(const mla_task_state *t, const mla_panel_result *result)
{
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        mla_panel_result kept = kept_panel(t, panel);
        mla_row_state state = *kept.state;
        *kept.state = *result[panel].state;
        *result[panel].state = state;
        for (size_t i = 0; i < t->run->layout.o_bytes / sizeof(float); i++) {
            float o = kept.o[i];
            kept.o[i] = result[panel].o[i];
            result[panel].o[i] = o;
        }
    }
}

/* Rows by fixed point from the kept partial results. */
static void take_kept(const mla_task_state *t, const mla_panel_result *result)
{
    int64_t cp = t->run->kernels->col_panel;
    for (int64_t i = 0; i < t->n_row; i++) {
        int64_t panel = i / MLA_ROW_PANEL, r = i % MLA_ROW_PANEL;
        if (!t->fixed->by_fixed[i]) {
            continue;
        }
        mla_panel_result kept = kept_panel(t, panel);
        mla_row_state *to = result[panel].state;
        to->m[r] = kept.state->m[r];
        to->l[r] = kept.state->l[r];
        to->max[r] = kept.state->max[r];
        for (int64_t c = 0; c < t->run->layout.n_v_panel; c++) {
            int64_t at = (c * MLA_ROW_PANEL + r) * cp;
            memcpy(result[panel].o + at, kept.o + at, (size_t)cp * sizeof(float));
        }
    }
}

void mla_fixed_attend(mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                      const mla_panel_result *result)
{
    load_block(t, g, rows);
    bool partial = mla_task_place_ranges(t, rows, t->run->shape->segment[g].has_list);
    int64_t count = choose(t, g, rows);
    if (count == 0) {
        mla_panel_attend(t, g, rows, next, result);
        return;
    }
    mla_prefetch ahead = mla_panel_prefetch(t, g, next, MLA_LOAD_KEYS | MLA_LOAD_VALUES);
    if (count == t->n_row) {
        attend_fixed(t, g, rows, partial, result, &ahead);
        return;
    }
    /* both ways for all rows, from the same partial results, and of each row the one it chose */
    for (int64_t panel = 0; panel < t->n_panel; panel++) {
        mla_panel_result kept = kept_panel(t, panel);
        *kept.state = *result[panel].state;
        memcpy(kept.o, result[panel].o, t->run->layout.o_bytes);
    }
    attend_fixed(t, g, rows, partial, result, &ahead);
    swap_kept(t, result);
    mla_panel_attend(t, g, rows, next, result);
    take_kept(t, result);
}
