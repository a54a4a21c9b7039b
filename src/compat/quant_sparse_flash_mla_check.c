/*
 * quant_sparse_flash_mla_check.c - the operator's rules as tables: what must be there, attributes, existence, shapes.
 *
 * Order: mandatory arguments, single attributes, attributes under conditions, existence, then every tensor. The
 * metadata operator uses the rows that are marked for it, on arguments of the same struct.
 */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/shape.h"
#include "core/sized.h"
#include "core/tensor.h"
#include "quant_sparse_flash_mla_rules.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define AT(member) offsetof(qsfm_args, member)

bool mla_qsfm_given(const mla_tensor *t)
{
    return mla_tensor_present(t) && !(t->ndim >= 1 && t->ndim <= MLA_MAX_NDIM && t->dim[0] == 0);
}

mla_tensor mla_qsfm_named(const mla_tensor *tensor, const char *name)
{
    mla_tensor copy = mla_qsfm_given(tensor) ? *tensor : (mla_tensor){0};
    copy.name = name;
    return copy;
}

int64_t mla_qsfm_count(const mla_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        count *= tensor->dim[i];
    }
    return count;
}

static const mla_tensor *tensor_at(const qsfm_args *args, size_t offset)
{
    return (const mla_tensor *)((const char *)args + offset);
}

/* ---- mandatory arguments ----------------------------------------------------------------------------------------- */

typedef struct mandatory_rule {
    size_t offset;
    const char *name;
    unsigned relaxed_by; /* options or formats under which it is optional */
    const char *why;
} mandatory_rule;

enum { RELAXED_BY_OPTION = 1, RELAXED_BY_16BIT = 2, ONLY_WITH_LSE = 4 };

static const mandatory_rule MANDATORY[] = {
    {AT(q), "q", 0, "there is no attention without queries"},
    {AT(attn_out), "attn_out", 0, "the result needs a place"},
    {AT(ori_kv), "ori_kv", 0, "it is part of every mode"},
    {AT(q_descale), "q_descale", RELAXED_BY_16BIT, "hif8 numbers need their scale"},
    {AT(ori_kv_descale), "ori_kv_descale", RELAXED_BY_16BIT, "hif8 numbers need their scale"},
    {AT(sinks), "sinks", RELAXED_BY_OPTION | RELAXED_BY_16BIT, "the operator does not work without"},
    {AT(metadata), "metadata", RELAXED_BY_OPTION, "it is made by the metadata operator"},
    {AT(softmax_lse), "softmax_lse", ONLY_WITH_LSE, "return_softmax_lse is true"},
};

