/*
 * atb_mla.h - the ATB door in C: AtbMLA and AtbMLAPreFill without C++ and without an acl runtime.
 *
 * Programs written against ATB include <atb/atb_acl.h> instead and link libmla_compat, whose functions are a thin skin
 * over the ones below. Names, numbers, the order of checks and the codes of refusals are ATB's; docs/atb.md lists where
 * libmla deviates from it.
 *
 *     mla_atb_decode_args args = {.struct_size = sizeof args, .q_nope = &q, ...};
 *     mla_atb_op *op = NULL;
 *     uint64_t bytes;
 *     if (mla_atb_decode_setup(&op, &args, &bytes) == MLA_ATB_NO_ERROR) {
 *         workspace = malloc(bytes);
 *         mla_atb_op_execute(op, NULL, workspace, bytes, NULL);
 *     }
 *     mla_atb_op_destroy(op);
 *
 * Every fallible function returns an MLA_ATB_* code as int32_t; after anything but MLA_ATB_NO_ERROR mla_last_error()
 * holds a sentence. Different ops may be used by different threads at the same time; one op by one thread at a time.
 *
 * Notation: T query tokens, H query heads, N key/value heads, B sequences, NB cache blocks of 128 tokens, q_b query
 * tokens and ctx_b keys of sequence b. F stands for float16 throughout, or bfloat16 throughout.
 */
#ifndef MLA_ATB_MLA_H
#define MLA_ATB_MLA_H

#include "mla.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ATB's status numbers, as far as they occur here. Other names are in <atb/types.h>. */
typedef enum mla_atb_status {
    MLA_ATB_NO_ERROR = 0,
    MLA_ATB_ERROR_INVALID_PARAM = 1,             /* a scalar, a length, or a call out of order */
    MLA_ATB_ERROR_INTERNAL_ERROR = 3,            /* a fault of libmla itself */
    MLA_ATB_ERROR_RT_FAIL = 4,                   /* the run failed: for instance a block id outside the cache */
    MLA_ATB_ERROR_INVALID_IN_TENSOR_NUM = 5,     /* too few or too many tensors for these scalars */
    MLA_ATB_ERROR_INVALID_TENSOR_DIM = 8,        /* a missing tensor, or a wrong extent */
    MLA_ATB_ERROR_INVALID_TENSOR_SIZE = 9,       /* no elements, a dtype without a size, over 256 GiB */
    MLA_ATB_ERROR_INVALID_TENSOR_INI_MATCH = 13, /* dtypes and formats that do not go together */
    MLA_ATB_ERROR_INVALID_TENSOR_ADDR = 14,      /* a device tensor without an address */
    MLA_ATB_ERROR_INVALID_TENSOR_DIM_NUM = 16,   /* a wrong rank */
    MLA_ATB_ERROR_INVALID_OPERATION_ADDR = 24,   /* op is NULL */
    MLA_ATB_ERROR_OUT_OF_HOST_MEMORY = 27
} mla_atb_status;

/* Numbers of aclDataType that occur in legal calls; every other one is refused. */
enum { MLA_ATB_FLOAT = 0, MLA_ATB_FLOAT16 = 1, MLA_ATB_INT8 = 2, MLA_ATB_INT32 = 3, MLA_ATB_BF16 = 27 };

/* Numbers of aclFormat. */
enum { MLA_ATB_FORMAT_ND = 2, MLA_ATB_FORMAT_FRACTAL_NZ = 29 };

typedef enum mla_atb_mask_type {
    MLA_ATB_MASK_UNDEFINED = 0, /* no mask */
    MLA_ATB_MASK_SPEC = 1,      /* decode: [T][max_kv], added to the scaled scores; column = key position */
    MLA_ATB_MASK_FREE = 2,      /* decode: a sliding template [125 + 2q][128] or one per sequence [B][125 + 2q][128];
                                   prefill: [512][512] */
    MLA_ATB_MASK_CAUSAL = 3,    /* prefill alone, built in: query i of q_b sees keys 0 .. i + ctx_b - q_b */
    MLA_ATB_MASK_SWA_NORM = 4   /* prefill alone: [>= max q_b][>= max ctx_b] and window_size */
} mla_atb_mask_type;

