/*
 * atb_check.c - the tensors of a decode call, in ATB's order and with its codes, and the steps that prefill shares.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "atb_internal.h"
#include "mla/mla_gpu.h"

int32_t mla_atb_fail(int32_t code, const char *format, ...)
{
    char sentence[320];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    (void)mla_fail(MLA_STATUS_BAD_VALUE, "%s", sentence);
    return code;
}

int32_t mla_atb_code(mla_status status)
{
    switch (status) {
    case MLA_STATUS_OK: return MLA_ATB_NO_ERROR;
    case MLA_STATUS_NULL_POINTER: return MLA_ATB_ERROR_INVALID_TENSOR_ADDR;
    case MLA_STATUS_BAD_SHAPE:
    case MLA_STATUS_BAD_STRIDE: return MLA_ATB_ERROR_INVALID_TENSOR_DIM;
    case MLA_STATUS_BAD_DTYPE: return MLA_ATB_ERROR_INVALID_TENSOR_INI_MATCH;
    case MLA_STATUS_OUT_OF_RANGE: return MLA_ATB_ERROR_RT_FAIL;
    case MLA_STATUS_OUT_OF_MEMORY: return MLA_ATB_ERROR_OUT_OF_HOST_MEMORY;
    case MLA_STATUS_STALE_PLAN:
    case MLA_STATUS_INTERNAL: return MLA_ATB_ERROR_INTERNAL_ERROR;
    default: return MLA_ATB_ERROR_INVALID_PARAM;
    }
}

/* ---- dtypes ------------------------------------------------------------------------------------------------------ */

/* 0: not a dtype with a size. Every number of aclDataType that has one, for "known, but not here" and "not known" are
 * different codes. */
static int64_t dtype_size(int32_t dtype)
{
    static const int8_t size[] = {
        [0] = 4,  [1] = 2,  [2] = 1,  [3] = 4,   [4] = 1,  [6] = 2,  [7] = 2,  [8] = 4,  [9] = 8,  [10] = 8,
        [11] = 8, [12] = 1, [16] = 8, [17] = 16, [27] = 2, [33] = 4, [34] = 1, [35] = 1, [36] = 1, [37] = 1,
    };
    return dtype >= 0 && dtype < (int32_t)sizeof size ? size[dtype] : 0;
}

mla_dtype mla_atb_dtype_of(int32_t dtype)
{
    switch (dtype) {
    case MLA_ATB_FLOAT: return MLA_DTYPE_F32;
    case MLA_ATB_FLOAT16: return MLA_DTYPE_F16;
    case MLA_ATB_BF16: return MLA_DTYPE_BF16;
    case MLA_ATB_INT8: return MLA_DTYPE_I8;
    case MLA_ATB_INT32: return MLA_DTYPE_I32;
    default: return MLA_DTYPE_NONE;
    }
}

static const char *dtype_name(int32_t dtype)
{
    switch (dtype) {
    case MLA_ATB_FLOAT: return "float";
    case MLA_ATB_FLOAT16: return "float16";
    case MLA_ATB_BF16: return "bfloat16";
    case MLA_ATB_INT8: return "int8";
    case MLA_ATB_INT32: return "int32";
    case 4: return "uint8"; /* these as aclDataType counts them: they are refused, by name */
    case 6: return "int16";
    case 9: return "int64";
    case 11: return "double";
    case 12: return "bool";
    default: return "another dtype";
    }
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static const char *name_of(const atb_call *call, atb_slot slot)
{
    return mla_atb_slot_name(call->param, slot);
}

/* May the call leave this tensor out? Only the concatenated cache has rope inside its rows, and perhaps its queries. */
static bool may_be_absent(const atb_call *call, atb_slot slot)
{
    return call->param->cache_mode == MLA_ATB_KVCACHE && (slot == ATB_K_ROPE || slot == ATB_Q_ROPE);
}

/* Elements, or -1 when their bytes are not in 1 .. 256 GiB. */
static int64_t count_elements(const mla_atb_tensor *t)
{
    const int64_t most = (int64_t)256 << 30;
    int64_t count = 1;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->dim[i] <= 0 || __builtin_mul_overflow(count, t->dim[i], &count)) {
            return -1;
        }
    }
    return count <= most / dtype_size(t->dtype) ? count : -1;
}

