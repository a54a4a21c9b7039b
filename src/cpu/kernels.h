/*
 * kernels.h - the contracts of the CPU kernels, and the table that holds them.
 *
 * Query rows are handled in panels of 16, keys in blocks of up to MLA_KEY_BLOCK_MAX, columns in panels of `col_panel` (a
 * number that suits the ISA's registers). All arithmetic is fp32. The layouts, innermost last:
 *
 *     q      [row panel][d_k][16]                          queries, transposed so that 16 rows are one or two vectors
 *     block  [col panel][key][col_panel]                   keys or values, converted once for all rows; a panel starts
 *                                                          every panel_stride floats
 *     s, p   [row panel][key][16]                          scores, then probabilities
 *     o      [row panel][col panel of d_v][16][col_panel]  accumulators
 *
 * A row's arithmetic never depends on which lane of which panel it sits in, on the other rows, or on how many keys a
 * kernel is given beside its own: sums over columns and keys run in ascending order, one term at a time.
 */
#ifndef MLA_CPU_KERNELS_H
#define MLA_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mla/mla_types.h"

#define MLA_ROW_PANEL 16
#define MLA_KEY_BLOCK 96      /* where the problem leaves the choice: its fp32 block suits the second-level cache */
#define MLA_KEY_BLOCK_MAX 128 /* a tile of rounded probabilities that fits is one block, converted once */

/* Storage formats of q, k, v and o that kernels are written for; index into the table's arrays. */
typedef enum mla_format {
    MLA_FORMAT_F32,
    MLA_FORMAT_F16,
    MLA_FORMAT_BF16,
    MLA_FORMAT_HIF8, /* inputs and rounded probabilities only */
    MLA_FORMAT_I8,   /* the same */
    MLA_FORMAT_COUNT
} mla_format;

/* Base 2: maximum, sum of exp2, and largest score of each row of a panel. m lags behind max by less than
 * MLA_RESCALE_SLACK, which spares almost every rescaling of the accumulators. */
#define MLA_RESCALE_SLACK 8.0f
typedef struct mla_row_state {
    float m[MLA_ROW_PANEL];   /* what probabilities are relative to; -inf: no key seen yet */
    float l[MLA_ROW_PANEL];   /* sum of exp2(score - m) */
    float max[MLA_ROW_PANEL]; /* largest score seen */
    /* Accumulators are relative to the larger of m and this: the sink's logit where probabilities are rounded, else -inf.
     * No kernel reads it. */
    float floor[MLA_ROW_PANEL];
} mla_row_state;

/* Rows of the next key block, fetched into the cache a few lines at a time between pieces of arithmetic. */
typedef struct mla_prefetch {
    const char *const *row;  /* addresses of n_row rows; all 0: nothing */
    int64_t n_row, row_step; /* every row_step-th of them, for short rows side by side share a line */
    int64_t row_bytes;       /* of a row; of the first piece of it, when there are n_piece, piece_bytes apart */
    int64_t n_piece, piece_bytes;
    int64_t at_row, at_byte, at_piece;
    int64_t lines_per_step;
} mla_prefetch;

static inline void mla_prefetch_step(mla_prefetch *ahead)
{
    for (int64_t i = 0; i < ahead->lines_per_step && ahead->at_row < ahead->n_row; i++) {
        __builtin_prefetch(ahead->row[ahead->at_row] + ahead->at_piece * ahead->piece_bytes + ahead->at_byte, 0, 2);
        ahead->at_byte += 64;
        if (ahead->at_byte >= ahead->row_bytes) {
            ahead->at_byte = 0;
            ahead->at_row += ahead->row_step;
            if (ahead->at_row >= ahead->n_row && ++ahead->at_piece < ahead->n_piece) {
                ahead->at_row = 0;
            }
        }
    }
}

/* The next row, for a kernel that spreads its lines over a step itself; where a step has more than that to fetch, the rest
 * is fetched at once. NULL: nothing is left. For rows of one piece. */
