/*
 * test_fuzz_problem.c - random descriptors thrown at the checker, from a fixed seed.
 *
 * It must not crash (run it under the sanitizers), must end soon, must give a sentence with every refusal, and whatever
 * it accepts must be safe: every row that a token may see is then looked up the way the loops do, within the bounds.
 *
 * Descriptors of index tensors are honest about their memory, for the checker has to read it: after the mutations each
 * of them is moved into one arena, and made small when it does not fit there. All others may claim anything.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/range.h"
#include "problem_fixture.h"

enum { N_ROUND = 150000, ARENA = 4096, N_STATUS = MLA_STATUS_INTERNAL + 1 };

static int32_t arena[ARENA];
static uint64_t random_state;

/* splitmix64 */
static uint64_t random_bits(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t below(int64_t n)
{
    return (int64_t)(random_bits() % (uint64_t)n);
}

static int64_t nasty(int64_t current)
{
    static const int64_t zoo[] = {INT64_MIN,
                                  INT64_MIN + 1,
                                  INT32_MIN,
                                  -64,
                                  -2,
                                  -1,
                                  0,
                                  0,
                                  1,
                                  1,
                                  2,
                                  3,
                                  4,
                                  5,
                                  6,
                                  7,
                                  8,
                                  12,
                                  16,
                                  64,
                                  UNUSED_PAGE,
                                  INT32_MAX,
                                  (int64_t)1 << 31,
                                  (int64_t)1 << 40,
                                  (int64_t)1 << 62,
                                  INT64_MAX - 1,
                                  INT64_MAX};
    switch (below(3)) {
    case 0: return current > INT64_MIN + 2 && current < INT64_MAX - 2 ? current + below(5) - 2 : current;
    default: return zoo[below(sizeof zoo / sizeof *zoo)];
    }
}

static mla_tensor *any_tensor(mla_problem *p)
{
    mla_segment *s = &p->segment[below(2)];
    mla_tensor *t[] = {&p->q,          &p->q_rope,     &p->q_begin, &p->q_length,    &p->q_descale,
                       &p->qk_descale, &p->pv_descale, &p->sink,    &p->o,           &p->lse,
                       &p->max,        &s->k,          &s->k_rope,  &s->v,           &s->k_begin,
                       &s->page_table, &s->length,     &s->list,    &s->list_length, &s->visible.residual,
                       &s->mask,       &s->descale};
    return t[below(sizeof t / sizeof *t)];
}

static void mutate_tensor(mla_problem *p)
{
    mla_tensor *t = any_tensor(p);
    int at = (int)below(t->ndim >= 1 && t->ndim <= MLA_MAX_NDIM ? t->ndim : MLA_MAX_NDIM);
    switch (below(10)) {
    case 0: *t = (mla_tensor){0}; break;
    case 1: *t = *any_tensor(p); break;
    case 2: t->ndim = (int32_t)below(9) - 1; break;
    case 3: t->dtype = (mla_dtype)(below(11) - 1); break;
    case 4: t->device = (mla_device){(mla_device_type)below(3), (int32_t)below(3) - 1}; break;
    case 5: t->data = below(2) ? NULL : (char *)t->data + below(9); break;
    case 6:
    case 7: t->stride[at] = nasty(t->stride[at]); break;
    default: t->dim[at] = nasty(t->dim[at]); break;
    }
}

static void mutate_scalar(mla_problem *p)
{
    mla_segment *s = &p->segment[below(2)];
    switch (below(12)) {
    case 0: p->n_segment = (int32_t)nasty(p->n_segment); break;
    case 1: p->d_v = nasty(p->d_v); break;
    case 2: p->p_tile = (int32_t)nasty(p->p_tile); break;
    case 3: p->p_rounding = (mla_p_rounding)nasty(p->p_rounding); break;
    case 4: p->arithmetic = (mla_arithmetic)nasty(p->arithmetic); break;
    case 5: p->lse_empty = (mla_lse_empty)nasty(p->lse_empty); break;
    case 6: s->list_address = (mla_list_address)below(3); break;
    case 7: s->list_rule = (mla_list_rule)below(3); break;
    case 8: s->visible.rule = (mla_visible_rule)below(5); break;
    case 9: s->visible.left = nasty(s->visible.left); break;
    case 10: s->visible.right = nasty(s->visible.right); break;
    default: s->visible.ratio = nasty(s->visible.ratio); break;
    }
}

static void mutate_values(fixture *f)
{
    fixture_segment *s = &f->segment[below(2)];
    struct {
        int32_t *at;
        int64_t n;
    } v[] = {{f->q_begin, N_SEQ + 1}, {f->q_length, N_SEQ}, {s->length, N_SEQ},           {s->table, N_SEQ * MAX_PAGE},
             {s->begin, N_SEQ + 1},   {s->residual, N_SEQ}, {s->list, N_TOKEN * N_ENTRY}, {s->list_length, N_TOKEN}};
    int64_t which = below(sizeof v / sizeof *v), i = below(v[which].n);
    v[which].at[i] = (int32_t)nasty(v[which].at[i]);
}

/* Elements from the lowest to the highest one, in a type that holds every sum; `low` is the lowest. */
static long double span(const mla_tensor *t, long double *low)
{
    long double high = 0;
    *low = 0;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->dim[i] < 1) {
            *low = 0;
            return 0;
        }
        long double reach = ((long double)t->dim[i] - 1) * (long double)t->stride[i];
        *(reach < 0 ? low : &high) += reach;
    }
    return high - *low + 1;
}

