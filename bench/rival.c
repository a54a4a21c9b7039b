/*
 * rival.c - see rival.h.
 */
#include "rival.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "machine.h"
#include "rival_bf16.h"

#define MAX_BLOCK 512
#define PAGE 4096 /* every thread's memory begins on a page of its own */

typedef void (*cblas_sgemm_function)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                                     const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef int (*dnnl_sgemm_function)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                                   const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                                   int64_t ldc);

/* What one thread found out about one request: rows are [n_q][n_head]. */
typedef struct partial {
    int64_t seq;
    float *o; /* [row][d_v], not yet divided by l */
    float *m, *l;
} partial;

typedef struct share {
    float *keys;   /* [block][d_k]; of bf16 the same rows, copied side by side */
    float *scores; /* [row][MAX_BLOCK] */
    float *q;      /* [row][d_k], times scale and log2(e); bf16: probabilities [row][MAX_BLOCK] */
    rival_bf16_product *qk, *pv;
    partial *part; /* one per request that the thread touches */
    int64_t n_part;
} share;

struct rival {
    const char *name;
    char detail[96];
    cblas_sgemm_function cblas_sgemm;
    dnnl_sgemm_function dnnl_sgemm;
    rival_bf16 *bf16;                 /* NULL: fp32 */
    bool primitive;                   /* of bf16: products made for their size */
    void (*omp_set_num_threads)(int); /* NULL: no OpenMP to tell */
    int (*omp_get_max_threads)(void);
    int64_t block;
    int32_t n_share;
    share *shares;
    void *memory;
};

