/*
 * tables_avx2.h - the AVX2 kernels by name. Contracts: cpu/kernels.h.
 */
#ifndef MLA_CPU_TABLES_AVX2_H
#define MLA_CPU_TABLES_AVX2_H

#include "cpu/kernels_fixed.h"

#define MLA_AVX2_COL_PANEL 24 /* 3 vectors: with 4 rows that is 12 accumulators for pv */

void mla_load_f32_avx2(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                       int64_t panel_stride);
void mla_load_f16_avx2(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                       int64_t panel_stride);
void mla_load_bf16_avx2(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                        int64_t panel_stride);
void mla_load_hif8_avx2(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                        int64_t panel_stride);
void mla_load_i8_avx2(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                      int64_t panel_stride);
void mla_pack_f32_avx2(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q);
void mla_pack_f16_avx2(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q);
void mla_pack_bf16_avx2(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q);
void mla_pack_hif8_avx2(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q);
void mla_pack_i8_avx2(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q);
void mla_qk_f32_avx2(const float *q, const float *block, int64_t panel_stride, int64_t n_col, int64_t n_key,
                     int32_t n_row, bool accumulate, float *s, mla_prefetch *ahead);
void mla_load_qk_f32_avx2(const float *q, const void *const *row, int64_t n_key, int64_t n_col, int64_t col,
                          int32_t n_row, bool accumulate, float *block, int64_t panel_stride, float *s);
void mla_load_qk_f16_avx2(const float *q, const void *const *row, int64_t n_key, int64_t n_col, int64_t col,
                          int32_t n_row, bool accumulate, float *block, int64_t panel_stride, float *s);
void mla_load_qk_bf16_avx2(const float *q, const void *const *row, int64_t n_key, int64_t n_col, int64_t col,
                           int32_t n_row, bool accumulate, float *block, int64_t panel_stride, float *s);
bool mla_softmax_f32_avx2(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                          const float *mask, mla_row_state *state, float *factor);
void mla_peak_f32_avx2(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                       const float *mask, float *top);
void mla_round_f16_avx2(float *s, int64_t n_key, const float *m, const float *unit, float *sum);
void mla_round_bf16_avx2(float *s, int64_t n_key, const float *m, const float *unit, float *sum);
void mla_round_hif8_avx2(float *s, int64_t n_key, const float *m, const float *unit, float *sum);
void mla_round_i8_avx2(float *s, int64_t n_key, const float *m, const float *unit, float *sum);
void mla_pv_f32_avx2(const float *p, const float *v, int64_t n_key, int32_t n_row, int32_t n_col, float *o,
                     mla_prefetch *ahead);
void mla_merge_f32_avx2(float *o, const float *x, const float *a, const float *b, int64_t n_panel, int32_t n_row);
void mla_store_f32_avx2(const float *o, int64_t d_v, float factor, void *dst);
void mla_store_f16_avx2(const float *o, int64_t d_v, float factor, void *dst);
void mla_store_bf16_avx2(const float *o, int64_t d_v, float factor, void *dst);
void mla_encode_hif8_avx2(const float *x, int64_t n, bool saturate, uint8_t *code);
void mla_decode_hif8_avx2(const uint8_t *code, int64_t n, float *x);
void mla_qk_rows_bf16_avx2(const float *q, const void *const *row, int64_t col, int64_t n_col, int64_t n_key,
                           bool accumulate, float *s, mla_prefetch *ahead);
void mla_pv_rows_bf16_avx2(const float *p, const void *const *row, int64_t n_key, int32_t n_row, int64_t n_col,
                           float *o, mla_prefetch *ahead);
void mla_stream_f32_avx2(const mla_stream_block *block);
void mla_stream_f16_avx2(const mla_stream_block *block);
void mla_stream_bf16_avx2(const mla_stream_block *block);
/* What the stream kernels do when there is one row. */
void mla_stream_one_f32_avx2(const mla_stream_block *block);
void mla_stream_one_f16_avx2(const mla_stream_block *block);
void mla_stream_one_bf16_avx2(const mla_stream_block *block);