static mla_status check_mandatory(const qsfm_args *args)
{
    for (size_t i = 0; i < COUNT(MANDATORY); i++) {
        const mandatory_rule *rule = &MANDATORY[i];
        const mla_tensor *t = tensor_at(args, rule->offset);
        if (mla_qsfm_given(t) || ((rule->relaxed_by & ONLY_WITH_LSE) && !args->return_softmax_lse)) {
            continue;
        }
        bool relaxed = ((rule->relaxed_by & RELAXED_BY_OPTION) && (args->options & MLA_SPARSE_FLASH_MLA_RELAXED)) ||
                       ((rule->relaxed_by & RELAXED_BY_16BIT) && args->format == MLA_SPARSE_FLASH_MLA_16BIT);
        if (relaxed) {
            continue;
        }
        if (mla_tensor_present(t)) {
            return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[0] = 0: the tensor is empty, but %s", rule->name, rule->why);
        }
        return mla_fail(MLA_STATUS_NULL_POINTER, "%s is missing: %s", rule->name, rule->why);
    }
    return MLA_STATUS_OK;
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

typedef struct attribute_rule {
    size_t offset;
    const char *name;
    int operators;
    int64_t low, high;
    uint32_t only; /* bit v: v is legal, when not all of low .. high are */
} attribute_rule;

static const attribute_rule ATTRIBUTES[] = {
    {AT(quant_mode), "quant_mode", QSFM_MAIN, 1, 1, 0},
    {AT(topk_value_mode), "topk_value_mode", QSFM_MAIN, 1, 1, 0},
    {AT(cmp_ratio), "cmp_ratio", QSFM_BOTH, 1, 128, 0},
    {AT(ori_mask_mode), "ori_mask_mode", QSFM_BOTH, 0, 4, 1 << 0 | 1 << 3 | 1 << 4},
    {AT(cmp_mask_mode), "cmp_mask_mode", QSFM_BOTH, 0, 3, 1 << 0 | 1 << 3},
    {AT(ori_win_left), "ori_win_left", QSFM_BOTH, -1, INT64_MAX, 0},
    {AT(ori_win_right), "ori_win_right", QSFM_BOTH, -1, INT64_MAX, 0},
};

/* An attribute that must have one value when all of `facts` hold. */
typedef struct fixed_rule {
    size_t offset;
    const char *name;
    int operators;
    uint32_t facts;
    int64_t value;
    const char *why;
} fixed_rule;

static const fixed_rule FIXED[] = {
    {AT(cmp_ratio), "cmp_ratio", QSFM_MAIN, QSFM_NO_CMP, 1, "there is no cmp_kv"},
    {AT(cmp_mask_mode), "cmp_mask_mode", QSFM_BOTH, QSFM_NO_CMP, 0, "there is no cmp_kv"},
    {AT(ori_win_left), "ori_win_left", QSFM_BOTH, QSFM_NO_BAND, -1, "ori_mask_mode is not 4"},
    {AT(ori_win_right), "ori_win_right", QSFM_BOTH, QSFM_NO_BAND, -1, "ori_mask_mode is not 4"},
};

static int64_t number_at(const qsfm_args *args, size_t offset)
{
    int64_t value;
    memcpy(&value, (const char *)args + offset, sizeof value);
    return value;
}

static mla_status check_attribute(const attribute_rule *rule, int64_t value)
{
    if (value >= rule->low && value <= rule->high && (rule->only == 0 || (rule->only >> value & 1))) {
        return MLA_STATUS_OK;
    }
    if (rule->only != 0) {
        char legal[64] = "";
        size_t used = 0;
        for (int64_t v = rule->low; v <= rule->high; v++) {
            if (rule->only >> v & 1) {
                used += (size_t)snprintf(legal + used, sizeof legal - used, "%s%" PRId64,
                                         used == 0               ? ""
                                         : rule->only >> (v + 1) ? ", "
                                                                 : " or ",
                                         v);
            }
        }
        return mla_fail(MLA_STATUS_BAD_VALUE, "%s = %" PRId64 " must be %s", rule->name, value, legal);
    }
    if (rule->low == rule->high) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "%s = %" PRId64 " must be %" PRId64, rule->name, value, rule->low);
    }
    if (rule->high == INT64_MAX) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "%s = %" PRId64 " must be at least %" PRId64, rule->name, value,
                        rule->low);
    }
    return mla_fail(MLA_STATUS_BAD_VALUE, "%s = %" PRId64 " must be between %" PRId64 " and %" PRId64, rule->name,
                    value, rule->low, rule->high);
}

/* The fact that a layout's name stands for; 0 for an unknown one. */
static uint32_t layout_fact(const char *layout, const char *const *names, const uint32_t *facts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(layout, names[i]) == 0) {
            return facts[i];
        }
    }
    return 0;
}

static mla_status check_layouts(const qsfm_args *args, uint32_t *facts)
{
    static const char *const names[] = {"BSND", "TND", "PA_BBND"};
    static const uint32_t q_facts[] = {QSFM_Q_BSND, QSFM_Q_TND}, kv_facts[] = {QSFM_KV_BSND, QSFM_KV_TND, QSFM_KV_PA};
    const char *layout_q = args->layout_q != NULL ? args->layout_q : names[0];
    const char *layout_kv = args->layout_kv != NULL ? args->layout_kv : names[0];
    uint32_t q = layout_fact(layout_q, names, q_facts, COUNT(q_facts));
    uint32_t kv = layout_fact(layout_kv, names, kv_facts, COUNT(kv_facts));
    if (q == 0) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "layout_q = \"%.40s\" must be \"BSND\" or \"TND\"", layout_q);
    }
    if (kv == 0) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "layout_kv = \"%.40s\" must be \"BSND\", \"TND\" or \"PA_BBND\"",
                        layout_kv);
    }
    if (kv != QSFM_KV_PA && (q == QSFM_Q_TND) != (kv == QSFM_KV_TND)) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "layout_kv = \"%s\" must be \"PA_BBND\" or layout_q = \"%s\"", layout_kv,
                        layout_q);
    }
    *facts |= q | kv;
    return MLA_STATUS_OK;
}

