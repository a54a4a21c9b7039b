/*
 * aclnn_window.c - sliding-window attention over a paged HiFloat8 cache, as a program for an Ascend NPU calls it.
 *
 *     cc examples/aclnn_window.c $(pkg-config --cflags --libs mla-compat) -lm -o aclnn_window && ./aclnn_window
 *
 * Only names of CANN's acl and aclnn are used: built with CANN's own headers and libraries it is the same program.
 *
 * One decode step of two requests, of 300 keys and of 90, with a window of 128 keys. All keys in the window begin with 1,
 * and so does nothing else of the query, so their scores are equal and their weights too. The other columns are 1 at even
 * positions and 3 at odd ones, 2 in the mean. Each head has a sink as strong as 128 such keys. With n keys seen
 *
 *     out = n / (n + 128) * descale * {1 in column 0, 2 in the others}        lse = score + ln(n + 128)
 *
 * Keys older than the window begin with 256: one of them alone would outweigh all the others.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "acl/acl.h"
#include "aclnnop/aclnn_mixed_quant_sparse_flash_mla_metadata.h"
#include "aclnnop/aclnn_quant_sparse_flash_mla.h"

enum { B = 2, N_HEAD = 64, D = 512, BLOCK = 128, N_BLOCK = 5, MAX_BLOCK = 3, WINDOW = 128, METADATA_WORDS = 1024 };
enum { HIF8_ONE = 0x08, HIF8_TWO = 0x10, HIF8_THREE = 0x14, HIF8_256 = 0x60, HIF8_NAN = 0x80 };

static const int32_t length[B] = {300, 90};
static const int32_t block_table[B][MAX_BLOCK] = {{4, 0, 2}, {1, -1, -1}}; /* entries past the last key are not read */
static const float kv_descale = 0.5f;

static uint8_t q[B][N_HEAD][D]; /* zero is code 0 */
static uint8_t kv[N_BLOCK][BLOCK][1][D];
static float sinks[N_HEAD];
static uint16_t out[B][N_HEAD][D]; /* bf16 */
static float lse[B][N_HEAD];

