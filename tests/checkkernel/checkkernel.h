/*
 * checkkernel.h - what the checks share.
 *
 * checkkernel runs the library, the subject, on inputs drawn to hurt, in memory that faults when it is misused, and
 * holds every result against the fp64 oracle with an error bound that is computed, not chosen. Each test runs in a
 * process of its own; the first failure ends it.
 *
 *     checkkernel.c      main: options, one process per test, verdicts
 *     registry.c         which tests there are
 *     buffers.c          guarded memory
 *     inputs.c           random numbers and value distributions
 *     make_problem.c     from a ck_config to a filled-in mla_problem
 *     compare.c          verdicts against the oracle; compare_rounded.c where probabilities are rounded, compare_fixed.c
 *                        what fixed point may add
 *     subject.c          the library, as the thing under test; subject_cuda.c on a GPU
 *     broken.c           an attention of our own with bugs to switch on: the self-test
 *     check_*.c          the tests
 */
#ifndef CHECKKERNEL_H
#define CHECKKERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/shape.h"
#include "mla/mla.h"

/* ---- verdicts ---------------------------------------------------------------------------------------------------- */

/* Ends the running test as failed / as skipped, with one sentence. */
__attribute__((format(printf, 1, 2), noreturn)) void ck_fail(const char *format, ...);
__attribute__((format(printf, 1, 2), noreturn)) void ck_skip(const char *format, ...);

/* Words put before the sentence of a failure, to say which of many cases failed. "" for none. */
__attribute__((format(printf, 1, 2))) void ck_context(const char *format, ...);

