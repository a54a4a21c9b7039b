/*
 * config.c - descriptions of problems: a plain one, a random one, and what to do with one.
 */
#include <stdio.h>
#include <string.h>

#include "checkkernel.h"

ck_config ck_config_plain(int64_t n_seq, int64_t n_q, int64_t n_head, int64_t d_k, int64_t d_v, int64_t length)
{
    ck_config c = {
        .seed = ck_seed,
        .layout_seed = ck_hash(ck_seed, 5),
        .n_seq = n_seq,
        .n_q = n_q,
        .q_dtype = MLA_DTYPE_BF16,
        .o_dtype = MLA_DTYPE_F32,
        .n_head = n_head,
        .n_kv_head = 1,
        .d_nope = d_k,
        .d_v = d_v,
        .n_segment = 1,
        .want_lse = true,
        .want_max = true,
    };
    for (int32_t g = 0; g < MLA_MAX_SEGMENT; g++) {
        c.segment[g] = (ck_segment){
            .dtype = MLA_DTYPE_BF16,
            .addressing = MLA_ADDRESS_PAGED,
            .page_size = 64,
            .n_length = 1,
            .length = {length},
            .visible = {.rule = MLA_VISIBLE_ALL, .left = -1, .right = -1, .ratio = 1},
            .mask_dtype = MLA_DTYPE_F32,
        };
    }
    return c;
}

static mla_dtype random_dtype(ck_random *r)
{
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16};
    return dtypes[ck_below(r, 3)];
}

/* A length: often at the edge of a block, a page or a split. */
static int64_t random_length(ck_random *r, int64_t most)
{
    static const int64_t edges[] = {0,  1,  2,  15,  16,  17,  31,  33,  63,  64, 65,
                                    95, 96, 97, 127, 128, 129, 191, 192, 193, 256};
    int64_t length = ck_chance(r, 0.5) ? edges[ck_below(r, 21)] : ck_between(r, 0, most);
    return length < most ? length : most;
}

static int64_t divisor_of(ck_random *r, int64_t n)
{
    int64_t x = ck_between(r, 1, n < 64 ? n : 64);
    while (n % x != 0) {
        x--;
    }
    return x;
}

static void random_segment(ck_config *c, int32_t g, int64_t most, ck_random *r)
{
    static const int64_t page_sizes[] = {1, 2, 3, 16, 61, 64, 69, 100, 128, 129, 192, 256, 576};
    ck_segment *s = &c->segment[g];
    s->dtype = random_dtype(r);
    s->addressing = (mla_addressing)ck_below(r, 3);
    s->page_size = page_sizes[ck_below(r, 13)];
    s->n_length = c->n_seq;
    for (int64_t i = 0; i < c->n_seq; i++) {
        s->length[i] = random_length(r, most);
    }
    s->no_length = ck_chance(r, 0.3);
    s->list = ck_chance(r, 0.6) ? CK_NO_LIST : ck_chance(r, 0.5) ? CK_LOGICAL : CK_PHYSICAL;
    if (s->list != CK_NO_LIST) {
        s->n_entry = random_length(r, most);
        s->list_rule = (mla_list_rule)ck_below(r, 2);
        s->list_length = (ck_per)ck_below(r, 3);
    }
    if (s->list != CK_PHYSICAL) {
        s->visible.rule = (mla_visible_rule)ck_below(r, 4);
        s->visible.left = ck_chance(r, 0.3) ? -1 : ck_below(r, most + 2);
        s->visible.right = ck_chance(r, 0.3) ? -1 : ck_below(r, 4);
        s->visible.ratio = ck_between(r, 1, 5);
        s->has_residual = s->visible.rule == MLA_VISIBLE_COMPRESSED && ck_chance(r, 0.5);
        s->mask = ck_chance(r, 0.6) ? CK_NO_MASK : (ck_mask)ck_between(r, 1, 4);
        s->mask_dtype = random_dtype(r);
    }
    s->v_apart = ck_chance(r, 0.2);
    s->descale = ck_chance(r, 0.2) ? (float)(0.3 + ck_uniform(r)) : 0;
}

