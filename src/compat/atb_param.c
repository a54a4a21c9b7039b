/*
 * atb_param.c - the scalars of an op, and which tensors they call for.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "atb_internal.h"
#include "core/environment.h"

/* ---- flags of the process ---------------------------------------------------------------------------------------- */

enum { FLAGS_UNREAD = -1 };
#define FLAGS_UNKNOWN (1ll << 32) /* beside flags: a word of the environment says nothing */
static atomic_llong default_flags = FLAGS_UNREAD;

static long long flags_of_environment(void)
{
    static const struct {
        const char *word;
        uint32_t flag;
    } known[] = {{"strict", MLA_ATB_STRICT}, {"check-reuse", MLA_ATB_CHECK_REUSE}, {"kvcache", MLA_ATB_ALLOW_KVCACHE}};
    enum { N_KNOWN = sizeof known / sizeof *known };
    long long flags = 0;
    const char *word = getenv("MLA_ATB");
    while (word != NULL) {
        size_t length = strcspn(word, ","), i = 0;
        while (i < N_KNOWN && !(strlen(known[i].word) == length && strncmp(word, known[i].word, length) == 0)) {
            i++;
        }
        flags |= i < N_KNOWN ? known[i].flag : length > 0 ? FLAGS_UNKNOWN : 0;
        word = word[length] == ',' ? word + length + 1 : NULL;
    }
    return flags;
}

void mla_atb_set_default_flags(uint32_t flags)
{
    atomic_store(&default_flags, (long long)flags);
}

static long long read_flags(void)
{
    long long flags = atomic_load(&default_flags);
    if (flags == FLAGS_UNREAD) {
        long long found = flags_of_environment();
        flags = FLAGS_UNREAD; /* somebody may have set them meanwhile */
        if (atomic_compare_exchange_strong(&default_flags, &flags, found)) {
            flags = found;
        }
    }
    return flags;
}

uint32_t mla_atb_default_flags(void)
{
    return (uint32_t)read_flags();
}

int32_t mla_atb_add_default_flags(uint32_t *flags)
{
    long long found = read_flags();
    if (found & FLAGS_UNKNOWN) {
        char word[MLA_WORD_BYTES];
        mla_environment_word("MLA_ATB", word);
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM,
                            "MLA_ATB = \"%s\" must be a list of strict, check-reuse and kvcache, separated by commas",
                            word);
    }
    *flags |= (uint32_t)found;
    return MLA_ATB_NO_ERROR;
}

/* ---- scalars ----------------------------------------------------------------------------------------------------- */

void mla_atb_param_init(mla_atb_param *param)
{
    *param = (mla_atb_param){.struct_size = sizeof *param, .qk_scale = 1};
}

static int32_t check_range(const char *name, int64_t value, int64_t first, int64_t last)
{
    if (value >= first && value <= last) {
        return MLA_ATB_NO_ERROR;
    }
    return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "%s = %lld must be between %lld and %lld", name, (long long)value,
                        (long long)first, (long long)last);
}

static int32_t check_decode_param(const mla_atb_param *p)
{
    int32_t h = p->head_num;
    if (h != 8 && h != 16 && h != 32 && h != 64 && h != 128) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM,
                            "headNum = %d must be 8, 16, 32, 64 or 128 (the native interface takes any)", h);
    }
    if (p->kv_head_num != 1) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "kvHeadNum = %d must be 1", p->kv_head_num);
    }
    if (p->cache_mode == MLA_ATB_KVCACHE && !(p->flags & MLA_ATB_ALLOW_KVCACHE)) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM,
                            "cacheMode = 0 (KVCACHE) is refused, as by ATB, unless MLA_ATB_ALLOW_KVCACHE is set");
    }
    if (p->mask_type == MLA_ATB_MASK_SWA_NORM) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "maskType = 4 (SWA_NORM) belongs to prefill");
    }
    if (p->mask_type != MLA_ATB_MASK_UNDEFINED && !mla_atb_wants_q_len(p)) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "maskType = %d must be 0 with calcType = %d", p->mask_type,
                            p->calc_type);
    }
    if (p->mask_type != MLA_ATB_MASK_UNDEFINED && mla_atb_wants_lse(p) && p->cache_mode == MLA_ATB_INT8_NZCACHE) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM,
                            "maskType = %d must be 0 with cacheMode = 2 (INT8_NZCACHE) and calcType = %d", p->mask_type,
                            p->calc_type);
    }
    if (p->mask_use_status_type != 0 && p->calc_type != MLA_ATB_CALC_SPEC_AND_RING) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "maskUseStatusType = %d must be 0 with calcType = %d",
                            p->mask_use_status_type, p->calc_type);
    }
    return MLA_ATB_NO_ERROR;
}

