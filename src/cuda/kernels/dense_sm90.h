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
    DENSE_SM90_THREADS = 384,
    DENSE_SM90_SHARED_BYTES = 3 * 9 * 8192 + 8192 + 2048 + 1024, /* three key tiles, 80 columns of q, small things */
    DENSE_SM90_COMBINE_THREADS = 256,
    DENSE_SM90_PLAN_THREADS = 256,
    DENSE_SM90_D_V = 512
};

/*
 * The plan, int32 words in device memory. A "part" is the share of one worker: a contiguous run of key tiles, request
 * after request; every group of rows is served by the same parts. n_part is the host's choice, all else the device's.
 *
 *     header[8]           split requests, pieces, largest share, ...
 *     part[n_part][8]     first request, its first tile, last request, end tile there, piece of the first
 *     request[n_seq][4]   length, first piece (-1: not split), pieces
 *     split[n_part]       requests that are split
 */
enum { DENSE_SM90_PLAN_HEADER = 8, DENSE_SM90_PLAN_PART = 8, DENSE_SM90_PLAN_REQUEST = 4 };

/* Pieces that a plan can have at most: each of the n_part - 1 cuts adds one, each split request one more. */
#define DENSE_SM90_MAX_PIECE(n_part) (2 * (n_part))

/* Arguments of the plan kernel. */
typedef struct dense_sm90_plan_args {
    const int32_t *length; /* [n_seq] */
    int32_t *plan;
    int32_t n_seq;
    int32_t n_part;
    int32_t max_length;    /* keys that a row of the page table can hold: lengths beyond it are cut */
    int32_t segment_cost;  /* what beginning and ending a run of tiles costs, in quarters of a tile */
    int32_t piece_cost_64; /* what one piece more costs everybody (the combine kernel), in 1/64 quarters of a tile */
} dense_sm90_plan_args;

/* Arguments of the decode kernel beside the two tensor maps, and of the combine kernel. */
typedef struct dense_sm90_args {
    const int32_t *plan;
    const int32_t *page_table; /* [n_seq][..] */
    void *o;
    float *lse;       /* may be null */
    float *piece_o;   /* [piece][row block][4 warps][2 halves][32 columns of 8][32 lanes][4] fp32, normalised */
    float *piece_lse; /* [piece][row block][64] base 2 */
    int64_t page_table_stride;
    int64_t o_stride[3];   /* sequence, token, head; in elements */
    int64_t lse_stride[3]; /* sequence, token, head */
    int32_t n_seq;
    int32_t n_part;
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
    int32_t keep_in_l2;      /* other thread blocks read the same keys */
    int32_t combine_columns; /* columns of 8 that one CTA of the combine kernel folds: 1, 8 or 64 */
    float scale_log2;        /* softmax scale * log2(e) */
    float lse_unit;          /* ln(2), or 1 for base 2 */
    float lse_empty;         /* lse of a row that sees no key */
} dense_sm90_args;

#endif