static inline const char *mla_prefetch_row(mla_prefetch *ahead)
{
    int64_t lines = (ahead->row_bytes + 63) / 64;
    for (int64_t more = ahead->lines_per_step - lines; more > 0 && ahead->at_row < ahead->n_row; more -= lines) {
        for (int64_t i = 0; i < lines; i++) {
            __builtin_prefetch(ahead->row[ahead->at_row] + 64 * i, 0, 2);
        }
        ahead->at_row += ahead->row_step;
    }
    const char *row = ahead->at_row < ahead->n_row ? ahead->row[ahead->at_row] : NULL;
    ahead->at_row += ahead->row_step;
    return row;
}

/* Converts n_col columns of n_key rows to fp32 into columns [col, col + n_col) of a block. Reads nothing outside the
 * rows. Columns of the last panel that belong to no row are not written. */
typedef void (*mla_load_kernel)(const void *const *row, int64_t n_key, int64_t n_col, int64_t col, float *block,
                                int64_t panel_stride);

/* q[c][r] = row[r][c] * factor[r] for r < n_row, 0 for the other lanes of the panel, c in [0, n_col); factors are powers of
 * two, or 0. */
typedef void (*mla_pack_kernel)(const void *const *row, const float *factor, int32_t n_row, int64_t n_col, float *q);

/* s[key][r] (+)= sum over c in [0, n_col) of q[c][r] * block[c][key], for r < n_row at least. accumulate: add to s. */
typedef void (*mla_qk_kernel)(const float *q, const float *block, int64_t panel_stride, int64_t n_col, int64_t n_key,
                              int32_t n_row, bool accumulate, float *s, mla_prefetch *ahead);

/*
 * load and qk in one, bit for bit what they give: columns [col, col + n_col) of the block are written from n_col columns of
 * n_key rows, and scored for one panel; col is a multiple of col_panel. Behind the addresses of the rows stand
 * MLA_LOAD_AHEAD more, of readable rows as long, which are fetched and whose values change nothing.
 */
#define MLA_LOAD_AHEAD 6
typedef void (*mla_load_qk_kernel)(const float *q, const void *const *row, int64_t n_key, int64_t n_col, int64_t col,
                                   int32_t n_row, bool accumulate, float *block, int64_t panel_stride, float *s);

/*
 * Turns raw scores into probabilities in place: t = s * scale[r] + mask, FLT_MAX at most, p = exp2(t - m). Row
 * r sees the keys [begin[r], end[r]) of this block where the mask is not -inf; the others get p = 0 whatever s holds.
 * begin and end may be NULL together: all keys. mask [key][16] in base-2 units or NULL. Updates state; where a row's m grew, factor[r] =
 * exp2(old m - new m), else 1. Returns whether any factor is not 1.
 */
typedef bool (*mla_softmax_kernel)(float *s, int64_t n_key, const float *scale, const int32_t *begin,
                                   const int32_t *end, const float *mask, mla_row_state *state, float *factor);

/*
 * The two steps of a softmax whose probabilities are rounded, in base 2; between them the caller decides what they are
 * relative to. First t = s * scale[r] + mask in place, exactly as softmax makes and hides it, and top[r] = the largest t
 * or what it was.
 */
typedef void (*mla_peak_kernel)(float *s, int64_t n_key, const float *scale, const int32_t *begin, const int32_t *end,
                                const float *mask, float *top);

/* Then p = exp2(t - m[r]), in place and rounded; sum[r] += the p before they are rounded. m[r] is -inf where the row has
 * seen nothing, else no smaller than any t. To f16 and bf16: nearest even. HIF8: hif8(16 p) / 16. I8: p / unit[r],
 * rounded to f16 and then to an integer 0..127; unit[r] > 0 is read by this one alone. */
typedef void (*mla_round_kernel)(float *s, int64_t n_key, const float *m, const float *unit, float *sum);

/* o[r][c] += sum over keys of p[key][r] * v[key][c], for r < n_row and c < n_col at least, one column panel. */
typedef void (*mla_pv_kernel)(const float *p, const float *v, int64_t n_key, int32_t n_row, int32_t n_col, float *o,
                              mla_prefetch *ahead);

