/*
 * table_avx512.c - the AVX-512 level: kernels and the sizes they were made for. Data only: nothing here runs.
 */
#include "cpu/avx2/tables_avx2.h"
#include "tables_avx512.h"

const mla_cpu_kernels mla_kernels_avx512 = {
    .isa = "avx512",
    .col_panel = MLA_AVX512_COL_PANEL,
    .qk_columns = 6 * MLA_AVX512_COL_PANEL, /* 16 rows * 288 columns * 4 bytes = 18 KiB of q */
    .load = {mla_load_f32_avx512, mla_load_f16_avx512, mla_load_bf16_avx512, mla_load_hif8_avx512, mla_load_i8_avx512},
    .pack = {mla_pack_f32_avx2, mla_pack_f16_avx2, mla_pack_bf16_avx2, mla_pack_hif8_avx2, mla_pack_i8_avx2},
    .qk = mla_qk_f32_avx512,
    .softmax = mla_softmax_f32_avx512,
    .peak = mla_peak_f32_avx2,
    .round = {NULL, mla_round_f16_avx2, mla_round_bf16_avx2, mla_round_hif8_avx2, mla_round_i8_avx2},
    .pv = mla_pv_f32_avx512,
    .merge = mla_merge_f32_avx512,
    .store = {mla_store_f32_avx512, mla_store_f16_avx512, mla_store_bf16_avx512},
    .hif8_encode = mla_encode_hif8_avx2,
    .hif8_decode = mla_decode_hif8_avx2,
    .stream = {mla_stream_f32_avx512, mla_stream_f16_avx512, mla_stream_bf16_avx512},
    .stream_step = MLA_AVX512_STREAM_STEP,
    .stream_order = {MLA_STREAM_PLAIN, MLA_STREAM_PLAIN, MLA_STREAM_EVEN_ODD},
};
