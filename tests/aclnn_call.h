/*
 * aclnn_call.h - small valid calls of aclnnQuantSparseFlashMla in every mode and layout, as plain data that tests
 * change before tensors are made of it.
 *
 * Two sequences, S1 3 (T1 6), N1 4, D 512; 10 and 7 ori keys, 5 and 3 compressed ones, cmp_ratio 2.
 */
#ifndef ACLNN_CALL_H
#define ACLNN_CALL_H

#include <setjmp.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "acl/acl.h"
#include "aclnnop/aclnn_mixed_quant_sparse_flash_mla_metadata.h"
#include "aclnnop/aclnn_quant_sparse_flash_mla.h"
#include "aclnnop/aclnn_quant_sparse_flash_mla_metadata.h"

enum {
    B = 2,
    S1 = 3,
    T1 = 6,
    N1 = 4,
    D = 512,
    S2 = 12,
    S3 = 6,
    RATIO = 2,
    K1 = 5,
    K2 = 4,
    BLOCK = 4,
    PAGES = 8,
    TABLE = 3
};

/* In the order of the first phase's arguments. */
typedef enum call_tensor {
    Q,
    ORI_KV,
    CMP_KV,
    Q_DESCALE,
    ORI_KV_DESCALE,
    CMP_KV_DESCALE,
    ORI_LIST,
    CMP_LIST,
    ORI_TABLE,
    CMP_TABLE,
    CU_Q,
    CU_ORI,
    CU_CMP,
    USED_Q,
    USED_ORI,
    USED_CMP,
    RESIDUAL,
    ORI_TOPK,
    CMP_TOPK,
    SINKS,
    METADATA,
    OUT,
    LSE,
    N_TENSOR
} call_tensor;

typedef struct tensor_data {
    int32_t absent; /* 1: NULL, 0: there */
    int32_t type, format, n_dim;
    int64_t dim[5];
    int64_t stride[5]; /* stride[0] = 0: contiguous */
    int64_t offset;
    void *data;
} tensor_data;

typedef enum call_mode { SWA, ORI_SPARSE, CSA, FULL_SPARSE, HCA } call_mode;
typedef enum call_layout { BSND_BSND, TND_TND, BSND_PA, TND_PA } call_layout;

typedef struct call {
    tensor_data t[N_TENSOR];
    int64_t quant_mode, cmp_ratio, ori_mask, cmp_mask, win_left, win_right, topk_value_mode;
    double scale;
    char layout_q[8], layout_kv[8];
    int32_t null_layouts, lse;
    /* memory, aligned for the types that it may wrongly be said to hold */
    alignas(8) float one[1];
    alignas(8) float half[1];
    alignas(8) float sinks[N1];
    alignas(8) float lse_data[T1 * N1];
    alignas(8) int32_t metadata[1024];
    alignas(8) int32_t ori_list[T1 * K1];
    alignas(8) int32_t cmp_list[T1 * K2];
    alignas(8) int32_t ori_topk[T1];
    alignas(8) int32_t cmp_topk[T1];
    alignas(8) int32_t ori_table[B * TABLE];
    alignas(8) int32_t cmp_table[B * TABLE];
    alignas(8) int32_t cu_q[B + 1];
    alignas(8) int32_t cu_ori[B + 1];
    alignas(8) int32_t cu_cmp[B + 1];
    alignas(8) int32_t used_q[B];
    alignas(8) int32_t used_ori[B];
    alignas(8) int32_t used_cmp[B];
    alignas(8) int32_t residual[B];
    alignas(8) uint8_t q[T1 * N1 * D];
    alignas(8) uint8_t ori[PAGES * BLOCK * D];
    alignas(8) uint8_t cmp[PAGES * BLOCK * D];
    alignas(8) uint16_t out[T1 * N1 * D];
} call;

static inline void set_tensor(call *c, call_tensor which, int32_t type, void *data, int32_t n_dim, int64_t d0,
                              int64_t d1, int64_t d2, int64_t d3)
{
    c->t[which] =
        (tensor_data){.type = type, .format = ACL_FORMAT_ND, .n_dim = n_dim, .dim = {d0, d1, d2, d3}, .data = data};
}