/*
 * The same two products straight from stored rows, for a single panel of more than 8 rows, where converting a block costs
 * more than it saves. Bit for bit what load and qk or pv give; nothing outside the rows, of 2 columns at least, is read. Columns [col, col + n_col) of
 * a row are scored; columns [0, n_col), n_col a multiple of 16, are added to all column panels of o.
 */
typedef void (*mla_qk_rows_kernel)(const float *q, const void *const *row, int64_t col, int64_t n_col, int64_t n_key,
                                   bool accumulate, float *s, mla_prefetch *ahead);
typedef void (*mla_pv_rows_kernel)(const float *p, const void *const *row, int64_t n_key, int32_t n_row, int64_t n_col,
                                   float *o, mla_prefetch *ahead);

/* o[r][c] = o[r][c] * a[r] + x[r][c] * b[r] for r < n_row and all col panels of one row panel; x may be NULL (then b is
 * not read). */
typedef void (*mla_merge_kernel)(float *o, const float *x, const float *a, const float *b, int64_t n_panel,
                                 int32_t n_row);

/* dst[c] = o[c] * factor, rounded to nearest even, for c in [0, d_v); o is one row inside a panelled accumulator. */
typedef void (*mla_store_kernel)(const float *o, int64_t d_v, float factor, void *dst);

/* The codes of x [n], and the numbers of code [n]: mla_hif8_from_f32() and mla_f32_from_hif8(), bit for bit. */
typedef void (*mla_hif8_encode_kernel)(const float *x, int64_t n, bool saturate, uint8_t *code);
typedef void (*mla_hif8_decode_kernel)(const uint8_t *code, int64_t n, float *x);

/*
 * The stream kernel serves tasks of few rows, where converting a block for all rows would cost more than it saves: keys
 * are used where they lie, a few at a time, while the memory brings the next ones. It is a whole softmax step: scores,
 * probabilities and values, because memory must never wait for arithmetic nor arithmetic for memory.
 *
 * Sums over columns run in lanes; columns are taken in steps, in the order in which a vector of the format falls
 * apart into two vectors of fp32, so queries and accumulators are kept in that order too.
 */
#define MLA_STREAM_ROWS 8    /* most rows */
#define MLA_STREAM_BLOCK 192 /* keys of a block that is streamed: between two blocks the memory waits */
#define MLA_STREAM_AHEAD 12  /* keys between a row's being fetched and used: 13.5 KiB of bf16 at 576 columns */
#define MLA_STREAM_BEHIND 16 /* rows behind a block that a kernel may fetch: a group of 4 keys looks that far */
typedef enum mla_stream_order {
    MLA_STREAM_PLAIN = 0,   /* as they are */
    MLA_STREAM_EVEN_ODD = 1 /* within each step columns 0, 2, 4, .. first, then 1, 3, 5, .. */
} mla_stream_order;

/* A run of columns in one tensor. In q and o they start at column `at`, a multiple of the step, and are followed by
 * zeros up to the next step. */
typedef struct mla_stream_part {
    /* Addresses of the block's rows, and behind them of MLA_STREAM_BEHIND more readable ones, which are fetched and
     * whose values change nothing. */
    const void *const *row;
    int64_t n_col, at;
} mla_stream_part;

typedef struct mla_stream_block {
    mla_stream_part k[2], v[2];
    int32_t n_k_part, n_v_part;
    bool odd; /* the first key pairs with one before the block: pairs do not depend on where the visible part begins */
    bool fetch_again; /* mla_cpu_forgets_fetches() */
    int64_t n_key;
    int32_t n_row;        /* 1 .. MLA_STREAM_ROWS */
    int64_t stride;       /* floats from one row to the next in q and in o */
    const float *q;       /* [row][column], and a row of zeros behind an odd number of them */
    float *o;             /* [row][column], accumulated */
    const float *scale;   /* [MLA_STREAM_ROWS] */
    const float *addend;  /* [key][MLA_STREAM_ROWS], added to scaled scores, base-2; -inf: the row does not see the key,
                            whatever the key holds; NULL: all rows see all keys and nothing is added */
    mla_row_state *state; /* lanes [0, n_row) hold rows; the other lanes of the first MLA_STREAM_ROWS are scratch */
} mla_stream_block;