mla_status mla_qsfm_check_attributes(const qsfm_args *args, int operator_bit, const qsfm_lists *lists, uint32_t *facts)
{
    *facts = lists->has_cmp ? QSFM_CMP : QSFM_NO_CMP;
    for (size_t i = 0; i < COUNT(ATTRIBUTES); i++) {
        const attribute_rule *rule = &ATTRIBUTES[i];
        bool unused = rule->offset == AT(quant_mode) && args->format == MLA_SPARSE_FLASH_MLA_16BIT;
        unused = unused || (rule->offset == AT(cmp_ratio) && operator_bit == QSFM_METADATA && !lists->has_cmp);
        if ((rule->operators & operator_bit) && !unused) {
            MLA_TRY(check_attribute(rule, number_at(args, rule->offset)));
        }
    }
    MLA_TRY(check_layouts(args, facts));
    bool ori_by_list = lists->ori_list && (!lists->has_cmp || lists->cmp_list);
    bool all_masks_0 = args->ori_mask_mode == 0 && args->cmp_mask_mode == 0; /* the latter holds without cmp_kv */
    *facts |= lists->ori_list ? QSFM_ORI_LIST : QSFM_NO_ORI_LIST;
    *facts |= lists->cmp_list ? QSFM_CMP_LIST : QSFM_NO_CMP_LIST;
    *facts |= ori_by_list ? QSFM_ORI_BY_LIST : 0;
    *facts |= ori_by_list && all_masks_0 && lists->ori_topk_length ? 0 : QSFM_ORI_NEEDS_LEN;
    *facts |= args->ori_mask_mode == 0 ? QSFM_ORI_MASK_0 : 0;
    *facts |= args->ori_mask_mode != 4 ? QSFM_NO_BAND : 0;
    *facts |= args->cmp_mask_mode == 0 ? QSFM_CMP_MASK_0 : QSFM_CMP_MASK_3;
    *facts |= args->cmp_ratio == 1 ? QSFM_RATIO_1 : QSFM_RATIO_MORE;
    *facts |= args->format == MLA_SPARSE_FLASH_MLA_HIF8 ? QSFM_HIF8 : QSFM_16BIT;
    *facts |= args->options & MLA_SPARSE_FLASH_MLA_STRICT_RESIDUAL ? QSFM_STRICT_RESIDUAL : 0;
    *facts |= args->return_softmax_lse ? QSFM_LSE : 0;
    for (size_t i = 0; i < COUNT(FIXED); i++) {
        const fixed_rule *rule = &FIXED[i];
        int64_t value = number_at(args, rule->offset);
        if ((rule->operators & operator_bit) && (*facts & rule->facts) == rule->facts && value != rule->value) {
            return mla_fail(MLA_STATUS_BAD_VALUE, "%s = %" PRId64 " must be %" PRId64 ": %s", rule->name, value,
                            rule->value, rule->why);
        }
    }
    return MLA_STATUS_OK;
}

static mla_status check_own_attributes(const qsfm_args *args)
{
    const uint32_t known =
        MLA_SPARSE_FLASH_MLA_RELAXED | MLA_SPARSE_FLASH_MLA_STRICT_RESIDUAL | MLA_SPARSE_FLASH_MLA_EXACT_P;
    MLA_TRY(mla_sized_check(args->struct_size, sizeof *args, "args", "mla_quant_sparse_flash_mla_init",
                            "quant_sparse_flash_mla.h"));
    if ((int)args->format < MLA_SPARSE_FLASH_MLA_HIF8 || (int)args->format > MLA_SPARSE_FLASH_MLA_16BIT) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "format = %d must be 0 (hif8) or 1 (16 bit)", (int)args->format);
    }
    if (args->options & ~known) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "options = 0x%" PRIx32 " has bits that are not known", args->options);
    }
    if (!isfinite((float)args->softmax_scale)) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "softmax_scale = %g must be finite in fp32", args->softmax_scale);
    }
    return MLA_STATUS_OK;
}