#if defined(__x86_64__)

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void *open_library(const char *const *names, size_t n)
{
    void *handle = NULL;
    for (size_t i = 0; i < n && handle == NULL; i++) {
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    return handle;
}

/* dlsym() gives a data pointer; C wants it copied into a function pointer. */
static bool find(void *handle, const char *name, void *function)
{
    void *symbol = dlsym(handle, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool open_openblas(rival *r, const char *isa, char *why, size_t why_size)
{
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    unsetenv("OPENBLAS_L2_SIZE"); /* it knows better than a setting left over from elsewhere */
    if (isa == NULL) {
        unsetenv("OPENBLAS_CORETYPE");
    } else {
        setenv("OPENBLAS_CORETYPE",
               strncmp(isa, "avx512", 6) == 0 || strncmp(isa, "amx", 3) == 0 ? "SkylakeX" : "Haswell", 1);
    }
    void *handle = open_library(names, sizeof names / sizeof names[0]);
    void (*set_threads)(int);
    char *(*core_name)(void);
    char *(*config)(void);
    if (handle == NULL || !find(handle, "cblas_sgemm", &r->cblas_sgemm)) {
        snprintf(why, why_size, "OpenBLAS is not installed (Debian: libopenblas0-pthread)");
        return false;
    }
    if (find(handle, "openblas_set_num_threads", &set_threads)) {
        set_threads(1);
    }
    const char *version = find(handle, "openblas_get_config", &config) ? config() : "";
    version += strncmp(version, "OpenBLAS ", 9) == 0 ? 9 : 0;
    snprintf(r->detail, sizeof r->detail, "%.*s, %s kernels", (int)strcspn(version, " "), version,
             find(handle, "openblas_get_corename", &core_name) ? core_name() : "unknown");
    return true;
}

static bool open_onednn(rival *r, const char *isa, bool bf16, char *why, size_t why_size)
{
    static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"};
    if (isa == NULL) {
        unsetenv("ONEDNN_MAX_CPU_ISA");
        unsetenv("DNNL_MAX_CPU_ISA");
    } else {
        const char *level = strcmp(isa, "amx") == 0          ? "AVX512_CORE_AMX"
                            : strcmp(isa, "avx512bf16") == 0 ? "AVX512_CORE_BF16"
                            : strcmp(isa, "avx512") == 0     ? "AVX512_CORE"
                                                             : "AVX2";
        setenv("ONEDNN_MAX_CPU_ISA", level, 1);
        setenv("DNNL_MAX_CPU_ISA", level, 1);
    }
    void *handle = open_library(names, sizeof names / sizeof names[0]);
    if (handle == NULL || !find(handle, "dnnl_sgemm", &r->dnnl_sgemm)) {
        snprintf(why, why_size, "oneDNN is not installed (Debian: libdnnl2 or libdnnl3)");
        return false;
    }
    r->bf16 = bf16 ? rival_bf16_open(handle) : NULL;
    if (bf16 && r->bf16 == NULL) {
        snprintf(why, why_size, "this oneDNN has no products of bf16");
        return false;
    }
    /* oneDNN asks OpenMP how many threads a product gets; each of our threads says one */
    if (!find(handle, "omp_get_max_threads", &r->omp_get_max_threads) ||
        !find(handle, "omp_set_num_threads", &r->omp_set_num_threads)) {
        r->omp_set_num_threads = NULL;
    }
    typedef struct dnnl_version {
        int major, minor, patch;
    } dnnl_version;
    const dnnl_version *(*version)(void);
    int (*effective_isa)(void);
    int used = 0;
    if (find(handle, "dnnl_version", &version)) {
        const dnnl_version *v = version();
        used = snprintf(r->detail, sizeof r->detail, "%d.%d.%d, ", v->major, v->minor, v->patch);
    }
    int level = find(handle, "dnnl_get_effective_cpu_isa", &effective_isa) ? effective_isa() : 0;
    const char *name = bf16 && level & 0x200 ? "AMX"
                       : level & 0x20        ? "AVX-512"
                       : level & 0x4         ? "AVX2"
                       : level & 0x2         ? "AVX"
                                             : "unknown";
    snprintf(r->detail + used, sizeof r->detail - (size_t)used, "%s kernels", name);
    return true;
}

rival *rival_open(rival_blas blas, const char *isa, char *why, size_t why_size)
{
    if (!machine_get()->avx2) {
        snprintf(why, why_size, "the code around the BLAS needs AVX2, which this CPU has not");
        return NULL;
    }
    rival *r = calloc(1, sizeof *r);
    if (r == NULL) {
        snprintf(why, why_size, "not enough memory");
        return NULL;
    }
    static const char *const names[] = {"OpenBLAS", "oneDNN", "oneDNN bf16"};
    r->name = names[blas];
    bool good = blas == RIVAL_OPENBLAS ? open_openblas(r, isa, why, why_size)
                                       : open_onednn(r, isa, blas == RIVAL_ONEDNN_BF16, why, why_size);
    if (!good) {
        free(r);
        return NULL;
    }
    return r;
}

#else

rival *rival_open(rival_blas blas, const char *isa, char *why, size_t why_size)
{
    (void)blas;
    (void)isa;
    snprintf(why, why_size, "the code around the BLAS is written for x86-64");
    return NULL;
}

#endif

static void drop_products(rival *r)
{
    for (int32_t i = 0; r->bf16 != NULL && r->memory != NULL && i < r->n_share; i++) {
        rival_bf16_drop(r->shares[i].qk);
        rival_bf16_drop(r->shares[i].pv);
        r->shares[i].qk = r->shares[i].pv = NULL;
    }
}

void rival_close(rival *r)
{
    if (r != NULL) {
        drop_products(r);
        rival_bf16_close(r->bf16);
        free(r->memory);
        free(r);
    }
}

const char *rival_name(const rival *r)
{
    return r->name;
}

bool rival_rounds(const rival *r)
{
    return r->bf16 != NULL;
}

const char *rival_detail(const rival *r)
{
    return r->detail;
}

int64_t rival_block(const rival *r)
{
    return r->block;
}

#if defined(__x86_64__)

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* c [m][n] = a [m][k] * b, or += with beta 1; b is [n][k] when transposed, else [k][n]. */
static void sgemm(const rival *r, bool transposed, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                  const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
    if (r->cblas_sgemm != NULL) {
        r->cblas_sgemm(ROW_MAJOR, NO_TRANS, transposed ? TRANS : NO_TRANS, (int)m, (int)n, (int)k, 1, a, (int)lda, b,
                       (int)ldb, beta, c, (int)ldc);
    } else {
        r->dnnl_sgemm('N', transposed ? 'T' : 'N', m, n, k, 1, a, lda, b, ldb, beta, c, ldc);
    }
}

typedef struct run_job {
    rival *r;
    const rival_task *task;
    int64_t total; /* keys of all requests */
} run_job;

static const uint16_t *key_row(const rival_task *t, int64_t seq, int64_t position)
{
    int64_t page = t->page_table[seq * t->max_page + position / t->page_size];
    return t->cache + (page * t->page_size + position % t->page_size) * t->d_k;
}

/* Scores of rows that a query token does not see yet. */
static void hide(const rival_task *t, int64_t seq, int64_t row, int64_t at, int64_t n, float *score)
{
    int64_t limit = t->causal ? t->length[seq] - t->n_q + row / t->n_head + 1 - at : n;
    for (int64_t j = limit < 0 ? 0 : limit; j < n; j++) {
        score[j] = -INFINITY;
    }
}

static void attend_bf16(const rival *r, const rival_task *t, const share *s, int64_t begin, int64_t end, partial *p)
{
    int64_t n_row = t->n_q * t->n_head;
    uint16_t *keys = (uint16_t *)s->keys, *weight = (uint16_t *)s->q;
    for (int64_t at = begin; at < end; at += r->block) {
        int64_t n = end - at < r->block ? end - at : r->block;
        for (int64_t j = 0; j < n; j++) {
            memcpy(keys + j * t->d_k, key_row(t, p->seq, at + j), (size_t)t->d_k * sizeof *keys);
        }
        uint16_t *q =
            (uint16_t *)(uintptr_t)t->q + p->seq * n_row * t->d_k; /* oneDNN does not say that it reads only */
        rival_bf16_multiply(s->qk, n, t->d_k, q, keys, s->scores);
        for (int64_t row = 0; row < n_row; row++) {
            float *score = s->scores + row * MAX_BLOCK;
            hide(t, p->seq, row, at, n, score);
            rival_softmax_avx512(score, n, &p->m[row], &p->l[row], p->o + row * t->d_v, t->d_v,
                                 weight + row * MAX_BLOCK);
        }
        rival_bf16_multiply(s->pv, t->d_v, n, weight, keys, p->o);
    }
}

/* Keys [begin, end) of one request into one partial result. */
static void attend(const rival *r, const rival_task *t, const share *s, int64_t begin, int64_t end, partial *p)
{
    int64_t n_row = t->n_q * t->n_head;
    memset(p->o, 0, (size_t)(n_row * t->d_v) * sizeof *p->o);
    for (int64_t row = 0; row < n_row; row++) {
        p->m[row] = -INFINITY;
        p->l[row] = 0;
    }
    if (r->bf16 != NULL) {
        attend_bf16(r, t, s, begin, end, p);
        return;
    }
    rival_widen_avx2(t->q + p->seq * n_row * t->d_k, n_row * t->d_k, t->f16, t->scale * 1.44269504f, s->q);
    for (int64_t at = begin; at < end; at += r->block) {
        int64_t n = end - at < r->block ? end - at : r->block;
        for (int64_t j = 0; j < n; j++) {
            rival_widen_avx2(key_row(t, p->seq, at + j), t->d_k, t->f16, 1, s->keys + j * t->d_k);
        }
        sgemm(r, true, n_row, n, t->d_k, s->q, t->d_k, s->keys, t->d_k, 0, s->scores, MAX_BLOCK);
        for (int64_t row = 0; row < n_row; row++) {
            float *score = s->scores + row * MAX_BLOCK;
            hide(t, p->seq, row, at, n, score);
            rival_softmax_avx2(score, n, &p->m[row], &p->l[row], p->o + row * t->d_v, t->d_v);
        }
        sgemm(r, false, n_row, t->d_v, n, s->scores, MAX_BLOCK, s->keys, t->d_k, 1, p->o, t->d_v);
    }
}

/* Thread `index` takes the index-th part of all keys, whichever requests they belong to. */
static void run_share(void *data, int64_t index)
{
    run_job *job = data;
    const rival_task *t = job->task;
    rival *r = job->r;
    int before = 0;
    if (r->omp_set_num_threads != NULL) { /* this setting is one of the thread's own */
        before = r->omp_get_max_threads();
        r->omp_set_num_threads(1);
    }
    share *s = &r->shares[index];
    int64_t begin = job->total * index / r->n_share, end = job->total * (index + 1) / r->n_share, first = 0;
    s->n_part = 0;
    for (int64_t seq = 0; seq < t->n_seq; seq++) {
        int64_t length = t->length[seq];
        int64_t from = begin > first ? begin - first : 0, to = end - first < length ? end - first : length;
        if (from < to) {
            partial *p = &s->part[s->n_part++];
            p->seq = seq;
            attend(r, t, s, from, to, p);
        }
        first += length;
    }
    if (r->omp_set_num_threads != NULL) {
        r->omp_set_num_threads(before);
    }
}

/* Merges row `index` of every request. */
static void merge_row(void *data, int64_t index)
{
    run_job *job = data;
    const rival_task *t = job->task;
    const rival *r = job->r;
    int64_t n_row = t->n_q * t->n_head, seq = index / n_row, row = index % n_row;
    float *o = t->o + index * t->d_v;
    float m = -INFINITY, l = 0;
    for (int32_t i = 0; i < r->n_share; i++) {
        for (int64_t j = 0; j < r->shares[i].n_part; j++) {
            const partial *p = &r->shares[i].part[j];
            m = p->seq == seq && p->m[row] > m ? p->m[row] : m;
        }
    }
    bool first = true;
    for (int pass = 0; pass < 2; pass++) { /* sum of l, then the weighted rows */
        for (int32_t i = 0; i < r->n_share; i++) {
            for (int64_t j = 0; j < r->shares[i].n_part; j++) {
                const partial *p = &r->shares[i].part[j];
                if (p->seq != seq || p->m[row] == -INFINITY) {
                    continue;
                }
                float weight = exp2f(p->m[row] - m);
                if (pass == 0) {
                    l += weight * p->l[row];
                } else {
                    rival_add_avx2(o, p->o + row * t->d_v, t->d_v, weight / l, first);
                    first = false;
                }
            }
        }
    }
    if (first) {
        memset(o, 0, (size_t)t->d_v * sizeof *o);
    }
}

static int64_t total_keys(const rival_task *t)
{
    int64_t total = 0;
    for (int64_t i = 0; i < t->n_seq; i++) {
        total += t->length[i];
    }
    return total;
}

typedef struct merge_job {
    run_job *run;
    int64_t n_row, part;
} merge_job;

static void merge_share(void *data, int64_t index)
{
    const merge_job *job = data;
    int64_t end = (index + 1) * job->part < job->n_row ? (index + 1) * job->part : job->n_row;
    for (int64_t i = index * job->part; i < end; i++) {
        merge_row(job->run, i);
    }
}

void rival_run(rival *r, bench_pool *pool, const rival_task *task)
{
    run_job job = {r, task, total_keys(task)};
    bench_pool_run(pool, r->n_share, run_share, &job);
    int64_t n_row = task->n_seq * task->n_q * task->n_head;
    merge_job merge = {&job, n_row, (n_row + r->n_share - 1) / r->n_share};
    bench_pool_run(pool, r->n_share, merge_share, &merge);
}

/* ---- memory and tuning ------------------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* How many requests part `index` of n touches. */
static int64_t parts_of(const rival_task *t, int64_t index, int64_t n)
{
    int64_t total = total_keys(t), begin = total * index / n, end = total * (index + 1) / n, first = 0, count = 0;
    for (int64_t seq = 0; seq < t->n_seq; seq++) {
        int64_t last = first + t->length[seq];
        count += (begin > first ? begin : first) < (end < last ? end : last);
        first = last;
    }
    return count;
}

/* Lays out every thread's memory; with memory NULL it only counts. */
static size_t lay_out(rival *r, const rival_task *t, char *memory)
{
    size_t n_row = (size_t)(t->n_q * t->n_head), at = round_up((size_t)r->n_share * sizeof(share));
    size_t keys = round_up((size_t)(MAX_BLOCK * t->d_k) * sizeof(float));
    size_t scores = round_up(n_row * MAX_BLOCK * sizeof(float));
    size_t q = round_up(n_row * (size_t)t->d_k * sizeof(float));
    size_t o = round_up(n_row * (size_t)t->d_v * sizeof(float)), ml = round_up(n_row * sizeof(float));
    for (int32_t i = 0; i < r->n_share; i++) {
        int64_t n_part = parts_of(t, i, r->n_share);
        size_t parts = round_up((size_t)n_part * sizeof(partial));
        if (memory != NULL) {
            share *s = &r->shares[i];
            *s = (share){.keys = (float *)(memory + at),
                         .scores = (float *)(memory + at + keys),
                         .q = (float *)(memory + at + keys + scores),
                         .part = (partial *)(memory + at + keys + scores + q)};
            char *next = memory + at + keys + scores + q + parts;
            for (int64_t j = 0; j < n_part; j++, next += o + 2 * ml) {
                s->part[j] = (partial){0, (float *)next, (float *)(next + o), (float *)(next + o + ml)};
            }
        }
        at += keys + scores + q + parts + (size_t)n_part * (o + 2 * ml);
    }
    return at;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool make_products(rival *r, const rival_task *t)
{
    drop_products(r);
    const rival_bf16_shape qk = {.m = t->n_q * t->n_head,
                                 .n = r->block,
                                 .k = t->d_k,
                                 .lda = t->d_k,
                                 .ldb = t->d_k,
                                 .ldc = MAX_BLOCK,
                                 .alpha = t->scale * 1.44269504f,
                                 .transposed = true};
    const rival_bf16_shape pv = {.m = t->n_q * t->n_head,
                                 .n = t->d_v,
                                 .k = r->block,
                                 .lda = MAX_BLOCK,
                                 .ldb = t->d_k,
                                 .ldc = t->d_v,
                                 .alpha = 1,
                                 .add = true};
    bool good = true;
    for (int32_t i = 0; good && i < r->n_share; i++) {
        r->shares[i].qk = rival_bf16_make(r->bf16, &qk, r->primitive);
        r->shares[i].pv = rival_bf16_make(r->bf16, &pv, r->primitive);
        good = r->shares[i].qk != NULL && r->shares[i].pv != NULL;
    }
    return good;
}

/* The block length, and for bf16 the kind of product, that is fastest. */
static bool tune(rival *r, bench_pool *pool, const rival_task *task)
{
    static const struct {
        int64_t block;
        bool primitive, bf16;
    } ways[] = {{256, false, false}, {128, false, false}, {64, false, false}, {512, true, true},
                {512, false, true},  {256, true, true},   {256, false, true}, {128, false, true}};
    double best = INFINITY;
    size_t chosen = 0;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (ways[i].bf16 != (r->bf16 != NULL)) {
            continue;
        }
        r->block = ways[i].block;
        r->primitive = ways[i].primitive;
        if (r->bf16 != NULL && !make_products(r, task)) {
            return false;
        }
        double begin = now();
        for (int repeat = 0; repeat < 4 && (repeat == 0 || now() - begin < 0.1); repeat++) {
            double start = now();
            rival_run(r, pool, task);
            double took = now() - start;
            if (took < best) {
                best = took;
                chosen = i;
            }
        }
    }
    r->block = ways[chosen].block;
    r->primitive = ways[chosen].primitive;
    return r->bf16 == NULL || make_products(r, task);
}

bool rival_prepare(rival *r, bench_pool *pool, const rival_task *task)
{
    drop_products(r);
    free(r->memory);
    r->n_share = bench_pool_size(pool);
    size_t bytes = lay_out(r, task, NULL);
    r->memory = aligned_alloc(PAGE, round_up(bytes));
    if (r->memory == NULL) {
        return false;
    }
    memset(r->memory, 0, bytes);
    r->shares = r->memory;
    lay_out(r, task, r->memory);

    return tune(r, pool, task);
}

#else

bool rival_prepare(rival *r, bench_pool *pool, const rival_task *task)
{
    (void)r;
    (void)pool;
    (void)task;
    return false;
}

void rival_run(rival *r, bench_pool *pool, const rival_task *task)
{
    (void)r;
    (void)pool;
    (void)task;
}

#endif
