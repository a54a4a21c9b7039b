/*
 * dense_few_sm90.h - what the host and the dense decode kernels for few query rows agree on. Plain C.
 */
#ifndef MLA_DENSE_FEW_SM90_H
#define MLA_DENSE_FEW_SM90_H

#include <stdint.h>

enum {
    DENSE_FEW_SM90_ROWS = 64,      /* query rows of an item at most: heads, times tokens */
    DENSE_FEW_SM90_HALF_ROWS = 32, /* pieces of more are two */
    DENSE_FEW_SM90_KEYS = 64,      /* of a tile */
    DENSE_FEW_SM90_D_V = 512,
    DENSE_FEW_SM90_COMBINE_THREADS = 256,
    DENSE_FEW_SM90_MAX_PART = 144 /* more than Hopper has multiprocessors */
};

/* Places for boxes (64 keys x 64 columns) in shared memory: two tiles. More did not make it faster. */
#define DENSE_FEW_SM90_SLOTS 18

/* All shared memory of the decode kernel: boxes, q, P^T, barriers and notes; `rows` are padded. With up to
 * 32 of them a thread block of the combine kernel has room beside it, so that it is there when the last piece is written. */
#define DENSE_FEW_SM90_QS(rows) ((rows) < 32 ? 2 : 1) /* how many q */
#define DENSE_FEW_SM90_Q_BYTES(rows, d_k) (DENSE_FEW_SM90_QS(rows) * (rows) * (d_k) * 2)
#define DENSE_FEW_SM90_P_BYTES(rows) ((rows) * 64 * 2)
#define DENSE_FEW_SM90_SMALL_BYTES 2816
#define DENSE_FEW_SM90_SHARED_BYTES(rows, d_k)                                                        \
    (DENSE_FEW_SM90_SLOTS * 8192 + DENSE_FEW_SM90_Q_BYTES(rows, d_k) + DENSE_FEW_SM90_P_BYTES(rows) + \
     DENSE_FEW_SM90_SMALL_BYTES)

/* The kernels are made for 8, 16, 32 and 64 rows; rows beyond those that exist are computed and thrown away. */
static inline int32_t dense_few_sm90_padded(int64_t rows)
{
    return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

/* Threads: with up to 32 rows a warpgroup that computes and two warps that load, else three and four. */
#define DENSE_FEW_SM90_THREADS(rows) ((rows) > 32 ? 512 : 192)
/* The combine kernel folds the pieces of so many rows by themselves. */
#define DENSE_FEW_SM90_HALVES(rows) ((rows) > DENSE_FEW_SM90_HALF_ROWS ? 2 : 1)

/* The combine kernel's work on an item, or a half of one, in units of a warp, or of warps that share its pieces. */
#define DENSE_FEW_SM90_TASKS(rows) ((rows) * 2)

/* At the head of the workspace: arrived. */
#define DENSE_FEW_SM90_WORDS_BYTES 4096

/* In arrived[]. The former is never left behind when a call ends. */
#define DENSE_FEW_SM90_ARRIVED 0x6d6c612066657721ull
#define DENSE_FEW_SM90_FOLDED 0x6d6c612066657722ull

/* Arguments of the decode kernels beside the three tensor maps, and of the combine kernel. */
typedef struct dense_few_sm90_args {
    const int32_t *length;     /* [n_seq] */
    const int32_t *page_table; /* [n_seq][..] */
    void *o;                   /* for the combine kernel: decode has a tensor map */
    float *lse;                /* may be null */
    uint64_t *arrived; /* [n_part], by cut: ARRIVED if the piece behind it is there, FOLDED once it has been folded */
    float *piece_o;    /* [2 n_part][halves][8 x 64 columns][rows / 8][4 warps][32 lanes][4] fp32, normalised */
    float *piece_lse;  /* [2 n_part][padded rows] base 2 */
    int64_t page_table_stride;
    int64_t o_stride[3];   /* sequence, token, head; in elements */
    int64_t lse_stride[3]; /* sequence, token, head */
    int32_t n_seq;
    int32_t n_kv_head; /* with each block of rows as a head of its own: 2^kv_shift of them have the same keys */
    int32_t kv_shift;
    int32_t n_part;      /* thread blocks of the decode kernel */
    int32_t head_per_kv; /* query heads per such head */
    int32_t n_row;       /* head_per_kv * n_q */
    int32_t n_q;         /* query tokens per request */
    int32_t n_half;      /* 2: rows from 32 on have pieces of their own */
    int32_t causal;
    int32_t page_size;
    int32_t page_shift; /* log2(page_size) when it is a power of two, else -1 */
    int32_t n_page;
    int32_t max_length;     /* keys that a row of the page table can hold: lengths beyond it are cut */
    int32_t item_cost;      /* what beginning and ending an item costs, in quarters of a tile */
    int32_t fold_items;     /* are there fewer items than cuts? The combine kernel then goes by item, else by cut */
    int32_t combine_chunks; /* thread blocks of the combine kernel for one item or cut at most */
    int32_t combine_share;  /* warps there that share the pieces of one task: 1, 2, 4 or 8 */
    float scale_log2;       /* softmax scale * log2(e) */
    float lse_unit;         /* ln(2), or 1 for base 2 */
    float lse_empty;        /* lse of a row that sees no key */
} dense_few_sm90_args;

#endif