int32_t mla_atb_check_present(const atb_call *call)
{
    const atb_slots slots = mla_atb_slots_of(call->param);
    atb_slot given[MLA_ATB_MAX_IN + MLA_ATB_MAX_OUT];
    int32_t n = 0;
    for (int32_t i = 0; i < slots.n_in + slots.n_out; i++) {
        atb_slot slot = i < slots.n_in ? slots.in[i] : slots.out[i - slots.n_in];
        const mla_atb_tensor *t = call->tensor[slot];
        if (t == NULL && may_be_absent(call, slot)) {
            continue;
        }
        if (t == NULL || t->ndim < 1 || t->ndim > MLA_ATB_MAX_NDIM) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM, "%s %s", name_of(call, slot),
                                t == NULL ? "is missing" : "must have 1 to 8 dims");
        }
        given[n++] = slot;
    }
    for (int32_t i = 0; i < n; i++) {
        const mla_atb_tensor *t = call->tensor[given[i]];
        if (dtype_size(t->dtype) == 0) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_SIZE, "%s has dtype %d, whose size is not known",
                                name_of(call, given[i]), t->dtype);
        }
        if (count_elements(t) < 0) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_SIZE, "%s must have between 1 byte and 256 GiB",
                                name_of(call, given[i]));
        }
    }
    return MLA_ATB_NO_ERROR;
}

int32_t mla_atb_check_dtype(const atb_call *call, atb_slot slot, int32_t dtype)
{
    const mla_atb_tensor *t = call->tensor[slot];
    if (t == NULL || t->dtype == dtype) {
        return MLA_ATB_NO_ERROR;
    }
    return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_INI_MATCH, "%s is %s (%d) and must be %s", name_of(call, slot),
                        dtype_name(t->dtype), t->dtype, dtype_name(dtype));
}

/* The tensor whose dtype names F. */
static atb_slot float_slot(const atb_call *call)
{
    return call->tensor[ATB_Q_ROPE] != NULL ? ATB_Q_ROPE : ATB_Q;
}

int32_t mla_atb_check_float(const atb_call *call, atb_slot slot)
{
    const mla_atb_tensor *t = call->tensor[slot], *f = call->tensor[float_slot(call)];
    if (t == NULL || (t->dtype == f->dtype && (t->dtype == MLA_ATB_FLOAT16 || t->dtype == MLA_ATB_BF16))) {
        return MLA_ATB_NO_ERROR;
    }
    return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_INI_MATCH,
                        "%s is %s (%d) and must be float16 or bfloat16, the same as %s, which is %s",
                        name_of(call, slot), dtype_name(t->dtype), t->dtype, name_of(call, float_slot(call)),
                        dtype_name(f->dtype));
}

int32_t mla_atb_check_format(const atb_call *call, atb_slot slot, int32_t format)
{
    const mla_atb_tensor *t = call->tensor[slot];
    if (t == NULL || t->format == format) {
        return MLA_ATB_NO_ERROR;
    }
    return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_INI_MATCH, "%s has format %d and must have %d (%s)",
                        name_of(call, slot), t->format, format, format == MLA_ATB_FORMAT_ND ? "ND" : "FRACTAL_NZ");
}

int32_t mla_atb_check_rank(const atb_call *call, atb_slot slot, int32_t rank)
{
    const mla_atb_tensor *t = call->tensor[slot];
    if (t == NULL || t->ndim == rank) {
        return MLA_ATB_NO_ERROR;
    }
    return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM_NUM, "%s has %d dims and must have %d", name_of(call, slot),
                        t->ndim, rank);
}

