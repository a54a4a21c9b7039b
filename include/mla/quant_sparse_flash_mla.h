/*
 * quant_sparse_flash_mla.h - CANN's QuantSparseFlashMla in C, for every vendor.
 *
 * One struct holds the operator's arguments, under their own names and in their own layouts, with tensors as mla_tensor
 * views and outputs given by the caller. The doors with vendors' signatures (aclnnQuantSparseFlashMla() of
 * libmla_compat, torch.ops.cann_ops_transformer.quant_sparse_flash_mla) fill it in and call the functions below.
 *
 * Notation: B batch, S1 / T1 query tokens (BSND / TND), N1 query heads, S2 / T2 tokens of ori_kv, S3 / T3 of cmp_kv, D
 * 512, N2 1. What the call does follows from what is given:
 *
 *     cmp_kv   cmp_sparse_indices   ori_sparse_indices    ori keys of a row    cmp keys of a row
 *     -        -                    -                     window               -                     sliding window
 *     -        -                    yes                   list                 -
 *     yes      yes                  -                     window               list                  compressed sparse
 *     yes      yes                  yes                   list                 list
 *     yes      -                    (ignored)             window               all up to a threshold heavily compressed
 *
 * The lengths that count, per sequence: of q seqused_q, else cu_seqlens_q or S1; of ori_kv seqused_ori_kv, else
 * cu_seqlens_ori_kv or S2, else the pages that the table names; of cmp_kv seqused_cmp_kv, else cu_seqlens_cmp_kv or S3,
 * else (PA_BBND) ori length / cmp_ratio within the table where seqused_ori_kv is given, else the pages that the table
 * names. Let t = ori length - q length + i + 1 for the i-th query token in use:
 *
 *     ori_mask_mode  0 all keys    3 the first t    4 [t - ori_win_left - 1, t + ori_win_right), -1: no limit there
 *     cmp_mask_mode  0 all keys    3 the first (cmp length * cmp_ratio + residual - q length + i + 1) / cmp_ratio
 *
 * A list is walked from its start to its first negative entry, over at most topk_length entries and, unless its mask
 * mode is 0, over at most as many as there are keys that the mask shows (for cmp: in any mode); entries outside the
 * mask are skipped, repeated ones count each time. P is rounded to HiFloat8 as MLA_P_ROUND_HIF8 says, in tiles of 128.
 * A row that sees no key, or is past seqused_q, gives 0 and lse 0; the lse is natural and counts the sink.
 *
 * Errors: MLA_STATUS_NULL_POINTER for a missing argument that is always needed, which the vendor calls 161001; any
 * other status for an argument against the rules, 161002 there. Thread safety and sentences as in mla.h.
 */
#ifndef MLA_QUANT_SPARSE_FLASH_MLA_H
#define MLA_QUANT_SPARSE_FLASH_MLA_H

#include <stdbool.h>

#include "mla.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which operator of the family. */
typedef enum mla_sparse_flash_mla_format {
    MLA_SPARSE_FLASH_MLA_HIF8 = 0, /* QuantSparseFlashMla: q and kv hif8 with descales, attn_out bf16 */
    MLA_SPARSE_FLASH_MLA_16BIT = 1 /* SparseFlashMla: q, kv and attn_out of one type, f16 or bf16, P rounded to it; no
                                      descales, sinks optional, quant_mode not used */
} mla_sparse_flash_mla_format;

/* Rules of the vendor that a caller may change; or-ed into `options`. */
enum {
    MLA_SPARSE_FLASH_MLA_RELAXED = 1,         /* sinks and metadata may be absent */
    MLA_SPARSE_FLASH_MLA_STRICT_RESIDUAL = 2, /* cmp_residual_kv is required with cmp_mask_mode 3 and cmp_ratio > 1, and
                                                 refused otherwise; without this it is optional and 0 when absent */
    MLA_SPARSE_FLASH_MLA_EXACT_P = 4          /* P is not rounded: closer to the formula, further from the vendor */
};

/*
 * Fill with mla_quant_sparse_flash_mla_init() first: it sets struct_size and the defaults in brackets.
 *
 * Shapes are those of BSND, then of TND. An optional tensor is absent when all of it is zero, or when its dim 0 is 0.
 * All tensors are contiguous, except that kv with PA_BBND may have any stride between its blocks. Numbers inside i32
 * tensors are read by the run, not by the check. Outputs share no memory with any other tensor.
 */
