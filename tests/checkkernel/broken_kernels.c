/*
 * broken_kernels.c - sound kernels with one thing wrong each, so that the checks of single kernels can be seen to fail.
 */
#include <math.h>
#include <string.h>

#include "broken.h"
#include "cpu/kernels_fixed.h"

static const mla_cpu_kernels *sound;

static void load_short(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block, int64_t stride)
{
    sound->load[MLA_FORMAT_BF16](row, n_key, n_col - 1, col, block, stride);
}

static void load_far(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block, int64_t stride)
{
    sound->load[MLA_FORMAT_F16](row, n_key, n_col + 1, col, block, stride);
}

static void pack_factor(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    float none[MLA_ROW_PANEL];
    for (int32_t r = 0; r < n_row; r++) {
        none[r] = factor[0];
    }
    sound->pack[MLA_FORMAT_F32](row, none, n_row, n_col, q);
}

/* Lanes that no row fills keep what they were. */
static void pack_lanes(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    float before[64][MLA_ROW_PANEL];
    int64_t n = n_col < 64 ? n_col : 64;
    memcpy(before, q, (size_t)n * sizeof before[0]);
    sound->pack[MLA_FORMAT_BF16](row, factor, n_row, n_col, q);
    for (int64_t c = 0; c < n; c++) {
        for (int32_t r = n_row; r < MLA_ROW_PANEL; r++) {
            q[c * MLA_ROW_PANEL + r] = before[c][r];
        }
    }
}

static void qk_accumulate(const float *q, const float *block, int64_t stride, int64_t n_col, int64_t n_key,
                          int32_t n_row, bool accumulate, float *s, mla_prefetch *ahead)
{
    (void)accumulate;
    sound->qk(q, block, stride, n_col, n_key, n_row, false, s, ahead);
}

/* The scores are right; only those who read the block later would notice. */
static void load_qk_key(const float *q, const void *const *row, int64_t n_key, int64_t n_col, int64_t col,
                        int32_t n_row, bool accumulate, float *block, int64_t stride, float *s)
{
    int64_t cp = sound->col_panel;
    float *last = block + col / cp * stride + (n_key - 1) * cp, before = *last;
    sound->load_qk[MLA_FORMAT_BF16](q, row, n_key, n_col, col, n_row, accumulate, block, stride, s);
    *last = before;
}

static bool softmax_ranges(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                           const float *mask, mla_row_state *state, float *factor)
{
    (void)begin;
    (void)end;
    return sound->softmax(s, n_key, scale, NULL, NULL, mask, state, factor);
}

static bool softmax_sum(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                        const float *mask, mla_row_state *state, float *factor)
{
    mla_row_state old = *state;
    bool rescale = sound->softmax(s, n_key, scale, begin, end, mask, state, factor);
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        state->l[r] += old.l[r] * (1 - factor[r]);
    }
    return rescale;
}

static bool softmax_report(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                           const float *mask, mla_row_state *state, float *factor)
{
    sound->softmax(s, n_key, scale, begin, end, mask, state, factor);
    return false;
}

static void pv_key(const float *p, const float *v, int64_t n_key, int32_t n_row, int32_t n_col, float *o,
                   mla_prefetch *ahead)
{
    sound->pv(p, v, n_key - 1, n_row, n_col, o, ahead);
}

static void qk_rows_accumulate(const float *q, const void *const *row, int64_t col, int64_t n_col, int64_t n_key,
                               bool accumulate, float *s, mla_prefetch *ahead)
{
    (void)accumulate;
    sound->qk_rows[MLA_FORMAT_BF16](q, row, col, n_col, n_key, false, s, ahead);
}

static void pv_rows_key(const float *p, const void *const *row, int64_t n_key, int32_t n_row, int64_t n_col, float *o,
                        mla_prefetch *ahead)
{
    sound->pv_rows[MLA_FORMAT_BF16](p, row, n_key - 1, n_row, n_col, o, ahead);
}

static void merge_part(float *o, const float *x, const float *a, const float *b, int64_t n_panel, int32_t n_row)
{
    float one[MLA_ROW_PANEL];
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        one[r] = 1;
    }
    sound->merge(o, x, a, x ? one : b, n_panel, n_row);
}