int32_t mla_atb_check_dim(const atb_call *call, atb_slot slot, int32_t axis, int64_t extent, const char *rule)
{
    const mla_atb_tensor *t = call->tensor[slot];
    if (t == NULL || t->dim[axis] == extent) {
        return MLA_ATB_NO_ERROR;
    }
    return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM, "%s.dims[%d] = %" PRId64 " must be %" PRId64 ": %s",
                        name_of(call, slot), axis, t->dim[axis], extent, rule);
}

int32_t mla_atb_check_addresses(const atb_call *call, bool need_addresses)
{
    for (atb_slot slot = 0; slot < ATB_N_TENSOR; slot++) {
        const mla_atb_tensor *t = call->tensor[slot];
        int64_t stride = 1;
        if (t != NULL && t->offset != 0) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM,
                                "%s has offset %" PRId64 " and must have 0: ATB takes the address alone",
                                name_of(call, slot), t->offset);
        }
        for (int32_t i = t == NULL ? -1 : t->ndim - 1; i >= 0; stride *= t->dim[i], i--) {
            if (t->dim[i] > 1 && t->stride[i] != stride) {
                return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM,
                                    "%s has stride %" PRId64 " in dim %d and must have %" PRId64 ": it is contiguous",
                                    name_of(call, slot), t->stride[i], i, stride);
            }
        }
    }
    for (atb_slot slot = 0; slot < ATB_N_TENSOR; slot++) {
        const mla_atb_tensor *t = call->tensor[slot];
        if (t != NULL && mla_atb_slot_on_host(slot) && call->tensor[ATB_Q]->device.type != MLA_DEVICE_CPU &&
            mla_gpu_owns(t->data)) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM,
                                "%s is in device memory and must be in host memory: it is read before anything runs",
                                name_of(call, slot));
        }
    }
    for (int pass = 0; pass < 2; pass++) { /* host first */
        for (atb_slot slot = 0; slot < ATB_N_TENSOR; slot++) {
            const mla_atb_tensor *t = call->tensor[slot];
            bool host = mla_atb_slot_on_host(slot);
            if (t != NULL && t->data == NULL && host == (pass == 0) && (host || need_addresses)) {
                return mla_atb_fail(host ? MLA_ATB_ERROR_INVALID_PARAM : MLA_ATB_ERROR_INVALID_TENSOR_ADDR,
                                    "%s has no address in %s memory", name_of(call, slot), host ? "host" : "device");
            }
        }
    }
    return MLA_ATB_NO_ERROR;
}

/* ---- decode: dtypes and formats ---------------------------------------------------------------------------------- */

/* Has ATB an entry for this call in its table of formats? Where it has none, tags are not looked at. Dtypes always
 * are, for nothing sensible could be computed. */
static bool formats_are_checked(const mla_atb_param *p)
{
    switch (p->cache_mode) {
    case MLA_ATB_INT8_NZCACHE: return p->calc_type == MLA_ATB_CALC_UNDEFINED || p->calc_type == MLA_ATB_CALC_RING;
    case MLA_ATB_NZCACHE: return p->calc_type == MLA_ATB_CALC_UNDEFINED;
    default: return true;
    }
}

