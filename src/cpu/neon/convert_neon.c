/*
 * convert_neon.c - storage formats in and out: load, pack, store.
 */
#include <arm_neon.h>
#include <string.h>

#include "cpu/scalar/convert.h"
#include "cpu/scalar/hif8.h"
#include "hif8_neon.h"
#include "tables_neon.h"

enum { COL_PANEL = MLA_NEON_COL_PANEL, ROWS = MLA_ROW_PANEL };

/* Eight columns from c on, as two vectors. */
typedef void (*load8)(const void *src, int64_t c, float32x4_t x[2]);
typedef float (*load1)(const void *src, int64_t c);

static inline void load8_f32(const void *src, int64_t c, float32x4_t x[2])
{
    x[0] = vld1q_f32((const float *)src + c);
    x[1] = vld1q_f32((const float *)src + c + 4);
}

static inline void load8_f16(const void *src, int64_t c, float32x4_t x[2])
{
    float16x8_t half = vreinterpretq_f16_u16(vld1q_u16((const uint16_t *)src + c));
    x[0] = vcvt_f32_f16(vget_low_f16(half));
    x[1] = vcvt_high_f32_f16(half);
}

static inline void load8_bf16(const void *src, int64_t c, float32x4_t x[2])
{
    uint16x8_t half = vld1q_u16((const uint16_t *)src + c);
    x[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(half), 16));
    x[1] = vreinterpretq_f32_u32(vshll_high_n_u16(half, 16));
}

static inline void load8_hif8(const void *src, int64_t c, float32x4_t x[2])
{
    hif8_decode8_neon((const uint8_t *)src + c, x);
}

