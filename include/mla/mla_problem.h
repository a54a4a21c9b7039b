/*
 * mla_problem.h - one attention problem: the waist of the library.
 *
 * Every front door (native, flash_mla, the Ascend ones) fills in this struct; nothing below it knows which door did.
 * For each query token t and head h, over all key rows j that the token may see in all segments:
 *
 *     s[j]      = softmax_scale * <q[t][h], k[j]>  (+ mask[t][j])
 *     o[t][h]   = sum_j softmax(s)[j] * v[j]       v[j]: first d_v columns of row j, or a row of a tensor of its own
 *     lse[t][h] = log(sum_j exp(s[j]))
 *
 * Notation: n_seq sequences (requests), n_token query tokens, n_head query heads, n_kv_head key/value heads,
 * d_k = d_nope + d_rope columns of a key, d_v columns of a value. Query head h reads kv head h / (n_head / n_kv_head).
 * Shapes are written [outer]...[inner]; unless said otherwise only the innermost stride must be 1. Tensors of one
 * dimension are therefore contiguous. Strides of a dimension of extent 1 and of an empty tensor do not matter.
 *
 * "Absent" is an all-zero tensor; one with dims is present even when it is empty. A tensor that has no place in a
 * problem (a list_length without a list, a residual without COMPRESSED) is refused, so that no slip passes silently.
 * Values inside index tensors are checked where the host can read them. On another device a bad one makes its keys
 * invisible.
 */
#ifndef MLA_PROBLEM_H
#define MLA_PROBLEM_H

#include <stdbool.h>

#include "mla_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Which positions [begin, end) of a segment a query token may see. Let len be the sequence's key count, n_q its query
 * tokens in use, i the token's index among them, and t = len - n_q + i + 1. All rules are aligned at the bottom right:
 * the last query token is level with the last key. Every range is clipped to [0, len); division rounds down.
 *
 *     ALL         [0, len)
 *     CAUSAL      [0, t)
 *     WINDOW      [t - left - 1, t + right); left or right -1: no limit on that side
 *     COMPRESSED  [0, (len * ratio + residual - n_q + i + 1) / ratio): rows stand for `ratio` tokens each
 */
typedef enum mla_visible_rule {
    MLA_VISIBLE_ALL = 0,
    MLA_VISIBLE_CAUSAL = 1,
    MLA_VISIBLE_WINDOW = 2,
    MLA_VISIBLE_COMPRESSED = 3
} mla_visible_rule;

typedef struct mla_visible {
    mla_visible_rule rule;
    int64_t left;        /* WINDOW: keys before the token's own position, >= 0, or -1 for all */
    int64_t right;       /* WINDOW: keys after it, >= 0, or -1 for all */
    int64_t ratio;       /* COMPRESSED: >= 1 */
    mla_tensor residual; /* COMPRESSED: i32 [n_seq], tokens not yet compressed, >= 0; absent: 0 */
} mla_visible;

/* What an entry of an explicit key list means. */
typedef enum mla_list_address {
    MLA_LIST_LOGICAL = 0, /* position in the sequence, looked up like any other position */
    MLA_LIST_PHYSICAL = 1 /* page * page_size + slot in the whole cache: all of its rows are "positions" and all of them
                             are visible. The rule must be ALL, and there is no mask; page_table, k_begin and length
                             are not used and may be absent */
} mla_list_address;

/* What happens at an entry that names no visible key (negative, out of range, outside the visible range). */
typedef enum mla_list_rule {
    MLA_LIST_SKIP = 0, /* it is skipped; valid entries may stand anywhere */
    MLA_LIST_STOP = 1  /* a negative entry ends the list, others are skipped; of a LOGICAL list under another rule than
                          ALL, no more entries are looked at than the visible range has positions */
} mla_list_rule;