typedef enum mla_atb_calc_type {
    MLA_ATB_CALC_UNDEFINED = 0, /* one query token per sequence */
    MLA_ATB_CALC_SPEC = 1,      /* q_seq_len tokens per sequence */
    MLA_ATB_CALC_RING = 2,      /* one, and lse is written */
    MLA_ATB_CALC_SPEC_AND_RING = 3,
    MLA_ATB_CALC_PREFILL = 4
} mla_atb_calc_type;

typedef enum mla_atb_cache_mode {
    MLA_ATB_KVCACHE = 0,      /* concatenated [NB][128][1][576]; refused unless MLA_ATB_ALLOW_KVCACHE is set */
    MLA_ATB_KROPE_CTKV = 1,   /* ct_kv [NB][128][1][512], k_rope [NB][128][1][64] */
    MLA_ATB_INT8_NZCACHE = 2, /* ct_kv int8 [NB][16][128][32], k_rope [NB][4][128][16] */
    MLA_ATB_NZCACHE = 3       /* ct_kv [NB][32][128][16], k_rope [NB][4][128][16] */
} mla_atb_cache_mode;

/* Where ATB surprises, libmla does what was surely meant; these switch to the letter, or to more care. */
enum {
    MLA_ATB_STRICT = 1,       /* as ATB to the letter: rows of a MASK_SPEC mask lie max(ctx_b) elements apart, whatever
                                 its dim 1 says (default: dim 1); o and lse rows of a sequence without keys are left
                                 untouched (default: 0 and -inf); a MASK_FREE template may have more rows than
                                 125 + 2 max(q_b) (default: refused, because it hides keys that were not meant) */
    MLA_ATB_CHECK_REUSE = 2,  /* refuse, with code 1, scalars that differ from the ones a reused op was created with
                                 (default, as ATB: the op's own count, silently) */
    MLA_ATB_ALLOW_KVCACHE = 4 /* accept cache mode 0 */
};

/*
 * Flags for calls that cannot pass any: ORed into those of every op created from now on. The first use reads the
 * environment variable MLA_ATB, a list of the words strict, check-reuse and kvcache, separated by commas. With any other
 * word no op is created (INVALID_PARAM) until flags are set here. Process-wide, thread-safe.
 */
MLA_API void mla_atb_set_default_flags(uint32_t flags);
MLA_API uint32_t mla_atb_default_flags(void);

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

#define MLA_ATB_MAX_NDIM 8

/* A contiguous view of memory that somebody else owns. A NULL mla_atb_tensor pointer means what a null aclTensor means:
 * the tensor is not given. */
typedef struct mla_atb_tensor {
    void *data;                       /* on `device`; lengths (context_lens ...) always in host memory */
    int32_t dtype;                    /* number of aclDataType: MLA_ATB_FLOAT16, ... */
    int32_t format;                   /* number of aclFormat: MLA_ATB_FORMAT_ND, ... */
    int32_t ndim;                     /* more than 8 is refused */
    int64_t dim[MLA_ATB_MAX_NDIM];    /* elements */
    int64_t stride[MLA_ATB_MAX_NDIM]; /* elements; row-major without gaps, else refused */
    int64_t offset;                   /* of the first element, in elements; 0, else refused */
    mla_device device;
} mla_atb_tensor;

/* A contiguous tensor on the CPU. dim has ndim entries, 0 <= ndim <= 8. */
MLA_API mla_atb_tensor mla_atb_tensor_make(void *data, int32_t dtype, int32_t format, int32_t ndim, const int64_t *dim);

/* ---- an operation ------------------------------------------------------------------------------------------------ */