typedef void (*mla_stream_kernel)(const mla_stream_block *block);

typedef struct mla_fixed_kernels mla_fixed_kernels; /* kernels_fixed.h */

/*
 * Arithmetic in bf16 (MLA_ARITHMETIC_BF16 and _BF16X2): units that multiply pairs of bf16 numbers exactly and add the products in
 * fp32. Numbers below 2^-126 count as 0, operands and results alike. Scores, softmax and accumulators are as above; the
 * operands are laid out in tiles of 16 rows of 32 bf16 numbers, 1 KiB each, innermost last:
 *
 *     q   [row panel][step of 32 columns][16 pairs][16 rows][2]  queries; pairs lie along columns
 *     p   [row panel][step of 32 keys][part][16 rows][32]        probabilities, in one part or in two
 *     v   [16 columns][step of 32 keys][16 pairs][16 columns][2] values; pairs lie along keys
 *
 * and key rows stay where they lie. A row adds up the keys of one step before it adds them to the others, so it is part
 * of the result which keys share a step: keys are counted from a fixed place, not from the first that is there.
 */
#define MLA_BF16_STEP 32
#define MLA_BF16_TILE (MLA_BF16_STEP * MLA_ROW_PANEL) /* numbers in a tile */
#define MLA_KEY_BLOCK_BF16 192 /* its values, probabilities and scores stay in 1 MiB of cache beside the accumulators */
#define MLA_KEY_ROWS 208       /* most keys of any block, and those behind a streamed one */

/* 16 key rows, `stride` bytes apart. */
typedef struct mla_key_tile {
    const void *row;
    int64_t stride;
} mla_key_tile;

/* q of one panel from its rows: n_row rows of n_col numbers, times a power of two each. Fills all 16 rows and whole
 * steps of columns, zeros where nothing is. */
typedef void (*mla_qpairs_kernel)(const void *const *row, const float *factor, int32_t n_row, int64_t n_col,
                                  uint16_t *q);

/* v of n_key rows, a multiple of the step, of n_col columns; whole groups of 16 columns are filled. v_stride: numbers
 * from one group of columns to the next. */
typedef void (*mla_vpairs_kernel)(const void *const *row, int64_t n_key, int64_t n_col, uint16_t *v, int64_t v_stride);

/* p of one panel from [key][16] in fp32; n_key is a multiple of the step. Part 0 is rounded to nearest even; part 1, where n_part
 * is 2, is what that leaves, rounded in the same way. */
typedef void (*mla_ppairs_kernel)(const float *from, int64_t n_key, int32_t n_part, uint16_t *p);

/* s[panel][tile][16 keys][16 rows] (+)= k q over n_col columns, a multiple of the step; panels s_stride and q_stride
 * numbers apart. Every key row is read as far as n_col. */
typedef void (*mla_qk_bf16_kernel)(const uint16_t *q, int64_t q_stride, const mla_key_tile *tile, int64_t n_tile,
                                   int64_t n_col, int64_t n_panel, bool accumulate, float *s, int64_t s_stride,
                                   mla_prefetch *ahead);

/* o[panel] += p v over n_key keys, a multiple of the step, all n_part parts of p, and n_col columns at least, n_col rounded up to 16 at most;
 * panels p_stride, groups of columns v_stride numbers apart. o[panel] is laid out as ever. */
typedef void (*mla_pv_bf16_kernel)(const uint16_t *p, int64_t p_stride, int32_t n_part, const uint16_t *v,
                                   int64_t v_stride, int64_t n_key, int64_t n_panel, int64_t n_col, float *const *o,
                                   mla_prefetch *ahead);

/* vpairs and pv in one, bit for bit what they give: n_col, a multiple of 32, columns of the n_key rows are added to all
 * accumulators. v is scratch, of 64 n_key numbers, or n_col n_key if these are fewer. */
