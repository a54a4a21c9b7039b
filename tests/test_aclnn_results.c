/*
 * test_aclnn_results.c - results of the operator in every mode, layout and mask, against the formulas of its
 * specification written down once more, here, from the arguments as the client gives them.
 *
 * Keys stay below 128 a segment, so each is one tile. The only rounding that can make a difference beyond the last bit
 * of an output is that of P to HiFloat8: where a probability lies so near a tie that fp32 may fall on either side, the
 * bound of the row grows by what that step is worth.
 */
#include <math.h>

#include "aclnn_call.h"

enum { MAX_KEYS = 64, N_PROBLEM = 600 };

static uint32_t seed;

static int draw(int low, int high) /* both included */
{
    seed = seed * 1664525 + 1013904223;
    return low + (int)((uint64_t)(seed >> 8) * (uint64_t)(high - low + 1) >> 24);
}

/* ---- HiFloat8 ---------------------------------------------------------------------------------------------------- */

static double hif8_value[256];

static double hif8_decode(uint8_t code)
{
    int m = code & 0x7f;
    double sign = code & 0x80 ? -1 : 1;
    if (m == 0) {
        return code & 0x80 ? NAN : 0;
    }
    if (m < 0x08) {
        return sign * ldexp(1, m - 23);
    }
    if (m < 0x10) {
        return sign * (1 + (m & 7) / 8.0);
    }
    if (m < 0x20) {
        return sign * ldexp(1 + (m & 7) / 8.0, m & 8 ? -1 : 1);
    }
    if (m < 0x40) {
        int e = 2 + (m >> 3 & 1);
        return sign * ldexp(1 + (m & 7) / 8.0, m & 0x10 ? -e : e);
    }
    if (m < 0x60) {
        int e = 4 + (m >> 2 & 3);
        return sign * ldexp(1 + (m & 3) / 4.0, m & 0x10 ? -e : e);
    }
    int e = 8 + (m >> 1 & 7);
    return sign * ldexp(1 + (m & 1) / 2.0, m & 0x10 ? -e : e);
}

/* a in [0, 32]: to nearest, ties up. */
static double hif8_round(double a)
{
    if (a < ldexp(1, -23)) {
        return 0;
    }
    int exponent;
    frexp(a, &exponent);
    int e = exponent - 1, n = abs(e);
    if (e < -22) {
        return ldexp(1, -22);
    }
    int width = n <= 3 ? 3 : n <= 7 ? 2 : n <= 15 ? 1 : 0;
    return ldexp(floor(ldexp(a, width - e) + 0.5), e - width);
}

/* ---- the formulas ------------------------------------------------------------------------------------------------ */

typedef struct key_list {
    int n;
    int position[MAX_KEYS];
} key_list;

typedef struct side {
    const tensor_data *kv, *table, *begin, *used, *list, *topk;
    int s, width; /* S2 or S3; K1 or K2 */
} side;

static side side_of(const call *c, bool cmp)
{
    const tensor_data *t = c->t;
    return cmp ? (side){&t[CMP_KV], &t[CMP_TABLE], &t[CU_CMP], &t[USED_CMP], &t[CMP_LIST], &t[CMP_TOPK], S3, K2}
               : (side){&t[ORI_KV], &t[ORI_TABLE], &t[CU_ORI], &t[USED_ORI], &t[ORI_LIST], &t[ORI_TOPK], S2, K1};
}

static int at(const tensor_data *t, int i)
{
    return ((const int32_t *)t->data)[i];
}

static int at_least_0(int x)
{
    return x > 0 ? x : 0;
}

static int mapped(const side *s, int b)
{
    int n = 0;
    while (n < TABLE && at(s->table, b * TABLE + n) >= 0) {
        n++;
    }
    return n * BLOCK;
}

static int ori_length(const call *c, int b)
{
    side s = side_of(c, false);
    if (!s.used->absent) {
        return at_least_0(at(s.used, b));
    }
    if (!s.begin->absent) {
        return at(s.begin, b + 1) - at(s.begin, b);
    }
    return s.table->absent ? S2 : mapped(&s, b);
}