typedef struct mla_quant_sparse_flash_mla_args {
    size_t struct_size;

    mla_tensor q;         /* hif8 [B][S1][N1][D] / [T1][N1][D], N1 1..128 */
    mla_tensor ori_kv;    /* hif8, by layout_kv: BSND [B][S2][1][D], TND [T2][1][D], PA_BBND [block][1..1024][1][D] */
    mla_tensor cmp_kv;    /* the same, with its own sizes; optional */
    mla_tensor q_descale; /* f32 [1] */
    mla_tensor ori_kv_descale;     /* f32 [1] */
    mla_tensor cmp_kv_descale;     /* f32 [1]; given exactly when cmp_kv is */
    mla_tensor ori_sparse_indices; /* i32 [B][S1][1][K1] / [T1][1][K1]; positions in the own sequence; optional */
    mla_tensor cmp_sparse_indices; /* i32 [B][S1][1][K2] / [T1][1][K2]; optional */
    mla_tensor ori_block_table;    /* i32 [B][blocks]; given exactly with PA_BBND; entries past the keys are not read */
    mla_tensor cmp_block_table;    /* i32 [B][blocks]; given exactly with PA_BBND and cmp_kv */
    mla_tensor cu_seqlens_q;       /* i32 [B + 1]; given exactly when layout_q is TND */
    mla_tensor cu_seqlens_ori_kv;  /* i32 [B + 1]; given exactly when layout_kv is TND */
    mla_tensor cu_seqlens_cmp_kv;  /* i32 [B + 1]; given exactly when layout_kv is TND and cmp_kv is given */
    mla_tensor seqused_q;          /* i32 [B]; optional */
    mla_tensor seqused_ori_kv;  /* i32 [B]; optional; required with PA_BBND unless ori_sparse_indices choose all keys,
                                      with masks 0 */
    mla_tensor seqused_cmp_kv;  /* i32 [B]; optional */
    mla_tensor cmp_residual_kv; /* i32 [B], 0 .. cmp_ratio - 1; optional */
    mla_tensor ori_topk_length; /* i32 [B][S1][1] / [T1][1]; required with ori_sparse_indices and ori_mask_mode 0 */
    mla_tensor cmp_topk_length; /* i32 [B][S1][1] / [T1][1]; required with cmp_sparse_indices and cmp_mask_mode 0 */
    mla_tensor sinks;           /* f32 [N1]; a logit per head, with value 0 */
    mla_tensor metadata;        /* i32 [1024], of mla_quant_sparse_flash_mla_metadata(); a hint: whatever it holds, the
                                      result is right */

    int64_t quant_mode;      /* 1 [1] */
    double softmax_scale;    /* finite in fp32 too [1] */
    int64_t cmp_ratio;       /* 1 .. 128, 1 without cmp_kv [1] */
    int64_t ori_mask_mode;   /* 0, 3, 4 [0] */
    int64_t cmp_mask_mode;   /* 0, 3; 0 without cmp_kv [0] */
    int64_t ori_win_left;    /* >= -1, -1 unless ori_mask_mode is 4 [-1] */
    int64_t ori_win_right;   /* >= -1, -1 unless ori_mask_mode is 4 [-1] */
    const char *layout_q;    /* "BSND", "TND"; NULL: "BSND" ["BSND"] */
    const char *layout_kv;   /* that of q, or "PA_BBND"; NULL: "BSND" ["BSND"] */
    int64_t topk_value_mode; /* 1 [1] */
    bool return_softmax_lse; /* [false] */

    mla_tensor attn_out;    /* out, bf16, shape of q; every element is written */
    mla_tensor softmax_lse; /* out, f32 [B][1][S1][N1] / [1][T1][N1]; neither looked at nor written unless
                               return_softmax_lse */

    mla_sparse_flash_mla_format format; /* [HIF8] */
    uint32_t options;                   /* MLA_SPARSE_FLASH_MLA_* [0] */
} mla_quant_sparse_flash_mla_args;

#define mla_quant_sparse_flash_mla_init(args) \
    mla_quant_sparse_flash_mla_init_sized((args), sizeof(mla_quant_sparse_flash_mla_args))
MLA_API void mla_quant_sparse_flash_mla_init_sized(mla_quant_sparse_flash_mla_args *args, size_t struct_size);

/* All rules that need no number from inside a tensor; reads none. */
MLA_API mla_status mla_quant_sparse_flash_mla_check(const mla_quant_sparse_flash_mla_args *args);

/*
 * The call as a mla_problem, for mla_plan_build() and mla_run(); checks first. The problem points into the tensors of
 * args. Lengths that no tensor holds are derived from the numbers in others and written to `scratch`, i32 [n_scratch],
 * which must live as long as the problem is used; mla_quant_sparse_flash_mla_scratch() says how many it takes, and 0
 * needs none. Tokens of a packed q outside [cu_seqlens_q[0], cu_seqlens_q[B]) are no part of a problem: a run of it
 * leaves them alone.
 * Errors: those of the check; WORKSPACE_TOO_SMALL; UNSUPPORTED for lengths to be derived on a GPU, which only
 * mla_quant_sparse_flash_mla() does.
 */
MLA_API mla_status mla_quant_sparse_flash_mla_lower(const mla_quant_sparse_flash_mla_args *args, int32_t *scratch,
                                                    int64_t n_scratch, mla_problem *problem);