/* What an op is created with and keeps. Fill with mla_atb_param_init() first. */
typedef struct mla_atb_param {
    size_t struct_size;
    int32_t head_num;             /* H; decode: 8, 16, 32, 64 or 128; prefill: 1 .. 128 (any H: mla_problem) */
    float qk_scale;               /* in (0, 1]; default 1 */
    int32_t kv_head_num;          /* N; decode: 1; prefill: H, with MASK_CAUSAL a divisor of H */
    int32_t mask_type;            /* mla_atb_mask_type */
    int32_t calc_type;            /* mla_atb_calc_type */
    int32_t cache_mode;           /* mla_atb_cache_mode; prefill: 1 */
    uint32_t window_size;         /* MASK_SWA_NORM: tiles of keys before the window are skipped; > 0 */
    int32_t mask_use_status_type; /* 1: an input mask_use_status is given; CALC_SPEC_AND_RING alone; else 0 */
    uint32_t flags;               /* MLA_ATB_STRICT ... */
    mla_plan_options options;     /* backend and threads; a custom executor must outlive the op */
} mla_atb_param;

MLA_API void mla_atb_param_init(mla_atb_param *param);

typedef struct mla_atb_op mla_atb_op;

/* Creates an op, to be released with mla_atb_op_destroy(). On failure (1, 24, 27) *op is NULL. */
MLA_API int32_t mla_atb_op_create(const mla_atb_param *param, mla_atb_op **op);
MLA_API void mla_atb_op_destroy(mla_atb_op *op); /* NULL is fine */

#define MLA_ATB_MAX_IN 11
#define MLA_ATB_MAX_OUT 2

/* The tensors of a call, in the op's order:
 *     decode   q_nope, q_rope, ct_kv, k_rope, block_tables, context_lens, [mask], [q_seq_len],
 *              [qk_descale, pv_descale], [mask_use_status];                                     atten_out, [lse]
 *     prefill  q, q_rope, k, k_rope, v, q_seq_len, kv_seq_len, [mask];                          atten_out       */
typedef struct mla_atb_pack {
    int32_t n_in, n_out;
    const mla_atb_tensor *in[MLA_ATB_MAX_IN];
    const mla_atb_tensor *out[MLA_ATB_MAX_OUT];
} mla_atb_pack;

/* How many tensors an op takes. op must not be NULL. */
MLA_API int32_t mla_atb_op_n_in(const mla_atb_op *op);
MLA_API int32_t mla_atb_op_n_out(const mla_atb_op *op);

/* Is input i of the op read in host memory? 0 too for an i that the op has no input for. op must not be NULL. */
MLA_API int mla_atb_op_in_is_host(const mla_atb_op *op, int32_t i);

/* Dtype, format and dims of the outputs that belong to these inputs; addresses are left alone. Errors: 1, 5, 8, 16. */
MLA_API int32_t mla_atb_op_infer_shape(const mla_atb_op *op, const mla_atb_pack *pack,
                                       mla_atb_tensor out[MLA_ATB_MAX_OUT]);

/*
 * Checks a call and plans it. Lengths are read and kept; the addresses of all other tensors are kept, and nothing
 * behind them is read before the op is executed. Tensor structs and host arrays may be released afterwards.
 * *workspace_size is a multiple of 512 that depends on shapes alone (and on the number of threads), and never falls
 * when one of T, H, B and the width of the block table grows. With `need_addresses` device tensors without an address
 * are refused (14); otherwise they must then come with mla_atb_op_execute(). After a failure the op cannot be executed
 * until a later setup succeeds.
 */
MLA_API int32_t mla_atb_op_setup(mla_atb_op *op, const mla_atb_pack *pack, int need_addresses,
                                 uint64_t *workspace_size);

/*
 * Runs what the last setup planned; may be repeated. pack: NULL, or tensors of the same dtypes and shapes, whose
 * addresses are used instead (host tensors in it are not looked at). workspace: at least as many bytes as setup said,
 * used by this call alone, contents undefined before and after; NULL if that is 0. stream: the device's, NULL on the
 * CPU, where the call returns when the results are there. Errors: 1, 4, 14, 24; outputs are then untouched, or, where a
 * call is run in several pieces, written in part.
 */
