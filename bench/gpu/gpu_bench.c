/*
 * gpu_bench.c - dense decode on the first GPU: time of one call inside a replayed CUDA graph.
 *
 *     gpu_bench [--only WORD[,WORD...]] [--json FILE]
 *
 * Every row is timed over several sets of pages in turn, together larger than the L2 cache several times over, so that
 * keys come from memory as they do between the layers of a model. A graph holds one call per set; 3 replays warm up,
 * the median of 20 counts. Data are random; a table of the results ends the output.
 *
 *     FLOP  = 2 b h_q s_q mean(s_k) (d + d_v)      causal not discounted
 *     bytes = b (s_q h_q (d + d_v) + mean(s_k) h_kv d) 2
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_device.h"
#include "mla/mla.h"

enum { PAGE = 64, D = 576, D_V = 512, REPLAYS = 20, WARM = 3, MAX_SET = 64 };

typedef struct row {
    int64_t b, s_q, s_k, h_q;
    bool varied; /* lengths normal around s_k, half of it the deviation */
} row;

static const row grid[] = {
    {128, 1, 4096, 128, true},  {128, 1, 8192, 128, true}, {32, 1, 16384, 128, true},  {128, 1, 4096, 64, true},
    {128, 1, 8192, 64, true},   {128, 1, 4096, 32, true},  {128, 1, 4096, 16, true},   {32, 1, 16384, 16, true},
    {128, 2, 4096, 128, true},  {128, 2, 8192, 128, true}, {128, 2, 32768, 128, true}, {1, 1, 4096, 128, false},
    {1, 1, 131072, 128, false}, {1, 1, 131072, 16, false}, {8, 1, 4096, 128, false},   {256, 1, 1024, 128, true},
    {1, 1, 1024, 128, false},   {1, 1, 4096, 64, false},   {1, 1, 4096, 32, false},    {1, 1, 4096, 16, false},
    {2, 1, 4096, 128, false},
};

#define N_ROW (sizeof grid / sizeof grid[0])

typedef struct result {
    double us, tflops, tbs;
    char variant[64];
} result;

static const mla_cuda_device *device;
static const mla_cuda_driver *cuda;

static void require(bool fine, const char *what)
{
    if (!fine) {
        fprintf(stderr, "gpu_bench: %s: %s\n", what, mla_last_error());
        exit(1);
    }
}

static void must(cuda_result status, const char *what)
{
    require(mla_cuda_check(cuda, status, what) == MLA_STATUS_OK, what);
}

static uint64_t state;

static uint64_t next(void)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double normal(void)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        sum += (double)(next() >> 11) * 0x1p-53;
    }
    return sum;
}

/* bf16 numbers, normal / 10 */
static void fill_random(uint16_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = (float)(normal() / 10);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        to[i] = (uint16_t)((bits + 0x8000) >> 16);
    }
}

static cuda_address allocate(size_t bytes)
{
    cuda_address address;
    must(cuda->cuMemAlloc_v2(&address, bytes), "allocating device memory");
    return address;
}

static void copy(cuda_address to, const void *from, size_t bytes)
{
    must(cuda->cuMemcpyHtoDAsync_v2(to, from, bytes, NULL), "copying to the device");
    must(cuda->cuStreamSynchronize(NULL), "copying to the device");
}

static mla_tensor on_gpu(cuda_address address, mla_dtype dtype, int32_t ndim, const int64_t *dim)
{
    mla_tensor t = mla_tensor_make((void *)(uintptr_t)address, dtype, ndim, dim);
    t.device.type = MLA_DEVICE_CUDA;
    return t;
}

