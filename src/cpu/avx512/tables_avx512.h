/*
 * tables_avx512.h - the AVX-512 kernels by name. Contracts: cpu/kernels.h.
 */
#ifndef MLA_CPU_TABLES_AVX512_H
#define MLA_CPU_TABLES_AVX512_H

#include "cpu/kernels.h"

#define MLA_AVX512_STREAM_STEP 32
#define MLA_AVX512_COL_PANEL 48 /* 3 vectors: with 8 rows that is 24 accumulators for pv */

void mla_load_f32_avx512(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                         int64_t panel_stride);
void mla_load_f16_avx512(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                         int64_t panel_stride);
void mla_load_bf16_avx512(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                          int64_t panel_stride);
void mla_load_hif8_avx512(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                          int64_t panel_stride);
void mla_load_i8_avx512(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                        int64_t panel_stride);
void mla_qk_f32_avx512(const float *q, const float *block, int64_t panel_stride, int64_t n_col, int64_t n_key,
                       int32_t n_row, bool accumulate, float *s, mla_prefetch *ahead);
bool mla_softmax_f32_avx512(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                            const float *mask, mla_row_state *state, float *factor);
void mla_pv_f32_avx512(const float *p, const float *v, int64_t n_key, int32_t n_row, int32_t n_col, float *o,
                       mla_prefetch *ahead);
void mla_merge_f32_avx512(float *o, const float *x, const float *a, const float *b, int64_t n_panel, int32_t n_row);
void mla_store_f32_avx512(const float *o, int64_t d_v, float factor, void *dst);
void mla_store_f16_avx512(const float *o, int64_t d_v, float factor, void *dst);
void mla_store_bf16_avx512(const float *o, int64_t d_v, float factor, void *dst);
void mla_stream_f32_avx512(const mla_stream_block *block);
void mla_stream_f16_avx512(const mla_stream_block *block);
void mla_stream_bf16_avx512(const mla_stream_block *block);

/* What the levels above this one take over from it, in their tables. qk_columns: 16 rows * 288 columns * 4 bytes = 18 KiB of q */
#define MLA_AVX512_TABLE                                                                                               \
    .col_panel = MLA_AVX512_COL_PANEL, .qk_columns = 6 * MLA_AVX512_COL_PANEL,                                         \
    .load = {mla_load_f32_avx512, mla_load_f16_avx512, mla_load_bf16_avx512, mla_load_hif8_avx512,                     \
             mla_load_i8_avx512},                                                                                      \
    .pack = {mla_pack_f32_avx2, mla_pack_f16_avx2, mla_pack_bf16_avx2, mla_pack_hif8_avx2, mla_pack_i8_avx2},          \
    .qk = mla_qk_f32_avx512, .softmax = mla_softmax_f32_avx512, .peak = mla_peak_f32_avx2,                             \
    .round = {NULL, mla_round_f16_avx2, mla_round_bf16_avx2, mla_round_hif8_avx2, mla_round_i8_avx2},                  \
    .pv = mla_pv_f32_avx512, .merge = mla_merge_f32_avx512,                                                            \
    .store = {mla_store_f32_avx512, mla_store_f16_avx512, mla_store_bf16_avx512}, .hif8_encode = mla_encode_hif8_avx2, \
    .hif8_decode = mla_decode_hif8_avx2,                                                                               \
    .stream = {mla_stream_f32_avx512, mla_stream_f16_avx512, mla_stream_bf16_avx512},                                  \
    .stream_step = MLA_AVX512_STREAM_STEP, .stream_order = {MLA_STREAM_PLAIN, MLA_STREAM_PLAIN, MLA_STREAM_EVEN_ODD}

#endif
