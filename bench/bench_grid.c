/*
 * bench_grid.c - the shapes that are measured: decode steps of the models that use MLA, as serving systems issue them.
 */
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>

/* A decode step over pages of 64; several query tokens see the keys causally. */
#define STEP(requests, tokens, heads, keys, d, type, is_ragged) \
    {.n_seq = (requests),                                       \
     .n_q = (tokens),                                           \
     .n_head = (heads),                                         \
     .d_k = (d),                                                \
     .d_v = 512,                                                \
     .page_size = 64,                                           \
     .n_key = (keys),                                           \
     .ragged = (is_ragged),                                     \
     .causal = (tokens) > 1,                                    \
     .dtype = (type)}
#define ONE(heads, keys, type) STEP(1, 1, heads, keys, 576, type, false)
#define BATCH(requests, heads, keys) STEP(requests, 1, heads, keys, 576, MLA_DTYPE_BF16, true)

/* Plain keys to compare with, in blocks of 128. */
#define PLAIN(requests, heads, keys, d) \
    {.n_seq = (requests),               \
     .n_q = 1,                          \
     .n_head = (heads),                 \
     .d_k = (d),                        \
     .d_v = 512,                        \
     .page_size = 128,                  \
     .n_key = (keys),                   \
     .dtype = MLA_DTYPE_BF16}

#define BF16 MLA_DTYPE_BF16
#define F16 MLA_DTYPE_F16

