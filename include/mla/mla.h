/*
 * mla.h - the native C interface of libmla.
 *
 *     mla_problem p;
 *     mla_problem_init(&p);
 *     p.q = mla_tensor_make(q, MLA_DTYPE_BF16, 4, (int64_t[]){n_seq, 1, n_head, 576});
 *     ...
 *     if (mla_attention(&p, NULL) != MLA_STATUS_OK) puts(mla_last_error());
 *
 * or, to plan once and run many times without any allocation:
 *
 *     mla_plan_build(&p, &options, &plan);
 *     workspace = malloc(mla_plan_workspace_bytes(plan));
 *     mla_run(plan, &p, workspace, bytes, NULL);
 *
 * Threads: every function may be called from any thread; a plan is read-only after it is built and may be run by
 * several threads at once, each with its own workspace and outputs. mla_set_isa() is process-wide. The library never
 * prints, exits or aborts.
 *
 * GPUs: a problem whose tensors are on MLA_DEVICE_CUDA runs on that GPU, in its primary context (the one of the CUDA run
 * time and of frameworks). Lengths, tables and lists then live there too and are read by the kernels alone, so a plan
 * serves all their values. Work is queued on the stream and nothing waits for it: errors that show only there (a sticky
 * CUDA error) are the stream owner's to find. mla_run() may be captured into a CUDA graph, and the graph replayed after
 * lengths, tables, lists or data changed in place. Nobody checks the numbers in those tensors: keys behind bad ones are
 * invisible. With MLA_DEBUG=1 (0: off) in the environment every run first waits for them and refuses the first one that
 * is wrong, in a sentence (OUT_OF_RANGE); streams cannot be captured then.
 */
#ifndef MLA_H
#define MLA_H

#include <stdbool.h>

#include "mla_formats.h"
#include "mla_problem.h"
#include "mla_types.h"
#include "mla_version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the library in use, for instance "0.1.0". Static storage. */
MLA_API const char *mla_version(void);

/* The sentence for the last failure in the calling thread; "" if there was none. Valid until the thread's next failing
 * call. */
MLA_API const char *mla_last_error(void);

/* ---- who runs it ------------------------------------------------------------------------------------------------- */

/* Runs task(data, i) once for every i in [0, n_task), in any order and on any threads, and returns when all are
 * done. */
typedef void (*mla_task)(void *data, int64_t index);
typedef void (*mla_parallel_for)(void *context, int64_t n_task, mla_task task, void *data);

/* Threads lent by the host application instead of OpenMP. Bits never depend on how many there are. */
typedef struct mla_executor {
    mla_parallel_for parallel_for;
    void *context;
    int32_t n_worker; /* how many tasks it runs at once, >= 1 */
} mla_executor;

typedef enum mla_backend {
    MLA_BACKEND_AUTO = 0, /* the fastest one for the device of the tensors */
    MLA_BACKEND_CPU = 1,
    MLA_BACKEND_REF = 2, /* the oracle: fp64, straight from the formula, slow, host memory only */
    MLA_BACKEND_CUDA = 3 /* tensors in the memory of an NVIDIA GPU */
} mla_backend;

/* Where mla_attention() takes its workspace from, instead of from the heap or the GPU's own stream-ordered pool.
 * `allocate` returns memory of the problem's device that may be used on `stream`, or NULL; `release` may be NULL. */
typedef struct mla_allocator {
    void *(*allocate)(void *context, size_t bytes, void *stream);
    void (*release)(void *context, void *memory, void *stream);
    void *context;
} mla_allocator;

/*
 * Threads that a call takes at most when its options do not say: OpenMP's own choice, so what OMP_NUM_THREADS,
 * omp_set_num_threads() (frameworks have a call for it) or else the CPUs that the process may run on say. Where only the
 * last is left, a CPU quota of the process's control group counts too, as containers have one; it is looked up once. 1
 * inside a parallel region. Small problems take fewer: see n_worker of mla_plan_info.
 */