/* ---- existence --------------------------------------------------------------------------------------------------- */

/* Under all of `facts` a tensor must be there, or must not. */
typedef struct existence_rule {
    size_t offset;
    const char *name;
    int operators;
    bool required;
    uint32_t facts;
    const char *why;
} existence_rule;

#define REQUIRED true
#define FORBIDDEN false
#define ROW(member) AT(member), #member

static const existence_rule EXISTENCE[] = {
    {ROW(cu_seqlens_q), QSFM_BOTH, REQUIRED, QSFM_Q_TND, "layout_q is TND"},
    {ROW(cu_seqlens_q), QSFM_BOTH, FORBIDDEN, QSFM_Q_BSND, "layout_q is BSND"},
    {ROW(cu_seqlens_ori_kv), QSFM_BOTH, REQUIRED, QSFM_KV_TND, "layout_kv is TND"},
    {ROW(cu_seqlens_ori_kv), QSFM_BOTH, FORBIDDEN, QSFM_KV_BSND, "layout_kv is BSND"},
    {ROW(cu_seqlens_ori_kv), QSFM_BOTH, FORBIDDEN, QSFM_KV_PA, "layout_kv is PA_BBND"},
    {ROW(cu_seqlens_cmp_kv), QSFM_BOTH, FORBIDDEN, QSFM_NO_CMP, "there is no cmp_kv"},
    {ROW(cu_seqlens_cmp_kv), QSFM_BOTH, REQUIRED, QSFM_KV_TND | QSFM_CMP, "layout_kv is TND"},
    {ROW(cu_seqlens_cmp_kv), QSFM_BOTH, FORBIDDEN, QSFM_KV_BSND, "layout_kv is BSND"},
    {ROW(cu_seqlens_cmp_kv), QSFM_BOTH, FORBIDDEN, QSFM_KV_PA, "layout_kv is PA_BBND"},
    {ROW(seqused_ori_kv), QSFM_BOTH, REQUIRED, QSFM_KV_PA | QSFM_ORI_NEEDS_LEN,
     "layout_kv is PA_BBND, and keys are seen that no list with lengths of its own names"},
    {ROW(seqused_cmp_kv), QSFM_BOTH, FORBIDDEN, QSFM_NO_CMP, "there is no cmp_kv"},
    {ROW(ori_block_table), QSFM_MAIN, REQUIRED, QSFM_KV_PA, "layout_kv is PA_BBND"},
    {ROW(ori_block_table), QSFM_MAIN, FORBIDDEN, QSFM_KV_BSND, "layout_kv is BSND"},
    {ROW(ori_block_table), QSFM_MAIN, FORBIDDEN, QSFM_KV_TND, "layout_kv is TND"},
    {ROW(cmp_block_table), QSFM_MAIN, FORBIDDEN, QSFM_NO_CMP, "there is no cmp_kv"},
    {ROW(cmp_block_table), QSFM_MAIN, REQUIRED, QSFM_KV_PA | QSFM_CMP, "layout_kv is PA_BBND"},
    {ROW(cmp_block_table), QSFM_MAIN, FORBIDDEN, QSFM_KV_BSND, "layout_kv is BSND"},
    {ROW(cmp_block_table), QSFM_MAIN, FORBIDDEN, QSFM_KV_TND, "layout_kv is TND"},
    {ROW(cmp_sparse_indices), QSFM_MAIN, FORBIDDEN, QSFM_NO_CMP, "there is no cmp_kv"},
    {ROW(ori_topk_length), QSFM_MAIN, FORBIDDEN, QSFM_NO_ORI_LIST, "there are no ori_sparse_indices"},
    {ROW(ori_topk_length), QSFM_MAIN, REQUIRED, QSFM_ORI_BY_LIST | QSFM_ORI_MASK_0,
     "ori_sparse_indices are given and ori_mask_mode is 0"},
    {ROW(cmp_topk_length), QSFM_MAIN, FORBIDDEN, QSFM_NO_CMP, "there is no cmp_kv"},
    {ROW(cmp_topk_length), QSFM_MAIN, FORBIDDEN, QSFM_NO_CMP_LIST, "there are no cmp_sparse_indices"},
    {ROW(cmp_topk_length), QSFM_MAIN, REQUIRED, QSFM_CMP_LIST | QSFM_CMP_MASK_0,
     "cmp_sparse_indices are given and cmp_mask_mode is 0"},
    {ROW(cmp_residual_kv), QSFM_MAIN, FORBIDDEN, QSFM_NO_CMP, "there is no cmp_kv"},
    {ROW(cmp_residual_kv), QSFM_MAIN, REQUIRED, QSFM_STRICT_RESIDUAL | QSFM_CMP | QSFM_CMP_MASK_3 | QSFM_RATIO_MORE,
     "cmp_mask_mode is 3 and cmp_ratio is not 1"},
    {ROW(cmp_residual_kv), QSFM_MAIN, FORBIDDEN, QSFM_STRICT_RESIDUAL | QSFM_CMP_MASK_0, "cmp_mask_mode is 0"},
    {ROW(cmp_residual_kv), QSFM_MAIN, FORBIDDEN, QSFM_STRICT_RESIDUAL | QSFM_RATIO_1, "cmp_ratio is 1"},
    {ROW(cmp_kv_descale), QSFM_MAIN, FORBIDDEN, QSFM_NO_CMP, "there is no cmp_kv"},
    {ROW(cmp_kv_descale), QSFM_MAIN, REQUIRED, QSFM_CMP | QSFM_HIF8, "cmp_kv is given"},
    {ROW(q_descale), QSFM_MAIN, FORBIDDEN, QSFM_16BIT, "16-bit numbers have no scale"},
    {ROW(ori_kv_descale), QSFM_MAIN, FORBIDDEN, QSFM_16BIT, "16-bit numbers have no scale"},
    {ROW(cmp_kv_descale), QSFM_MAIN, FORBIDDEN, QSFM_16BIT, "16-bit numbers have no scale"},
};

