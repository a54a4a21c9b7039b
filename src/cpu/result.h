/*
 * result.h - partial results of a row panel: cleared, folded, written.
 */
#ifndef MLA_CPU_RESULT_H
#define MLA_CPU_RESULT_H

#include "tile_loop.h"

/* A partial result of n_row rows as it lies in a slot: state, then o. */
mla_panel_result mla_result_at(char *memory, int32_t n_row);

/* What the accumulators of row r are relative to. */
static inline float mla_result_base(const mla_row_state *state, int32_t r)
{
    return state->floor[r] > state->m[r] ? state->floor[r] : state->m[r];
}

/* No key seen: the state alone, for accumulators that will be written over; the whole partial result. */
void mla_result_clear_state(const mla_panel_result *result);
void mla_result_clear(const mla_cpu_kernels *kernels, const mla_panel_result *result, int64_t n_v_panel);

/* into = into + from, in that order: the only way in which two partial results are ever joined. */
void mla_result_fold(const mla_cpu_kernels *kernels, const mla_panel_result *into, const mla_panel_result *from,
                     int64_t n_v_panel);

/* Multiplies the partial results of n_panel row panels by the descale of the segment that their values come from. */
void mla_result_descale(const mla_run_context *run, int32_t g, const mla_panel_result *result, int64_t n_panel);

/* Joins the sink, divides, and writes o, lse and max of the result's rows, the first of which is row_begin. */
void mla_result_write(const mla_run_context *run, int64_t seq, int32_t kv_head, int64_t row_begin,
                      const mla_panel_result *result);

/* The same for the column panels [begin, end) of o alone, the first of which is where result->o points; lse and max go with
 * column panel 0. */
void mla_result_write_columns(const mla_run_context *run, int64_t seq, int32_t kv_head, int64_t row_begin,
                              const mla_panel_result *result, int64_t begin, int64_t end);

/* Element i of an array of f32, f16, bf16, hif8 or i8. */
float mla_element_f32(const void *data, mla_dtype dtype, int64_t i);

#endif