static int32_t check_prefill_param(const mla_atb_param *p)
{
    ATB_TRY(check_range("headNum", p->head_num, 1, 128));
    if (p->mask_type == MLA_ATB_MASK_SPEC) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "maskType = 1 (SPEC) belongs to decode");
    }
    if (p->cache_mode != MLA_ATB_KROPE_CTKV) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "cacheMode = %d must be 1 in prefill", p->cache_mode);
    }
    if (p->mask_type == MLA_ATB_MASK_CAUSAL) {
        if (p->kv_head_num < 1 || p->head_num % p->kv_head_num != 0) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "kvHeadNum = %d must divide headNum = %d", p->kv_head_num,
                                p->head_num);
        }
    } else if (p->kv_head_num != p->head_num) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "kvHeadNum = %d must be headNum = %d with maskType = %d",
                            p->kv_head_num, p->head_num, p->mask_type);
    }
    if (p->mask_type == MLA_ATB_MASK_SWA_NORM && p->window_size == 0) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM,
                            "windowSize = 0 must be positive with maskType = 4 (SWA_NORM)");
    }
    return check_range("maskUseStatusType", p->mask_use_status_type, 0, 0);
}

int32_t mla_atb_check_param(const mla_atb_param *p)
{
    if (!(p->qk_scale > 0 && p->qk_scale <= 1)) { /* NaN, too */
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "qkScale = %g must be above 0 and at most 1",
                            (double)p->qk_scale);
    }
    ATB_TRY(check_range("maskType", p->mask_type, 0, MLA_ATB_MASK_SWA_NORM));
    ATB_TRY(check_range("calcType", p->calc_type, 0, MLA_ATB_CALC_PREFILL));
    ATB_TRY(check_range("cacheMode", p->cache_mode, 0, MLA_ATB_NZCACHE));
    ATB_TRY(check_range("maskUseStatusType", p->mask_use_status_type, 0, 1));
    return mla_atb_is_prefill(p) ? check_prefill_param(p) : check_decode_param(p);
}

int32_t mla_atb_op_check_reuse(const mla_atb_op *op, const mla_atb_param *param)
{
    const mla_atb_param *own = &op->param;
    const struct {
        const char *name;
        double was, is;
    } scalars[] = {
        {"headNum", own->head_num, param->head_num},         {"qkScale", own->qk_scale, param->qk_scale},
        {"kvHeadNum", own->kv_head_num, param->kv_head_num}, {"maskType", own->mask_type, param->mask_type},
        {"calcType", own->calc_type, param->calc_type},      {"cacheMode", own->cache_mode, param->cache_mode},
    };
    for (size_t i = 0; i < sizeof scalars / sizeof *scalars && (own->flags & MLA_ATB_CHECK_REUSE); i++) {
        if (!(scalars[i].was == scalars[i].is)) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM,
                                "%s = %g differs from the %g that the op was created with: create another op",
                                scalars[i].name, scalars[i].is, scalars[i].was);
        }
    }
    return MLA_ATB_NO_ERROR;
}

/* ---- tensors of an op -------------------------------------------------------------------------------------------- */

