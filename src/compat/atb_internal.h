/*
 * atb_internal.h - what the files of the ATB door share.
 *
 *     atb_mla.c          the op: create, set up, execute, release
 *     atb_param.c        scalars, and which tensors they call for
 *     atb_check.c        tensors of a decode call, and what both calls have in common
 *     atb_check_prefill.c
 *     atb_lower.c        a decode call as jobs
 *     atb_lower_prefill.c
 */
#ifndef MLA_COMPAT_ATB_INTERNAL_H
#define MLA_COMPAT_ATB_INTERNAL_H

#include <stdbool.h>

#include "core/status.h"
#include "cuda/kernels/ascend.h"
#include "mla/atb_mla.h"

#define ATB_BLOCK MLA_ATB_BLOCK  /* tokens of a cache block, and the tile that masks are cut in: 128 */
#define ATB_NOPE 512             /* columns of a latent row */
#define ATB_ROPE 64              /* columns of a rope row */
#define ATB_PREFILL_NOPE 128     /* columns of a prefill key, rope apart, and of a value */
#define ATB_PREFILL_TEMPLATE 512 /* rows and columns of a prefill MASK_FREE mask */
#define ATB_MAX_BATCH 8192

/* Stores a sentence for mla_last_error() and returns the code. */
__attribute__((format(printf, 2, 3))) int32_t mla_atb_fail(int32_t code, const char *format, ...);

/* The code for a refusal by the core; its sentence stays. */
int32_t mla_atb_code(mla_status status);

#define ATB_TRY(call)                           \
    do {                                        \
        int32_t atb_try_code = (call);          \
        if (atb_try_code != MLA_ATB_NO_ERROR) { \
            return atb_try_code;                \
        }                                       \
    } while (0)

/* ---- tensors by their role --------------------------------------------------------------------------------------- */

typedef enum atb_slot {
    ATB_Q,
    ATB_Q_ROPE,
    ATB_KV, /* ctKV, k */
    ATB_K_ROPE,
    ATB_V,
    ATB_BLOCK_TABLES,
    ATB_Q_LEN,
    ATB_KV_LEN, /* contextLens, kvSeqLen */
    ATB_MASK,
    ATB_QK_DESCALE,
    ATB_PV_DESCALE,
    ATB_MASK_USE,
    ATB_OUT,
    ATB_LSE,
    ATB_N_TENSOR,
    /* addresses at execution time, but no tensors of the caller: */
    ATB_WORKSPACE = ATB_N_TENSOR,
    ATB_NUMBERS, /* work.numbers, or their copy on the GPU */
    ATB_N_SLOT
} atb_slot;

/* The roles that an op's scalars call for, in the op's order. */
typedef struct atb_slots {
    int32_t n_in, n_out;
    atb_slot in[MLA_ATB_MAX_IN], out[MLA_ATB_MAX_OUT];
} atb_slots;

atb_slots mla_atb_slots_of(const mla_atb_param *param);
bool mla_atb_slot_on_host(atb_slot slot);

/* What the caller calls it: "ctKV". */
const char *mla_atb_slot_name(const mla_atb_param *param, atb_slot slot);

int32_t mla_atb_check_param(const mla_atb_param *param);

/* ORs the process' default flags into *flags; fails when the environment names a flag that there is not. */
int32_t mla_atb_add_default_flags(uint32_t *flags);

static inline bool mla_atb_is_prefill(const mla_atb_param *param)
{
    return param->calc_type == MLA_ATB_CALC_PREFILL;
}

static inline bool mla_atb_wants_q_len(const mla_atb_param *param)
{
    return param->calc_type == MLA_ATB_CALC_SPEC || param->calc_type == MLA_ATB_CALC_SPEC_AND_RING;
}