/* Does `name` contain one of the words, which commas separate? */
static bool contains_one(const char *name, const char *words)
{
    for (;;) {
        size_t n = strcspn(words, ",");
        for (const char *at = name; *at; at++) {
            if (strncmp(at, words, n) == 0) {
                return true;
            }
        }
        if (!words[n]) {
            return false;
        }
        words += n + 1;
    }
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static result measure(const row *r)
{
    int32_t *length = malloc((size_t)r->b * sizeof *length);
    int64_t total = 0, pages = 0, widest = 0;
    state = 1;
    for (int64_t i = 0; i < r->b; i++) {
        double x = r->varied ? (double)r->s_k * (1 + normal() / 2) : (double)r->s_k;
        length[i] = (int32_t)(x < (double)r->s_q ? (double)r->s_q : x);
        int64_t own = (length[i] + PAGE - 1) / PAGE;
        total += length[i];
        pages += own;
        widest = own > widest ? own : widest;
    }
    const size_t page_bytes = (size_t)PAGE * D * 2, want = 4 * (size_t)device->l2_bytes;
    int64_t n_set = (int64_t)(want / ((size_t)pages * page_bytes)) + 1;
    n_set = n_set > MAX_SET ? MAX_SET : n_set;
    int64_t n_page = pages * n_set;

    /* random numbers, 16 MiB of them over and over: pages are drawn from all of it */
    size_t pool_bytes = (size_t)n_page * page_bytes, block = (size_t)16 << 20;
    cuda_address pool = allocate(pool_bytes);
    uint16_t *numbers = malloc(block);
    fill_random(numbers, block / 2);
    for (size_t at = 0; at < pool_bytes; at += block) {
        copy(pool + at, numbers, pool_bytes - at < block ? pool_bytes - at : block);
    }
    int32_t *order = malloc((size_t)n_page * sizeof *order), *table = malloc((size_t)(r->b * widest) * sizeof *table);
    for (int64_t i = 0; i < n_page; i++) {
        int64_t j = (int64_t)(next() % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    size_t table_bytes = (size_t)(r->b * widest) * sizeof *table;
    cuda_address tables = allocate(table_bytes * (size_t)n_set), lengths = allocate((size_t)r->b * 4);
    copy(lengths, length, (size_t)r->b * 4);
    for (int64_t set = 0, taken = 0; set < n_set; set++) {
        memset(table, 0xff, table_bytes);
        for (int64_t i = 0; i < r->b; i++) {
            for (int64_t x = 0; x < (length[i] + PAGE - 1) / PAGE; x++) {
                table[i * widest + x] = order[taken++];
            }
        }
        copy(tables + table_bytes * (size_t)set, table, table_bytes);
    }
    size_t q_count = (size_t)(r->b * r->s_q * r->h_q);
    cuda_address q = allocate(q_count * D * 2), o = allocate(q_count * D_V * 2), lse = allocate(q_count * 4);
    for (size_t at = 0; at < q_count * D * 2; at += block) {
        copy(q + at, numbers, q_count * D * 2 - at < block ? q_count * D * 2 - at : block);
    }

    mla_problem p;
    mla_problem_init(&p);
    p.q = on_gpu(q, MLA_DTYPE_BF16, 4, (int64_t[]){r->b, r->s_q, r->h_q, D});
    p.o = on_gpu(o, MLA_DTYPE_BF16, 4, (int64_t[]){r->b, r->s_q, r->h_q, D_V});
    p.lse = on_gpu(lse, MLA_DTYPE_F32, 3, (int64_t[]){r->b, r->s_q, r->h_q});
    p.segment[0].k = on_gpu(pool, MLA_DTYPE_BF16, 4, (int64_t[]){n_page, PAGE, 1, D});
    p.segment[0].page_table = on_gpu(tables, MLA_DTYPE_I32, 2, (int64_t[]){r->b, widest});
    p.segment[0].length = on_gpu(lengths, MLA_DTYPE_I32, 1, &r->b);
    p.segment[0].visible.rule = r->s_q > 1 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
    p.d_v = D_V;
    p.softmax_scale = (float)(1 / sqrt(192));
    mla_plan *plan;
    mla_plan_info info;
    require(mla_plan_build(&p, NULL, &plan) == MLA_STATUS_OK, "planning");
    mla_plan_describe(plan, &info);
    size_t bytes = mla_plan_workspace_bytes(plan);
    cuda_address workspace = bytes > 0 ? allocate(bytes) : 0;

    cuda_stream stream;
    cuda_graph graph;
    cuda_graph_exec exec;
    cuda_event start, end;
    must(cuda->cuStreamCreate(&stream, 1), "making a stream");
    must(cuda->cuEventCreate(&start, 0), "making an event");
    must(cuda->cuEventCreate(&end, 0), "making an event");
    must(cuda->cuStreamBeginCapture_v2(stream, 0), "capturing");
    for (int64_t set = 0; set < n_set; set++) {
        p.segment[0].page_table.data = (void *)(uintptr_t)(tables + table_bytes * (size_t)set);
        require(mla_run(plan, &p, (void *)(uintptr_t)workspace, bytes, stream) == MLA_STATUS_OK, "running");
    }
    must(cuda->cuStreamEndCapture(stream, &graph), "capturing");
    must(cuda->cuGraphInstantiateWithFlags(&exec, graph, 0), "making a graph");
    float time[REPLAYS];
    for (int i = -WARM; i < REPLAYS; i++) {
        must(cuda->cuEventRecord(start, stream), "timing");
        must(cuda->cuGraphLaunch(exec, stream), "replaying");
        must(cuda->cuEventRecord(end, stream), "timing");
        must(cuda->cuStreamSynchronize(stream), "a replayed graph");
        float milliseconds = 0;
        must(cuda->cuEventElapsedTime(&milliseconds, start, end), "timing");
        time[i < 0 ? 0 : i] = milliseconds;
    }
    qsort(time, REPLAYS, sizeof time[0], by_value);

    result found = {.us = (double)time[REPLAYS / 2] * 1e3 / (double)n_set};
    double mean = (double)total / (double)r->b;
    found.tflops = 2.0 * (double)q_count * mean * (D + D_V) / found.us * 1e-6;
    found.tbs = 2.0 * ((double)q_count * (D + D_V) + (double)total * D) / found.us * 1e-6;
    snprintf(found.variant, sizeof found.variant, "%s", info.isa);
    cuda->cuGraphExecDestroy(exec);
    cuda->cuGraphDestroy(graph);
    cuda->cuEventDestroy_v2(start);
    cuda->cuEventDestroy_v2(end);
    cuda->cuStreamDestroy_v2(stream);
    mla_plan_free(plan);
    const cuda_address all[] = {pool, tables, lengths, q, o, lse, workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i]) {
            cuda->cuMemFree_v2(all[i]);
        }
    }
    free(length);
    free(numbers);
    free(order);
    free(table);
    return found;
}

int main(int argc, char **argv)
{
    const char *only = NULL, *json = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        only = strcmp(argv[i], "--only") == 0 ? argv[i + 1] : only;
        json = strcmp(argv[i], "--json") == 0 ? argv[i + 1] : json;
    }
    if (mla_cuda_device_get(0, &device) != MLA_STATUS_OK) {
        printf("skipped: %s\n", mla_last_error());
        return 0;
    }
    bool pushed;
    cuda = device->driver;
    require(mla_cuda_enter(device, &pushed) == MLA_STATUS_OK, "entering the context");
    FILE *file = json ? fopen(json, "w") : NULL;
    if (json && !file) {
        perror(json);
        return 1;
    }
    if (file) {
        fprintf(file,
                "{\n  \"library\": \"%s\",\n  \"gpu\": \"%s\",\n  \"driver\": %d,\n  \"d\": %d,\n  \"d_v\": %d,\n"
                "  \"dtype\": \"bf16\",\n  \"page\": %d,\n  \"rows\": [\n",
                mla_version(), device->name, cuda->version, D, D_V, PAGE);
    }
    printf("%s, driver for CUDA %d.%d, bf16 %d/%d, page %d, graph replay\n", device->name, cuda->version / 1000,
           cuda->version % 1000 / 10, D, D_V, PAGE);
    printf("%4s %4s %7s %5s %10s %8s %6s  %s\n", "b", "s_q", "s_k", "h_q", "us", "TFLOPS", "TB/s", "kernel");
    bool first = true;
    for (size_t i = 0; i < N_ROW; i++) {
        const row *r = &grid[i];
        char name[64];
        snprintf(name, sizeof name, "b%d_q%d_k%d_h%d", (int)r->b, (int)r->s_q, (int)r->s_k, (int)r->h_q);
        if (only && !contains_one(name, only)) {
            continue;
        }
        result m = measure(r);
        printf("%4d %4d %7d %5d %10.1f %8.1f %6.2f  %s\n", (int)r->b, (int)r->s_q, (int)r->s_k, (int)r->h_q, m.us,
               m.tflops, m.tbs, m.variant);
        fflush(stdout);
        if (file) {
            fprintf(file,
                    "%s    {\"b\": %d, \"s_q\": %d, \"s_k\": %d, \"varied\": %s, \"h_q\": %d, \"us\": %.2f, "
                    "\"tflops\": %.1f, \"tbs\": %.3f, \"kernel\": \"%s\"}",
                    first ? "" : ",\n", (int)r->b, (int)r->s_q, (int)r->s_k, r->varied ? "true" : "false", (int)r->h_q,
                    m.us, m.tflops, m.tbs, m.variant);
        }
        first = false;
    }
    if (file) {
        fprintf(file, "\n  ]\n}\n");
        fclose(file);
    }
    return 0;
}