ck_config ck_config_random(uint64_t seed, int64_t work)
{
    static const int64_t heads[] = {1, 2, 3, 5, 8, 9, 16, 20, 24, 32, 40, 63, 64, 65, 126, 127, 128, 130};
    static const int64_t dims[][2] = {{576, 512}, {512, 512}, {320, 256}, {288, 256}, {192, 128}, {64, 64},
                                      {1, 1},     {7, 3},     {40, 33},   {100, 100}, {131, 65},  {25, 24}};
    ck_random random = {seed}, *r = &random;
    ck_config c = ck_config_plain(ck_between(r, 1, 5), 0, heads[ck_below(r, 18)], 0, 0, 0);
    c.seed = seed;
    c.layout_seed = ck_next(r);
    c.inputs = (ck_inputs)(ck_chance(r, 0.5) ? 0 : ck_below(r, CK_INPUTS_COUNT));
    for (int64_t n = ck_between(r, 1, 8); n >= 1; n--) {
        if (c.n_head % n == 0) {
            c.n_kv_head = n;
            break;
        }
    }
    int64_t d = ck_below(r, 12), tokens = 0;
    c.d_nope = dims[d][0];
    c.d_v = dims[d][1];
    if (c.d_nope > 64 && ck_chance(r, 0.3)) {
        c.d_rope = c.d_nope - c.d_v > 0 && ck_chance(r, 0.7) ? c.d_nope - c.d_v : ck_between(r, 1, 63);
        c.d_nope -= c.d_rope;
    }
    if (ck_chance(r, 0.5)) {
        c.n_q = ck_chance(r, 0.5) ? 1 : ck_between(r, 1, 17);
        tokens = c.n_q * c.n_seq;
    } else if (ck_chance(r, 0.7)) {
        c.n_slots = c.n_seq;
        c.lead_tokens = ck_below(r, 3);
        c.tail_tokens = ck_below(r, 3);
        for (int64_t i = 0; i < c.n_seq; i++) {
            c.slots[i] = ck_chance(r, 0.2) ? 0 : ck_between(r, 1, 7);
            tokens += c.slots[i];
        }
    } else {
        tokens = c.n_seq;
    }
    if (ck_chance(r, 0.2)) {
        c.n_used = c.n_seq;
        for (int64_t i = 0; i < c.n_seq; i++) {
            int64_t slots = c.n_q > 0 ? c.n_q : c.n_slots > 0 ? c.slots[i] : 1;
            c.used[i] = ck_between(r, -1, slots);
        }
    }
    c.q_dtype = random_dtype(r);
    c.o_dtype = random_dtype(r);
    c.n_segment = ck_chance(r, 0.3) ? 2 : 1;
    int64_t most = work / (c.n_head * (tokens > 0 ? tokens : 1));
    most = most < 1 ? 1 : most > 1500 ? 1500 : most;
    for (int32_t g = 0; g < c.n_segment; g++) {
        random_segment(&c, g, most, r);
    }
    c.q_descale = ck_chance(r, 0.2) ? (float)(0.3 + ck_uniform(r)) : 0;
    c.qk_descale = ck_chance(r, 0.2) && c.d_rope == 0; /* beside a rope part that is apart: check_formats.c */
    c.pv_descale = ck_chance(r, 0.2);
    c.sink = ck_chance(r, 0.6) ? CK_NO_SINK : (ck_sink)ck_between(r, 1, 4);
    c.want_lse = ck_chance(r, 0.8);
    c.want_max = ck_chance(r, 0.5);
    c.lse_transposed = ck_chance(r, 0.4);
    c.lse_base = (mla_lse_base)ck_below(r, 2);
    c.lse_empty = (mla_lse_empty)ck_below(r, 3);
    c.lse_with_sink = ck_chance(r, 0.5);
    c.layout = (ck_layout)ck_below(r, 2);
    c.poison = ck_chance(r, 0.7) ? CK_POISON_NAN : CK_POISON_INF;
    bool asks_bf16 =
        ck_subject_now->arithmetic == MLA_ARITHMETIC_BF16 || ck_subject_now->arithmetic == MLA_ARITHMETIC_BF16X2;
    if (asks_bf16 && ck_chance(r, 0.8)) {
        c.q_dtype = c.segment[0].dtype = c.segment[1].dtype = MLA_DTYPE_BF16; /* else it would rarely be asked for */
    }
    return c;
}

ck_config ck_config_random_format(uint64_t seed, int64_t work)
{
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16, MLA_DTYPE_I8, MLA_DTYPE_HIF8};
    static const ck_inputs even[] = {CK_NORMAL, CK_UNIFORM, CK_ONE_DOMINANT, CK_ALL_EQUAL, CK_POWERS, CK_RISING};
    static const int32_t tiles[] = {128, 128, 512, 64, 1, 37, 100, 511};
    ck_random random = {ck_hash(seed, 3)}, *r = &random;
    ck_config c = ck_config_random(seed, work);
    c.p_rounding = (mla_p_rounding)ck_below(r, 4);
    if (c.p_rounding != MLA_P_ROUND_NONE) {
        c.p_tile = tiles[ck_below(r, 8)];
        c.inputs = even[ck_below(r, 6)]; /* with scores beyond 100 every rounding might be another one */
    }
    c.q_dtype = dtypes[ck_below(r, 5)];
    if (c.p_rounding == MLA_P_ROUND_16BIT) {
        c.q_dtype = dtypes[ck_between(r, 1, 2)];
    }
    c.q_rope_dtype = mla_dtype_size(c.q_dtype) > 1 ? MLA_DTYPE_NONE : random_dtype(r);
    c.lse_dtype = random_dtype(r);
    c.qk_descale = ck_chance(r, 0.4);
    bool int8 = c.p_rounding == MLA_P_ROUND_INT8, nz = c.n_kv_head == 1 && ck_chance(r, 0.5);
    if (int8 || nz) {
        c.d_v = c.d_v < c.d_nope ? c.d_v : c.d_nope;
    }
    for (int32_t g = 0; g < c.n_segment; g++) {
        ck_segment *s = &c.segment[g];
        s->dtype = int8 ? MLA_DTYPE_I8 : dtypes[ck_below(r, 5)];
        s->rope_dtype = random_dtype(r);
        s->v_apart = s->v_apart && !int8 && !nz;
        if (nz) {
            s->addressing = s->addressing == MLA_ADDRESS_PACKED ? MLA_ADDRESS_BATCHED : s->addressing;
            s->piece = divisor_of(r, c.d_nope);
            s->rope_piece = c.d_rope > 0 ? divisor_of(r, c.d_rope) : 0;
        }
    }
    return c;
}

