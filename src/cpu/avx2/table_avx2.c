/*
 * table_avx2.c - the AVX2 level: kernels and the sizes they were made for. Data only: nothing here runs.
 */
#include "tables_avx2.h"

static const mla_fixed_kernels fixed = {
    .norm = mla_fixed_norm_f32_avx2,
    .round = mla_fixed_round_f32_avx2,
    .pair = mla_fixed_pair_i16_avx2,
    .query = mla_fixed_query_f32_avx2,
    .qk = mla_fixed_qk_i16_avx2,
    .p = mla_fixed_p_f32_avx2,
    .pv = mla_fixed_pv_i16_avx2,
};

const mla_cpu_kernels mla_kernels_avx2 = {
    .isa = "avx2",
    .col_panel = MLA_AVX2_COL_PANEL,
    .qk_columns = 12 * MLA_AVX2_COL_PANEL, /* 16 rows * 288 columns * 4 bytes = 18 KiB of q */
    .load = {mla_load_f32_avx2, mla_load_f16_avx2, mla_load_bf16_avx2, mla_load_hif8_avx2, mla_load_i8_avx2},
    .pack = {mla_pack_f32_avx2, mla_pack_f16_avx2, mla_pack_bf16_avx2, mla_pack_hif8_avx2, mla_pack_i8_avx2},
    .qk = mla_qk_f32_avx2,
    .softmax = mla_softmax_f32_avx2,
    .peak = mla_peak_f32_avx2,
    .round = {NULL, mla_round_f16_avx2, mla_round_bf16_avx2, mla_round_hif8_avx2, mla_round_i8_avx2},
    .pv = mla_pv_f32_avx2,
    .qk_rows = {[MLA_FORMAT_BF16] = mla_qk_rows_bf16_avx2},
    .pv_rows = {[MLA_FORMAT_BF16] = mla_pv_rows_bf16_avx2},
    .merge = mla_merge_f32_avx2,
    .store = {mla_store_f32_avx2, mla_store_f16_avx2, mla_store_bf16_avx2},
    .hif8_encode = mla_encode_hif8_avx2,
    .hif8_decode = mla_decode_hif8_avx2,
    .stream = {mla_stream_f32_avx2, mla_stream_f16_avx2, mla_stream_bf16_avx2},
    .stream_step = 16,
    .stream_order = {MLA_STREAM_PLAIN, MLA_STREAM_PLAIN, MLA_STREAM_EVEN_ODD},
    .fixed = &fixed,
};