static int cmp_length(const call *c, int b)
{
    side s = side_of(c, true);
    if (!s.used->absent) {
        return at_least_0(at(s.used, b));
    }
    if (!s.begin->absent) {
        return at(s.begin, b + 1) - at(s.begin, b);
    }
    if (s.table->absent) {
        return S3;
    }
    if (c->t[USED_ORI].absent) {
        return mapped(&s, b);
    }
    int n = ori_length(c, b) / (int)c->cmp_ratio;
    return n < TABLE * BLOCK ? n : TABLE * BLOCK;
}

static const uint8_t *key_row(const side *s, int b, int position)
{
    const uint8_t *data = s->kv->data;
    if (!s->table->absent) {
        int64_t stride = s->kv->stride[0] != 0 ? s->kv->stride[0] : BLOCK * D;
        return data + s->kv->offset + at(s->table, b * TABLE + position / BLOCK) * stride + position % BLOCK * D;
    }
    int first = s->begin->absent ? b * s->s : at(s->begin, b);
    return data + (int64_t)(first + position) * D;
}

/* Entries of a list at `row`, the first n of them, that lie in [low, high). */
static void walk(const side *s, int row, int n, int low, int high, key_list *keys)
{
    n = n < s->width ? n : s->width;
    if (!s->topk->absent && at(s->topk, row) < n) {
        n = at(s->topk, row);
    }
    for (int j = 0; j < n; j++) {
        int position = at(s->list, row * s->width + j);
        if (position < 0) {
            return;
        }
        if (position >= low && position < high) {
            keys->position[keys->n++] = position;
        }
    }
}

static void range(int low, int high, key_list *keys)
{
    for (int p = low; p < high; p++) {
        keys->position[keys->n++] = p;
    }
}

static int clip(int x, int high)
{
    return x < 0 ? 0 : x > high ? high : x;
}

/* Keys of query token i of batch b, whose index tensors' row is `row`. */
static void visible(const call *c, int b, int i, int row, int s1, key_list keys[2])
{
    side ori = side_of(c, false), cmp = side_of(c, true);
    int s2 = ori_length(c, b), thr = s2 - s1 + i + 1, low = 0, high = s2;
    keys[0].n = keys[1].n = 0;
    if (c->ori_mask == 3) {
        high = clip(thr, s2);
    } else if (c->ori_mask == 4) {
        low = c->win_left == -1 ? 0 : at_least_0(thr - (int)c->win_left - 1);
        high = c->win_right == -1 ? s2 : clip(thr + (int)c->win_right, s2);
    }
    bool has_cmp = !cmp.kv->absent;
    if (!ori.list->absent && (!has_cmp || !cmp.list->absent)) {
        walk(&ori, row, c->ori_mask == 0 ? K1 : at_least_0(high - low), low, high, &keys[0]);
    } else {
        range(low, high, &keys[0]);
    }
    if (has_cmp) {
        int n = cmp_length(c, b), ratio = (int)c->cmp_ratio, limit = n;
        if (c->cmp_mask == 3) {
            int residual = !c->t[RESIDUAL].absent && ratio > 1 ? at(&c->t[RESIDUAL], b) : 0;
            limit = clip((int)floor((double)(n * ratio + residual - s1 + i + 1) / ratio), n);
        }
        if (!cmp.list->absent) {
            walk(&cmp, row, limit, 0, limit, &keys[1]);
        } else {
            range(0, limit, &keys[1]);
        }
    }
}

static float scalar(const tensor_data *t)
{
    return t->absent ? 1 : *(const float *)t->data;
}

