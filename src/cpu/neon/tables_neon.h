/*
 * tables_neon.h - the NEON kernels by name. Contracts: cpu/kernels.h.
 *
 * What every 64-bit Arm core has: 32 registers of 128 bits, multiply-add with one lane of a register as a factor, and
 * conversions from and to f16. A lane as a factor costs nothing, so where other levels broadcast an element, this one
 * loads four of them.
 */
#ifndef MLA_CPU_TABLES_NEON_H
#define MLA_CPU_TABLES_NEON_H

#include "cpu/kernels.h"

/* 4 vectors: pv takes them in halves for 8 rows, or whole for 4. It divides 64 and 512, so no panel is half empty. */
#define MLA_NEON_COL_PANEL 16
#define MLA_NEON_QK_COLUMNS (18 * MLA_NEON_COL_PANEL) /* 16 rows * 288 columns * 4 bytes = 18 KiB of q */

void mla_load_f32_neon(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                       int64_t panel_stride);
void mla_load_f16_neon(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                       int64_t panel_stride);
void mla_load_bf16_neon(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                        int64_t panel_stride);
void mla_load_hif8_neon(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                        int64_t panel_stride);
void mla_load_i8_neon(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                      int64_t panel_stride);
void mla_pack_f32_neon(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q);
void mla_pack_f16_neon(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q);
void mla_pack_bf16_neon(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q);
void mla_pack_hif8_neon(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q);
void mla_pack_i8_neon(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q);
void mla_qk_f32_neon(const float *q, const float *block, int64_t panel_stride, int64_t n_col, int64_t n_key,
                     int32_t n_row, bool accumulate, float *s, mla_prefetch *ahead);
bool mla_softmax_f32_neon(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                          const float *mask, mla_row_state *state, float *factor);
void mla_peak_f32_neon(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                       const float *mask, float *top);
void mla_round_f16_neon(float *s, int64_t n_key, const float *m, const float *unit, float *sum);
void mla_round_bf16_neon(float *s, int64_t n_key, const float *m, const float *unit, float *sum);
void mla_round_hif8_neon(float *s, int64_t n_key, const float *m, const float *unit, float *sum);
void mla_round_i8_neon(float *s, int64_t n_key, const float *m, const float *unit, float *sum);
void mla_pv_f32_neon(const float *p, const float *v, int64_t n_key, int32_t n_row, int32_t n_col, float *o,
                     mla_prefetch *ahead);
void mla_merge_f32_neon(float *o, const float *x, const float *a, const float *b, int64_t n_panel, int32_t n_row);
void mla_store_f32_neon(const float *o, int64_t d_v, float factor, void *dst);
void mla_store_f16_neon(const float *o, int64_t d_v, float factor, void *dst);
void mla_store_bf16_neon(const float *o, int64_t d_v, float factor, void *dst);
void mla_encode_hif8_neon(const float *x, int64_t n, bool saturate, uint8_t *code);
void mla_decode_hif8_neon(const uint8_t *code, int64_t n, float *x);
void mla_stream_f32_neon(const mla_stream_block *block);
void mla_stream_f16_neon(const mla_stream_block *block);
void mla_stream_bf16_neon(const mla_stream_block *block);

/* Kernels and the sizes they were made for; the levels above take them over. */
#define MLA_NEON_TABLE                                                                                               \
    .col_panel = MLA_NEON_COL_PANEL, .qk_columns = MLA_NEON_QK_COLUMNS,                                              \
    .load = {mla_load_f32_neon, mla_load_f16_neon, mla_load_bf16_neon, mla_load_hif8_neon, mla_load_i8_neon},        \
    .pack = {mla_pack_f32_neon, mla_pack_f16_neon, mla_pack_bf16_neon, mla_pack_hif8_neon, mla_pack_i8_neon},        \
    .qk = mla_qk_f32_neon, .softmax = mla_softmax_f32_neon, .peak = mla_peak_f32_neon,                               \
    .round = {NULL, mla_round_f16_neon, mla_round_bf16_neon, mla_round_hif8_neon, mla_round_i8_neon},                \
    .pv = mla_pv_f32_neon, .merge = mla_merge_f32_neon,                                                              \
    .store = {mla_store_f32_neon, mla_store_f16_neon, mla_store_bf16_neon}, .hif8_encode = mla_encode_hif8_neon,     \
    .hif8_decode = mla_decode_hif8_neon, .stream = {mla_stream_f32_neon, mla_stream_f16_neon, mla_stream_bf16_neon}, \
    .stream_step = 8, .stream_order = {MLA_STREAM_PLAIN, MLA_STREAM_PLAIN, MLA_STREAM_PLAIN}

#endif