static void store_truncated(const float *o, int64_t d_v, float factor, void *dst)
{
    int64_t cp = sound->col_panel;
    for (int64_t c = 0; c < d_v; c++) {
        float value = o[c / cp * MLA_ROW_PANEL * cp + c % cp] * factor;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        ((uint16_t *)dst)[c] = (uint16_t)(bits >> 16);
    }
}

static void store_far(const float *o, int64_t d_v, float factor, void *dst)
{
    sound->store[MLA_FORMAT_F16](o, d_v, factor, dst);
    ((volatile uint16_t *)dst)[d_v] = 0;
}

static void stream_hidden(const mla_stream_block *block)
{
    mla_stream_block all = *block;
    all.addend = NULL;
    sound->stream[MLA_FORMAT_BF16](&all);
}

static void stream_sum(const mla_stream_block *block)
{
    for (int r = 0; r < MLA_STREAM_ROWS; r++) {
        block->state->l[r] = 0;
    }
    sound->stream[MLA_FORMAT_F32](block);
}

static float *element(float *block, int64_t stride, int64_t n, int64_t at)
{
    int64_t cp = sound->col_panel;
    return block + at / cp * stride + n * cp + at % cp;
}

static void load_unsigned(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                          int64_t stride)
{
    for (int64_t i = 0; i < n_key * n_col; i++) {
        *element(block, stride, i / n_col, col + i % n_col) = ((const uint8_t *)row[i / n_col])[i % n_col];
    }
}

static void load_nan(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block, int64_t stride)
{
    sound->load[MLA_FORMAT_HIF8](row, n_key, n_col, col, block, stride);
    for (int64_t i = 0; i < n_key * n_col; i++) {
        float *to = element(block, stride, i / n_col, col + i % n_col);
        *to = isnan(*to) ? 0 : *to;
    }
}

static void peak_forgets(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                         const float *mask, float *top)
{
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        top[r] = -INFINITY;
    }
    sound->peak(s, n_key, scale, begin, end, mask, top);
}

static void peak_hidden(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                        const float *mask, float *top)
{
    (void)begin;
    (void)end;
    sound->peak(s, n_key, scale, NULL, NULL, mask, top);
}

/* Probabilities, without rounding. */
static void no_round(float *s, int64_t n_key, const float *m, float *sum)
{
    for (int64_t i = 0; i < n_key * MLA_ROW_PANEL; i++) {
        float base = m[i % MLA_ROW_PANEL];
        s[i] = exp2f(s[i] - (base == -INFINITY ? 0 : base));
        sum[i % MLA_ROW_PANEL] += s[i];
    }
}

static void round_truncated(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    (void)unit;
    no_round(s, n_key, m, sum);
    for (int64_t i = 0; i < n_key * MLA_ROW_PANEL; i++) {
        uint32_t bits;
        memcpy(&bits, s + i, sizeof bits);
        bits &= isnan(s[i]) ? ~0u : 0xffff0000u;
        memcpy(s + i, &bits, sizeof bits);
    }
}

static void round_once(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    no_round(s, n_key, m, sum);
    for (int64_t i = 0; i < n_key * MLA_ROW_PANEL; i++) {
        s[i] = rintf(s[i] / unit[i % MLA_ROW_PANEL]);
    }
}

static void round_fine(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    float higher[MLA_ROW_PANEL]; /* 2^-4 of every probability */
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        higher[r] = m[r] + 4;
        sum[r] /= 16;
    }
    sound->round[MLA_FORMAT_HIF8](s, n_key, higher, unit, sum);
    for (int64_t i = 0; i < n_key * MLA_ROW_PANEL; i++) {
        s[i] *= 16;
    }
    for (int r = 0; r < MLA_ROW_PANEL; r++) {
        sum[r] *= 16;
    }
}

static void round_sum(float *s, int64_t n_key, const float *m, const float *unit, float *sum)
{
    float ignored[MLA_ROW_PANEL] = {0};
    sound->round[MLA_FORMAT_F16](s, n_key, m, unit, ignored);
    for (int64_t i = 0; i < n_key * MLA_ROW_PANEL; i++) {
        sum[i % MLA_ROW_PANEL] += s[i];
    }
}