static inline void load8_i8(const void *src, int64_t c, float32x4_t x[2])
{
    int16x8_t wide = vmovl_s8(vld1_s8((const int8_t *)src + c));
    x[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
    x[1] = vcvtq_f32_s32(vmovl_high_s16(wide));
}

static inline float load1_f32(const void *src, int64_t c)
{
    return ((const float *)src)[c];
}

static inline float load1_f16(const void *src, int64_t c)
{
    return mla_f32_from_f16(((const uint16_t *)src)[c]);
}

static inline float load1_bf16(const void *src, int64_t c)
{
    return mla_f32_from_bf16(((const uint16_t *)src)[c]);
}

static inline float load1_hif8(const void *src, int64_t c)
{
    return mla_f32_from_hif8(((const uint8_t *)src)[c]);
}

static inline float load1_i8(const void *src, int64_t c)
{
    return ((const int8_t *)src)[c];
}

#define INLINE static inline __attribute__((always_inline))

/* Column `at` of key n. Eight columns from a multiple of 8 on lie side by side, for 8 divides a panel. */
INLINE float *block_column(float *block, int64_t panel_stride, int64_t n, int64_t at)
{
    return block + at / COL_PANEL * panel_stride + n * COL_PANEL + at % COL_PANEL;
}

INLINE void store8(float *to, const float32x4_t x[2])
{
    vst1q_f32(to, x[0]);
    vst1q_f32(to + 4, x[1]);
}

/* Eight columns at a time from a multiple of 8 on; what does not fit (an odd start, a tail) one element at a time. */
INLINE void load_columns(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                         int64_t panel_stride, load8 eight, load1 one)
{
    int64_t n_eight = col % 8 == 0 ? n_col / 8 * 8 : 0;
    for (int64_t n = 0; n < n_key; n++) {
        const void *src = row[n];
        float *to = block_column(block, panel_stride, n, col);
        for (int64_t c = 0; c < n_eight; c += 8) {
            float32x4_t x[2];
            eight(src, c, x);
            store8(to, x);
            to += (col + c) % COL_PANEL == 0 ? 8 : panel_stride - 8;
        }
        for (int64_t c = n_eight; c < n_col; c++) {
            *block_column(block, panel_stride, n, col + c) = one(src, c);
        }
    }
}

INLINE void pack_row(const void *src, int64_t n_col, float factor, float *q, load8 eight, load1 one)
{
    int64_t c = 0;
    for (; c + 8 <= n_col; c += 8, q += 8 * ROWS) {
        float32x4_t x[2];
        eight(src, c, x);
        x[0] = vmulq_n_f32(x[0], factor);
        x[1] = vmulq_n_f32(x[1], factor);
        vst1q_lane_f32(q, x[0], 0);
        vst1q_lane_f32(q + ROWS, x[0], 1);
        vst1q_lane_f32(q + 2 * ROWS, x[0], 2);
        vst1q_lane_f32(q + 3 * ROWS, x[0], 3);
        vst1q_lane_f32(q + 4 * ROWS, x[1], 0);
        vst1q_lane_f32(q + 5 * ROWS, x[1], 1);
        vst1q_lane_f32(q + 6 * ROWS, x[1], 2);
        vst1q_lane_f32(q + 7 * ROWS, x[1], 3);
    }
    for (; c < n_col; c++, q += ROWS) {
        *q = one(src, c) * factor;
    }
}

/* A stretch of columns at a time: 64 columns of 16 rows are 4 KiB, whose lines are written 16 times while they are near. */
INLINE void pack_rows(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q, int64_t size,
                      load8 eight, load1 one)
{
    enum { STRETCH = 64 };
    memset(q, 0, n_row < ROWS ? (size_t)(n_col * ROWS) * sizeof *q : 0);
    for (int64_t c = 0; c < n_col; c += STRETCH) {
        for (int32_t r = 0; r < n_row; r++) {
            pack_row((const char *)row[r] + c * size, n_col - c < STRETCH ? n_col - c : STRETCH, factor[r],
                     q + c * ROWS + r, eight, one);
        }
    }
}

void mla_load_f32_neon(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                       int64_t panel_stride)
{
    load_columns(row, n_key, n_col, col, block, panel_stride, load8_f32, load1_f32);
}

void mla_load_f16_neon(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                       int64_t panel_stride)
{
    load_columns(row, n_key, n_col, col, block, panel_stride, load8_f16, load1_f16);
}

void mla_load_bf16_neon(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                        int64_t panel_stride)
{
    load_columns(row, n_key, n_col, col, block, panel_stride, load8_bf16, load1_bf16);
}

void mla_load_i8_neon(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                      int64_t panel_stride)
{
    load_columns(row, n_key, n_col, col, block, panel_stride, load8_i8, load1_i8);
}

/* Decoding 16 codes, a whole panel, costs little more than 8. */
void mla_load_hif8_neon(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                        int64_t panel_stride)
{
    int64_t whole = col % COL_PANEL == 0 ? n_col / COL_PANEL * COL_PANEL : 0;
    for (int64_t n = 0; n < n_key; n++) {
        float *to = block_column(block, panel_stride, n, col);
        for (int64_t c = 0; c < whole; c += COL_PANEL, to += panel_stride) {
            float32x4_t x[4];
            hif8_decode16_neon((const uint8_t *)row[n] + c, x);
            store8(to, x);
            store8(to + 8, x + 2);
        }
        const void *rest = (const uint8_t *)row[n] + whole;
        load_columns(&rest, 1, n_col - whole, col + whole, block + n * COL_PANEL, panel_stride, load8_hif8, load1_hif8);
    }
}

void mla_pack_f32_neon(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    pack_rows(row, factor, n_row, n_col, q, 4, load8_f32, load1_f32);
}

void mla_pack_f16_neon(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    pack_rows(row, factor, n_row, n_col, q, 2, load8_f16, load1_f16);
}

void mla_pack_bf16_neon(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    pack_rows(row, factor, n_row, n_col, q, 2, load8_bf16, load1_bf16);
}

void mla_pack_hif8_neon(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    pack_rows(row, factor, n_row, n_col, q, 1, load8_hif8, load1_hif8);
}

void mla_pack_i8_neon(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q)
{
    pack_rows(row, factor, n_row, n_col, q, 1, load8_i8, load1_i8);
}

/* Column c of a row inside a panelled accumulator. */
INLINE const float *column(const float *o, int64_t c)
{
    return o + c / COL_PANEL * ROWS * COL_PANEL + c % COL_PANEL;
}

void mla_store_f32_neon(const float *o, int64_t d_v, float factor, void *dst)
{
    int64_t c = 0;
    for (; c + 4 <= d_v; c += 4) {
        vst1q_f32((float *)dst + c, vmulq_n_f32(vld1q_f32(column(o, c)), factor));
    }
    for (; c < d_v; c++) {
        ((float *)dst)[c] = *column(o, c) * factor;
    }
}

void mla_store_f16_neon(const float *o, int64_t d_v, float factor, void *dst)
{
    int64_t c = 0;
    for (; c + 4 <= d_v; c += 4) {
        float16x4_t half = vcvt_f16_f32(vmulq_n_f32(vld1q_f32(column(o, c)), factor));
        vst1_u16((uint16_t *)dst + c, vreinterpret_u16_f16(half));
    }
    for (; c < d_v; c++) {
        ((uint16_t *)dst)[c] = mla_f16_from_f32(*column(o, c) * factor);
    }
}

void mla_store_bf16_neon(const float *o, int64_t d_v, float factor, void *dst)
{
    int64_t c = 0;
    for (; c + 4 <= d_v; c += 4) {
        float32x4_t x = vmulq_n_f32(vld1q_f32(column(o, c)), factor);
        uint32x4_t bits = vreinterpretq_u32_f32(x), even = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
        uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), even);
        rounded = vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(bits, vdupq_n_u32(0x400000)));
        vst1_u16((uint16_t *)dst + c, vshrn_n_u32(rounded, 16));
    }
    for (; c < d_v; c++) {
        ((uint16_t *)dst)[c] = mla_bf16_from_f32(*column(o, c) * factor);
    }
}
