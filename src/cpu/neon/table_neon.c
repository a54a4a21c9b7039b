/*
 * table_neon.c - the NEON level: kernels and the sizes they were made for. Data only: nothing here runs.
 */
#include "tables_neon.h"

const mla_cpu_kernels mla_kernels_neon = {
    .isa = "neon",
    .col_panel = MLA_NEON_COL_PANEL,
    .qk_columns = 18 * MLA_NEON_COL_PANEL, /* 16 rows * 288 columns * 4 bytes = 18 KiB of q */
    .load = {mla_load_f32_neon, mla_load_f16_neon, mla_load_bf16_neon, mla_load_hif8_neon, mla_load_i8_neon},
    .pack = {mla_pack_f32_neon, mla_pack_f16_neon, mla_pack_bf16_neon, mla_pack_hif8_neon, mla_pack_i8_neon},
    .qk = mla_qk_f32_neon,
    .softmax = mla_softmax_f32_neon,
    .peak = mla_peak_f32_neon,
    .round = {NULL, mla_round_f16_neon, mla_round_bf16_neon, mla_round_hif8_neon, mla_round_i8_neon},
    .pv = mla_pv_f32_neon,
    .merge = mla_merge_f32_neon,
    .store = {mla_store_f32_neon, mla_store_f16_neon, mla_store_bf16_neon},
    .hif8_encode = mla_encode_hif8_neon,
    .hif8_decode = mla_decode_hif8_neon,
    .stream = {mla_stream_f32_neon, mla_stream_f16_neon, mla_stream_bf16_neon},
    .stream_step = 8,
    .stream_order = {MLA_STREAM_PLAIN, MLA_STREAM_PLAIN, MLA_STREAM_PLAIN},
};