MLA_API int64_t mla_quant_sparse_flash_mla_scratch(const mla_quant_sparse_flash_mla_args *args);

/* Check, plan and run in one call. options may be NULL. Errors: those of the check, then those of mla_attention() in
 * the names of these arguments. On a GPU the work is queued on options->stream, and nothing waits for it. */
MLA_API mla_status mla_quant_sparse_flash_mla(const mla_quant_sparse_flash_mla_args *args,
                                              const mla_plan_options *options);

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

#define MLA_QUANT_SPARSE_FLASH_MLA_METADATA_WORDS 1024

/* Arguments of QuantSparseFlashMlaMetadata; tensors and attributes as those of the same name above. Fill with
 * mla_quant_sparse_flash_mla_metadata_init() first. */
typedef struct mla_quant_sparse_flash_mla_metadata_args {
    size_t struct_size;

    mla_tensor cu_seqlens_q;
    mla_tensor cu_seqlens_ori_kv;
    mla_tensor cu_seqlens_cmp_kv;
    mla_tensor seqused_q;
    mla_tensor seqused_ori_kv;
    mla_tensor seqused_cmp_kv;
    mla_tensor cmp_residual_kv;
    mla_tensor ori_topk_length;
    mla_tensor cmp_topk_length;

    int64_t num_heads_q;       /* 1 .. 128 */
    int64_t num_heads_kv;      /* 1 */
    int64_t head_dim;          /* 512 */
    int64_t quant_mode;        /* 1 or 2 [1] */
    int64_t batch_size;        /* >= 0, used when neither seqused_q nor cu_seqlens_q tells [0] */
    int64_t max_seqlen_q;      /* >= 0; a seqused above its maximum is refused, 0: not known [0] */
    int64_t max_seqlen_ori_kv; /* as above [0] */
    int64_t max_seqlen_cmp_kv; /* as above [0] */
    int64_t ori_topk;          /* >= 0, K1 of ori_sparse_indices, 0: none [0] */
    int64_t cmp_topk;          /* >= 0, K2 of cmp_sparse_indices, 0: none [0] */
    int64_t cmp_ratio;
    int64_t ori_mask_mode;
    int64_t cmp_mask_mode;
    int64_t ori_win_left;
    int64_t ori_win_right;
    const char *layout_q; /* not NULL */
    const char *layout_kv;
    bool has_ori_kv; /* [true] */
    bool has_cmp_kv; /* [true] */

    mla_tensor metadata; /* out, i32 [1024], contiguous */
} mla_quant_sparse_flash_mla_metadata_args;

#define mla_quant_sparse_flash_mla_metadata_init(args) \
    mla_quant_sparse_flash_mla_metadata_init_sized((args), sizeof(mla_quant_sparse_flash_mla_metadata_args))
MLA_API void mla_quant_sparse_flash_mla_metadata_init_sized(mla_quant_sparse_flash_mla_metadata_args *args,
                                                            size_t struct_size);

/* All rules that need no number from inside a tensor. */
MLA_API mla_status mla_quant_sparse_flash_mla_metadata_check(const mla_quant_sparse_flash_mla_metadata_args *args);

/*
 * Checks, also the numbers inside the tensors (cu_seqlens start at 0 and never fall, 0 <= seqused <= what there is, 0
 * <= residual < cmp_ratio, topk lengths >= 0 with a row for every query token; OUT_OF_RANGE), then fills
 * args->metadata: a magic number, a version, a checksum, and a fingerprint of everything that both calls are told.
 * Opaque to callers. All tensors are on one device.
 */
MLA_API mla_status mla_quant_sparse_flash_mla_metadata(const mla_quant_sparse_flash_mla_metadata_args *args);

/* The same on a stream of the GPU that the tensors are on, NULL its default stream; NULL in host memory. On a GPU the
 * numbers inside the tensors are not checked; the words are those that the CPU writes. */
MLA_API mla_status mla_quant_sparse_flash_mla_metadata_on(void *stream,
                                                          const mla_quant_sparse_flash_mla_metadata_args *args);

typedef enum mla_metadata_state {
    MLA_METADATA_FRESH = 0,  /* made for a call like this one, with these lengths */
    MLA_METADATA_STALE = 1,  /* made for other parameters or lengths */
    MLA_METADATA_FOREIGN = 2 /* zeros, another library's, another version's, or damaged */
} mla_metadata_state;

/* What args->metadata is to this call. Nobody needs to ask: work is shared out anew in every call, from the lengths
 * themselves, and the result does not depend on the answer. On a GPU it waits for all of that GPU's work. Errors: those
 * of the check. */
MLA_API mla_status mla_quant_sparse_flash_mla_metadata_state(const mla_quant_sparse_flash_mla_args *args,
                                                             mla_metadata_state *state);

#ifdef __cplusplus
}
#endif

#endif