void ck_describe(const ck_config *c, char *text, size_t capacity)
{
    static const char *const addressing[] = {"paged", "batched", "packed"};
    static const char *const lists[] = {"", " logical list", " physical list"};
    static const char *const masks[] = {"", " random mask", " mask with holes", " mask with blank rows",
                                        " shared mask"};
    static const char *const rules[] = {"all", "causal", "window", "compressed"};
    int n = snprintf(text, capacity, "%s n_seq %lld n_q %lld%s heads %lld/%lld d %lld+%lld/%lld q %s o %s",
                     ck_inputs_name(c->inputs), (long long)c->n_seq, (long long)c->n_q, c->n_q ? "" : " (packed)",
                     (long long)c->n_head, (long long)c->n_kv_head, (long long)c->d_nope, (long long)c->d_rope,
                     (long long)c->d_v, mla_dtype_name(c->q_dtype), mla_dtype_name(c->o_dtype));
    if (c->p_rounding != MLA_P_ROUND_NONE && n > 0 && (size_t)n < capacity) {
        n += snprintf(text + n, capacity - (size_t)n, " p %s tile %d", mla_p_rounding_word(c->p_rounding),
                      (int)c->p_tile);
    }
    for (int32_t g = 0; g < c->n_segment && n > 0 && (size_t)n < capacity; g++) {
        const ck_segment *s = &c->segment[g];
        n += snprintf(text + n, capacity - (size_t)n, "; %s %s%s page %lld len %lld.. %s%s%s%s",
                      mla_dtype_name(s->dtype), addressing[s->addressing], s->piece > 0 ? " NZ" : "",
                      (long long)s->page_size, (long long)s->length[0], rules[s->visible.rule], lists[s->list],
                      masks[s->mask], s->v_apart ? " v apart" : "");
    }
}

bool ck_try_config(const ck_config *config)
{
    size_t mark = ck_mark();
    mla_problem problem;
    char text[300];
    ck_describe(config, text, sizeof text);
    ck_context("%s", text);
    ck_make(config, &problem);
    mla_status status = ck_try_execute(&problem, NULL);
    if (status == MLA_STATUS_UNSUPPORTED) {
        ck_release(mark);
        ck_context("%s", "");
        return false;
    }
    if (status != MLA_STATUS_OK) {
        ck_fail("the library refuses: %s (%s)", mla_last_error(), mla_status_name(status));
    }
    ck_compare(&problem, ck_inputs_structured(config->inputs), CK_WORK);
    ck_require_gaps_untouched(&problem.o);
    if (config->want_lse) {
        ck_require_gaps_untouched(&problem.lse);
    }
    if (config->want_max) {
        ck_require_gaps_untouched(&problem.max);
    }
    /* rows of packed q before and behind the sequences belong to nobody */
    for (int64_t t = 0; config->n_q == 0 && t < problem.q.dim[0]; t++) {
        if (t < config->lead_tokens || t >= problem.q.dim[0] - config->tail_tokens) {
            for (int64_t h = 0; h < config->n_head; h++) {
                for (int64_t c = 0; c < config->d_v; c++) {
                    if (!ck_is_untouched(problem.o.data, problem.o.dtype, ck_offset(&problem.o, t, h, c, 0))) {
                        ck_fail("o[%lld][%lld][%lld] belongs to no sequence and was written", (long long)t,
                                (long long)h, (long long)c);
                    }
                }
            }
        }
    }
    ck_release(mark);
    ck_context("%s", "");
    return true;
}

void ck_check_config(const ck_config *config)
{
    if (!ck_try_config(config)) {
        ck_fail("the library refuses: %s", mla_last_error());
    }
}

void ck_check_config_if_offered(const ck_config *config)
{
    if (!ck_try_config(config)) {
        ck_skip("%s", mla_last_error());
    }
}