mla_status mla_qsfm_check_existence(const qsfm_args *args, int operator_bit, uint32_t facts)
{
    for (size_t i = 0; i < COUNT(EXISTENCE); i++) {
        const existence_rule *rule = &EXISTENCE[i];
        if ((rule->operators & operator_bit) && (facts & rule->facts) == rule->facts &&
            mla_qsfm_given(tensor_at(args, rule->offset)) != rule->required) {
            return mla_fail(MLA_STATUS_BAD_VALUE, rule->required ? "%s is missing: %s" : "%s must be absent: %s",
                            rule->name, rule->why);
        }
    }
    return MLA_STATUS_OK;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Extents of a dim. */
typedef enum extent_name {
    ANY,        /* at least 1 */
    ONE,        /* N2, or a dim that is only there to be there */
    HEADS,      /* N1 of q itself */
    BLOCK_SIZE, /* tokens of a block */
    D,
    WORDS, /* of metadata */
    BATCH,
    BATCH_PLUS_1,
    S1,
    T1,
    N1
} extent_name;

typedef struct dims_form {
    const char *notation;
    int32_t ndim;
    extent_name dim[4];
} dims_form;

/* Notations are the vendor's. Forms by the layout of q: BSND, TND; of kv: BSND, TND, PA_BBND. */
static const dims_form Q_FORMS[] = {{"(B, S1, N1, D)", 4, {ANY, ANY, HEADS, D}}, {"(T1, N1, D)", 3, {ANY, HEADS, D}}};
static const dims_form OUT_FORMS[] = {{"(B, S1, N1, D)", 4, {BATCH, S1, N1, D}}, {"(T1, N1, D)", 3, {T1, N1, D}}};
static const dims_form LSE_FORMS[] = {{"(B, N2, S1, N1)", 4, {BATCH, ONE, S1, N1}}, {"(N2, T1, N1)", 3, {ONE, T1, N1}}};
static const dims_form LIST_FORMS[] = {{"(B, S1, N2, K)", 4, {BATCH, S1, ONE, ANY}},
                                       {"(T1, N2, K)", 3, {T1, ONE, ANY}}};
static const dims_form ROW_FORMS[] = {{"(B, S1, N2)", 3, {BATCH, S1, ONE}}, {"(T1, N2)", 2, {T1, ONE}}};
static const dims_form KV_FORMS[] = {{"(B, S, N2, D)", 4, {BATCH, ANY, ONE, D}},
                                     {"(T, N2, D)", 3, {ANY, ONE, D}},
                                     {"(blocks, block_size, N2, D)", 4, {ANY, BLOCK_SIZE, ONE, D}}};
static const dims_form TABLE_FORM = {"(B, blocks)", 2, {BATCH, ANY}};
static const dims_form BATCH_FORM = {"(B)", 1, {BATCH}};
static const dims_form BEGIN_FORM = {"(B + 1)", 1, {BATCH_PLUS_1}};
static const dims_form HEAD_FORM = {"(N1)", 1, {N1}};
static const dims_form SCALAR_FORM = {"(1)", 1, {ONE}};
static const dims_form METADATA_FORM = {"(1024)", 1, {WORDS}};

typedef enum form_choice { ONE_FORM, BY_Q_LAYOUT, BY_KV_LAYOUT } form_choice;

typedef struct tensor_rule {
    size_t offset;
    const char *name;
    int operators;
    unsigned dtypes, dtypes_16bit; /* sets, by the format; DTYPE_OF_Q: the type of q */
    form_choice choice;
    const dims_form *form;
} tensor_rule;

#define I32 MLA_DTYPE_BIT(MLA_DTYPE_I32)
#define F32 MLA_DTYPE_BIT(MLA_DTYPE_F32)
#define BF16 MLA_DTYPE_BIT(MLA_DTYPE_BF16)
#define HIF8 MLA_DTYPE_BIT(MLA_DTYPE_HIF8)
#define DTYPE_OF_Q 0u

static const tensor_rule TENSORS[] = {
    {ROW(q), QSFM_MAIN, HIF8, MLA_DTYPES_16BIT, BY_Q_LAYOUT, Q_FORMS},
    {ROW(ori_kv), QSFM_MAIN, HIF8, DTYPE_OF_Q, BY_KV_LAYOUT, KV_FORMS},
    {ROW(cmp_kv), QSFM_MAIN, HIF8, DTYPE_OF_Q, BY_KV_LAYOUT, KV_FORMS},
    {ROW(attn_out), QSFM_MAIN, BF16, DTYPE_OF_Q, BY_Q_LAYOUT, OUT_FORMS},
    {ROW(cu_seqlens_q), QSFM_BOTH, I32, I32, ONE_FORM, &BEGIN_FORM},
    {ROW(cu_seqlens_ori_kv), QSFM_BOTH, I32, I32, ONE_FORM, &BEGIN_FORM},
    {ROW(cu_seqlens_cmp_kv), QSFM_BOTH, I32, I32, ONE_FORM, &BEGIN_FORM},
    {ROW(seqused_q), QSFM_BOTH, I32, I32, ONE_FORM, &BATCH_FORM},
    {ROW(seqused_ori_kv), QSFM_BOTH, I32, I32, ONE_FORM, &BATCH_FORM},
    {ROW(seqused_cmp_kv), QSFM_BOTH, I32, I32, ONE_FORM, &BATCH_FORM},
    {ROW(cmp_residual_kv), QSFM_BOTH, I32, I32, ONE_FORM, &BATCH_FORM},
    {ROW(ori_block_table), QSFM_MAIN, I32, I32, ONE_FORM, &TABLE_FORM},
    {ROW(cmp_block_table), QSFM_MAIN, I32, I32, ONE_FORM, &TABLE_FORM},
    {ROW(ori_sparse_indices), QSFM_MAIN, I32, I32, BY_Q_LAYOUT, LIST_FORMS},
    {ROW(cmp_sparse_indices), QSFM_MAIN, I32, I32, BY_Q_LAYOUT, LIST_FORMS},
    {ROW(ori_topk_length), QSFM_BOTH, I32, I32, BY_Q_LAYOUT, ROW_FORMS},
    {ROW(cmp_topk_length), QSFM_BOTH, I32, I32, BY_Q_LAYOUT, ROW_FORMS},
    {ROW(sinks), QSFM_MAIN, F32, F32, ONE_FORM, &HEAD_FORM},
    {ROW(metadata), QSFM_BOTH, I32, I32, ONE_FORM, &METADATA_FORM},
    {ROW(softmax_lse), QSFM_MAIN, F32, F32, BY_Q_LAYOUT, LSE_FORMS},
    {ROW(q_descale), QSFM_MAIN, F32, F32, ONE_FORM, &SCALAR_FORM},
    {ROW(ori_kv_descale), QSFM_MAIN, F32, F32, ONE_FORM, &SCALAR_FORM},
    {ROW(cmp_kv_descale), QSFM_MAIN, F32, F32, ONE_FORM, &SCALAR_FORM},
};

/* The range of an extent, and its name in sentences; "" when the notation says it all. */
typedef struct extent_range {
    int64_t low, high;
    const char *name;
} extent_range;

static extent_range known(int64_t value, const char *name)
{
    return value < 0 ? (extent_range){1, INT64_MAX, ""} : (extent_range){value, value, name};
}

static extent_range range_of(extent_name extent, const qsfm_sizes *sizes)
{
    switch (extent) {
    case ONE: return (extent_range){1, 1, ""};
    case HEADS: return (extent_range){1, 128, "N1"};
    case BLOCK_SIZE: return (extent_range){1, 1024, "block_size"};
    case D: return (extent_range){512, 512, "D"};
    case WORDS:
        return (extent_range){MLA_QUANT_SPARSE_FLASH_MLA_METADATA_WORDS, MLA_QUANT_SPARSE_FLASH_MLA_METADATA_WORDS, ""};
    case BATCH: return known(sizes->batch, "B");
    case BATCH_PLUS_1: return known(sizes->batch < 0 ? -1 : sizes->batch + 1, "B + 1");
    case S1: return known(sizes->s1, "S1");
    case T1: return known(sizes->t1, "T1");
    case N1: return known(sizes->n1, "N1");
    default: return (extent_range){1, INT64_MAX, ""};
    }
}

static mla_status check_dims(const mla_tensor *t, const char *name, const dims_form *form, const qsfm_sizes *sizes)
{
    if (t->ndim != form->ndim) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.ndim = %" PRId32 " must be %" PRId32 ": %s", name, t->ndim,
                        form->ndim, form->notation);
    }
    for (int32_t i = 0; i < form->ndim; i++) {
        extent_range range = range_of(form->dim[i], sizes);
        if (t->dim[i] >= range.low && t->dim[i] <= range.high) {
            continue;
        }
        if (range.high == INT64_MAX) {
            return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[%" PRId32 "] = %" PRId64 " must be at least %" PRId64 ": %s",
                            name, i, t->dim[i], range.low, form->notation);
        }
        if (range.low != range.high) {
            return mla_fail(MLA_STATUS_BAD_SHAPE,
                            "%s.dim[%" PRId32 "] = %" PRId64 " must be between %" PRId64 " and %" PRId64 " (%s): %s",
                            name, i, t->dim[i], range.low, range.high, range.name, form->notation);
        }
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[%" PRId32 "] = %" PRId64 " must be %s%s%" PRId64 ": %s", name, i,
                        t->dim[i], range.name, range.name[0] != '\0' ? " = " : "", range.low, form->notation);
    }
    return MLA_STATUS_OK;
}