void mla_fixed_norm_f32_avx2(const void *x, const float *unfold, int64_t n_col, float *y, float *square,
                             float *largest);
void mla_fixed_norm_f16_avx2(const void *x, const float *unfold, int64_t n_col, float *y, float *square,
                             float *largest);
void mla_fixed_norm_bf16_avx2(const void *x, const float *unfold, int64_t n_col, float *y, float *square,
                              float *largest);
void mla_fixed_keys_f32_avx2(const mla_fixed_key *even, const mla_fixed_key *odd, int64_t n_col, int64_t n_value,
                             int16_t *v, int64_t panel_stride);
void mla_fixed_query_f32_avx2(const float *q, const float *fold, int64_t n_col, int16_t *to, float *unit);
void mla_fixed_qk_i16_avx2(const int16_t *q, const int16_t *k, int64_t k_stride, int64_t n_pair, int64_t n_key,
                           const float *unit, float *s, mla_prefetch *ahead);
void mla_fixed_p_f32_avx2(const float *p, int64_t n_key, const float *unit, const float *largest, int16_t *to,
                          float *weight);
void mla_fixed_pv_i16_avx2(const int16_t *p, const int16_t *v, int64_t n_pair, int32_t n_row, int32_t n_col,
                           const float *weight, const float *fold, float *o, mla_prefetch *ahead);

/* What all tables of 256-bit vectors hold, beside fixed point, whose products AVX-VNNI does in one instruction. qk_columns:
 * 16 rows * 288 columns * 4 bytes = 18 KiB of q. */
#define MLA_AVX2_TABLE                                                                                               \
    .col_panel = MLA_AVX2_COL_PANEL, .qk_columns = 12 * MLA_AVX2_COL_PANEL,                                          \
    .load = {mla_load_f32_avx2, mla_load_f16_avx2, mla_load_bf16_avx2, mla_load_hif8_avx2, mla_load_i8_avx2},        \
    .pack = {mla_pack_f32_avx2, mla_pack_f16_avx2, mla_pack_bf16_avx2, mla_pack_hif8_avx2, mla_pack_i8_avx2},        \
    .qk = mla_qk_f32_avx2, .load_qk = {mla_load_qk_f32_avx2, mla_load_qk_f16_avx2, mla_load_qk_bf16_avx2},           \
    .softmax = mla_softmax_f32_avx2, .peak = mla_peak_f32_avx2,                                                      \
    .round = {NULL, mla_round_f16_avx2, mla_round_bf16_avx2, mla_round_hif8_avx2, mla_round_i8_avx2},                \
    .pv = mla_pv_f32_avx2, .qk_rows = {[MLA_FORMAT_BF16] = mla_qk_rows_bf16_avx2},                                   \
    .pv_rows = {[MLA_FORMAT_BF16] = mla_pv_rows_bf16_avx2}, .merge = mla_merge_f32_avx2,                             \
    .store = {mla_store_f32_avx2, mla_store_f16_avx2, mla_store_bf16_avx2}, .hif8_encode = mla_encode_hif8_avx2,     \
    .hif8_decode = mla_decode_hif8_avx2, .stream = {mla_stream_f32_avx2, mla_stream_f16_avx2, mla_stream_bf16_avx2}, \
    .stream_step = 16, .stream_order = {MLA_STREAM_PLAIN, MLA_STREAM_PLAIN, MLA_STREAM_EVEN_ODD}

#define MLA_AVX2_FIXED                                                                    \
    .norm = {mla_fixed_norm_f32_avx2, mla_fixed_norm_f16_avx2, mla_fixed_norm_bf16_avx2}, \
    .keys = mla_fixed_keys_f32_avx2, .query = mla_fixed_query_f32_avx2, .p = mla_fixed_p_f32_avx2

#endif