MLA_API int32_t mla_default_threads(void);

/* All-zero (or a NULL pointer) means the defaults. */
typedef struct mla_plan_options {
    mla_backend backend;
    int32_t n_thread;             /* OpenMP threads; 0: mla_default_threads() */
    const mla_executor *executor; /* used instead of OpenMP; copied, context must outlive the plan; NULL: OpenMP */

    /* Of mla_attention() alone, for mla_run() is told its own: a CUstream or cudaStream_t; NULL: the GPU's default stream.
     * And where the workspace comes from; NULL: libmla's own. */
    void *stream;
    const mla_allocator *allocator;

    /* On a GPU: a row's bits depend on its own keys alone, whatever else is in the batch, as they always do on the CPU.
     * Takes more workspace, and time where sequences are few. */
    bool batch_invariant;
} mla_plan_options;

/* ---- plan, workspace, run ---------------------------------------------------------------------------------------- */

typedef struct mla_plan mla_plan;

/*
 * Checks the problem and decides who computes what. The plan depends on shapes, on rules and, in host memory, on the
 * values of lengths, begins and residuals, not on any data pointer; it copies what it needs. On success *plan must be
 * released with mla_plan_free(). Errors: those of mla_problem_check(), UNSUPPORTED, OUT_OF_MEMORY; *plan is then NULL.
 */
MLA_API mla_status mla_plan_build(const mla_problem *problem, const mla_plan_options *options, mla_plan **plan);
MLA_API void mla_plan_free(mla_plan *plan); /* NULL is fine */

/* Scratch that a run needs, in bytes; may be 0. Contents are undefined before and after a run. */
MLA_API size_t mla_plan_workspace_bytes(const mla_plan *plan);

typedef struct mla_plan_info {
    const char *backend; /* "cpu", "ref", "cuda"; static storage */
    const char *isa;     /* level of the kernels, "avx2"; on a GPU the variant, "generic"; "" where there is none */
    int32_t n_worker;
    int64_t n_item; /* pieces of work */
    int64_t n_slot; /* partial results merged at the end */
    size_t workspace_bytes;
    uint64_t fingerprint;      /* of everything that the plan depends on */
    mla_arithmetic arithmetic; /* never AUTO; F32 where BF16 was asked for and is not at hand */
} mla_plan_info;
MLA_API mla_status mla_plan_describe(const mla_plan *plan, mla_plan_info *info);

/*
 * Runs a problem with a plan built for the same shapes, lengths and options. Allocates nothing and writes every output
 * element once. workspace: workspace_bytes >= mla_plan_workspace_bytes(), any alignment, used by this call alone; NULL
 * if that is 0, else memory of the problem's device. stream: a CUstream (or cudaStream_t) of that GPU, NULL its default
 * stream; NULL on the CPU. Errors: those of mla_problem_check(), STALE_PLAN, WORKSPACE_TOO_SMALL, NULL_POINTER; outputs
 * are then untouched.
 */
MLA_API mla_status mla_run(const mla_plan *plan, const mla_problem *problem, void *workspace, size_t workspace_bytes,
                           void *stream);

/* Plan, allocate, run, release, in one call. options may be NULL. A workspace from the heap, of up to 64 MiB, is kept for
 * the next such call. Errors: those of the calls above. */
MLA_API mla_status mla_attention(const mla_problem *problem, const mla_plan_options *options);

/* ---- results of a part of the keys ------------------------------------------------------------------------------- */

