/*
 * dense_sm90.h - what the host and the dense decode kernels for sm_90a agree on. Plain C.
 */
#ifndef MLA_DENSE_SM90_H
#define MLA_DENSE_SM90_H

#include <stdint.h>

/* Tile shape: 64 query rows of one kv head per CTA, 64 keys per step. */
enum {
    DENSE_SM90_ROWS = 64,
    DENSE_SM90_KEYS = 64,
    DENSE_SM90_BOXES = 3, /* of 64 columns, that one order to TMA brings */
    DENSE_SM90_THREADS = 384,
    DENSE_SM90_SHARED_BYTES = 3 * 9 * 8192 + 8192 + 2048 + 1024, /* three key tiles, 80 columns of q, small things */
    DENSE_SM90_COMBINE_THREADS = 256,
    DENSE_SM90_D_V = 512,
    DENSE_SM90_ITEM_COST = 16,  /* what beginning and ending a request costs, in quarters of a tile */
    DENSE_SM90_LEAST_PIECE = 2, /* tiles; no cut leaves less */
    DENSE_SM90_MOST_FOLDED = 4, /* pieces of a request that the decode kernel may fold; more are the combine kernel's */
    DENSE_SM90_MAX_PART = 256
};

/*
 * The workspace, all of it sized for n_part * n_group <= the multiprocessors:
 *
 *     word[piece][n_group][2 halves][4 warps]  64 bits: what a warp of the decode kernel says of its rows of a piece; may
 *                                              hold anything before
 *     to_fold[n_part]  requests that were cut: request, first cut, pieces (0: nothing to do); by request when there are
 *                      no more of them than parts, else by part
 *     piece_o, piece_lse  below
 *
 * A "part" is the share of one worker: a contiguous run of key tiles, request after request; every group of rows is
 * served by the same parts (dense_line_sm90.cuh).
 */
#define DENSE_SM90_MAX_PIECE(n_part) (2 * (n_part))

/* Of a piece that is not the first of its request: it is in memory. Of a first one: it has been folded with the others. The
 * combine kernel takes the former back, so that no later launch believes it. */
#define DENSE_SM90_READY 0x6d6c61207265616eull
#define DENSE_SM90_FOLDED 0x6d6c6120666f6c64ull

#ifdef __CUDACC__
typedef int4 dense_sm90_int4;
#else
typedef struct dense_sm90_int4 {
    int32_t x, y, z, w;
} dense_sm90_int4;
#endif

/* Arguments of the decode kernel beside the two tensor maps, and of the combine kernel. */
typedef struct dense_sm90_args {
    const int32_t *length;     /* [n_seq] */
    const int32_t *page_table; /* [n_seq][..] */
    uint64_t *word;
    dense_sm90_int4 *to_fold;
    void *o;
    float *lse;       /* may be null */
    float *piece_o;   /* [piece][row block][4 warps][2 halves][32 columns of 8][32 lanes][4] fp32, normalised */
    float *piece_lse; /* [piece][row block][64] base 2 */
    int64_t page_table_stride;
    int64_t o_stride[3];   /* sequence, token, head; in elements */
    int64_t lse_stride[3]; /* sequence, token, head */
    int32_t n_seq;
    int32_t n_part;
    int32_t max_length;      /* keys that a row of the page table can hold: lengths beyond it are cut */
    int32_t n_group;         /* row blocks of all kv heads */
    int32_t block_per_head;  /* row blocks of one kv head */
    int32_t block_per_token; /* row blocks of one token of the q map (all tokens of the request when folded) */
    int32_t row_per_token;   /* rows of one token of the q map: heads per kv head, times tokens when folded */
    int32_t head_per_kv;     /* query heads per kv head */
    int32_t kv_row_stride;   /* rows of the q map from one kv head to the next */
    int32_t n_q;             /* query tokens per request */
    int32_t causal;
    int32_t page_size;
    int32_t page_shift; /* log2(page_size) when it is a power of two, else -1 */
    int32_t n_page;
    int32_t combine_columns; /* columns of 8 that one CTA of the combine kernel folds: 1, 8, 16 or 64 */
    float scale_log2;        /* softmax scale * log2(e) */
    float lse_unit;          /* ln(2), or 1 for base 2 */
    float lse_empty;         /* lse of a row that sees no key */
} dense_sm90_args;

#endif