static mla_status check_tensor(const qsfm_args *args, const tensor_rule *rule, uint32_t facts, const qsfm_sizes *sizes,
                               const mla_field *beside)
{
    mla_tensor t = mla_qsfm_named(tensor_at(args, rule->offset), rule->name);
    mla_field field = {.tensor = &t, .path = rule->name, .segment = -1};
    MLA_TRY(mla_field_check(&field));
    MLA_TRY(mla_field_check_device(&field, beside));
    unsigned dtypes = facts & QSFM_16BIT ? rule->dtypes_16bit : rule->dtypes;
    MLA_TRY(mla_field_check_dtype(&field, dtypes != DTYPE_OF_Q ? dtypes : MLA_DTYPE_BIT(args->q.dtype)));
    int which = 0;
    if (rule->choice == BY_Q_LAYOUT) {
        which = facts & QSFM_Q_TND ? 1 : 0;
    } else if (rule->choice == BY_KV_LAYOUT) {
        which = facts & QSFM_KV_PA ? 2 : facts & QSFM_KV_TND ? 1 : 0;
    }
    MLA_TRY(check_dims(&t, rule->name, &rule->form[which], sizes));
    if (rule->choice == BY_KV_LAYOUT && which == 2) {
        t.stride[0] = t.dim[1] * t.dim[2] * t.dim[3]; /* blocks may lie apart */
    }
    return mla_field_check_contiguous(&field);
}