/*
 * Joins results of the same queries over n_part disjoint parts of the keys (ring attention, a shared prefix, a cache
 * spread over machines) into the result over all of them:
 *
 *     lse = log(sum_i exp(lse_part[i]))        o = sum_i exp(lse_part[i] - lse) * o_part[i]
 *
 *     o_part     [n_part], each f32, f16 or bf16 [...][d], 2 to 6 dims
 *     lse_part   [n_part], each f32, f16 or bf16 [...]: the dims of o_part without the last
 *     lse_base   of all lse: exp and log, or 2^x and log2
 *     lse_empty  lse of a row for which no part has a key; its o is +0
 *     o, lse     out, f32, f16 or bf16 with the dims of o_part and lse_part, positive strides; rounded once, to nearest
 *                even. lse may be NULL
 * Strides are free otherwise; n_part >= 1; dtypes need not agree with each other. A sink joins one part at most, and the
 * lse of that part counts it.
 *
 * A part whose lse is +inf or -inf, or 0 under MLA_LSE_EMPTY_ZERO (a row that really has this lse is then lost), has no
 * key for that row: its o is not read. Any other o counts, a NaN of it too. A single part that has keys comes out as it
 * was. An lse of 16 bits is wrong by up to 2^-9 of its own size (bf16; f16: 2^-12), and weights then by a factor of exp
 * of that: ask for f32 where parts are merged.
 *
 * Parts are added in the order given, in fp64, on the calling thread; nothing is allocated. In place: o may be the very
 * view of one of o_part, and lse of one of lse_part. Apart from that outputs share no memory with anything.
 * Errors: NULL_POINTER, BAD_SHAPE, BAD_DTYPE, BAD_STRIDE, BAD_VALUE, BAD_DEVICE; outputs are then untouched.
 */
MLA_API mla_status mla_merge_states(const mla_tensor *o_part, const mla_tensor *lse_part, int64_t n_part,
                                    mla_lse_base lse_base, mla_lse_empty lse_empty, const mla_tensor *o,
                                    const mla_tensor *lse);

/* ---- what this machine and build can do -------------------------------------------------------------------------- */

typedef struct mla_isa_info {
    const char *name; /* "scalar", "avx2", ...; ordered from low to high; static storage */
    bool usable;      /* this machine can run it */
    bool selected;    /* kernels of this level are in use */
} mla_isa_info;

/* Fills up to `capacity` entries with the levels compiled in and returns how many there are. */
MLA_API size_t mla_isa_list(mla_isa_info *info, size_t capacity);

/*
 * Caps the level ("scalar", "avx2"; NULL: the best usable one, or the environment variable MLA_ISA). Affects plans
 * built later. Errors: BAD_VALUE for a level that is unknown, not compiled in or not usable here. Not meant to be
 * called while other threads build plans.
 *
 * Where the processor has AMX, the first plan whose arithmetic is BF16 or BF16X2, by AUTO's choice too, asks Linux for the
 * tiles' registers, for the whole process and for good: frames of signals grow by 8 KiB, and sigaltstack() refuses stacks
 * below getauxval(AT_MINSIGSTKSZ) from then on. A cap below "amx" or other arithmetic keeps it from asking; lists of
 * levels and kernels do not ask. Where Linux refuses, such plans use the level below.
 */
MLA_API mla_status mla_set_isa(const char *name);

typedef struct mla_kernel_info {
    const char *name; /* "mla_qk_f32_avx2" */
    const char *kind; /* "load", "qk", "softmax", "pv", "merge", "store", ... */
    const char *isa;
    bool selected;
} mla_kernel_info;

/* As mla_isa_list(), for the kernels of all levels compiled in. */
MLA_API size_t mla_kernel_list(mla_kernel_info *info, size_t capacity);

typedef struct mla_gpu_info {
    char name[96];
    int32_t compute_capability; /* 90 for 9.0 */
    int32_t n_sm;               /* multiprocessors */
    size_t memory_bytes;
    char variants[96]; /* this build's ways to compute there, the fastest first: "generic"; a plan has one as its isa */
} mla_gpu_info;

/* Fills up to `capacity` entries with the GPUs that MLA_DEVICE_CUDA tensors may be on, in the order of their ids, and
 * returns how many there are. 0: mla_last_error() says why (no driver, no GPU, a build without kernels). */
MLA_API size_t mla_gpu_list(mla_gpu_info *info, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