typedef void (*mla_vpairs_pv_kernel)(const uint16_t *p, int64_t p_stride, int32_t n_part, const void *const *row,
                                     int64_t n_key, int64_t n_panel, int64_t n_col, float *const *o, uint16_t *v,
                                     mla_prefetch *ahead);

typedef struct mla_bf16_kernels {
    mla_qpairs_kernel qpairs;
    mla_vpairs_kernel vpairs;
    mla_ppairs_kernel ppairs;
    mla_qk_bf16_kernel qk;
    mla_pv_bf16_kernel pv;
    mla_vpairs_pv_kernel vpairs_pv; /* NULL: none at this level */
    bool faster;                    /* than fp32 even with probabilities in two parts: the choice of AUTO */
    /* May the process use the unit? Asks the system when it is called first; NULL: nobody need be asked. Before all else. */
    bool (*permitted)(void);
    /* Around the kernels of one item: the thread's state is set up, and given back as it was. NULL: there is none. */
    void (*enter)(void);
    void (*leave)(void);
} mla_bf16_kernels;

typedef struct mla_cpu_kernels {
    const char *isa;
    int32_t col_panel;
    int64_t qk_columns; /* columns per qk call, a multiple of col_panel: its part of q stays in the first-level cache */
    mla_load_kernel load[MLA_FORMAT_COUNT];
    mla_pack_kernel pack[MLA_FORMAT_COUNT];
    mla_qk_kernel qk;
    mla_load_qk_kernel load_qk[MLA_FORMAT_COUNT]; /* NULL: none at this level */
    mla_softmax_kernel softmax;
    mla_peak_kernel peak;
    mla_round_kernel round[MLA_FORMAT_COUNT]; /* NULL for F32 */
    mla_pv_kernel pv;
    mla_qk_rows_kernel qk_rows[MLA_FORMAT_COUNT]; /* NULL: none at this level */
    mla_pv_rows_kernel pv_rows[MLA_FORMAT_COUNT];
    mla_merge_kernel merge;
    mla_store_kernel store[MLA_FORMAT_COUNT]; /* NULL for HIF8 and I8 */
    mla_hif8_encode_kernel hif8_encode;       /* of the format helpers; attention decodes in load and pack */
    mla_hif8_decode_kernel hif8_decode;

    mla_stream_kernel stream[MLA_FORMAT_COUNT]; /* NULL: none at this level */
    mla_stream_order stream_order[MLA_FORMAT_COUNT];
    int32_t stream_step; /* columns taken at once: two vectors */

    const mla_fixed_kernels *fixed; /* NULL: none at this level */
    mla_bf16_kernels bf16;          /* all NULL: the level has no such unit */
} mla_cpu_kernels;

/* Filled in per ISA; a level that has no kernel of its own for a kind uses the level below. */
extern const mla_cpu_kernels mla_kernels_scalar;
extern const mla_cpu_kernels mla_kernels_avx2;
extern const mla_cpu_kernels mla_kernels_avxvnni;
extern const mla_cpu_kernels mla_kernels_avx512;
extern const mla_cpu_kernels mla_kernels_avx512bf16;
extern const mla_cpu_kernels mla_kernels_amx;
extern const mla_cpu_kernels mla_kernels_neon;
extern const mla_cpu_kernels mla_kernels_neonbf16;

/* ---- dispatch.c -------------------------------------------------------------------------------------------------- */

/* The table in use: the best usable level, or the one chosen by mla_set_isa() or MLA_ISA. NULL, with a sentence, when
 * MLA_ISA names a level that cannot be used. */
const mla_cpu_kernels *mla_cpu_kernels_selected(void);

/* The table of the level below another one's. */
const mla_cpu_kernels *mla_cpu_kernels_below(const mla_cpu_kernels *kernels);

/* The table of a level, NULL if it is unknown, not compiled in or not usable here. For tests. */
const mla_cpu_kernels *mla_cpu_kernels_of(const char *isa);

#endif