/* Puts a copy of the tensor's memory, or part of it, at a place of its own in the arena. */
static void move_into_arena(mla_tensor *t, int64_t slot)
{
    if (t->data == NULL || t->ndim < 1 || t->ndim > MLA_MAX_NDIM) {
        return;
    }
    const int64_t room = ARENA / 16;
    int32_t *home = arena + slot * room;
    long double low;
    if (span(t, &low) > (long double)room) {
        for (int32_t i = 0; i < t->ndim; i++) {
            t->dim[i] = t->dim[i] < 3 ? t->dim[i] : 3;
            t->stride[i] = 1;
        }
        span(t, &low);
    }
    t->data = home - (int64_t)low;
}

static void make_honest(fixture *f)
{
    mla_problem *p = &f->p;
    for (int64_t i = 0; i < ARENA; i++) {
        arena[i] = (int32_t)below(7) - 1;
    }
    mla_tensor *t[16];
    int64_t n = 0;
    t[n++] = &p->q_begin;
    t[n++] = &p->q_length;
    for (int g = 0; g < 2; g++) {
        mla_segment *s = &p->segment[g];
        t[n++] = &s->k_begin;
        t[n++] = &s->page_table;
        t[n++] = &s->length;
        t[n++] = &s->list;
        t[n++] = &s->list_length;
        t[n++] = &s->visible.residual;
    }
    for (int64_t i = 0; i < n; i++) {
        const char *from = t[i]->data, *begin = (const char *)f, *end = (const char *)(f + 1);
        move_into_arena(t[i], i);
        if (from >= begin && from + 36 <= end && t[i]->data == (void *)(arena + i * (ARENA / 16))) {
            memcpy(t[i]->data, from, 36); /* the values it had, as far as they matter */
        }
    }
}

/* Looks up what the loops would look up. */
static void walk(const mla_problem *p, const mla_shape *shape)
{
    for (int64_t s = 0; s < shape->n_seq && s < 16; s++) {
        int64_t first = mla_query_begin(p, shape, s), slots = mla_query_slots(p, shape, s);
        int64_t used = mla_query_used(p, shape, s);
        assert_true(slots >= 0 && used >= 0 && used <= slots);
        assert_true(shape->batched ? first == 0 : first >= 0 && first + slots <= shape->n_token);
        for (int32_t g = 0; g < shape->n_segment; g++) {
            const mla_segment *segment = &p->segment[g];
            const mla_segment_shape *a = &shape->segment[g];
            bool physical = a->has_list && segment->list_address == MLA_LIST_PHYSICAL;
            for (int64_t i = 0; i < slots && i < 4 && !physical; i++) {
                int64_t begin, end;
                mla_visible_range(p, shape, g, s, i, &begin, &end);
                assert_true(0 <= begin && begin <= end && (i < used || begin == end));
                for (int64_t j = begin; j < end && j < begin + 64; j++) {
                    int64_t page = 0, slot = j;
                    if (a->addressing == MLA_ADDRESS_PAGED) {
                        const mla_tensor *table = &segment->page_table;
                        assert_true(j / a->page_size < a->max_page);
                        page =
                            ((const int32_t *)table->data)[s * table->stride[0] + j / a->page_size * table->stride[1]];
                        slot = j % a->page_size;
                    } else if (a->addressing == MLA_ADDRESS_BATCHED) {
                        page = s;
                    } else {
                        slot += mla_index_at(&segment->k_begin, s);
                    }
                    assert_true(page >= 0 && page < a->n_page && slot >= 0 && slot < a->page_size);
                    const mla_tensor *mask = &segment->mask;
                    assert_true(!mla_tensor_present(mask) || j < mask->dim[mask->ndim - 1]);
                }
            }
        }
    }
}

static void test_random_descriptors(void **state)
{
    (void)state;
    static fixture f;
    int64_t seen[N_STATUS] = {0};
    random_state = 20250221;
    for (int64_t round = 0; round < N_ROUND; round++) {
        fixture_init(&f, (fixture_kind)below(N_KIND));
        for (int64_t n = below(5); n >= 0; n--) {
            switch (below(4)) {
            case 0: mutate_scalar(&f.p); break;
            case 1: mutate_values(&f); break;
            default: mutate_tensor(&f.p); break;
            }
        }
        make_honest(&f);
        mla_shape shape;
        mla_status status = mla_problem_resolve(&f.p, &shape);
        assert_in_range(status, 0, N_STATUS - 1);
        seen[status]++;
        if (status != MLA_STATUS_OK) {
            assert_true(mla_last_error()[0] != '\0');
        } else if (f.p.q.device.type == MLA_DEVICE_CPU) {
            walk(&f.p, &shape);
        }
    }
    /* the mutations reach every kind of verdict, and leave enough problems whole */
    for (int status = MLA_STATUS_OK; status <= MLA_STATUS_OUT_OF_RANGE; status++) {
        assert_true(seen[status] >= N_ROUND / 1000);
    }
    assert_true(seen[MLA_STATUS_OK] >= N_ROUND / 10);
    for (int status = MLA_STATUS_UNSUPPORTED; status < N_STATUS; status++) {
        assert_int_equal(seen[status], 0);
    }
}

/* A view made from anything never fails, and the check has the last word on it. */
static void test_random_views(void **state)
{
    (void)state;
    random_state = 3;
    for (int round = 0; round < 100000; round++) {
        int64_t dim[MLA_MAX_NDIM];
        for (int i = 0; i < MLA_MAX_NDIM; i++) {
            dim[i] = nasty(2);
        }
        fixture f;
        mla_problem_init(&f.p);
        f.p.q = mla_tensor_make(f.q, MLA_DTYPE_BF16, (int32_t)below(10) - 1, below(8) ? dim : NULL);
        assert_int_not_equal(mla_problem_check(&f.p), MLA_STATUS_OK); /* there is no k */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_descriptors),
        cmocka_unit_test(test_random_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