static void fixed_norm_nan(const void *x, const float *unfold, int64_t n_col, float *y, float *square, float *largest)
{
    const float *from = x;
    for (int64_t c = 0; c < n_col; c++) {
        float one = isfinite(from[c]) ? from[c] : 0;
        sound->fixed->norm[MLA_FORMAT_F32](&one, unfold ? unfold + c : NULL, 1, y + c, square, largest);
    }
}

static void fixed_keys_truncated(const mla_fixed_key *even, const mla_fixed_key *odd, int64_t n_col, int64_t n_value,
                                 int16_t *v, int64_t panel_stride)
{
    sound->fixed->keys(even, odd, n_col, n_value, v, panel_stride);
    for (int64_t c = 0; c < n_col; c++) {
        even->k[c] = (int16_t)(even->y[c] * even->factor);
    }
}

static void fixed_keys_odd(const mla_fixed_key *even, const mla_fixed_key *odd, int64_t n_col, int64_t n_value,
                           int16_t *v, int64_t panel_stride)
{
    sound->fixed->keys(even, odd ? odd : even, n_col, n_value, v, panel_stride);
}

static void fixed_query_size(const float *q, const float *fold, int64_t n_col, int16_t *to, float *unit)
{
    sound->fixed->query(q, fold, n_col, to, unit);
    for (int r = 0; r < MLA_ROW_PANEL; r++) { /* as if the largest had not been looked at */
        double square = 0;
        for (int64_t c = 0; c < n_col; c++) {
            double y = (double)q[c * MLA_ROW_PANEL + r] * (double)fold[c];
            square += y * y;
        }
        float factor = (float)(46000 / sqrt(square));
        for (int64_t c = 0; isfinite(unit[r]) && unit[r] > 0 && c < n_col; c++) {
            to[c / 2 * 2 * MLA_ROW_PANEL + r * 2 + c % 2] =
                (int16_t)(int32_t)rintf(q[c * MLA_ROW_PANEL + r] * fold[c] * factor);
        }
        unit[r] = isfinite(unit[r]) && unit[r] > 0 ? 1 / factor : unit[r];
    }
}

static void fixed_qk_pair(const int16_t *q, const int16_t *k, int64_t k_stride, int64_t n_pair, int64_t n_key,
                          const float *unit, float *s, mla_prefetch *ahead)
{
    sound->fixed->qk(q, k, k_stride, n_pair - 1, n_key, unit, s, ahead);
}

static void fixed_p_sum(const float *p, int64_t n_key, const float *unit, const float *largest, int16_t *to,
                        float *weight)
{
    float nothing[MLA_KEY_BLOCK] = {0};
    (void)largest;
    sound->fixed->p(p, n_key, unit, nothing, to, weight);
}

static void fixed_pv_fold(const int16_t *p, const int16_t *v, int64_t n_pair, int32_t n_row, int32_t n_col,
                          const float *weight, const float *fold, float *o, mla_prefetch *ahead)
{
    float one[64];
    (void)fold;
    for (int c = 0; c < 64; c++) {
        one[c] = 1;
    }
    sound->fixed->pv(p, v, n_pair, n_row, n_col, weight, one, o, ahead);
}

/* Of fixed point, where the level has it. */
static void break_fixed(mla_fixed_kernels *broken, ck_bug bug)
{
    switch (bug) {
    case BUG_KERNEL_FIXED_NORM_NAN: broken->norm[MLA_FORMAT_F32] = fixed_norm_nan; break;
    case BUG_KERNEL_FIXED_KEYS_TRUNCATED: broken->keys = fixed_keys_truncated; break;
    case BUG_KERNEL_FIXED_KEYS_ODD: broken->keys = fixed_keys_odd; break;
    case BUG_KERNEL_FIXED_QUERY_SIZE: broken->query = fixed_query_size; break;
    case BUG_KERNEL_FIXED_QK_PAIR: broken->qk = fixed_qk_pair; break;
    case BUG_KERNEL_FIXED_P_SUM: broken->p = fixed_p_sum; break;
    case BUG_KERNEL_FIXED_PV_FOLD: broken->pv = fixed_pv_fold; break;
    default: break;
    }
}