mla_status mla_qsfm_check_tensors(const qsfm_args *args, int operator_bit, uint32_t facts, const qsfm_sizes *sizes)
{
    /* all tensors are on one device: that of q, or of the metadata to be made */
    const bool main = operator_bit == QSFM_MAIN;
    const mla_tensor first = mla_qsfm_named(main ? &args->q : &args->metadata, main ? "q" : "metadata");
    const mla_field beside = {.tensor = &first, .path = first.name, .segment = -1};
    for (size_t i = 0; i < COUNT(TENSORS); i++) {
        const tensor_rule *rule = &TENSORS[i];
        bool unused = rule->offset == AT(softmax_lse) && !(facts & QSFM_LSE);
        if ((rule->operators & operator_bit) && !unused && mla_qsfm_given(tensor_at(args, rule->offset))) {
            MLA_TRY(check_tensor(args, rule, facts, sizes, &beside));
        }
    }
    return MLA_STATUS_OK;
}

/* ---- the operator ------------------------------------------------------------------------------------------------ */

int64_t mla_qsfm_batch(const qsfm_args *args, uint32_t facts)
{
    return facts & QSFM_Q_TND ? args->cu_seqlens_q.dim[0] - 1 : args->q.dim[0];
}

/* Of a q whose rank may still be wrong; the first row of the table then says so. */
static qsfm_sizes sizes_of(const qsfm_args *args, uint32_t facts)
{
    bool tnd = facts & QSFM_Q_TND;
    int32_t ndim = args->q.ndim >= 2 && args->q.ndim <= MLA_MAX_NDIM ? args->q.ndim : 2;
    return (qsfm_sizes){.batch = mla_qsfm_batch(args, facts),
                        .s1 = tnd ? -1 : args->q.dim[1],
                        .t1 = tnd ? args->q.dim[0] : -1,
                        .n1 = args->q.dim[ndim - 2]};
}

mla_status mla_qsfm_check(const qsfm_args *args, uint32_t *facts)
{
    if (args == NULL) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "args is NULL");
    }
    uint32_t found = 0;
    MLA_TRY(check_own_attributes(args));
    MLA_TRY(check_mandatory(args));
    qsfm_lists lists = {.has_cmp = mla_qsfm_given(&args->cmp_kv),
                        .ori_list = mla_qsfm_given(&args->ori_sparse_indices),
                        .cmp_list = mla_qsfm_given(&args->cmp_sparse_indices),
                        .ori_topk_length = mla_qsfm_given(&args->ori_topk_length)};
    MLA_TRY(mla_qsfm_check_attributes(args, QSFM_MAIN, &lists, &found));
    MLA_TRY(mla_qsfm_check_existence(args, QSFM_MAIN, found));
    qsfm_sizes sizes = sizes_of(args, found);
    MLA_TRY(mla_qsfm_check_tensors(args, QSFM_MAIN, found, &sizes));
    if (facts != NULL) {
        *facts = found;
    }
    return MLA_STATUS_OK;
}

mla_status mla_quant_sparse_flash_mla_check(const mla_quant_sparse_flash_mla_args *args)
{
    return mla_qsfm_check(args, NULL);
}
