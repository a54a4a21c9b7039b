/*
 * cuda_problem.h - a problem as kernels see it: one flat parameter. Shared by C and CUDA.
 */
#ifndef MLA_CUDA_PROBLEM_H
#define MLA_CUDA_PROBLEM_H

#include "core/range.h"

/* Stored rows of d columns, [a][b][c]: a, b, c are page, slot, kv head of keys and sequence, token, head of the
 * rest. */
typedef struct mla_cuda_rows {
    const void *data;     /* NULL: absent */
    int64_t stride[3];    /* elements */
    int64_t piece_stride; /* NZ: elements from one piece of columns to the next */
    int32_t piece;        /* NZ: columns side by side; INT32_MAX: all */
    int32_t dtype;
    int32_t vector; /* 16 columns that start at a multiple of 16 are one aligned run */
} mla_cuda_rows;

/* i32 index tensor; NULL: absent. */
typedef struct mla_cuda_index {
    const int32_t *data;
    int64_t stride[3]; /* [n_seq], [n_seq][max_page], or by sequence, token and entry */
} mla_cuda_index;

/* An output. */
typedef struct mla_cuda_output {
    void *data; /* NULL: not wanted */
    int64_t stride[3];
    int32_t dtype;
} mla_cuda_output;

typedef struct mla_cuda_segment {
    mla_cuda_rows k, k_rope, v, mask; /* mask: by sequence, token, position */
    mla_cuda_index length, k_begin, page_table, list, list_length, residual;
    int64_t n_page, page_size, max_page, n_entry, mask_width;
    int64_t capacity; /* positions that the page table has room for; paged only */
    int64_t left, right, ratio;
    const float *descale;
    int32_t rule, addressing;
    int32_t physical, stop; /* of a list */
} mla_cuda_segment;

typedef struct mla_cuda_problem {
    int64_t n_seq, n_token, n_head, n_kv_head, group;
    int64_t n_q; /* batched: query slots per sequence; packed: 0 */
    int64_t d_nope, d_rope, d_v;
    mla_cuda_rows q, q_rope;
    mla_cuda_index q_begin, q_length;
    const float *q_descale, *qk_descale, *pv_descale, *sink;
    mla_cuda_output o, lse, max;
    mla_cuda_segment segment[MLA_MAX_SEGMENT];
    float softmax_scale;
    int32_t n_segment, lse_base, lse_empty, lse_with_sink;
    int32_t p_rounding, p_tile;

    /* how the work is cut */
    int64_t n_block;  /* row blocks per kv head */
    int32_t by_token; /* a row block has rows of one token only, because each token has a list of its own */
    int32_t n_split;  /* most parts that the keys of a row block are cut into */
    int64_t
        part_blocks;  /* 0: parts of equal size; else each is this many key blocks, at fixed places: batch-invariant */
    int32_t n_column; /* pieces of MLA_CUDA_COLUMNS columns that d_v is cut into */
    int32_t q_resident;  /* all of a row block's queries stay in shared memory */
    float *slot;         /* partial results [kv head][row block][split]: state [rows][2] (m, l), then o [rows][d_v] */
    int32_t *used_split; /* [kv head][row block]: parts in use */
} mla_cuda_problem;

#define MLA_CUDA_THREADS 256
#define MLA_CUDA_KEYS 64        /* keys per block */
#define MLA_CUDA_CHUNK 64       /* columns that are in shared memory at a time */
#define MLA_CUDA_COLUMNS 512    /* columns of o that a thread block holds in registers */
#define MLA_CUDA_SPLIT_BLOCKS 4 /* key blocks that a part has at least */
#define MLA_CUDA_MAX_SPLIT 256
#define MLA_CUDA_INVARIANT_BLOCKS 32         /* key blocks of a part whose place depends on nothing */
#define MLA_CUDA_MAX_TILE 512                /* keys whose probabilities are rounded together */
#define MLA_CUDA_STRIDE (MLA_CUDA_CHUNK + 4) /* floats from one row in shared memory to the next: no bank conflicts */

/* Floats of one slot for row blocks of `rows` rows. */
#define MLA_CUDA_SLOT_FLOATS(rows, d_v) ((int64_t)(rows) * ((d_v) + 2))

#endif