static void ppairs_truncated(const float *from, int64_t n_key, int32_t n_part, uint16_t *p)
{
    if (n_part > 1) {
        sound->bf16.ppairs(from, n_key, n_part, p);
        return;
    }
    for (int64_t i = 0; i < n_key * MLA_ROW_PANEL; i++) {
        int64_t n = i / MLA_ROW_PANEL, r = i % MLA_ROW_PANEL;
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        p[n / MLA_BF16_STEP * MLA_BF16_TILE + r * MLA_BF16_STEP + n % MLA_BF16_STEP] = (uint16_t)(bits >> 16);
    }
}

/* What rounding leaves is left out. */
static void ppairs_one_part(const float *from, int64_t n_key, int32_t n_part, uint16_t *p)
{
    sound->bf16.ppairs(from, n_key, n_part, p);
    for (int64_t step = 0; n_part > 1 && step < n_key / MLA_BF16_STEP; step++) {
        memset(p + (2 * step + 1) * MLA_BF16_TILE, 0, MLA_BF16_TILE * sizeof *p);
    }
}

static void vpairs_swapped(const void *const *row, int64_t n_key, int64_t n_col, uint16_t *v, int64_t v_stride)
{
    const void *swapped[MLA_KEY_BLOCK_BF16];
    for (int64_t n = 0; n < n_key; n++) {
        swapped[n] = row[n ^ 1];
    }
    sound->bf16.vpairs(swapped, n_key, n_col, v, v_stride);
}

static void qk_bf16_accumulate(const uint16_t *q, int64_t q_stride, const mla_key_tile *tile, int64_t n_tile,
                               int64_t n_col, int64_t n_panel, bool accumulate, float *s, int64_t s_stride,
                               mla_prefetch *ahead)
{
    (void)accumulate;
    sound->bf16.qk(q, q_stride, tile, n_tile, n_col, n_panel, false, s, s_stride, ahead);
}

static void pv_bf16_step(const uint16_t *p, int64_t p_stride, int32_t n_part, const uint16_t *v, int64_t v_stride,
                         int64_t n_key, int64_t n_panel, int64_t n_col, float *const *o, mla_prefetch *ahead)
{
    sound->bf16.pv(p, p_stride, n_part, v, v_stride, n_key - MLA_BF16_STEP, n_panel, n_col, o, ahead);
}

/* Two halves of the keys, which is another order where a step's sum is rounded on its own. */
static void pv_bf16_neighbour(const uint16_t *p, int64_t p_stride, int32_t n_part, const uint16_t *v, int64_t v_stride,
                              int64_t n_key, int64_t n_panel, int64_t n_col, float *const *o, mla_prefetch *ahead)
{
    int64_t skipped = n_panel > 1 && n_key > MLA_BF16_STEP ? MLA_BF16_STEP : 0;
    sound->bf16.pv(p + skipped * n_part * MLA_ROW_PANEL, p_stride, n_part, v + skipped * MLA_ROW_PANEL, v_stride,
                   n_key - skipped, n_panel, n_col, o, ahead);
    if (skipped > 0) {
        sound->bf16.pv(p, p_stride, n_part, v, v_stride, skipped, n_panel, n_col, o, ahead);
    }
}

static void vpairs_pv_keys(const uint16_t *p, int64_t p_stride, int32_t n_part, const void *const *row, int64_t n_key,
                           int64_t n_panel, int64_t n_col, float *const *o, uint16_t *v, mla_prefetch *ahead)
{
    const void *swapped[MLA_KEY_BLOCK_BF16];
    for (int64_t n = 0; n < n_key; n++) {
        swapped[n] = row[n < n_key - 2 ? n : n ^ 1];
    }
    sound->bf16.vpairs_pv(p, p_stride, n_part, swapped, n_key, n_panel, n_col, o, v, ahead);
}