atb_slots mla_atb_slots_of(const mla_atb_param *p)
{
    atb_slots s = {.n_out = 1, .out = {ATB_OUT}};
    if (mla_atb_is_prefill(p)) {
        static const atb_slot always[] = {ATB_Q, ATB_Q_ROPE, ATB_KV, ATB_K_ROPE, ATB_V, ATB_Q_LEN, ATB_KV_LEN};
        memcpy(s.in, always, sizeof always);
        s.n_in = (int32_t)(sizeof always / sizeof *always);
        if (p->mask_type == MLA_ATB_MASK_FREE || p->mask_type == MLA_ATB_MASK_SWA_NORM) {
            s.in[s.n_in++] = ATB_MASK;
        }
        return s;
    }
    static const atb_slot always[] = {ATB_Q, ATB_Q_ROPE, ATB_KV, ATB_K_ROPE, ATB_BLOCK_TABLES, ATB_KV_LEN};
    memcpy(s.in, always, sizeof always);
    s.n_in = (int32_t)(sizeof always / sizeof *always);
    if (p->mask_type == MLA_ATB_MASK_SPEC || p->mask_type == MLA_ATB_MASK_FREE) {
        s.in[s.n_in++] = ATB_MASK;
    }
    if (mla_atb_wants_q_len(p)) {
        s.in[s.n_in++] = ATB_Q_LEN;
    }
    if (p->cache_mode == MLA_ATB_INT8_NZCACHE) {
        s.in[s.n_in++] = ATB_QK_DESCALE;
        s.in[s.n_in++] = ATB_PV_DESCALE;
    }
    if (p->mask_use_status_type != 0) {
        s.in[s.n_in++] = ATB_MASK_USE;
    }
    if (mla_atb_wants_lse(p)) {
        s.out[s.n_out++] = ATB_LSE;
    }
    return s;
}

bool mla_atb_slot_on_host(atb_slot slot)
{
    return slot == ATB_Q_LEN || slot == ATB_KV_LEN || slot == ATB_MASK_USE;
}

const char *mla_atb_slot_name(const mla_atb_param *param, atb_slot slot)
{
    static const char *const decode[ATB_N_TENSOR] = {
        [ATB_Q] = "qNope",
        [ATB_Q_ROPE] = "qRope",
        [ATB_KV] = "ctKV",
        [ATB_K_ROPE] = "kRope",
        [ATB_V] = "v",
        [ATB_BLOCK_TABLES] = "blockTables",
        [ATB_Q_LEN] = "qSeqLen",
        [ATB_KV_LEN] = "contextLens",
        [ATB_MASK] = "mask",
        [ATB_QK_DESCALE] = "qkDescale",
        [ATB_PV_DESCALE] = "pvDescale",
        [ATB_MASK_USE] = "maskUseStatus",
        [ATB_OUT] = "attenOut",
        [ATB_LSE] = "lse",
    };
    if (mla_atb_is_prefill(param)) {
        switch (slot) {
        case ATB_Q: return "q";
        case ATB_KV: return "k";
        case ATB_KV_LEN: return "kvSeqLen";
        default: break;
        }
    }
    return decode[slot];
}

/* ---- out of a call ----------------------------------------------------------------------------------------------- */

static int32_t check_ndim(const mla_atb_param *param, const mla_atb_tensor *t, atb_slot slot)
{
    if (t != NULL && (t->ndim < 0 || t->ndim > MLA_ATB_MAX_NDIM)) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM, "%s has %d dims; a tensor has at most %d",
                            mla_atb_slot_name(param, slot), t->ndim, MLA_ATB_MAX_NDIM);
    }
    return MLA_ATB_NO_ERROR;
}

static int32_t gather(const mla_atb_param *param, const mla_atb_tensor *const *tensor, const atb_slots *slots,
                      mla_atb_pack *pack)
{
    pack->n_in = slots->n_in;
    pack->n_out = slots->n_out;
    for (int32_t i = 0; i < slots->n_in; i++) {
        pack->in[i] = tensor[slots->in[i]];
        ATB_TRY(check_ndim(param, pack->in[i], slots->in[i]));
    }
    for (int32_t i = 0; i < slots->n_out; i++) {
        pack->out[i] = tensor[slots->out[i]];
        ATB_TRY(check_ndim(param, pack->out[i], slots->out[i]));
    }
    return MLA_ATB_NO_ERROR;
}

