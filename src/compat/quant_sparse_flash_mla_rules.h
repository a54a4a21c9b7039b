/*
 * quant_sparse_flash_mla_rules.h - the rules that the operator and its metadata operator share.
 */
#ifndef MLA_COMPAT_QUANT_SPARSE_FLASH_MLA_RULES_H
#define MLA_COMPAT_QUANT_SPARSE_FLASH_MLA_RULES_H

#include "core/status.h"
#include "mla/quant_sparse_flash_mla.h"

typedef mla_quant_sparse_flash_mla_args qsfm_args;
typedef mla_quant_sparse_flash_mla_metadata_args qsfm_metadata_args;

/* Which of the two operators a rule belongs to. */
enum { QSFM_MAIN = 1, QSFM_METADATA = 2, QSFM_BOTH = 3 };

/* What is known of a call once its layouts and masks are; every statement has its opposite, so that a rule can ask for
 * either by a bit. */
enum {
    QSFM_Q_BSND = 1 << 0,
    QSFM_Q_TND = 1 << 1,
    QSFM_KV_BSND = 1 << 2,
    QSFM_KV_TND = 1 << 3,
    QSFM_KV_PA = 1 << 4,
    QSFM_CMP = 1 << 5,
    QSFM_NO_CMP = 1 << 6,
    QSFM_ORI_LIST = 1 << 7,
    QSFM_NO_ORI_LIST = 1 << 8,
    QSFM_CMP_LIST = 1 << 9,
    QSFM_NO_CMP_LIST = 1 << 10,
    QSFM_ORI_BY_LIST = 1 << 11,   /* the ori list is there and not ignored */
    QSFM_ORI_NEEDS_LEN = 1 << 12, /* it is not only a list that says which ori keys are seen */
    QSFM_ORI_MASK_0 = 1 << 13,
    QSFM_CMP_MASK_0 = 1 << 14,
    QSFM_CMP_MASK_3 = 1 << 15,
    QSFM_NO_BAND = 1 << 16,
    QSFM_RATIO_1 = 1 << 17,
    QSFM_RATIO_MORE = 1 << 18,
    QSFM_HIF8 = 1 << 19,
    QSFM_16BIT = 1 << 20,
    QSFM_STRICT_RESIDUAL = 1 << 21,
    QSFM_LSE = 1 << 22
};

typedef struct qsfm_lists {
    bool has_cmp, ori_list, cmp_list, ori_topk_length;
} qsfm_lists;

/* Is the tensor given? One without elements along dim 0 is not. */
bool mla_qsfm_given(const mla_tensor *tensor);

/* The tensor under its argument's name, absent when it is not given. */
mla_tensor mla_qsfm_named(const mla_tensor *tensor, const char *name);

/* Elements of a tensor that passed the check. */
int64_t mla_qsfm_count(const mla_tensor *tensor);

/* Layouts and masks are checked, then *facts says what follows from them. `lists`: what the call tells of lists. */
mla_status mla_qsfm_check_attributes(const qsfm_args *args, int operator_bit, const qsfm_lists *lists, uint32_t *facts);

/* Arguments that must be there, or must not, under these facts. */
mla_status mla_qsfm_check_existence(const qsfm_args *args, int operator_bit, uint32_t facts);

/* A sequence's sizes, as far as they are known; -1: not known. */
typedef struct qsfm_sizes {
    int64_t batch, s1, t1, n1;
} qsfm_sizes;

/* Type, rank, dims and strides of the tensors of an operator. */
mla_status mla_qsfm_check_tensors(const qsfm_args *args, int operator_bit, uint32_t facts, const qsfm_sizes *sizes);

/* All of mla_quant_sparse_flash_mla_check(); *facts may be NULL. */
mla_status mla_qsfm_check(const qsfm_args *args, uint32_t *facts);

/* B of a call that passed the check. */
int64_t mla_qsfm_batch(const qsfm_args *args, uint32_t facts);

#endif