static inline void fill_call(call *c)
{
    static const int32_t begins[][3] = {{0, 3, 6}, {0, 11, 20}, {0, 5, 8}};
    memcpy(c->cu_q, begins[0], sizeof begins[0]);
    memcpy(c->cu_ori, begins[1], sizeof begins[1]);
    memcpy(c->cu_cmp, begins[2], sizeof begins[2]);
    memcpy(c->used_q, (int32_t[]){3, 2}, sizeof c->used_q);
    memcpy(c->used_ori, (int32_t[]){10, 7}, sizeof c->used_ori);
    memcpy(c->used_cmp, (int32_t[]){5, 3}, sizeof c->used_cmp);
    memcpy(c->residual, (int32_t[]){0, 1}, sizeof c->residual);
    memcpy(c->ori_table, (int32_t[]){2, 0, 5, 1, 7, -1}, sizeof c->ori_table);
    memcpy(c->cmp_table, (int32_t[]){3, 6, -1, 4, -1, -1}, sizeof c->cmp_table);
    for (int i = 0; i < T1; i++) {
        memcpy(&c->ori_list[i * K1], (int32_t[]){i, 0, 4, i, -1}, K1 * sizeof(int32_t));
        memcpy(&c->cmp_list[i * K2], (int32_t[]){0, i % 3, 1, -1}, K2 * sizeof(int32_t));
        c->ori_topk[i] = i % 2 == 0 ? K1 : 2;
        c->cmp_topk[i] = i % 2 == 0 ? K2 : 1;
    }
    uint32_t random = 1;
    for (size_t i = 0; i < sizeof c->q + sizeof c->ori + sizeof c->cmp; i++) {
        random = random * 1664525 + 1013904223;
        uint8_t code = (uint8_t)((random >> 24 & 0x9f) | 0x08); /* magnitudes 1 to 3.75 */
        *(i < sizeof c->q                   ? &c->q[i]
          : i < sizeof c->q + sizeof c->ori ? &c->ori[i - sizeof c->q]
                                            : &c->cmp[i - sizeof c->q - sizeof c->ori]) = code;
    }
    c->one[0] = 0.25f;
    c->half[0] = 0.5f;
    for (int h = 0; h < N1; h++) {
        c->sinks[h] = (float)h - 1;
    }
    memset(c->out, 0xff, sizeof c->out);
    memset(c->lse_data, 0xff, sizeof c->lse_data);
}

/* A valid call. Masks are 4 (window 3, 0) and 3, and 0 where an ori list chooses. */
static inline void open_call(call *c, call_mode mode, call_layout layout)
{
    memset(c, 0, sizeof *c);
    fill_call(c);
    for (int i = 0; i < N_TENSOR; i++) {
        c->t[i].absent = 1;
    }
    bool tnd = layout == TND_TND || layout == TND_PA, paged = layout == BSND_PA || layout == TND_PA;
    bool has_cmp = mode == CSA || mode == FULL_SPARSE || mode == HCA;
    bool has_ori_list = mode == ORI_SPARSE || mode == FULL_SPARSE, has_cmp_list = mode == CSA || mode == FULL_SPARSE;
    strcpy(c->layout_q, tnd ? "TND" : "BSND");
    strcpy(c->layout_kv, paged ? "PA_BBND" : tnd ? "TND" : "BSND");
    c->quant_mode = c->topk_value_mode = 1;
    c->scale = 0.03125;
    c->cmp_ratio = has_cmp ? RATIO : 1;
    c->ori_mask = has_ori_list ? 0 : 4;
    c->cmp_mask = has_cmp ? 3 : 0;
    c->win_left = has_ori_list ? -1 : 3;
    c->win_right = has_ori_list ? -1 : 0;
    c->lse = 1;

    if (tnd) {
        set_tensor(c, Q, ACL_HIFLOAT8, c->q, 3, T1, N1, D, 0);
        set_tensor(c, OUT, ACL_BF16, c->out, 3, T1, N1, D, 0);
        set_tensor(c, LSE, ACL_FLOAT, c->lse_data, 3, 1, T1, N1, 0);
        set_tensor(c, CU_Q, ACL_INT32, c->cu_q, 1, B + 1, 0, 0, 0);
    } else {
        set_tensor(c, Q, ACL_HIFLOAT8, c->q, 4, B, S1, N1, D);
        set_tensor(c, OUT, ACL_BF16, c->out, 4, B, S1, N1, D);
        set_tensor(c, LSE, ACL_FLOAT, c->lse_data, 4, B, 1, S1, N1);
    }
    for (int cmp = 0; cmp <= (has_cmp ? 1 : 0); cmp++) {
        call_tensor kv = cmp ? CMP_KV : ORI_KV;
        uint8_t *data = cmp ? c->cmp : c->ori;
        if (paged) {
            set_tensor(c, kv, ACL_HIFLOAT8, data, 4, PAGES, BLOCK, 1, D);
            set_tensor(c, cmp ? CMP_TABLE : ORI_TABLE, ACL_INT32, cmp ? c->cmp_table : c->ori_table, 2, B, TABLE, 0, 0);
            set_tensor(c, cmp ? USED_CMP : USED_ORI, ACL_INT32, cmp ? c->used_cmp : c->used_ori, 1, B, 0, 0, 0);
        } else if (tnd) {
            set_tensor(c, kv, ACL_HIFLOAT8, data, 3, cmp ? 8 : 20, 1, D, 0);
            set_tensor(c, cmp ? CU_CMP : CU_ORI, ACL_INT32, cmp ? c->cu_cmp : c->cu_ori, 1, B + 1, 0, 0, 0);
        } else {
            set_tensor(c, kv, ACL_HIFLOAT8, data, 4, B, cmp ? S3 : S2, 1, D);
        }
    }
    set_tensor(c, Q_DESCALE, ACL_FLOAT, c->one, 1, 1, 0, 0, 0);
    set_tensor(c, ORI_KV_DESCALE, ACL_FLOAT, c->half, 1, 1, 0, 0, 0);
    set_tensor(c, SINKS, ACL_FLOAT, c->sinks, 1, N1, 0, 0, 0);
    set_tensor(c, METADATA, ACL_INT32, c->metadata, 1, 1024, 0, 0, 0);
    if (has_cmp) {
        set_tensor(c, CMP_KV_DESCALE, ACL_FLOAT, c->one, 1, 1, 0, 0, 0);
    }
    if (has_ori_list) {
        set_tensor(c, ORI_LIST, ACL_INT32, c->ori_list, tnd ? 3 : 4, tnd ? T1 : B, tnd ? 1 : S1, tnd ? K1 : 1, K1);
        set_tensor(c, ORI_TOPK, ACL_INT32, c->ori_topk, tnd ? 2 : 3, tnd ? T1 : B, tnd ? 1 : S1, 1, 0);
    }
    if (has_cmp_list) {
        set_tensor(c, CMP_LIST, ACL_INT32, c->cmp_list, tnd ? 3 : 4, tnd ? T1 : B, tnd ? 1 : S1, tnd ? K2 : 1, K2);
    }
}

