/*
 * capture.h - a captured attention call in a safetensors file; docs/capture-format.md is its description.
 *
 * Two kinds of call: flash_mla_with_kvcache under its own names, and any mla_problem under the names of its fields
 * (capture_problem.c).
 */
#ifndef MLA_CLI_CAPTURE_H
#define MLA_CLI_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mla/mla.h"
#include "safetensors.h"

#define CAPTURE_MAX_TENSOR 40

typedef struct capture {
    safetensors_file *file;
    mla_problem call;                      /* without outputs; memory owned by the capture */
    mla_dtype out_dtype;                   /* of the result */
    bool lse_by_head;                      /* lse stands as [b][h_q][s_q] in the file, not in the order of out */
    mla_tensor recorded_out, recorded_lse; /* absent: not recorded; lse viewed in the order of out */
    const char *source;                    /* NULL: not said */
    const char *recorded_by;               /* who computed the recorded results; NULL: not said */
    size_t n_ignored;                      /* tensors in the file that are no part of a capture */
    mla_tensor input[CAPTURE_MAX_TENSOR];  /* as they stand in the file, under their names there */
    size_t n_input;
} capture;

/* Reads a capture; false with a sentence in error. Release with capture_close() in either case. */
bool capture_open(const char *path, capture *c, char *error, size_t error_size);
void capture_close(capture *c);

/* (token, head) pairs and elements of the result; false when they are more than a size_t counts. */
bool capture_count(const capture *c, size_t *n_pair, size_t *n_value);

/* The call as a problem, with outputs o (dims of q, d_v last) and lse as the file stores it, both contiguous. */
mla_problem capture_problem(const capture *c, void *o, float *lse);

/* Writes the inputs of the capture and these outputs, computed by `by`, as a new capture. */
bool capture_write(const capture *c, const char *path, const char *by, const void *o, const float *lse, char *error,
                   size_t error_size);

/* ---- for the readers of the two kinds ---------------------------------------------------------------------------- */

#define CAPTURE_FLOATS (1u << MLA_DTYPE_F32 | 1u << MLA_DTYPE_F16 | 1u << MLA_DTYPE_BF16)

/* Reads the tensor `name` with `ndim` dims (0: any number) and a dtype out of the mask. An optional one may be
 * absent. */
bool capture_load(capture *c, const char *name, uint32_t dtypes, int32_t ndim, bool optional, mla_tensor *t,
                  char *error, size_t error_size);

/* Metadata of these kinds; true and *value untouched where the key is absent. */
bool capture_number(const capture *c, const char *key, float *value, char *error, size_t error_size);
bool capture_flag(const capture *c, const char *key, bool *value, char *error, size_t error_size);
bool capture_integer(const capture *c, const char *key, int64_t *value, char *error, size_t error_size);

/* An mla_attention capture: everything in c->call, and out_dtype. */
bool capture_read_problem(capture *c, char *error, size_t error_size);

#endif
