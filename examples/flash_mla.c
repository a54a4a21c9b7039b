/*
 * flash_mla.c - DeepSeek's flash_mla interface from C: one decode step of three requests over a paged bf16 cache.
 *
 *     cc examples/flash_mla.c $(pkg-config --cflags --libs mla) -lm -o flash_mla && ./flash_mla
 *
 * As in native.c the queries are 0 and the answer is known: the row at position p holds p % 64 (exact in bf16), so a
 * request of n keys gives the mean of these, rounded to bf16, and the log-sum-exp ln n. The third request is empty.
 */
#include <math.h>
#include <mla/flash_mla.h>
#include <mla/mla.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 3, N_HEAD = 16, D = 576, D_V = 512, PAGE = 64, N_PAGE = 6, MAX_PAGE = 4 };

static uint16_t q[B][1][N_HEAD][D]; /* zero */
static uint16_t k_cache[N_PAGE][PAGE][1][D];
static uint16_t out[B][1][N_HEAD][D_V];
static float lse[B][N_HEAD][1];

static uint16_t bf16_from_float(float x) /* x must be exact in bf16 */
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float bf16_to_float(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

int main(void)
{
    /* Pages lie anywhere; entries past a request's last page are never read, whatever they hold. */
    int32_t block_table[B][MAX_PAGE] = {{4, 0, 5, 2}, {3, -1, -1, -1}, {-1, -1, -1, -1}};
    int32_t cache_seqlens[B] = {200, 50, 0};
    for (int i = 0; i < N_PAGE; i++) {
        for (int slot = 0; slot < PAGE; slot++) {
            for (int d = 0; d < D; d++) {
                k_cache[i][slot][0][d] = bf16_from_float((float)slot);
            }
        }
    }

    mla_tensor lengths = mla_tensor_make(cache_seqlens, MLA_DTYPE_I32, 1, (int64_t[]){B});
    int64_t n_part = flash_mla_num_parts(N_HEAD, 1);
    int32_t *metadata = malloc((size_t)n_part * FLASH_MLA_METADATA_COLUMNS * sizeof *metadata), num_splits[B + 1];
    mla_tensor schedule = mla_tensor_make(metadata, MLA_DTYPE_I32, 2, (int64_t[]){n_part, FLASH_MLA_METADATA_COLUMNS});
    mla_tensor splits = mla_tensor_make(num_splits, MLA_DTYPE_I32, 1, (int64_t[]){B + 1});
    mla_status status = flash_mla_get_metadata(&lengths, N_HEAD, 1, &schedule, &splits);
    if (status == MLA_STATUS_OK) {
        mla_tensor query = mla_tensor_make(q, MLA_DTYPE_BF16, 4, (int64_t[]){B, 1, N_HEAD, D});
        mla_tensor cache = mla_tensor_make(k_cache, MLA_DTYPE_BF16, 4, (int64_t[]){N_PAGE, PAGE, 1, D});
        mla_tensor table = mla_tensor_make(block_table, MLA_DTYPE_I32, 2, (int64_t[]){B, MAX_PAGE});
        mla_tensor result = mla_tensor_make(out, MLA_DTYPE_BF16, 4, (int64_t[]){B, 1, N_HEAD, D_V});
        mla_tensor log_sum = mla_tensor_make(lse, MLA_DTYPE_F32, 3, (int64_t[]){B, N_HEAD, 1});
        float scale = 1 / sqrtf(192); /* the model's, not 1 / sqrt(576) */
        status = flash_mla_with_kvcache(&query, &cache, &table, &lengths, D_V, &schedule, &splits, &scale, true,
                                        &result, &log_sum);
    }
    free(metadata);
    if (status != MLA_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", mla_status_name(status), mla_last_error());
        return 1;
    }

    int wrong = 0;
    for (int i = 0; i < B; i++) {
        int n = cache_seqlens[i];
        float mean = 0, log_n = n == 0 ? INFINITY : logf((float)n); /* no key: out 0 and lse +inf */
        for (int p = 0; p < n; p++) {
            mean += (float)(p % PAGE) / (float)n;
        }
        for (int h = 0; h < N_HEAD; h++) {
            wrong += !(lse[i][h][0] == log_n || fabsf(lse[i][h][0] - log_n) < 1e-5f);
            for (int d = 0; d < D_V; d++) {
                wrong += !(fabsf(bf16_to_float(out[i][0][h][d]) - mean) <= mean / 256); /* rounded to 8 bits */
            }
        }
        printf("%3d keys: out %.3f, expected %.3f; lse %.5f, expected %.5f\n", n, bf16_to_float(out[i][0][0][0]), mean,
               lse[i][0][0], log_n);
    }
    puts(wrong == 0 ? "right" : "WRONG");
    return wrong != 0;
}