#include "acl_place.h"

static inline aclTensor *make_tensor(const tensor_data *t)
{
    if (t->absent) {
        return NULL;
    }
    aclTensor *made =
        aclCreateTensor(t->dim, (uint64_t)t->n_dim, (aclDataType)t->type, t->stride[0] != 0 ? t->stride : NULL,
                        t->offset, (aclFormat)t->format, NULL, 0, t->data);
    assert_non_null(made);
    return made;
}

/* The first phase, over the call's tensors or twins of them. The tensors are gone when it returns, and so are its
 * strings. */
static inline aclnnStatus first_phase_of(const call *c, const tensor_data *from, uint64_t *size,
                                         aclOpExecutor **executor)
{
    aclTensor *t[N_TENSOR];
    char *layout_q = malloc(8), *layout_kv = malloc(8);
    for (int i = 0; i < N_TENSOR; i++) {
        t[i] = make_tensor(&from[i]);
    }
    assert_non_null(layout_q);
    assert_non_null(layout_kv);
    memcpy(layout_q, c->layout_q, 8);
    memcpy(layout_kv, c->layout_kv, 8);
    aclnnStatus status =
        aclnnQuantSparseFlashMlaGetWorkspaceSize(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10],
                                                 t[11], t[12], t[13], t[14], t[15], t[16], t[17], t[18], t[19], t[20],
                                                 c->quant_mode, c->scale, c->cmp_ratio, c->ori_mask, c->cmp_mask,
                                                 c->win_left, c->win_right, c->null_layouts ? NULL : layout_q,
                                                 c->null_layouts ? NULL : layout_kv, c->topk_value_mode, c->lse != 0,
                                                 t[OUT], t[LSE], size, executor);
    for (int i = 0; i < N_TENSOR; i++) {
        assert_int_equal(aclDestroyTensor(t[i]), ACLNN_SUCCESS);
    }
    free(layout_q);
    free(layout_kv);
    return status;
}

static inline aclnnStatus first_phase(const call *c, uint64_t *size, aclOpExecutor **executor)
{
    return first_phase_of(c, c->t, size, executor);
}

/* Both phases on the default stream, and their results; on the device that MLA_DEVICE names. */
static inline void run_call(const call *c)
{
    uint64_t size = 99;
    aclOpExecutor *executor = NULL;
    tensor_data twin[N_TENSOR];
    place(c->t, twin, N_TENSOR);
    if (first_phase_of(c, twin, &size, &executor) != ACLNN_SUCCESS) {
        fail_msg("%s", aclGetRecentErrMsg());
    }
    assert_int_equal(size, 0);
    assert_int_equal(aclnnQuantSparseFlashMla(NULL, 0, executor, NULL), ACLNN_SUCCESS);
    if (aclrtSynchronizeStream(NULL) != ACL_SUCCESS) {
        fail_msg("%s", aclGetRecentErrMsg());
    }
    take_back(c->t, twin, OUT, N_TENSOR);
}

/* ---- the metadata operators -------------------------------------------------------------------------------------- */