static inline bool mla_atb_wants_lse(const mla_atb_param *param)
{
    return param->calc_type == MLA_ATB_CALC_RING || param->calc_type == MLA_ATB_CALC_SPEC_AND_RING;
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

/* A call whose tensors stand in their slots; sizes and lengths are filled in by the checks. */
typedef struct atb_call {
    const mla_atb_param *param;
    const mla_atb_tensor *tensor[ATB_N_TENSOR]; /* NULL: this op has no such input */
    int64_t n_token, n_head, n_seq;             /* T, H, B */
    int64_t n_used;    /* sequences that have query rows: decode with one token each may have fewer tokens than B */
    int64_t max_q;     /* largest q_b */
    int64_t max_kv;    /* largest ctx_b */
    int64_t sum_kv;    /* prefill: rows of packed keys */
    bool packed;       /* prefill: rows of keys lie packed [row][N][d]; else [B][S][N * d] */
    int64_t kv_stride; /* prefill: rows from one sequence's keys to the next one's; packed: 0, sums of lengths */
} atb_call;

static inline int64_t mla_atb_length(const atb_call *call, atb_slot slot, int64_t b)
{
    return ((const int32_t *)call->tensor[slot]->data)[b];
}

/* q_b; 1 where the call has no lengths of its own */
static inline int64_t mla_atb_n_query(const atb_call *call, int64_t b)
{
    return call->tensor[ATB_Q_LEN] != NULL ? mla_atb_length(call, ATB_Q_LEN, b) : 1;
}

/*
 * ATB's way through the keys follows from dtype and number of heads, and with it which masks have an effect:
 * A (float, H < 128) takes the mask, or none; B (float, H = 128) and D (int8, H = 128 or some q_b > 1) are causal and
 * never read it; C (int8, the rest) has one query token and needs none.
 */
typedef enum atb_path { ATB_PATH_A, ATB_PATH_B, ATB_PATH_C, ATB_PATH_D } atb_path;
atb_path mla_atb_path_of(const atb_call *call);

static inline bool mla_atb_reads_mask(const atb_call *call)
{
    return call->tensor[ATB_MASK] != NULL && mla_atb_path_of(call) == ATB_PATH_A;
}

/* Everything about tensors: presence, sizes, dtypes, dims, lengths. Fills in the call. */
int32_t mla_atb_check_decode(atb_call *call, bool need_addresses);
int32_t mla_atb_check_prefill(atb_call *call, bool need_addresses);

/* ---- steps of the checks, in the order of a call ----------------------------------------------------------------- */

int32_t mla_atb_check_present(const atb_call *call); /* 8, then 9 */
int32_t mla_atb_check_dtype(const atb_call *call, atb_slot slot, int32_t dtype);
int32_t mla_atb_check_float(const atb_call *call, atb_slot slot); /* the same F as q_rope */
int32_t mla_atb_check_format(const atb_call *call, atb_slot slot, int32_t format);
int32_t mla_atb_check_rank(const atb_call *call, atb_slot slot, int32_t rank);
int32_t mla_atb_check_dim(const atb_call *call, atb_slot slot, int32_t axis, int64_t extent, const char *rule);
int32_t mla_atb_check_addresses(const atb_call *call, bool need_addresses); /* strides 8, host 1, device 14 */

/* ---- jobs: what is run ------------------------------------------------------------------------------------------- */

/* Where a tensor of a problem lies: its address is known when the op is executed. */
typedef struct atb_binding {
    size_t field; /* offset of the mla_tensor in mla_problem */
    atb_slot slot;
    int64_t byte_offset;
} atb_binding;

enum { ATB_MAX_BINDING = 16 };

typedef struct atb_job {
    mla_problem problem;
    atb_binding binding[ATB_MAX_BINDING];
    int32_t n_binding;
    mla_plan *plan;
} atb_job;

/* Jobs of an op, run one after the other, and what they share. */
typedef struct atb_work {
    int64_t n_job, capacity;
    atb_job *job;
    int32_t *numbers; /* begins and lengths that the problems point to */
    int64_t n_number;
    /* the workspace: tensors that `derive` makes of the caller's, then, on a GPU, the numbers, then the plans' part */
    int64_t derived_bytes, number_bytes;
    mla_status (*derive)(const mla_atb_op *op, void *const address[ATB_N_SLOT], void *stream);
} atb_work;

struct mla_atb_op {
    mla_atb_param param;
    bool ready;                          /* the last setup succeeded */
    mla_device device;                   /* of all tensors but those in host memory */
    mla_atb_tensor tensor[ATB_N_TENSOR]; /* as they were at setup; ndim 0: not there */
    int64_t n_seq, n_used;
    atb_work work;
    uint64_t workspace_size; /* what setup said */
    void *scratch;           /* of the op, on its device, where the plans need more than the workspace holds */
    size_t scratch_bytes;
};

int32_t mla_atb_lower_decode(mla_atb_op *op, const atb_call *call);
int32_t mla_atb_lower_prefill(mla_atb_op *op, const atb_call *call);

/* A new job at the end, with an initialised problem; NULL when memory is out. */
atb_job *mla_atb_job_add(atb_work *work);

/* Sets a field of the job's problem to a view at byte_offset behind the address of a slot. `tensor` is inside
 * job->problem. */
void mla_atb_bind(atb_job *job, mla_tensor *tensor, atb_slot slot, int64_t byte_offset, mla_tensor view);

/* A view without address, row-major, of a tensor of the call: under the caller's name and on its device, in other dims. */
mla_tensor mla_atb_slot_view(const atb_call *call, atb_slot slot, int32_t ndim, const int64_t *dim);

/* Room for n begins and lengths, all 0; NULL when memory is out. */
int32_t *mla_atb_numbers_new(atb_work *work, int64_t n);

/* Sets a field of the job's problem to i32 [n], from `first` in the op's numbers on. */
void mla_atb_bind_numbers(const mla_atb_op *op, atb_job *job, mla_tensor *tensor, const int32_t *first,
                          const char *name, int64_t n);

mla_dtype mla_atb_dtype_of(int32_t dtype);

#endif