/* o[D], its bound on top of rounding, and lse of one row and head. */
static void attend(const call *c, int b, const uint8_t *q, int head, const key_list keys[2], double *o, double *slack,
                   double *lse)
{
    memset(o, 0, D * sizeof *o);
    *slack = *lse = 0;
    if (keys[0].n + keys[1].n == 0) {
        return;
    }
    double m = ((const float *)c->t[SINKS].data)[head], l = m == -INFINITY ? 0 : 1; /* -inf: no sink */
    for (int g = 0; g < 2; g++) {
        side s = side_of(c, g == 1);
        double descale = scalar(&c->t[g == 1 ? CMP_KV_DESCALE : ORI_KV_DESCALE]);
        double ks = c->scale * scalar(&c->t[Q_DESCALE]) * descale, score[MAX_KEYS], next = m;
        for (int j = 0; j < keys[g].n; j++) {
            const uint8_t *k = key_row(&s, b, keys[g].position[j]);
            score[j] = 0;
            for (int x = 0; x < D; x++) {
                score[j] += hif8_value[q[x]] * hif8_value[k[x]];
            }
            score[j] *= ks;
            next = score[j] > next ? score[j] : next;
        }
        if (keys[g].n == 0) {
            continue;
        }
        double shrink = exp(m - next);
        l *= shrink;
        *slack *= shrink;
        for (int x = 0; x < D; x++) {
            o[x] *= shrink;
        }
        for (int j = 0; j < keys[g].n; j++) {
            const uint8_t *v = key_row(&s, b, keys[g].position[j]);
            double p = exp(score[j] - next), rounded = hif8_round(16 * p);
            double low = hif8_round(16 * p * (1 - 2e-5)), high = hif8_round(16 * p * (1 + 2e-5)), largest = 0;
            l += p;
            for (int x = 0; x < D; x++) {
                double value = hif8_value[v[x]] * descale;
                o[x] += rounded * value;
                largest = fabs(value) > largest ? fabs(value) : largest;
            }
            *slack += (high - low) * largest;
        }
        m = next;
    }
    for (int x = 0; x < D; x++) {
        o[x] /= l * 16;
    }
    *slack /= l * 16;
    *lse = m + log(l);
}

static double bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* What a run left in the outputs, against the formulas. */
static void check_results(const call *c, const char *what)
{
    bool tnd = c->layout_q[0] == 'T';
    bool owned[T1] = {false};
    double o[D], slack, lse;
    key_list keys[2];
    for (int b = 0; b < B; b++) {
        int first = tnd ? c->cu_q[b] : b * S1, slots = tnd ? c->cu_q[b + 1] - c->cu_q[b] : S1;
        int s1 = c->t[USED_Q].absent ? slots : at_least_0(c->used_q[b]);
        for (int i = 0; i < slots; i++) {
            int row = first + i;
            owned[row] = true;
            keys[0].n = keys[1].n = 0;
            if (i < s1) {
                visible(c, b, i, row, s1, keys);
            }
            for (int h = 0; h < N1; h++) {
                int64_t place = (int64_t)row * N1 + h;
                attend(c, b, c->q + place * D, h, keys, o, &slack, &lse);
                for (int x = 0; x < D; x++) {
                    double got = bf16(c->out[place * D + x]);
                    if (!(fabs(got - o[x]) <= 1e-5 + ldexp(fabs(o[x]), -7) + slack)) {
                        fail_msg("%s: out[%d][%d][%d] = %.9g, not %.9g (slack %g)", what, row, h, x, got, o[x], slack);
                    }
                }
                if (c->lse && !(fabs(c->lse_data[place] - lse) <= 1e-4 + 1e-5 * fabs(lse))) {
                    fail_msg("%s: lse[%d][%d] = %.9g, not %.9g", what, row, h, (double)c->lse_data[place], lse);
                }
            }
        }
    }
    for (int64_t i = 0; i < (int64_t)T1 * N1; i++) {
        if (!owned[i / N1]) { /* every element is written */
            assert_true(!c->lse || c->lse_data[i] == 0);
            for (int x = 0; x < D; x++) {
                assert_int_equal(c->out[i * D + x], 0);
            }
        }
        if (!c->lse) {
            uint32_t bits;
            memcpy(&bits, &c->lse_data[i], sizeof bits);
            assert_int_equal(bits, 0xffffffff);
        }
    }
}

/* ---- problems ---------------------------------------------------------------------------------------------------- */

static call shared;

static void drop(call *c, call_tensor t)
{
    c->t[t].absent = 1;
}