static int32_t check_decode_dtypes(const atb_call *call)
{
    const mla_atb_param *p = call->param;
    bool int8 = p->cache_mode == MLA_ATB_INT8_NZCACHE, checked = formats_are_checked(p);
    static const atb_slot floats[] = {ATB_Q_ROPE, ATB_K_ROPE, ATB_OUT},
                          numbers[] = {ATB_BLOCK_TABLES, ATB_KV_LEN, ATB_Q_LEN, ATB_MASK_USE};
    ATB_TRY(mla_atb_check_float(call, float_slot(call))); /* the others are compared with it */
    for (atb_slot slot = ATB_Q; slot <= ATB_KV; slot += ATB_KV - ATB_Q) {
        ATB_TRY(int8 ? mla_atb_check_dtype(call, slot, MLA_ATB_INT8) : mla_atb_check_float(call, slot));
    }
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        ATB_TRY(mla_atb_check_float(call, floats[i]));
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        ATB_TRY(mla_atb_check_dtype(call, numbers[i], MLA_ATB_INT32));
    }
    ATB_TRY(mla_atb_check_dtype(call, ATB_QK_DESCALE, MLA_ATB_FLOAT));
    ATB_TRY(mla_atb_check_dtype(call, ATB_PV_DESCALE, MLA_ATB_FLOAT));
    if (checked || mla_atb_reads_mask(call)) {
        ATB_TRY(mla_atb_check_float(call, ATB_MASK));
    }
    const mla_atb_tensor *lse = call->tensor[ATB_LSE];
    if (int8) {
        ATB_TRY(mla_atb_check_dtype(call, ATB_LSE, MLA_ATB_FLOAT));
    } else if (checked || (lse != NULL && lse->dtype != MLA_ATB_FLOAT)) {
        ATB_TRY(mla_atb_check_float(call, ATB_LSE));
    }
    bool nz = int8 || p->cache_mode == MLA_ATB_NZCACHE;
    for (atb_slot slot = 0; slot < ATB_N_TENSOR && checked; slot++) {
        bool cache = slot == ATB_KV || slot == ATB_K_ROPE;
        ATB_TRY(mla_atb_check_format(call, slot, nz && cache ? MLA_ATB_FORMAT_FRACTAL_NZ : MLA_ATB_FORMAT_ND));
    }
    return MLA_ATB_NO_ERROR;
}

/* ---- decode: dims ------------------------------------------------------------------------------------------------ */

/* Sizes that a dim may stand for. */
enum { DIM_T = -1, DIM_H = -2, DIM_B = -3, DIM_NB = -4, DIM_ANY = -5 };

typedef struct dims_rule {
    atb_slot slot;
    const char *words;
    int64_t dim[4];
    int32_t rank;
} dims_rule;

/* The tensors whose ranks come first of all. The cache: by its mode, below. */
static const dims_rule QUERIES[] = {
    {ATB_Q, "[T, H, 512]", {DIM_T, DIM_H, ATB_NOPE}, 3},
    {ATB_Q_ROPE, "[T, H, 64]", {DIM_T, DIM_H, ATB_ROPE}, 3},
};
static const dims_rule CONCATENATED_QUERY = {ATB_Q, "[T, H, 576]", {DIM_T, DIM_H, ATB_NOPE + ATB_ROPE}, 3};

static const dims_rule CACHES[][2] = {
    [MLA_ATB_KVCACHE] = {{ATB_KV, "[NB, 128, 1, 576]", {DIM_NB, ATB_BLOCK, 1, ATB_NOPE + ATB_ROPE}, 4}},
    [MLA_ATB_KROPE_CTKV] = {{ATB_KV, "[NB, 128, 1, 512]", {DIM_NB, ATB_BLOCK, 1, ATB_NOPE}, 4},
                            {ATB_K_ROPE, "[NB, 128, 1, 64]", {DIM_NB, ATB_BLOCK, 1, ATB_ROPE}, 4}},
    [MLA_ATB_INT8_NZCACHE] = {{ATB_KV, "[NB, 16, 128, 32]", {DIM_NB, 16, ATB_BLOCK, 32}, 4},
                              {ATB_K_ROPE, "[NB, 4, 128, 16]", {DIM_NB, 4, ATB_BLOCK, 16}, 4}},
    [MLA_ATB_NZCACHE] = {{ATB_KV, "[NB, 32, 128, 16]", {DIM_NB, 32, ATB_BLOCK, 16}, 4},
                         {ATB_K_ROPE, "[NB, 4, 128, 16]", {DIM_NB, 4, ATB_BLOCK, 16}, 4}},
};