const bench_case bench_grid[] = {
    /* all heads on one machine: bound by arithmetic */
    {.shape = ONE(128, 4096, BF16), .compare = true, .quick = true},
    {.shape = ONE(128, 4096, F16), .compare = true},
    {.shape = ONE(128, 16384, BF16), .compare = true},
    {.shape = ONE(128, 16384, F16), .compare = true},
    /* an eighth of the heads: arithmetic, and rows that come from memory */
    {.shape = ONE(16, 4096, BF16), .from_memory = true, .compare = true},
    {.shape = ONE(16, 4096, F16), .from_memory = true, .compare = true},
    {.shape = ONE(16, 16384, BF16), .from_memory = true, .compare = true, .quick = true},
    {.shape = ONE(16, 16384, F16), .from_memory = true, .compare = true},
    /* one head: bound by reading; no product of matrices, so no rival */
    {.shape = ONE(1, 16384, BF16), .from_memory = true, .quick = true},
    {.shape = ONE(1, 16384, F16), .from_memory = true},
    /* a few requests of one length, and one long one: enough rows for many cores */
    {.shape = STEP(16, 1, 128, 4096, 576, BF16, false), .compare = true, .most_threads_only = true},
    {.shape = ONE(128, 65536, BF16), .compare = true, .most_threads_only = true},
    {.shape = STEP(4, 1, 128, 4096, 576, BF16, false), .compare = true, .most_threads_only = true},
    /* batches of requests of different lengths */
    {.shape = BATCH(8, 128, 4096), .compare = true, .most_threads_only = true},
    {.shape = BATCH(32, 16, 4096), .compare = true, .most_threads_only = true},
    {.shape = BATCH(32, 128, 1024), .compare = true, .most_threads_only = true},
    /* two query tokens: the second one was guessed (multi-token prediction) */
    {.shape = STEP(1, 2, 128, 4096, 576, BF16, false), .compare = true, .most_threads_only = true},
    /* rows whose values are the whole row */
    {.shape = STEP(1, 1, 128, 4096, 512, BF16, false), .compare = true, .most_threads_only = true},

    /* what Ascend's formats cost */
    {.kind = BENCH_FORMAT, .ascend = ASCEND_CSA, .shape = PLAIN(32, 64, 640, 512), .most_threads_only = true},
    {.kind = BENCH_FORMAT,
     .ascend = ASCEND_ATB_ROPE_APART,
     .shape = PLAIN(8, 128, 4096, 576),
     .most_threads_only = true},
    {.kind = BENCH_FORMAT, .ascend = ASCEND_ATB_NZ, .shape = PLAIN(8, 128, 4096, 576), .most_threads_only = true},
    {.kind = BENCH_FORMAT,
     .ascend = ASCEND_ATB_INT8_NZ_TILE1,
     .shape = PLAIN(8, 128, 4096, 576),
     .most_threads_only = true},
    {.kind = BENCH_FORMAT,
     .ascend = ASCEND_ATB_INT8_NZ_TILE4,
     .shape = PLAIN(8, 128, 4096, 576),
     .most_threads_only = true},

    {.kind = BENCH_SCALING, .ascend = ASCEND_HCA, .shape = PLAIN(1, 64, 8320, 512)},
    {.kind = BENCH_SCALING, .shape = ONE(128, 65536, BF16), .quick = true},
    {.kind = BENCH_SCALING, .shape = ONE(16, 65536, BF16)},
    {.kind = BENCH_SCALING, .shape = ONE(1, 65536, BF16), .from_memory = true},

    /* too little work for many threads: more of them must not cost anything */
    {.kind = BENCH_SCALING, .shape = ONE(1, 64, BF16)},
    {.kind = BENCH_SCALING, .shape = ONE(16, 256, BF16)},
    {.kind = BENCH_SCALING, .shape = ONE(128, 512, BF16)},

    {.kind = BENCH_EXECUTOR, .shape = ONE(128, 512, BF16)},
    {.kind = BENCH_EXECUTOR, .shape = ONE(16, 4096, BF16)},
    {.kind = BENCH_EXECUTOR, .shape = ONE(128, 4096, BF16)},

    {.kind = BENCH_GROWTH, .shape = ONE(128, 16384, BF16), .quick = true},
    {.kind = BENCH_GROWTH, .shape = ONE(128, 65536, BF16), .quick = true},
    {.kind = BENCH_GROWTH, .shape = ONE(128, 262144, BF16)},
    {.kind = BENCH_GROWTH, .shape = ONE(128, 524288, BF16)},

    /* serving on a GPU: many requests; few heads, as with heads shared out over GPUs; one long request; a call with next to
     * nothing to do, whose time is what any call takes at least */
    {.kind = BENCH_GPU, .shape = BATCH(128, 128, 4096), .quick = true},
    {.kind = BENCH_GPU, .shape = BATCH(32, 128, 16384)},
    {.kind = BENCH_GPU, .shape = STEP(128, 2, 128, 4096, 576, BF16, true)},
    {.kind = BENCH_GPU, .shape = BATCH(128, 64, 4096)},
    {.kind = BENCH_GPU, .shape = BATCH(128, 32, 4096)},
    {.kind = BENCH_GPU, .shape = BATCH(128, 16, 4096), .quick = true},
    {.kind = BENCH_GPU, .shape = STEP(128, 1, 16, 4096, 576, F16, true)},
    {.kind = BENCH_GPU, .shape = ONE(128, 131072, BF16)},
    {.kind = BENCH_GPU, .shape = ONE(16, 131072, BF16), .quick = true},
    {.kind = BENCH_GPU, .shape = ONE(128, 4096, BF16)},
    {.kind = BENCH_GPU, .shape = ONE(16, 64, BF16), .quick = true},
};

const int32_t bench_grid_size = sizeof bench_grid / sizeof bench_grid[0];

const char *bench_kind_name(bench_kind kind)
{
    static const char *const names[] = {"speed", "format", "scaling", "executor", "growth", "gpu"};
    return names[kind];
}

void bench_case_name(const bench_case *c, char *name, size_t size)
{
    const paged_shape *s = &c->shape;
    char tokens[24] = "";
    if (s->n_q > 1) {
        snprintf(tokens, sizeof tokens, " q%" PRId64, s->n_q);
    }
    bool ascend = c->ascend != ASCEND_NONE;
    snprintf(name, size, "%s%sb%" PRId64 " h%" PRId64 "%s s%s%" PRId64 " %" PRId64 "/%" PRId64 " %s%s",
             ascend_kind_name(c->ascend), ascend ? " " : "", s->n_seq, s->n_head, tokens, s->ragged ? "~" : "",
             s->n_key, s->d_k, s->d_v, mla_dtype_name(ascend ? ascend_kind_dtype(c->ascend) : s->dtype),
             c->from_memory ? " dram" : "");
}
