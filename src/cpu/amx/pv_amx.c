/*
 * pv_amx.c - values by tiles: 16 rows by 32 keys of p times 32 keys by 16 columns of v.
 *
 * 2 panels meet 2 groups of columns in 4 accumulators over the whole block. The two groups stay in the first-level cache
 * while the panels pass by. What a group of accumulators leaves is stored while the next group's first products run: else
 * the unit waits for both.
 */
#include <immintrin.h>

#include "cpu/avx512/tables_avx512.h"
#include "cpu/avx512bf16/interleave.h"
#include "tables_amx.h"
#include "waiting_amx.h"

enum { ROWS = MLA_ROW_PANEL, TILE = MLA_BF16_TILE, COL_PANEL = MLA_AVX512_COL_PANEL };

#define INLINE static inline __attribute__((always_inline))
#define O_BYTES (COL_PANEL * (int)sizeof(float))

/* Tile numbers are part of the instruction, so this is no function. */
#define BEGIN(number)                            \
    do {                                         \
        LEAVE(w, number, O_BYTES);               \
        _tile_loadd(number, o[number], O_BYTES); \
        w->to[number] = o[number];               \
    } while (0)

/* 32 columns of value rows on their way into two groups of tiles, some keys at a time. */
typedef struct interleaving {
    const void *const *row;
    int64_t column, at, n_key, keys_per_step; /* keys: even numbers of them */
    uint16_t *v;                              /* [group][n_key / 32 tiles] */
} interleaving;

INLINE void interleave(interleaving *x, int64_t n)
{
    const mla_pair_order order = mla_pair_order_make();
    uint16_t *const first = x->v, *const second = x->v + x->n_key * 16;
    for (int64_t end = x->at + n < x->n_key ? x->at + n : x->n_key; x->at < end; x->at += 2) {
        const void *const *row = x->row + x->at;
        __m512i a = _mm512_loadu_si512((const uint16_t *)row[0] + x->column);
        __m512i b = _mm512_loadu_si512((const uint16_t *)row[1] + x->column);
        _mm512_storeu_si512(first + x->at * 16, _mm512_permutex2var_epi16(a, order.first, b));
        _mm512_storeu_si512(second + x->at * 16, _mm512_permutex2var_epi16(a, order.second, b));
    }
}

/* Panels p[0], p[1] and groups v[0], v[1], or one of either; o: [panel][group]. Accumulators in the same order. */
INLINE void group(const int n_panel, const int n_group, const uint16_t *p, int64_t p_stride, int32_t n_part,
                  const uint16_t *v, int64_t v_stride, int64_t n_step, float *const o[4], waiting *w,
                  mla_prefetch *ahead, interleaving *next)
{
    const uint16_t *p1 = p + p_stride, *v1 = v + v_stride;
    for (int64_t i = 0; i < n_step; i++) {
        _tile_loadd(6, v + i * TILE, 64);
        for (int32_t part = 0; part < n_part; part++, p += TILE, p1 += TILE) {
            const bool first = i == 0 && part == 0;
            _tile_loadd(4, p, 64);
            if (first) {
                BEGIN(0);
            }
            _tile_dpbf16ps(0, 4, 6);
            if (n_panel > 1) {
                _tile_loadd(5, p1, 64);
                if (first) {
                    BEGIN(2);
                }
                _tile_dpbf16ps(2, 5, 6);
            }
            if (n_group > 1) {
                if (part == 0) {
                    _tile_loadd(7, v1 + i * TILE, 64);
                }
                if (first) {
                    BEGIN(1);
                }
                _tile_dpbf16ps(1, 4, 7);
                if (n_panel > 1) {
                    if (first) {
                        BEGIN(3);
                    }
                    _tile_dpbf16ps(3, 5, 7);
                }
            }
        }
        mla_prefetch_step(ahead);
        if (next) {
            interleave(next, next->keys_per_step);
        }
    }
}

/* Where the columns from c on begin in a panelled accumulator. */
INLINE float *at(float *o, int64_t c)
{
    return o + c / COL_PANEL * ROWS * COL_PANEL + c % COL_PANEL;
}

void mla_pv_bf16_amx(const uint16_t *p, int64_t p_stride, int32_t n_part, const uint16_t *v, int64_t v_stride,
                     int64_t n_key, int64_t n_panel, int64_t n_col, float *const *o, mla_prefetch *ahead)
{
    const int64_t n_step = n_key / MLA_BF16_STEP;
    waiting w = {{NULL, NULL, NULL, NULL}};
    for (int64_t c = 0; c < n_col; c += 32, v += 2 * v_stride) {
        const bool two = n_col - c > 16;
        for (int64_t panel = 0; panel < n_panel; panel += 2) {
            const uint16_t *from = p + panel * p_stride;
            const bool both = panel + 1 < n_panel;
            float *const first = o[panel], *const second = o[both ? panel + 1 : panel];
            float *const to[4] = {at(first, c), at(first, c + 16), at(second, c), at(second, c + 16)};
            if (both && two) {
                group(2, 2, from, p_stride, n_part, v, v_stride, n_step, to, &w, ahead, NULL);
            } else if (both) {
                group(2, 1, from, p_stride, n_part, v, v_stride, n_step, to, &w, ahead, NULL);
            } else if (two) {
                group(1, 2, from, p_stride, n_part, v, v_stride, n_step, to, &w, ahead, NULL);
            } else {
                group(1, 1, from, p_stride, n_part, v, v_stride, n_step, to, &w, ahead, NULL);
            }
        }
    }
    leave_all(&w, O_BYTES);
}

/* While a pair of groups meets the panels the next one is interleaved: in the shadow of the products, and into the
 * first-level cache. */
void mla_vpairs_pv_bf16_amx(const uint16_t *p, int64_t p_stride, int32_t n_part, const void *const *row, int64_t n_key,
                            int64_t n_panel, int64_t n_col, float *const *o, uint16_t *v, mla_prefetch *ahead)
{
    const int64_t n_step = n_key / MLA_BF16_STEP, v_stride = n_key * 16, two_panels = (n_panel + 1) / 2;
    waiting w = {{NULL, NULL, NULL, NULL}};
    interleaving next = {row, 0, 0, n_key, (MLA_BF16_STEP / 2 + two_panels - 1) / two_panels * 2, v};
    interleave(&next, n_key);
    for (int64_t c = 0; c < n_col; c += 32) {
        const uint16_t *now = next.v;
        next.v = next.v == v ? v + 2 * v_stride : v;
        next.column = c + 32;
        next.at = c + 32 < n_col ? 0 : n_key;
        for (int64_t panel = 0; panel < n_panel; panel += 2) {
            const uint16_t *from = p + panel * p_stride;
            const bool both = panel + 1 < n_panel;
            float *const first = o[panel], *const second = o[both ? panel + 1 : panel];
            float *const to[4] = {at(first, c), at(first, c + 16), at(second, c), at(second, c + 16)};
            if (both) {
                group(2, 2, from, p_stride, n_part, now, v_stride, n_step, to, &w, ahead, &next);
            } else {
                group(1, 2, from, p_stride, n_part, now, v_stride, n_step, to, &w, ahead, &next);
            }
        }
    }
    leave_all(&w, O_BYTES);
}