/* Other lengths, lists, masks and optional arguments than the ones that open_call() chose. */
static void vary(call *c, call_mode mode, call_layout layout)
{
    bool tnd = layout == TND_TND || layout == TND_PA, paged = layout == BSND_PA || layout == TND_PA;
    bool has_cmp = mode == CSA || mode == FULL_SPARSE || mode == HCA;
    c->lse = draw(0, 3) != 0;
    c->ori_mask = draw(0, 2) == 0 ? 0 : draw(3, 4);
    c->win_left = c->ori_mask == 4 ? draw(-1, 6) : -1;
    c->win_right = c->ori_mask == 4 ? draw(-1, 3) : -1;
    if (tnd) {
        c->cu_q[2] = draw(0, T1);
        c->cu_q[1] = draw(0, c->cu_q[2]);
        c->cu_ori[1] = draw(0, 20);
        c->cu_cmp[1] = draw(0, 8);
    }
    if (draw(0, 1)) {
        set_tensor(c, USED_Q, ACL_INT32, c->used_q, 1, B, 0, 0, 0);
        for (int b = 0; b < B; b++) {
            c->used_q[b] = draw(-1, tnd ? c->cu_q[b + 1] - c->cu_q[b] : S1);
        }
    }
    int ori_capacity[B] = {S2, S2}, cmp_capacity[B] = {S3, S3};
    for (int b = 0; b < B; b++) {
        if (paged) {
            ori_capacity[b] = b == 0 ? 12 : 8;
            cmp_capacity[b] = b == 0 ? 8 : 4;
        } else if (tnd) {
            ori_capacity[b] = c->cu_ori[b + 1] - c->cu_ori[b];
            cmp_capacity[b] = c->cu_cmp[b + 1] - c->cu_cmp[b];
        }
        c->used_ori[b] = draw(-1, ori_capacity[b]);
        c->used_cmp[b] = draw(-1, cmp_capacity[b]);
    }
    if (!paged && draw(0, 1)) {
        set_tensor(c, USED_ORI, ACL_INT32, c->used_ori, 1, B, 0, 0, 0);
    }
    if (has_cmp) {
        c->cmp_mask = draw(0, 1) * 3;
        c->cmp_ratio = draw(0, 3) == 0 ? 128 : draw(1, 4);
        if (!paged && draw(0, 1)) {
            set_tensor(c, USED_CMP, ACL_INT32, c->used_cmp, 1, B, 0, 0, 0);
        } else if (paged && draw(0, 1) && c->cmp_ratio >= 2) { /* what is derived then fits into the tables */
            drop(c, USED_CMP);
        }
        if (draw(0, 1)) {
            set_tensor(c, RESIDUAL, ACL_INT32, c->residual, 1, B, 0, 0, 0);
            for (int b = 0; b < B; b++) {
                c->residual[b] = draw(0, c->cmp_ratio == 1 ? 3 : (int)c->cmp_ratio - 1); /* of single tokens: ignored */
            }
        }
    }
    for (int i = 0; i < T1 * K1; i++) {
        c->ori_list[i] = draw(0, 9) == 0 ? draw(-9, 40) : draw(0, 9);
    }
    for (int i = 0; i < T1 * K2; i++) {
        c->cmp_list[i] = draw(0, 9) == 0 ? draw(-9, 40) : draw(0, 5);
    }
    for (int i = 0; i < T1; i++) {
        c->ori_topk[i] = draw(0, K1 + 2);
        c->cmp_topk[i] = draw(0, K2 + 2);
    }
    bool has_ori_list = mode == ORI_SPARSE || mode == FULL_SPARSE, has_cmp_list = mode == CSA || mode == FULL_SPARSE;
    if (mode == HCA && draw(0, 1)) { /* a list that is ignored, with or without lengths */
        has_ori_list = true;
        set_tensor(c, ORI_LIST, ACL_INT32, c->ori_list, tnd ? 3 : 4, tnd ? T1 : B, tnd ? 1 : S1, tnd ? K1 : 1, K1);
    }
    if (has_ori_list) {
        set_tensor(c, ORI_TOPK, ACL_INT32, c->ori_topk, tnd ? 2 : 3, tnd ? T1 : B, tnd ? 1 : S1, 1, 0);
        if ((c->ori_mask != 0 || mode == HCA) && draw(0, 1)) {
            drop(c, ORI_TOPK);
        }
    }
    if (has_cmp_list && (c->cmp_mask == 0 || draw(0, 1))) {
        set_tensor(c, CMP_TOPK, ACL_INT32, c->cmp_topk, tnd ? 2 : 3, tnd ? T1 : B, tnd ? 1 : S1, 1, 0);
    }
    bool list_says_all = has_ori_list && mode != HCA && c->ori_mask == 0 && c->cmp_mask == 0;
    if (paged && list_says_all && draw(0, 1)) {
        drop(c, USED_ORI);
    }
    for (int h = 0; h < N1; h++) {
        static const float sinks[] = {-40, -3, 0, 2.5f, 60, -INFINITY};
        c->sinks[h] = sinks[draw(0, 5)];
    }
    c->scale = draw(0, 3) == 0 ? -0.01 : draw(1, 40) / 400.0;
}