/* The rest, each with its rank before its dims. */
static const dims_rule OTHERS[] = {
    {ATB_Q_LEN, "[B]", {DIM_B}, 1},
    {ATB_QK_DESCALE, "[H]", {DIM_H}, 1},
    {ATB_PV_DESCALE, "[H]", {DIM_H}, 1},
    {ATB_OUT, "[T, H, 512]", {DIM_T, DIM_H, ATB_NOPE}, 3},
    {ATB_LSE, "[T, H, 1]", {DIM_T, DIM_H, 1}, 3},
    {ATB_MASK_USE, "[B]", {DIM_B}, 1},
};

static int32_t check_dims(const atb_call *call, const dims_rule *rule)
{
    for (int32_t i = 0; i < rule->rank; i++) {
        int64_t extent = rule->dim[i];
        switch (extent) {
        case DIM_ANY: continue;
        case DIM_T: extent = call->n_token; break;
        case DIM_H: extent = call->n_head; break;
        case DIM_B: extent = call->n_seq; break;
        case DIM_NB: extent = call->tensor[ATB_KV]->dim[0]; break;
        default: break;
        }
        ATB_TRY(mla_atb_check_dim(call, rule->slot, i, extent, rule->words));
    }
    return MLA_ATB_NO_ERROR;
}

static int32_t check_decode_dims(atb_call *call)
{
    const mla_atb_param *p = call->param;
    const dims_rule *cache = CACHES[p->cache_mode];
    bool whole_query = p->cache_mode == MLA_ATB_KVCACHE && call->tensor[ATB_Q_ROPE] == NULL;
    const dims_rule *query[] = {whole_query ? &CONCATENATED_QUERY : &QUERIES[0], &QUERIES[1], &cache[0], &cache[1]};
    for (int i = 0; i < 4; i++) {
        ATB_TRY(query[i]->rank == 0 ? MLA_ATB_NO_ERROR : mla_atb_check_rank(call, query[i]->slot, query[i]->rank));
    }
    ATB_TRY(mla_atb_check_rank(call, ATB_BLOCK_TABLES, 2));
    ATB_TRY(mla_atb_check_rank(call, ATB_KV_LEN, 1));

    call->n_token = call->tensor[ATB_Q]->dim[0];
    call->n_head = p->head_num;
    call->n_seq = call->tensor[ATB_BLOCK_TABLES]->dim[0];
    if (call->n_seq > ATB_MAX_BATCH) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM, "blockTables.dims[0] = %" PRId64 " must be at most %d",
                            call->n_seq, ATB_MAX_BATCH);
    }
    if (p->calc_type == MLA_ATB_CALC_UNDEFINED) {
        ATB_TRY(mla_atb_check_dim(call, ATB_Q, 0, call->n_seq, "one token for each row of blockTables"));
    }
    ATB_TRY(mla_atb_check_dim(call, ATB_KV_LEN, 0, call->n_seq, "[B]"));
    for (int i = 0; i < 4; i++) {
        ATB_TRY(query[i]->rank == 0 ? MLA_ATB_NO_ERROR : check_dims(call, query[i]));
    }
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        ATB_TRY(mla_atb_check_rank(call, OTHERS[i].slot, OTHERS[i].rank));
        ATB_TRY(call->tensor[OTHERS[i].slot] == NULL ? MLA_ATB_NO_ERROR : check_dims(call, &OTHERS[i]));
    }
    return MLA_ATB_NO_ERROR;
}

/* ---- decode: lengths --------------------------------------------------------------------------------------------- */

static int32_t check_query_lengths(atb_call *call)
{
    call->n_used = call->n_seq;
    call->max_q = 1;
    if (call->tensor[ATB_Q_LEN] == NULL) {
        /* CALC_RING with fewer tokens than sequences is legal: the sequences past them are skipped, unread */
        call->n_used = call->n_token < call->n_seq ? call->n_token : call->n_seq;
        return MLA_ATB_NO_ERROR;
    }
    int64_t sum = 0;
    call->max_q = 0;
    for (int64_t b = 0; b < call->n_seq; b++) {
        int64_t n = mla_atb_n_query(call, b);
        if (n < 0) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "qSeqLen[%" PRId64 "] = %" PRId64 " is negative", b, n);
        }
        sum += n;
        call->max_q = n > call->max_q ? n : call->max_q;
    }
    if (sum > call->n_token) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM,
                            "qSeqLen sums up to %" PRId64 ", but qNope.dims[0] = %" PRId64, sum, call->n_token);
    }
    if (call->max_q == 0) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "qSeqLen is 0 for every sequence");
    }
    return MLA_ATB_NO_ERROR;
}