const mla_cpu_kernels *ck_broken_kernels(const mla_cpu_kernels *table, ck_bug bug)
{
    static mla_cpu_kernels broken;
    sound = table;
    broken = *table;
    if (table->fixed) {
        static mla_fixed_kernels fixed;
        fixed = *table->fixed;
        break_fixed(&fixed, bug);
        broken.fixed = &fixed;
    }
    switch (bug) {
    case BUG_KERNEL_LOAD_SHORT: broken.load[MLA_FORMAT_BF16] = load_short; break;
    case BUG_KERNEL_LOAD_FAR: broken.load[MLA_FORMAT_F16] = load_far; break;
    case BUG_KERNEL_PACK_FACTOR: broken.pack[MLA_FORMAT_F32] = pack_factor; break;
    case BUG_KERNEL_PACK_LANES: broken.pack[MLA_FORMAT_BF16] = pack_lanes; break;
    case BUG_KERNEL_QK_ACCUMULATE: broken.qk = qk_accumulate; break;
    case BUG_KERNEL_LOAD_QK_KEY: broken.load_qk[MLA_FORMAT_BF16] = load_qk_key; break;
    case BUG_KERNEL_SOFTMAX_RANGES: broken.softmax = softmax_ranges; break;
    case BUG_KERNEL_SOFTMAX_SUM: broken.softmax = softmax_sum; break;
    case BUG_KERNEL_SOFTMAX_REPORT: broken.softmax = softmax_report; break;
    case BUG_KERNEL_PV_KEY: broken.pv = pv_key; break;
    case BUG_KERNEL_QK_ROWS_ACCUMULATE: broken.qk_rows[MLA_FORMAT_BF16] = qk_rows_accumulate; break;
    case BUG_KERNEL_PV_ROWS_KEY: broken.pv_rows[MLA_FORMAT_BF16] = pv_rows_key; break;
    case BUG_KERNEL_MERGE_PART: broken.merge = merge_part; break;
    case BUG_KERNEL_STORE_TRUNCATED: broken.store[MLA_FORMAT_BF16] = store_truncated; break;
    case BUG_KERNEL_STORE_FAR: broken.store[MLA_FORMAT_F16] = store_far; break;
    case BUG_KERNEL_STREAM_HIDDEN: broken.stream[MLA_FORMAT_BF16] = stream_hidden; break;
    case BUG_KERNEL_STREAM_SUM: broken.stream[MLA_FORMAT_F32] = stream_sum; break;
    case BUG_KERNEL_LOAD_UNSIGNED: broken.load[MLA_FORMAT_I8] = load_unsigned; break;
    case BUG_KERNEL_LOAD_NAN: broken.load[MLA_FORMAT_HIF8] = load_nan; break;
    case BUG_KERNEL_PEAK_FORGETS: broken.peak = peak_forgets; break;
    case BUG_KERNEL_PEAK_HIDDEN: broken.peak = peak_hidden; break;
    case BUG_KERNEL_ROUND_TRUNCATED: broken.round[MLA_FORMAT_BF16] = round_truncated; break;
    case BUG_KERNEL_ROUND_ONCE: broken.round[MLA_FORMAT_I8] = round_once; break;
    case BUG_KERNEL_ROUND_FINE: broken.round[MLA_FORMAT_HIF8] = round_fine; break;
    case BUG_KERNEL_ROUND_SUM: broken.round[MLA_FORMAT_F16] = round_sum; break;
    case BUG_KERNEL_PPAIRS_TRUNCATED: broken.bf16.ppairs = ppairs_truncated; break;
    case BUG_KERNEL_PPAIRS_ONE_PART: broken.bf16.ppairs = ppairs_one_part; break;
    case BUG_KERNEL_VPAIRS_SWAPPED: broken.bf16.vpairs = vpairs_swapped; break;
    case BUG_KERNEL_QK_BF16_ACCUMULATE: broken.bf16.qk = qk_bf16_accumulate; break;
    case BUG_KERNEL_PV_BF16_STEP: broken.bf16.pv = pv_bf16_step; break;
    case BUG_KERNEL_PV_BF16_NEIGHBOUR: broken.bf16.pv = pv_bf16_neighbour; break;
    case BUG_KERNEL_VPAIRS_PV_KEYS: broken.bf16.vpairs_pv = vpairs_pv_keys; break;
    default: break;
    }
    return &broken;
}