static void test_as_opened(void **state)
{
    (void)state;
    for (int mode = SWA; mode <= HCA; mode++) {
        for (int layout = BSND_BSND; layout <= TND_PA; layout++) {
            open_call(&shared, (call_mode)mode, (call_layout)layout);
            run_call(&shared);
            char what[40];
            snprintf(what, sizeof what, "mode %d, layout %d", mode, layout);
            check_results(&shared, what);
        }
    }
}

static void test_random(void **state)
{
    (void)state;
    for (int n = 0; n < N_PROBLEM; n++) {
        seed = (uint32_t)n * 2654435761u + 12345;
        call_mode mode = (call_mode)(n % 5);
        call_layout layout = (call_layout)(n / 5 % 4);
        open_call(&shared, mode, layout);
        vary(&shared, mode, layout);
        run_call(&shared);
        char what[60];
        snprintf(what, sizeof what, "problem %d (mode %d, layout %d)", n, (int)mode, (int)layout);
        check_results(&shared, what);
    }
}

/* Ori and cmp blocks in turns in one pool, as one allocation of a serving system. */
static void test_fused_pool(void **state)
{
    (void)state;
    enum { ORI_BLOCK = 4, CMP_BLOCK = 4, STRIDE = (ORI_BLOCK + CMP_BLOCK) * D };
    uint8_t *pool = malloc((size_t)PAGES * STRIDE);
    assert_non_null(pool);
    open_call(&shared, CSA, TND_PA);
    for (int page = 0; page < PAGES; page++) {
        memcpy(pool + page * STRIDE, shared.ori + page * ORI_BLOCK * D, ORI_BLOCK * D);
        memcpy(pool + page * STRIDE + ORI_BLOCK * D, shared.cmp + page * CMP_BLOCK * D, CMP_BLOCK * D);
    }
    run_call(&shared);
    uint16_t out[T1 * N1 * D];
    memcpy(out, shared.out, sizeof out);
    memset(shared.out, 0xff, sizeof shared.out);
    const int64_t stride[5] = {STRIDE, D, D, 1};
    for (int cmp = 0; cmp <= 1; cmp++) {
        tensor_data *kv = &shared.t[cmp ? CMP_KV : ORI_KV];
        kv->data = pool;
        kv->offset = cmp ? ORI_BLOCK * D : 0;
        memcpy(kv->stride, stride, sizeof stride);
    }
    run_call(&shared);
    check_results(&shared, "fused pool");
    assert_memory_equal(out, shared.out, sizeof out);
    free(pool);
}

/* One page table for both sides is legal, as is any other sharing among inputs. */
static void test_shared_inputs(void **state)
{
    (void)state;
    open_call(&shared, HCA, BSND_PA);
    memcpy(shared.cmp_table, shared.ori_table, sizeof shared.cmp_table);
    shared.t[CMP_TABLE].data = shared.ori_table;
    shared.t[CMP_KV].data = shared.ori;
    shared.t[CMP_KV_DESCALE].data = shared.half;
    run_call(&shared);
    check_results(&shared, "shared inputs");
}

int main(void)
{
    for (int code = 0; code < 256; code++) {
        hif8_value[code] = hif8_decode((uint8_t)code);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_opened), cmocka_unit_test(test_random),
                                       cmocka_unit_test(test_fused_pool), cmocka_unit_test(test_shared_inputs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