/* Fails unless the condition holds. */
#define CK_REQUIRE(condition)                                               \
    do {                                                                    \
        if (!(condition)) {                                                 \
            ck_fail("%s:%d: not true: %s", __FILE__, __LINE__, #condition); \
        }                                                                   \
    } while (0)

/* ---- the subject ------------------------------------------------------------------------------------------------- */

/* How to run a problem. All-zero: one thread, plan and workspace made for the occasion. */
typedef struct ck_run {
    int32_t n_thread;             /* 0: 1 */
    const mla_executor *executor; /* instead of OpenMP */
} ck_run;

typedef struct ck_subject {
    const char *name; /* "cpu/avx2" */
    mla_backend backend;
    const char *isa;           /* for mla_set_isa(), NULL: none to set */
    mla_arithmetic arithmetic; /* of problems that leave it open */
    bool fixed_only;           /* kernels as those of the level below, but for fixed point */
    bool broken;               /* our own attention instead of the library */
    uint32_t bug;              /* one of ck_bug, with broken */
} ck_subject;

extern const ck_subject *ck_subject_now;
extern uint64_t ck_seed;
extern double ck_seconds; /* for tests that run as long as they are told */
double ck_clock(void);    /* seconds since some moment */

/* Runs the subject; fails the test when the library refuses. */
void ck_execute(const mla_problem *problem, const ck_run *run);
/* The same, but hands the status back. */
mla_status ck_try_execute(const mla_problem *problem, const ck_run *run);
/* What the subject computes the problem in, by its plan: not AUTO. */
mla_arithmetic ck_arithmetic(const mla_problem *problem);

/* ---- guarded memory: buffers.c ----------------------------------------------------------------------------------- */

/* Memory of exactly `bytes` bytes between two inaccessible pages, ending right at the second one, so that any read or
 * write behind it faults. Filled with CK_UNTOUCHED. Lives until ck_release(). */
void *ck_buffer(const char *name, size_t bytes);
/* Address space for `bytes` bytes of zeros that costs memory only where it is written. */
void *ck_sparse(const char *name, size_t bytes);
/* From here on writing to it faults. */
void ck_read_only(const void *buffer);
/* ... until it is made writable again. */
void ck_writable(const void *buffer);
/* Frees everything made since the mark. */
size_t ck_mark(void);
void ck_release(size_t mark);
/* Which buffer an address belongs to, in words; NULL when it is none of ours. */
const char *ck_explain_address(const void *address);

/* What memory holds before anybody writes it: a NaN in f32, f16 and bf16. */
#define CK_UNTOUCHED 0xffa5ffa5u

/* How the dims of a tensor lie in memory. */
typedef enum ck_layout {
    CK_DENSE,  /* contiguous */
    CK_PADDED, /* gaps of odd sizes between rows of every dim but the innermost */
    CK_SPACED  /* gaps of eight times as much, so that 16-bit rows stay at multiples of 16 bytes */
} ck_layout;

/* A tensor in a buffer of its own that ends with its last element. */
mla_tensor ck_tensor(const char *name, mla_dtype dtype, int32_t ndim, const int64_t *dim, ck_layout layout);
/* Fails if an element between the rows of an output was written; the tensor is one made by ck_tensor(). */
void ck_require_gaps_untouched(const mla_tensor *t);
/* Fills the whole memory of such a tensor with CK_UNTOUCHED. */
void ck_reset(const mla_tensor *t);
bool ck_is_untouched(const void *data, mla_dtype dtype, int64_t index);
int64_t ck_offset(const mla_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);

/* ---- random numbers: inputs.c ------------------------------------------------------------------------------------ */

typedef struct ck_random {
    uint64_t state;
} ck_random;

uint64_t ck_hash(uint64_t a, uint64_t b);
uint64_t ck_next(ck_random *r);
int64_t ck_below(ck_random *r, int64_t n);                   /* 0 .. n - 1 */
int64_t ck_between(ck_random *r, int64_t low, int64_t high); /* both included */
bool ck_chance(ck_random *r, double probability);
double ck_uniform(ck_random *r); /* [0, 1) */
double ck_normal(ck_random *r);

/* Value distributions. */
typedef enum ck_inputs {
    CK_NORMAL,       /* N(0, 1) */
    CK_UNIFORM,      /* [-1, 1] */
    CK_WIDE,         /* exponents from 2^-12 to 2^3 */
    CK_TINY,         /* about 1e-6 */
    CK_LARGE_Q,      /* q ~ N(0, 100^2), keys N(0, 1) */
    CK_HUGE_LOGITS,  /* scores of about +-1e4 */
    CK_ONE_DOMINANT, /* one key outweighs all others together */
    CK_ALL_EQUAL,    /* every key row the same */
    CK_POWERS,       /* +- powers of two: many sums are exact, ties in rounding are common */
    CK_CANCELLING,   /* terms of a score cancel almost completely */
    CK_DENORMAL,     /* subnormal numbers of the storage format */
    CK_RISING,       /* scores grow from key to key, so that the running maximum changes all the time */
    CK_CODES_Q,      /* q: any finite HiFloat8 code; keys: small ones */
    CK_CODES_K,      /* the other way round */
    CK_OUTLIERS,     /* keys: the last ninth of the columns 8 times as large, three of the others 16 times */
    CK_FAR_OUTLIERS, /* the same by 30 and 60 */
    CK_INPUTS_COUNT
} ck_inputs;

const char *ck_inputs_name(ck_inputs inputs);
/* Are rounding errors free to line up, so that only worst-case bounds hold? */
bool ck_inputs_structured(ck_inputs inputs);
/* Factor on 1 / sqrt(d_k) that the distribution asks for. */
double ck_inputs_scale(ck_inputs inputs);
/* n columns of one query row / of row `position` of a sequence's `length` keys, n_all columns in all. */
void ck_query_row(ck_inputs inputs, uint64_t seed, mla_dtype dtype, int64_t n, double *row);
void ck_key_row(ck_inputs inputs, uint64_t seed, mla_dtype dtype, int64_t position, int64_t length, int64_t n,
                double *row);

/* ---- problems: make_problem.c ------------------------------------------------------------------------------------ */

#define CK_MAX_SEQ 24

typedef enum ck_list { CK_NO_LIST, CK_LOGICAL, CK_PHYSICAL } ck_list;
typedef enum ck_mask { CK_NO_MASK, CK_MASK_RANDOM, CK_MASK_HOLES, CK_MASK_BLANK_ROWS, CK_MASK_SHARED } ck_mask;
typedef enum ck_per { CK_ABSENT, CK_PER_SEQUENCE, CK_PER_TOKEN } ck_per;
typedef enum ck_sink { CK_NO_SINK, CK_SINK_RANDOM, CK_SINK_MINUS_INF, CK_SINK_MIXED, CK_SINK_LARGE } ck_sink;
typedef enum ck_poison { CK_POISON_NAN, CK_POISON_ZERO, CK_POISON_INF } ck_poison;

typedef struct ck_segment {
    mla_dtype dtype;
    mla_dtype rope_dtype;      /* NONE: dtype, or bf16 where that has 8 bits */
    int64_t piece, rope_piece; /* columns of a piece in layout NZ; 0: layout ROW */
    mla_addressing addressing;
    int64_t page_size;
    int64_t spare_pages;                  /* columns of the page table that no sequence uses */
    int64_t n_length, length[CK_MAX_SEQ]; /* sequence with id x has length[x % n_length] keys */
    bool no_length;                       /* leave out the length tensor where that is allowed */
    mla_visible visible;                  /* residual is made here, from has_residual */
    bool has_residual;
    ck_list list;
    mla_list_rule list_rule;
    int64_t n_entry;
    ck_per list_length;
    ck_mask mask;
    mla_dtype mask_dtype;
    bool v_apart;
    float descale; /* 0: absent */
} ck_segment;

/* Everything a test may say about a problem. What it leaves 0 is the plainest choice. */
typedef struct ck_config {
    uint64_t seed;
    ck_inputs inputs;
    int64_t n_seq;
    int64_t id[CK_MAX_SEQ]; /* who sequence s is; data follow the id, not the place. has_id: in use */
    bool has_id;
    int64_t n_q;                        /* batched q: tokens per sequence; 0: packed q */
    int64_t n_slots, slots[CK_MAX_SEQ]; /* packed q: tokens of sequence id x; n_slots 0: no q_begin, one token each */
    int64_t n_used, used[CK_MAX_SEQ];   /* q_length; n_used 0: absent */
    int64_t lead_tokens, tail_tokens;   /* packed q: rows of q before and behind all sequences */
    mla_dtype q_dtype, o_dtype;
    mla_dtype q_rope_dtype; /* NONE: q_dtype, or bf16 where that has 8 bits */
    mla_dtype lse_dtype;    /* NONE: f32 */
    int64_t n_head, n_kv_head;
    int64_t d_nope, d_rope; /* d_rope > 0: rope apart in q and in every segment */
    int64_t d_v;
    int32_t n_segment;
    ck_segment segment[MLA_MAX_SEGMENT];
    float scale;     /* 0: what the inputs ask for */
    float q_descale; /* 0: absent */
    bool qk_descale, pv_descale;
    ck_sink sink;
    bool want_lse, want_max, lse_transposed;
    mla_lse_base lse_base;
    mla_lse_empty lse_empty;
    bool lse_with_sink;
    mla_p_rounding p_rounding;
    int32_t p_tile;
    mla_arithmetic arithmetic; /* AUTO: the subject's */
    ck_layout layout;          /* of q, k, v, lists, masks and outputs */
    ck_poison poison;          /* what unreachable memory holds */
    bool poison_masked;        /* also keys that nobody sees because the mask is -inf */
    uint64_t layout_seed;      /* page order and other things that must not matter */
} ck_config;

/* A plain decode problem to start from: bf16, one token, paged by 64, every output wanted. */
ck_config ck_config_plain(int64_t n_seq, int64_t n_q, int64_t n_head, int64_t d_k, int64_t d_v, int64_t length);
/* A random one, of about `work` (token, head, key) triples at most. */
ck_config ck_config_random(uint64_t seed, int64_t work);
/* The same with any storage, layout and rounding of probabilities. */
ck_config ck_config_random_format(uint64_t seed, int64_t work);
void ck_describe(const ck_config *config, char *text, size_t capacity);

/* Builds the problem; all memory comes from ck_buffer(). Nothing that is seen holds a NaN. In i8 tensors numbers stand
 * 64 times as large, and the scale of the scores takes that back. */
void ck_make(const ck_config *config, mla_problem *problem);
/* Fills the outputs with CK_UNTOUCHED again. */
void ck_reset_outputs(const mla_problem *problem);
/* Gives a copy of a problem fresh outputs of its own. */
mla_problem ck_with_new_outputs(const mla_problem *problem, ck_layout layout);

/* ---- verdicts against the oracle: compare.c ---------------------------------------------------------------------- */

/* Holds the outputs of a problem that was run against the oracle: at most about `work` (token, head, key) triples,
 * first and last rows always; all other rows must at least be written and hold no NaN. Fails the test at the first
 * element outside its bound. structured: see ck_inputs_structured(). */
void ck_compare(const mla_problem *problem, bool structured, int64_t work);
/* Same values, bit for bit, in the outputs of two problems of the same shape. */
void ck_same_bits(const mla_problem *a, const mla_problem *b, const char *what);
/* Worst error / bound over everything compared so far in this test, f32 outputs only. */
extern double ck_worst_ratio;
/* Elements judged so far, and those whose bound was wider than a hundredth of sum p |v|, so that it says little. */
extern int64_t ck_n_judged, ck_n_loose;
/* Kernels with matrix units may round a probability before it multiplies a value: by this part of its size, or, where the
 * format's smallest numbers lie, by this much of the row's largest probability. 0 where they do not. */
extern double ck_p_unit, ck_p_least;

/* make, run, compare, check that nothing else was written, release. */
void ck_check_config(const ck_config *config);
/* The same for what the subject may answer with UNSUPPORTED: false then, with its sentence in mla_last_error(). */
bool ck_try_config(const ck_config *config);
/* ... and the whole test is skipped, with that sentence. */
void ck_check_config_if_offered(const ck_config *config);

/* Does the subject have fixed point at all? */
bool ck_fixed_level(void);

#define CK_WORK 300000 /* triples per problem that the oracle recomputes: a second at most */

/* ---- tests: registry.c ------------------------------------------------------------------------------------------- */

typedef struct ck_test {
    const char *name; /* "attention/pages" */
    void (*run)(void);
    bool once;       /* not repeated for every ISA level */
    const char *isa; /* only for this level; NULL: for all */
    bool library;    /* about the library itself, its plans or kernels: our own attention cannot stand in for it */
    bool host;       /* about host memory, or about what only the CPU backend promises: not for GPUs */
    bool cuda;       /* about GPUs alone */
} ck_test;

extern const ck_test ck_attention_tests[], ck_relation_tests[], ck_case_tests[], ck_plan_tests[], ck_alloc_tests[],
    ck_format_tests[], ck_rounding_tests[], ck_rounded_relation_tests[], ck_fixed_tests[], ck_cuda_tests[],
    ck_cuda_dense_tests[];

/* One test per kernel that the library lists; NULL behind the last. */
const ck_test *ck_kernel_test_at(size_t index);

/* The test that runs. */
extern const ck_test *ck_test_now;

/* All tests, in order; NULL behind the last. */
const ck_test *ck_test_at(size_t index);

/* ---- the self-test: broken.c ------------------------------------------------------------------------------------- */

/* Attention in fp32 with bug number `bug` planted, 0: none. */
mla_status ck_broken_attention(const mla_problem *problem, uint32_t bug, int32_t n_thread);

typedef struct ck_bug_info {
    const char *name;
    const char *caught_by; /* the test that must fail */
} ck_bug_info;
/* Bug 1, 2, ...; NULL behind the last. */
const ck_bug_info *ck_bug_at(uint32_t bug);

#endif
