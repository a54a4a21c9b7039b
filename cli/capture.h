/*
 * capture.h - a captured attention call in a safetensors file; docs/capture-format.md is its description.
 */
#ifndef MLA_CLI_CAPTURE_H
#define MLA_CLI_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mla/mla.h"
#include "safetensors.h"

typedef struct capture {
    safetensors_file *file;
    mla_tensor q, k_cache, block_table, cache_seqlens; /* memory owned by the capture */
    mla_tensor recorded_out, recorded_lse;             /* absent: not recorded; lse viewed as [b][s_q][h_q] */
    int64_t n_seq, n_q, n_head, n_kv_head, d_k, d_v, n_page, page_size;
    float softmax_scale;
    bool causal;
    const char *source;      /* NULL: not said */
    const char *recorded_by; /* who computed the recorded results; NULL: not said */
    size_t n_ignored;        /* tensors in the file that are no part of a capture */
} capture;

/* Reads a capture; false with a sentence in error. Release with capture_close() in either case. */
bool capture_open(const char *path, capture *c, char *error, size_t error_size);
void capture_close(capture *c);

/* The call as a problem, with outputs o (dims of q, d_v last) and lse [b][h_q][s_q], both contiguous. */
mla_problem capture_problem(const capture *c, void *o, mla_dtype o_dtype, float *lse);

/* lse as the file stores it, [b][h_q][s_q], seen as [b][s_q][h_q]. */
mla_tensor capture_lse_view(const capture *c, float *lse);

/* Writes the inputs of the capture and these outputs, computed by `by`, as a new capture. */
bool capture_write(const capture *c, const char *path, const char *by, const void *o, const float *lse, char *error,
                   size_t error_size);

/* Query-key pairs that are computed: sum over requests and query tokens of the keys they see. For counting FLOPs. */
double capture_pairs(const capture *c);

#endif