/* How the columns of a key row lie in memory. */
typedef enum mla_key_layout {
    MLA_KEY_LAYOUT_ROW = 0, /* side by side */
    MLA_KEY_LAYOUT_NZ = 1   /* Ascend's FRACTAL_NZ: in pieces of c columns (32 bytes of them there); a page holds the
                               first piece of all its rows, then the second one of all its rows, ... */
} mla_key_layout;

/*
 * One pool of key/value rows and how a sequence finds its own in it. The dims of k decide the addressing:
 *
 *     paged    k [n_page][page_size][n_kv_head][d]  with page_table: position p of sequence s is row p % page_size of
 *              page page_table[s][p / page_size]
 *     batched  k [n_seq][max_len][n_kv_head][d]     no page_table, no k_begin
 *     packed   k [n_row][n_kv_head][d]              with k_begin: position p of sequence s is row k_begin[s] + p
 *
 * With MLA_KEY_LAYOUT_NZ, paged or batched and for one kv head: k [n_page][d / c][page_size][c] for any c >= 1 that the
 * tensor's own dims name, k_rope likewise with its own c; no v, and d_v is at most the d of k.
 *
 * A PHYSICAL list works on a pool: k [n_page][page_size][n_kv_head][d], or [n_row][n_kv_head][d] as one page.
 * page_size >= 1 when paged; any other extent of rows may be 0. A duplicate list entry counts each time it appears.
 * Rows that nobody may see are never read.
 */
typedef struct mla_segment {
    mla_tensor k;           /* f32, f16, bf16, hif8 or i8; d = d_k, or d_nope when k_rope is present */
    mla_tensor k_rope;      /* f32, f16 or bf16, same leading dims as k, d = d_rope; given exactly when q_rope is */
    mla_tensor v;           /* f32, f16, bf16, hif8 or i8, same leading dims as k, d = d_v; absent: v = first d_v
                               columns of [k | k_rope] */
    mla_key_layout layout;  /* of k and k_rope */
    mla_tensor k_begin;     /* packed: i32 [n_seq + 1], non-decreasing, within 0 .. n_row */
    mla_tensor page_table;  /* paged: i32 [n_seq][max_page]; an entry that covers a visible position must be in
                               0 .. n_page - 1, whether or not a list names the position; no other entry is used
                               (nor read, but on a GPU within the tensor) */
    mla_tensor length;      /* i32 [n_seq], valid keys per sequence, negative counts as 0, at most max_page * page_size,
                               max_len or the k_begin difference; absent: batched max_len, packed k_begin differences;
                               required when paged unless the list is PHYSICAL */
    mla_tensor list;        /* i32 [n_seq][n_q][n_entry] for batched q, [n_token][n_entry] for packed q; absent: all */
    mla_tensor list_length; /* i32 [n_seq], or per token: [n_seq][n_q] / [n_token], which wins when n_token == n_seq;
                               negative counts as 0, at most n_entry; absent: n_entry */
    mla_list_address list_address;
    mla_list_rule list_rule;
    mla_visible visible;
    mla_tensor mask;    /* f32, f16 or bf16, added to scaled scores; [n_seq][n_q][max_len] for batched q,
                           [n_token][max_len] for packed q, column = position, max_len large enough for every visible
                           one; any strides including 0; absent: none */
    mla_tensor descale; /* f32 [1], multiplies k and v of this segment; absent: 1 */
} mla_segment;

typedef enum mla_lse_base { MLA_LSE_NATURAL = 0, MLA_LSE_BASE2 = 1 } mla_lse_base;

/* lse of a (token, head) that sees no key; its o is +0 */
typedef enum mla_lse_empty {
    MLA_LSE_EMPTY_POS_INF = 0,
    MLA_LSE_EMPTY_NEG_INF = 1,
    MLA_LSE_EMPTY_ZERO = 2
} mla_lse_empty;