typedef struct metadata_call {
    tensor_data t[10];  /* in the order of the arguments; the last one is the result */
    int64_t number[10]; /* numHeadsQ .. cmpTopk */
    int64_t cmp_ratio, ori_mask, cmp_mask, win_left, win_right;
    char layout_q[8], layout_kv[8];
    int32_t null_layout_q, null_layout_kv, has_ori, has_cmp, mixed;
} metadata_call;

enum {
    NUM_HEADS_Q,
    NUM_HEADS_KV,
    HEAD_DIM,
    QUANT_MODE,
    BATCH_SIZE,
    MAX_Q,
    MAX_ORI,
    MAX_CMP,
    ORI_TOPK_WIDTH,
    CMP_TOPK_WIDTH
};
enum { M_CU_Q, M_CU_ORI, M_CU_CMP, M_USED_Q, M_USED_ORI, M_USED_CMP, M_RESIDUAL, M_ORI_TOPK, M_CMP_TOPK, M_METADATA };

/* The metadata call that belongs to a call. */
static inline void open_metadata(metadata_call *m, const call *c)
{
    static const call_tensor from[10] = {CU_Q,     CU_ORI,   CU_CMP,   USED_Q,   USED_ORI,
                                         USED_CMP, RESIDUAL, ORI_TOPK, CMP_TOPK, METADATA};
    memset(m, 0, sizeof *m);
    for (int i = 0; i < 10; i++) {
        m->t[i] = c->t[from[i]];
    }
    const int64_t number[10] =
        {N1, 1, D, 1, B, S1, S2, S3, c->t[ORI_LIST].absent ? 0 : K1, c->t[CMP_LIST].absent ? 0 : K2};
    memcpy(m->number, number, sizeof number);
    m->cmp_ratio = c->cmp_ratio;
    m->ori_mask = c->ori_mask;
    m->cmp_mask = c->cmp_mask;
    m->win_left = c->win_left;
    m->win_right = c->win_right;
    memcpy(m->layout_q, c->layout_q, 8);
    memcpy(m->layout_kv, c->layout_kv, 8);
    m->has_ori = 1;
    m->has_cmp = !c->t[CMP_KV].absent;
}

static inline aclnnStatus first_metadata_phase_of(const metadata_call *m, const tensor_data *from, uint64_t *size,
                                                  aclOpExecutor **executor)
{
    aclTensor *t[10];
    const int64_t *n = m->number;
    const char *layout_q = m->null_layout_q ? NULL : m->layout_q, *layout_kv = m->null_layout_kv ? NULL : m->layout_kv;
    for (int i = 0; i < 10; i++) {
        t[i] = make_tensor(&from[i]);
    }
    aclnnStatus status;
    if (m->mixed) {
        status = aclnnMixedQuantSparseFlashMlaMetadataGetWorkspaceSize(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7],
                                                                       t[8], n[0], n[1], n[2], n[3], n[4], n[5], n[6],
                                                                       n[7], n[8], n[9], 64, m->cmp_ratio, m->ori_mask,
                                                                       m->cmp_mask, m->win_left, m->win_right, layout_q,
                                                                       layout_kv, m->has_ori != 0, m->has_cmp != 0,
                                                                       t[9], size, executor);
    } else {
        status =
            aclnnQuantSparseFlashMlaMetadataGetWorkspaceSize(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], n[0],
                                                             n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9],
                                                             m->cmp_ratio, m->ori_mask, m->cmp_mask, m->win_left,
                                                             m->win_right, layout_q, layout_kv, m->has_ori != 0,
                                                             m->has_cmp != 0, t[9], size, executor);
    }
    for (int i = 0; i < 10; i++) {
        assert_int_equal(aclDestroyTensor(t[i]), ACLNN_SUCCESS);
    }
    return status;
}

static inline aclnnStatus first_metadata_phase(const metadata_call *m, uint64_t *size, aclOpExecutor **executor)
{
    return first_metadata_phase_of(m, m->t, size, executor);
}

static inline aclError run_metadata(const metadata_call *m)
{
    uint64_t size = 99;
    aclOpExecutor *executor = NULL;
    tensor_data twin[10];
    place(m->t, twin, 10);
    if (first_metadata_phase_of(m, twin, &size, &executor) != ACLNN_SUCCESS) {
        fail_msg("%s", aclGetRecentErrMsg());
    }
    assert_int_equal(size, 0);
    assert_int_equal((m->mixed ? aclnnMixedQuantSparseFlashMlaMetadata
                               : aclnnQuantSparseFlashMlaMetadata)(NULL, 0, executor, NULL),
                     ACLNN_SUCCESS);
    aclError error = aclrtSynchronizeStream(NULL);
    take_back(m->t, twin, M_METADATA, 10);
    return error;
}

#endif