static int32_t check_context_lengths(atb_call *call)
{
    int64_t capacity = call->tensor[ATB_BLOCK_TABLES]->dim[1];
    capacity = capacity < INT64_MAX / ATB_BLOCK ? capacity * ATB_BLOCK : INT64_MAX;
    for (int64_t b = 0; b < call->n_used; b++) {
        int64_t n = mla_atb_length(call, ATB_KV_LEN, b);
        if (n < 0) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "contextLens[%" PRId64 "] = %" PRId64 " is negative", b,
                                n);
        }
        if (n > capacity) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM,
                                "contextLens[%" PRId64 "] = %" PRId64 " exceeds the %" PRId64
                                " tokens that a row of blockTables has blocks for",
                                b, n, capacity);
        }
        call->max_kv = n > call->max_kv ? n : call->max_kv;
    }
    return MLA_ATB_NO_ERROR;
}

/* Only where the mask is read: elsewhere it may be anything, as in ATB. */
static int32_t check_decode_mask(const atb_call *call)
{
    if (!mla_atb_reads_mask(call)) {
        return MLA_ATB_NO_ERROR;
    }
    const mla_atb_tensor *mask = call->tensor[ATB_MASK];
    bool strict = call->param->flags & MLA_ATB_STRICT, template = call->param->mask_type == MLA_ATB_MASK_FREE;
    int32_t rank = template && mask->ndim == 3 ? 3 : 2;
    if (mask->ndim != rank) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM, "mask has %d dims and must have 2%s", mask->ndim,
                            template ? " or 3" : "");
    }
    if (!template) {
        ATB_TRY(mla_atb_check_dim(call, ATB_MASK, 0, call->n_token, "[T, max_kv]"));
        if (mask->dim[1] < call->max_kv) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM,
                                "mask.dims[1] = %" PRId64 " must be at least %" PRId64 ", the largest of contextLens",
                                mask->dim[1], call->max_kv);
        }
        return MLA_ATB_NO_ERROR;
    }
    if (rank == 3) {
        ATB_TRY(mla_atb_check_dim(call, ATB_MASK, 0, call->n_seq, "[B, 125 + 2q, 128]"));
    }
    ATB_TRY(mla_atb_check_dim(call, ATB_MASK, rank - 1, ATB_BLOCK, "[125 + 2q, 128]"));
    int64_t rows = ATB_BLOCK - 3 + 2 * call->max_q;
    if (strict && mask->dim[rank - 2] >= rows) {
        return MLA_ATB_NO_ERROR;
    }
    return mla_atb_check_dim(call, ATB_MASK, rank - 2, rows, "[125 + 2q, 128] with q the largest of qSeqLen");
}

atb_path mla_atb_path_of(const atb_call *call)
{
    if (call->param->cache_mode == MLA_ATB_INT8_NZCACHE) {
        return call->param->head_num == 128 || call->max_q > 1 ? ATB_PATH_D : ATB_PATH_C;
    }
    return call->param->head_num == 128 ? ATB_PATH_B : ATB_PATH_A;
}

int32_t mla_atb_check_decode(atb_call *call, bool need_addresses)
{
    ATB_TRY(mla_atb_check_present(call));
    ATB_TRY(check_decode_dtypes(call));
    ATB_TRY(check_decode_dims(call));
    ATB_TRY(mla_atb_check_addresses(call, need_addresses));
    ATB_TRY(check_query_lengths(call));
    ATB_TRY(check_context_lengths(call));
    return check_decode_mask(call);
}