MLA_API int32_t mla_atb_op_execute(mla_atb_op *op, const mla_atb_pack *pack, void *workspace, uint64_t workspace_size,
                                   void *stream);

/* ---- the two calls ----------------------------------------------------------------------------------------------- */

/* AtbMLAGetWorkspaceSize. Tensors that the scalars have no use for are ignored, whatever they hold. */
typedef struct mla_atb_decode_args {
    size_t struct_size;
    const mla_atb_tensor *q_nope;       /* F (cache mode 2: int8) [T][H][512]; cache mode 0 also F [T][H][576] */
    const mla_atb_tensor *q_rope;       /* F [T][H][64]; NULL with a q_nope of 576 columns */
    const mla_atb_tensor *ct_kv;        /* see mla_atb_cache_mode */
    const mla_atb_tensor *k_rope;       /* likewise; cache mode 0: NULL */
    const mla_atb_tensor *block_tables; /* int32 [B][max_block]; B at most 8192 */
    const mla_atb_tensor *context_lens; /* int32 [B], host: keys per sequence */
    const mla_atb_tensor *mask;         /* F; MASK_SPEC, MASK_FREE */
    const mla_atb_tensor *q_seq_len;    /* int32 [B], host; CALC_SPEC, CALC_SPEC_AND_RING */
    const mla_atb_tensor *qk_descale;   /* float [H]; cache mode 2 */
    const mla_atb_tensor *pv_descale;   /* float [H]; cache mode 2 */
    const mla_atb_tensor *atten_out;    /* F [T][H][512] */
    const mla_atb_tensor *lse;          /* F (cache mode 2: float) [T][H][1]; natural log; CALC_RING, SPEC_AND_RING */
    mla_atb_param param;                /* scalars; window_size and mask_use_status_type are not used */
} mla_atb_decode_args;

/* AtbMLAPreFillGetWorkspaceSize; calc_type is taken as CALC_PREFILL. */
typedef struct mla_atb_prefill_args {
    size_t struct_size;
    const mla_atb_tensor *q;          /* F [T][H * 128] or [T][H][128] */
    const mla_atb_tensor *q_rope;     /* F [T][H * 64] or [T][H][64] */
    const mla_atb_tensor *k;          /* F [B][S][N * 128], or rows packed [sum of lengths][N][128] */
    const mla_atb_tensor *k_rope;     /* as k, with 64 columns */
    const mla_atb_tensor *v;          /* as k */
    const mla_atb_tensor *q_seq_len;  /* int32 [B], host */
    const mla_atb_tensor *kv_seq_len; /* int32 [B], host */
    const mla_atb_tensor *mask;       /* F. float16: added to scores; bfloat16: 1 hides a key, 0 does not */
    const mla_atb_tensor *atten_out;  /* as q */
    mla_atb_param param;
} mla_atb_prefill_args;

/* The tensors that the scalars call for, out of a call's. Errors: 8 for more than 8 dims. */
MLA_API int32_t mla_atb_decode_gather(const mla_atb_decode_args *args, mla_atb_pack *pack);
MLA_API int32_t mla_atb_prefill_gather(const mla_atb_prefill_args *args, mla_atb_pack *pack);

/* Creates *op if it is NULL, else uses it again with the scalars that it was created with; gathers; sets up. The caller
 * owns *op, also after a failure. */
MLA_API int32_t mla_atb_decode_setup(mla_atb_op **op, const mla_atb_decode_args *args, uint64_t *workspace_size);
MLA_API int32_t mla_atb_prefill_setup(mla_atb_op **op, const mla_atb_prefill_args *args, uint64_t *workspace_size);

/* CHECK_REUSE for callers who gather by themselves: 1 if the scalars differ from the op's and the flag is set. */
MLA_API int32_t mla_atb_op_check_reuse(const mla_atb_op *op, const mla_atb_param *param);

#ifdef __cplusplus
}
#endif

#endif