static int32_t check_args_size(size_t got, size_t want)
{
    return got == want ? MLA_ATB_NO_ERROR
                       : mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM,
                                      "struct_size = %zu of the arguments differs from this library's %zu", got, want);
}

int32_t mla_atb_decode_gather(const mla_atb_decode_args *args, mla_atb_pack *pack)
{
    ATB_TRY(check_args_size(args->struct_size, sizeof *args));
    const mla_atb_param *p = &args->param;
    const mla_atb_tensor *tensor[ATB_N_TENSOR] = {
        [ATB_Q] = args->q_nope,
        [ATB_Q_ROPE] = args->q_rope,
        [ATB_KV] = args->ct_kv,
        [ATB_K_ROPE] = args->k_rope,
        [ATB_BLOCK_TABLES] = args->block_tables,
        [ATB_KV_LEN] = args->context_lens,
        [ATB_MASK] = args->mask,
        [ATB_Q_LEN] = args->q_seq_len,
        [ATB_QK_DESCALE] = args->qk_descale,
        [ATB_PV_DESCALE] = args->pv_descale,
        [ATB_OUT] = args->atten_out,
        [ATB_LSE] = args->lse,
    };
    /* ATB's function looks at the scalars in its own way, so that some legal scalars gather tensors that the op does
     * not take, and the call ends with code 5. */
    atb_slots s = {.n_out = 1, .out = {ATB_OUT}};
    static const atb_slot always[] = {ATB_Q, ATB_Q_ROPE, ATB_KV, ATB_K_ROPE, ATB_BLOCK_TABLES, ATB_KV_LEN};
    memcpy(s.in, always, sizeof always);
    s.n_in = (int32_t)(sizeof always / sizeof *always);
    /* CALC_SPEC_AND_RING: an extension, with both tensors; ATB gathers neither */
    bool both = p->calc_type == MLA_ATB_CALC_SPEC_AND_RING && args->q_seq_len != NULL && args->lse != NULL;
    if (p->mask_type != MLA_ATB_MASK_UNDEFINED) {
        s.in[s.n_in++] = ATB_MASK;
    }
    if (p->calc_type == MLA_ATB_CALC_SPEC || both) {
        s.in[s.n_in++] = ATB_Q_LEN;
    }
    if (p->cache_mode == MLA_ATB_INT8_NZCACHE) {
        s.in[s.n_in++] = ATB_QK_DESCALE;
        s.in[s.n_in++] = ATB_PV_DESCALE;
    }
    if (p->calc_type == MLA_ATB_CALC_RING || both) {
        s.out[s.n_out++] = ATB_LSE;
    }
    return gather(p, tensor, &s, pack);
}

int32_t mla_atb_prefill_gather(const mla_atb_prefill_args *args, mla_atb_pack *pack)
{
    ATB_TRY(check_args_size(args->struct_size, sizeof *args));
    const mla_atb_tensor *tensor[ATB_N_TENSOR] = {
        [ATB_Q] = args->q,
        [ATB_Q_ROPE] = args->q_rope,
        [ATB_KV] = args->k,
        [ATB_K_ROPE] = args->k_rope,
        [ATB_V] = args->v,
        [ATB_Q_LEN] = args->q_seq_len,
        [ATB_KV_LEN] = args->kv_seq_len,
        [ATB_MASK] = args->mask,
        [ATB_OUT] = args->atten_out,
    };
    mla_atb_param scalars = args->param;
    scalars.calc_type = MLA_ATB_CALC_PREFILL;
    scalars.mask_type = MLA_ATB_MASK_UNDEFINED;
    atb_slots s = mla_atb_slots_of(&scalars);
    if (args->param.mask_type != MLA_ATB_MASK_UNDEFINED) {
        s.in[s.n_in++] = ATB_MASK; /* MASK_CAUSAL, too, whose op takes none: code 5 */
    }
    return gather(&scalars, tensor, &s, pack);
}