/*
 * Rounding of the probabilities before they multiply V, where a contract makes it part of the result. The keys that a
 * row may see are then taken in tiles of p_tile: those of segment 0 in ascending position (of a list: in its order,
 * entries that name no visible key left out), then those of segment 1; a segment starts a tile of its own, so the last
 * one of each may be shorter. A key that the mask alone hides keeps its place in its tile, with p = 0. Tile by tile,
 * all in fp32, with m = the sink's logit and l = 1 before the first tile (-inf and 0 without a sink):
 *
 *     t = largest score of the tile       m' = max(m, t)       f = exp(m - m')       p[j] = exp(s[j] - m')
 *     l = l * f + sum of p[j]             o = o * f + sum over the tile of round(p[j]) * v[j]         m = m'
 *
 * and o / l is the result; the sink has joined already. With
 *
 *     16BIT   round(p) = p in the dtype of q
 *     HIF8    round(p) = hif8(16 p) / 16, to nearest, ties away from zero
 *     INT8    round(p) = a * n, with a = exp(t - m') / 127 and n = p / a rounded to f16, then to an integer, both to
 *             nearest even; the sum over the tile of n * v is an exact integer, multiplied once by a * pv_descale
 *
 * l is summed from p before it is rounded. The order of tiles is part of the result, so it does not depend on how the
 * work is cut.
 */
typedef enum mla_p_rounding {
    MLA_P_ROUND_NONE = 0,  /* fp32 */
    MLA_P_ROUND_16BIT = 1, /* q must be f16 or bf16 */
    MLA_P_ROUND_INT8 = 2,  /* k must be i8 in every segment, v absent, d_v at most d_nope */
    MLA_P_ROUND_HIF8 = 3
} mla_p_rounding;

/*
 * What scores are multiplied and values added up in, where p_rounding is NONE; with any other this changes nothing.
 * Scores, maxima, sums and accumulators are fp32 in all of them.
 *
 *     F32     fp32 products, probabilities in fp32
 *     BF16    exact products of bf16 numbers, probabilities rounded to bf16 (nearest even) before they multiply V, while
 *             l, and so lse, is summed from them unrounded. That moves o by at most 2^-8 of the sum of p |v|, on random
 *             values by about 1e-3 of its norm. Numbers below 2^-126 count as 0, q times the power of two in the scale too;
 *             a score beyond the largest fp32 number counts as that number or, where infinities of both signs meet in its
 *             sum, as NaN. For units that multiply matrices of bf16: where the machine has none, or q or a segment is of
 *             another dtype, F32
 *     BF16X2  as BF16, but a probability is the sum of two bf16 numbers, the second one being what rounding the first has
 *             left: that moves o by at most 2^-16 of the sum of p |v|. On a GPU F32
 *     AUTO    on the CPU F32, but BF16X2 where q, the segments and o are all bf16 and the machine has units with which it
 *             is faster (AMX); on a GPU the fastest kernel, which may round probabilities to the dtype of q
 *     INT16   q, keys and probabilities as 16-bit integers, each row and key with a factor of its own, sums exact. A row
 *             goes by F32 in each block of keys where rounding to integers might move its scores by more than 2^-9 at
 *             one standard deviation, or values by more than 2^-9 of their norm; in chunks of keys of which it does not
 *             see the first 16; and where its sequence has no more than 16 rows per kv head. On normal data o is off by
 *             about 4e-4 of its norm. On the CPU, at levels scalar, avx2 and avxvnni, for keys without v; elsewhere F32,
 *             on a GPU refused
 *     F16     a plan may say so, a problem must not: on a GPU, probabilities rounded to f16, as BF16 does to bf16
 *
 * The environment variable MLA_ARITH (auto, f32, bf16, bf16x2 or int16) says what AUTO means on the CPU.
 */
typedef enum mla_arithmetic {
    MLA_ARITHMETIC_AUTO = 0,
    MLA_ARITHMETIC_INT16 = 1,
    MLA_ARITHMETIC_F32 = 2,
    MLA_ARITHMETIC_BF16 = 3,
    MLA_ARITHMETIC_F16 = 4,
    MLA_ARITHMETIC_BF16X2 = 5
} mla_arithmetic;

