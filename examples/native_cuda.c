/*
 * native_cuda.c - the native interface on an NVIDIA GPU: allocate, plan, run on a stream, fetch. Nothing of CUDA is needed
 * to build it.
 *
 *     cc examples/native_cuda.c $(pkg-config --cflags --libs mla) -lm -o native_cuda && ./native_cuda
 *
 * As in native.c, all queries are 0 and row p of a sequence holds the number p, so a sequence of n keys gives the mean of
 * 0 .. n-1 and the log-sum-exp ln n. The keys lie in pages, and the lengths change between two runs of one plan. A machine
 * without a GPU gets a sentence and exit status 2.
 */
#include <math.h>
#include <mla/mla.h>
#include <mla/mla_gpu.h>
#include <stdio.h>
#include <stdlib.h>

enum { GPU = 0, N_SEQ = 2, PAGE = 64, MAX_PAGE = 5, N_PAGE = N_SEQ * MAX_PAGE, N_HEAD = 16, D_K = 576, D_V = 512 };

static float q[N_SEQ][1][N_HEAD][D_K]; /* zero */
static float k[N_PAGE][PAGE][1][D_K];
static int32_t table[N_SEQ][MAX_PAGE];
static float o[N_SEQ][1][N_HEAD][D_V];
static float lse[N_SEQ][1][N_HEAD];

static void must(mla_status status)
{
    if (status != MLA_STATUS_OK) {
        fprintf(stderr, "%s\n", mla_last_error());
        exit(1);
    }
}

/* A tensor on the GPU, filled from host memory unless that is NULL. */
static mla_tensor on_gpu(const void *from, size_t bytes, mla_dtype dtype, int32_t ndim, const int64_t *dim)
{
    void *memory;
    must(mla_gpu_allocate(GPU, bytes, &memory));
    if (from != NULL) {
        must(mla_gpu_copy(GPU, memory, from, bytes, NULL));
    }
    mla_tensor tensor = mla_tensor_make(memory, dtype, ndim, dim);
    tensor.device = (mla_device){MLA_DEVICE_CUDA, GPU};
    return tensor;
}

static int count_wrong(const int32_t *length)
{
    int wrong = 0;
    for (int s = 0; s < N_SEQ; s++) {
        float mean = (float)(length[s] - 1) / 2, log_n = logf((float)length[s]);
        for (int h = 0; h < N_HEAD; h++) {
            wrong += !(fabsf(lse[s][0][h] - log_n) < 1e-5f);
            for (int d = 0; d < D_V; d++) {
                wrong += !(fabsf(o[s][0][h][d] - mean) <= 1e-5f * mean);
            }
        }
        printf("%3d keys: out %.3f, expected %.3f; lse %.5f, expected %.5f\n", length[s], o[s][0][0][0], mean,
               lse[s][0][0], log_n);
    }
    return wrong;
}

int main(void)
{
    mla_gpu_info gpu;
    if (mla_gpu_list(&gpu, 1) == 0) {
        fprintf(stderr, "%s\n", mla_last_error());
        return 2;
    }
    printf("%s\n", gpu.name);
    for (int s = 0; s < N_SEQ; s++) {
        for (int p = 0; p < MAX_PAGE * PAGE; p++) {
            table[s][p / PAGE] = N_PAGE - 1 - (s * MAX_PAGE + p / PAGE); /* pages may lie anywhere */
            for (int d = 0; d < D_K; d++) {
                k[table[s][p / PAGE]][p % PAGE][0][d] = (float)p;
            }
        }
    }

    const int32_t lengths[2][N_SEQ] = {{300, 37}, {301, 38}};
    mla_problem problem;
    mla_problem_init(&problem);
    problem.q = on_gpu(q, sizeof q, MLA_DTYPE_F32, 4, (int64_t[]){N_SEQ, 1, N_HEAD, D_K});
    problem.segment[0].k = on_gpu(k, sizeof k, MLA_DTYPE_F32, 4, (int64_t[]){N_PAGE, PAGE, 1, D_K});
    problem.segment[0].page_table = on_gpu(table, sizeof table, MLA_DTYPE_I32, 2, (int64_t[]){N_SEQ, MAX_PAGE});
    problem.segment[0].length = on_gpu(NULL, sizeof lengths[0], MLA_DTYPE_I32, 1, (int64_t[]){N_SEQ});
    problem.d_v = D_V;
    problem.softmax_scale = 1 / sqrtf(192);
    problem.o = on_gpu(NULL, sizeof o, MLA_DTYPE_F32, 4, (int64_t[]){N_SEQ, 1, N_HEAD, D_V});
    problem.lse = on_gpu(NULL, sizeof lse, MLA_DTYPE_F32, 3, (int64_t[]){N_SEQ, 1, N_HEAD});
    must(mla_gpu_synchronize(GPU, NULL));

    /* One plan for all lengths, for the GPU reads them itself; running allocates nothing and waits for nothing. */
    mla_plan *plan;
    void *workspace = NULL, *stream;
    must(mla_plan_build(&problem, NULL, &plan));
    size_t bytes = mla_plan_workspace_bytes(plan);
    if (bytes > 0) {
        must(mla_gpu_allocate(GPU, bytes, &workspace));
    }
    must(mla_gpu_stream_create(GPU, &stream));
    int wrong = 0;
    for (int step = 0; step < 2; step++) {
        must(mla_gpu_copy(GPU, problem.segment[0].length.data, lengths[step], sizeof lengths[0], stream));
        must(mla_run(plan, &problem, workspace, bytes, stream));
        must(mla_gpu_copy(GPU, o, problem.o.data, sizeof o, stream));
        must(mla_gpu_copy(GPU, lse, problem.lse.data, sizeof lse, stream));
        must(mla_gpu_synchronize(GPU, stream));
        wrong += count_wrong(lengths[step]);
    }

    mla_plan_free(plan);
    must(mla_gpu_stream_destroy(GPU, stream));
    void *const memory[] = {workspace,
                            problem.q.data,
                            problem.segment[0].k.data,
                            problem.segment[0].page_table.data,
                            problem.segment[0].length.data,
                            problem.o.data,
                            problem.lse.data};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        must(mla_gpu_free(GPU, memory[i]));
    }
    puts(wrong == 0 ? "right" : "WRONG");
    return wrong != 0;
}
