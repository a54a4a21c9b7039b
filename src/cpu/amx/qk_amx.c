/*
 * qk_amx.c - scores by tiles: 16 keys by 32 columns, where the key rows lie, times 32 columns by 16 rows of q.
 *
 * 2 key tiles meet 2 panels in 4 accumulators over all columns, so that each tile that is loaded serves two products. What a
 * group of accumulators leaves is stored while the next group's first products run: else the unit waits for both.
 */
#include <immintrin.h>

#include "tables_amx.h"
#include "waiting_amx.h"

enum { ROWS = MLA_ROW_PANEL, TILE = MLA_BF16_TILE, SCORES = ROWS * 16 };

/* 8 tiles of 16 rows of 64 bytes. Constant, since compilers take the instruction to read its first bytes only. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_row[16];
} tile_shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

void mla_enter_amx(void)
{
    _tile_loadconfig(&tile_shape);
}

void mla_leave_amx(void)
{
    _tile_release();
}

#define INLINE static inline __attribute__((always_inline))
#define SCORE_BYTES (ROWS * (int)sizeof(float))

/* Tile numbers are part of the instruction, so this is no function. */
#define BEGIN(number, place)                         \
    do {                                             \
        LEAVE(w, number, SCORE_BYTES);               \
        if (accumulate) {                            \
            _tile_loadd(number, place, SCORE_BYTES); \
        } else {                                     \
            _tile_zero(number);                      \
        }                                            \
        w->to[number] = (place);                     \
    } while (0)

/* Key tiles k[0], k[1] and panels q[0], q[1], or fewer of either. Accumulators: 0 and 1 of the first panel, 2 and 3 of
 * the second. */
INLINE void group(const int n_tile, const int n_panel, const uint16_t *q, int64_t q_stride, const mla_key_tile *tile,
                  int64_t n_step, bool accumulate, float *s, int64_t s_stride, waiting *w, mla_prefetch *ahead)
{
    const char *k0 = tile[0].row, *k1 = n_tile > 1 ? tile[1].row : k0;
    const int64_t stride0 = tile[0].stride, stride1 = n_tile > 1 ? tile[1].stride : 0;
    const uint16_t *q0 = q, *q1 = q0 + q_stride;
    float *s0 = s, *s1 = s + s_stride;
    for (int64_t i = 0; i < n_step; i++) {
        const bool first = i == 0;
        _tile_loadd(4, k0 + i * 64, stride0);
        _tile_loadd(6, q0 + i * TILE, 64);
        if (first) {
            BEGIN(0, s0);
        }
        _tile_dpbf16ps(0, 4, 6);
        if (n_tile > 1) {
            _tile_loadd(5, k1 + i * 64, stride1);
            if (first) {
                BEGIN(1, s0 + SCORES);
            }
            _tile_dpbf16ps(1, 5, 6);
        }
        if (n_panel > 1) {
            _tile_loadd(7, q1 + i * TILE, 64);
            if (first) {
                BEGIN(2, s1);
            }
            _tile_dpbf16ps(2, 4, 7);
            if (n_tile > 1) {
                if (first) {
                    BEGIN(3, s1 + SCORES);
                }
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        mla_prefetch_step(ahead);
    }
}

/* A single panel: 4 key tiles share its tile. */
INLINE void group_4x1(const uint16_t *q, const mla_key_tile *tile, int64_t n_step, bool accumulate, float *s,
                      waiting *w, mla_prefetch *ahead)
{
    const char *k0 = tile[0].row, *k1 = tile[1].row, *k2 = tile[2].row, *k3 = tile[3].row;
    for (int64_t i = 0; i < n_step; i++) {
        const bool first = i == 0;
        _tile_loadd(6, q + i * TILE, 64);
        _tile_loadd(4, k0 + i * 64, tile[0].stride);
        if (first) {
            BEGIN(0, s);
        }
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, k1 + i * 64, tile[1].stride);
        if (first) {
            BEGIN(1, s + SCORES);
        }
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(4, k2 + i * 64, tile[2].stride);
        if (first) {
            BEGIN(2, s + 2 * SCORES);
        }
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, k3 + i * 64, tile[3].stride);
        if (first) {
            BEGIN(3, s + 3 * SCORES);
        }
        _tile_dpbf16ps(3, 5, 6);
        mla_prefetch_step(ahead);
    }
}

void mla_qk_bf16_amx(const uint16_t *q, int64_t q_stride, const mla_key_tile *tile, int64_t n_tile, int64_t n_col,
                     int64_t n_panel, bool accumulate, float *s, int64_t s_stride, mla_prefetch *ahead)
{
    const int64_t n_step = n_col / MLA_BF16_STEP;
    waiting w = {{NULL, NULL, NULL, NULL}};
    for (int64_t panel = 0; panel < n_panel; panel += 2) {
        const uint16_t *from = q + panel * q_stride;
        float *to = s + panel * s_stride;
        const bool two = panel + 1 < n_panel;
        for (int64_t i = 0; i < n_tile;) {
            int64_t left = n_tile - i, taken = left > 1 ? 2 : 1;
            float *const at = to + i * SCORES;
            if (!two && left >= 4) {
                group_4x1(from, tile + i, n_step, accumulate, at, &w, ahead);
                taken = 4;
            } else if (two && left > 1) {
                group(2, 2, from, q_stride, tile + i, n_step, accumulate, at, s_stride, &w, ahead);
            } else if (two) {
                group(1, 2, from, q_stride, tile + i, n_step, accumulate, at, s_stride, &w, ahead);
            } else if (left > 1) {
                group(2, 1, from, q_stride, tile + i, n_step, accumulate, at, s_stride, &w, ahead);
            } else {
                group(1, 1, from, q_stride, tile + i, n_step, accumulate, at, s_stride, &w, ahead);
            }
            i += taken;
        }
    }
    leave_all(&w, SCORE_BYTES);
}