#define MLA_MAX_SEGMENT 2

/*
 * Fill with mla_problem_init() first: it sets struct_size and the defaults (one segment, visible ALL, natural lse,
 * +inf for empty rows, no rounding of P).
 *
 * q is "batched" when it has 4 dims (every sequence has the same n_q slots) and "packed" when it has 3 (ragged
 * lengths). All tensors must be on one device. Outputs must not overlap inputs or each other: the check refuses equal
 * addresses and an output that starts inside a dense tensor, or the other way round (views interleaved in one buffer
 * are legal, so it cannot refuse more). Strides of outputs are positive. n_head, n_kv_head and all d are >= 1; n_seq,
 * n_q, n_token and key counts may be 0.
 */
typedef struct mla_problem {
    size_t struct_size;

    /* queries */
    mla_tensor q;         /* f32, f16, bf16, hif8 or i8 [n_seq][n_q][n_head][d] or [n_token][n_head][d]; d = d_k, or
                             d_nope with q_rope */
    mla_tensor q_rope;    /* f32, f16 or bf16, unless q is hif8 or i8 its dtype; same leading dims as q, d = d_rope;
                             absent: inside q */
    mla_tensor q_begin;   /* packed: i32 [n_seq + 1], non-decreasing, within 0 .. n_token; tokens outside [q_begin[0],
                             q_begin[n_seq]) are left alone; absent: one token per sequence, n_seq = n_token */
    mla_tensor q_length;  /* i32 [n_seq], tokens in use, negative counts as 0, at most the slots of the sequence; tokens
                             past it see nothing (o = 0, empty lse); absent: all */
    mla_tensor q_descale; /* f32 [1], multiplies q; absent: 1 */

    /* keys and values */
    int32_t n_segment; /* 1 or 2; one softmax over the union */
    mla_segment segment[MLA_MAX_SEGMENT];
    int64_t d_v; /* columns of a value and of o; 1 .. d_k unless v is a tensor of its own */

    /* scores */
    float softmax_scale;   /* finite; multiplies q.k */
    mla_tensor qk_descale; /* f32 [n_head], multiplies <q, k> of a head without a rope part that is apart; absent: 1 */
    mla_tensor pv_descale; /* f32 [n_head], multiplies o of a head; absent: 1 */
    mla_tensor sink;       /* f32 [n_head], an extra scaled logit with value 0; -inf: none, +inf: o = 0; absent: none */

    /* outputs */
    mla_tensor o;   /* f32, f16 or bf16; dims of q with d_v last; rounded once, to nearest even */
    mla_tensor lse; /* f32, f16 or bf16 [n_seq][n_q][n_head] or [n_token][n_head], any strides (so any transposed view);
                       optional */
    mla_tensor max; /* f32, as lse: largest scaled (and masked) score, natural units, -inf for empty rows; optional */
    mla_lse_base lse_base;
    mla_lse_empty lse_empty;
    bool lse_with_sink; /* does lse count the sink? */

    /* numerics that are part of the result */
    mla_p_rounding p_rounding;
    int32_t p_tile; /* keys per tile, 1 .. 512 with p_rounding != NONE; else 0 */
    mla_arithmetic arithmetic;
} mla_problem;

/* Sets the defaults. The macro passes the size the caller was compiled with, so that a header that does not fit the
 * library is refused with a sentence instead of read past its end. */
#define mla_problem_init(problem) mla_problem_init_sized((problem), sizeof(mla_problem))
MLA_API void mla_problem_init_sized(mla_problem *problem, size_t struct_size);

/*
 * Checks every rule above, host-readable values inside index tensors included; the first broken one becomes the status
 * and the sentence in mla_last_error(). mla_plan_build() and mla_attention() call it, so callers rarely need to.
 */
MLA_API mla_status mla_problem_check(const mla_problem *problem);

#ifdef __cplusplus
}
#endif

#endif
