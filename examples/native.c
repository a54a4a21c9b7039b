/*
 * native.c - the native interface in one page: two sequences of different length attend over latent rows.
 *
 *     cc examples/native.c $(pkg-config --cflags --libs mla) -lm -o native && ./native
 *
 * All queries are 0, so every visible key weighs the same, and row p holds the number p in every column. The answer is
 * then known: a sequence of n keys gives the mean of 0 .. n-1 and the log-sum-exp ln n.
 */
#include <math.h>
#include <mla/mla.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_SEQ = 2, MAX_LEN = 300, N_HEAD = 16, D_K = 576, D_V = 512 };

static float q[N_SEQ][1][N_HEAD][D_K]; /* zero */
static float k[N_SEQ][MAX_LEN][1][D_K];
static float o[N_SEQ][1][N_HEAD][D_V];
static float lse[N_SEQ][1][N_HEAD];

int main(void)
{
    int32_t length[N_SEQ] = {300, 37};
    for (int s = 0; s < N_SEQ; s++) {
        for (int p = 0; p < MAX_LEN; p++) {
            for (int d = 0; d < D_K; d++) {
                k[s][p][0][d] = p < length[s] ? (float)p : NAN; /* rows past the end are never read */
            }
        }
    }

    mla_problem problem;
    mla_problem_init(&problem);
    problem.q = mla_tensor_make(q, MLA_DTYPE_F32, 4, (int64_t[]){N_SEQ, 1, N_HEAD, D_K});
    problem.segment[0].k = mla_tensor_make(k, MLA_DTYPE_F32, 4, (int64_t[]){N_SEQ, MAX_LEN, 1, D_K});
    problem.segment[0].length = mla_tensor_make(length, MLA_DTYPE_I32, 1, (int64_t[]){N_SEQ});
    problem.d_v = D_V;
    problem.softmax_scale = 1 / sqrtf(192);
    problem.o = mla_tensor_make(o, MLA_DTYPE_F32, 4, (int64_t[]){N_SEQ, 1, N_HEAD, D_V});
    problem.lse = mla_tensor_make(lse, MLA_DTYPE_F32, 3, (int64_t[]){N_SEQ, 1, N_HEAD});

    /* The short way is mla_attention(&problem, NULL). With a plan, running allocates nothing and can be repeated. */
    mla_plan *plan;
    if (mla_plan_build(&problem, NULL, &plan) != MLA_STATUS_OK) {
        fprintf(stderr, "plan: %s\n", mla_last_error());
        return 1;
    }
    size_t bytes = mla_plan_workspace_bytes(plan);
    void *workspace = malloc(bytes);
    mla_status status = mla_run(plan, &problem, workspace, bytes, NULL);
    free(workspace);
    mla_plan_free(plan);
    if (status != MLA_STATUS_OK) {
        fprintf(stderr, "run: %s\n", mla_last_error());
        return 1;
    }

    int wrong = 0;
    for (int s = 0; s < N_SEQ; s++) {
        float mean = (float)(length[s] - 1) / 2, log_n = logf((float)length[s]);
        for (int h = 0; h < N_HEAD; h++) {
            wrong += !(fabsf(lse[s][0][h] - log_n) < 1e-5f);
            for (int d = 0; d < D_V; d++) {
                wrong += !(fabsf(o[s][0][h][d] - mean) < 1e-5f * mean);
            }
        }
        printf("%3d keys: out %.3f, expected %.3f; lse %.5f, expected %.5f\n", length[s], o[s][0][0][0], mean,
               lse[s][0][0], log_n);
    }
    puts(wrong == 0 ? "right" : "WRONG");
    return wrong != 0;
}