#define CHECK(call)                                                                 \
    do {                                                                            \
        int status = (call);                                                        \
        if (status != 0) {                                                          \
            printf("%s failed with %d: %s\n", #call, status, aclGetRecentErrMsg()); \
            return 1;                                                               \
        }                                                                           \
    } while (0)

/* ---- tensors in device memory ------------------------------------------------------------------------------------ */

typedef struct device_tensor {
    void *memory;
    size_t bytes;
    aclTensor *view;
} device_tensor;

static int upload(device_tensor *t, const void *data, aclDataType type, uint64_t n_dim, const int64_t *dim)
{
    t->bytes = aclDataTypeSize(type);
    for (uint64_t i = 0; i < n_dim; i++) {
        t->bytes *= (size_t)dim[i];
    }
    CHECK(aclrtMalloc(&t->memory, t->bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclrtMemcpy(t->memory, t->bytes, data, t->bytes, ACL_MEMCPY_HOST_TO_DEVICE));
    t->view = aclCreateTensor(dim, n_dim, type, NULL, 0, ACL_FORMAT_ND, dim, n_dim, t->memory);
    return t->view == NULL;
}

enum { Q, KV, Q_DESCALE, KV_DESCALE, TABLE, CU_SEQLENS_Q, SEQUSED_KV, SINKS, METADATA, OUT, LSE, N_TENSOR };
static device_tensor tensor[N_TENSOR];

static int upload_all(void)
{
    static const int32_t cu_seqlens_q[B + 1] = {0, 1, 2}, metadata[METADATA_WORDS];
    static const float one = 1;
    return upload(&tensor[Q], q, ACL_HIFLOAT8, 3, (const int64_t[]){B, N_HEAD, D}) ||
           upload(&tensor[KV], kv, ACL_HIFLOAT8, 4, (const int64_t[]){N_BLOCK, BLOCK, 1, D}) ||
           upload(&tensor[Q_DESCALE], &one, ACL_FLOAT, 1, (const int64_t[]){1}) ||
           upload(&tensor[KV_DESCALE], &kv_descale, ACL_FLOAT, 1, (const int64_t[]){1}) ||
           upload(&tensor[TABLE], block_table, ACL_INT32, 2, (const int64_t[]){B, MAX_BLOCK}) ||
           upload(&tensor[CU_SEQLENS_Q], cu_seqlens_q, ACL_INT32, 1, (const int64_t[]){B + 1}) ||
           upload(&tensor[SEQUSED_KV], length, ACL_INT32, 1, (const int64_t[]){B}) ||
           upload(&tensor[SINKS], sinks, ACL_FLOAT, 1, (const int64_t[]){N_HEAD}) ||
           upload(&tensor[METADATA], metadata, ACL_INT32, 1, (const int64_t[]){METADATA_WORDS}) ||
           upload(&tensor[OUT], out, ACL_BF16, 3, (const int64_t[]){B, N_HEAD, D}) ||
           upload(&tensor[LSE], lse, ACL_FLOAT, 3, (const int64_t[]){1, B, N_HEAD});
}

/* ---- the two operators, each in two phases ----------------------------------------------------------------------- */

static char layout_q[] = "TND", layout_kv[] = "PA_BBND";

static int make_metadata(aclrtStream stream)
{
    uint64_t bytes = 0;
    aclOpExecutor *executor = NULL;
    void *workspace = NULL;
    CHECK(aclnnMixedQuantSparseFlashMlaMetadataGetWorkspaceSize(tensor[CU_SEQLENS_Q].view, NULL, NULL, NULL,
                                                                tensor[SEQUSED_KV].view, NULL, NULL, NULL, NULL, N_HEAD,
                                                                1, D, 1, B, 1, MAX_BLOCK * BLOCK, 0, 0, 0, 0, 1, 4, 0,
                                                                WINDOW - 1, 0, layout_q, layout_kv, true, false,
                                                                tensor[METADATA].view, &bytes, &executor));
    if (bytes > 0) {
        CHECK(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    }
    CHECK(aclnnMixedQuantSparseFlashMlaMetadata(workspace, bytes, executor, stream));
    CHECK(aclrtSynchronizeStream(stream));
    return workspace != NULL && aclrtFree(workspace) != 0;
}

static int attend(aclrtStream stream, double scale)
{
    uint64_t bytes = 0;
    aclOpExecutor *executor = NULL;
    void *workspace = NULL;
    CHECK(aclnnQuantSparseFlashMlaGetWorkspaceSize(tensor[Q].view, tensor[KV].view, NULL, tensor[Q_DESCALE].view,
                                                   tensor[KV_DESCALE].view, NULL, NULL, NULL, tensor[TABLE].view, NULL,
                                                   tensor[CU_SEQLENS_Q].view, NULL, NULL, NULL, tensor[SEQUSED_KV].view,
                                                   NULL, NULL, NULL, NULL, tensor[SINKS].view, tensor[METADATA].view, 1,
                                                   scale, 1, 4, 0, WINDOW - 1, 0, layout_q, layout_kv, 1, true,
                                                   tensor[OUT].view, tensor[LSE].view, &bytes, &executor));
    if (bytes > 0) {
        CHECK(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    }
    CHECK(aclnnQuantSparseFlashMla(workspace, bytes, executor, stream));
    CHECK(aclrtSynchronizeStream(stream));
    CHECK(aclrtMemcpy(out, sizeof out, tensor[OUT].memory, sizeof out, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(aclrtMemcpy(lse, sizeof lse, tensor[LSE].memory, sizeof lse, ACL_MEMCPY_DEVICE_TO_HOST));
    return workspace != NULL && aclrtFree(workspace) != 0;
}

/* ---- what goes in and what comes out ----------------------------------------------------------------------------- */

static void fill(float score)
{
    memset(kv, HIF8_NAN, sizeof kv); /* rows of no request */
    for (int b = 0; b < B; b++) {
        for (int p = 0; p < length[b]; p++) {
            uint8_t *row = kv[block_table[b][p / BLOCK]][p % BLOCK][0];
            int old = p < length[b] - WINDOW;
            memset(row, old ? HIF8_256 : p % 2 ? HIF8_THREE : HIF8_ONE, D);
            row[0] = old ? HIF8_256 : HIF8_ONE;
        }
        for (int h = 0; h < N_HEAD; h++) {
            q[b][h][0] = HIF8_TWO;
        }
    }
    for (int h = 0; h < N_HEAD; h++) {
        sinks[h] = score + logf(128);
    }
}

static float bf16_to_float(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int verify(double score)
{
    for (int b = 0; b < B; b++) {
        double n = length[b] < WINDOW ? length[b] : WINDOW;
        for (int h = 0; h < N_HEAD; h++) {
            for (int d = 0; d < D; d++) {
                double expected = n / (n + 128) * (double)kv_descale * (d == 0 ? 1 : 2);
                double got = (double)bf16_to_float(out[b][h][d]);
                if (!(fabs(got - expected) <= expected / 256)) { /* half a unit of bf16, and as much for fp32 */
                    printf("request %d, head %d, column %d: %g, expected %g\n", b, h, d, got, expected);
                    return 1;
                }
            }
            if (!(fabs((double)lse[b][h] - (score + log(n + 128))) <= 1e-4)) {
                printf("request %d, head %d: lse %g, expected %g\n", b, h, (double)lse[b][h], score + log(n + 128));
                return 1;
            }
        }
        printf("request %d: %d keys, %.0f in the window, out %g, lse %g\n", b, length[b], n,
               (double)bf16_to_float(out[b][0][1]), (double)lse[b][0]);
    }
    return 0;
}

int main(void)
{
    const double scale = 1 / sqrt((double)D), score = scale * 2 * (double)kv_descale;
    aclrtStream stream = NULL;
    fill((float)score);
    CHECK(aclInit(NULL));
    CHECK(aclrtSetDevice(0));
    CHECK(aclrtCreateStream(&stream));
    if (upload_all() || make_metadata(stream) || attend(stream, scale) || verify(score)) {
        return 1;
    }
    for (int i = 0; i < N_TENSOR; i++) {
        CHECK(aclDestroyTensor(tensor[i].view));
        CHECK(aclrtFree(tensor[i].memory));
    }
    CHECK(aclrtDestroyStream(stream));
    CHECK(aclrtResetDevice(0));
    CHECK(aclFinalize());
    return 0;
}
