/*
 * test_range.c - the visible ranges of src/core/range.h against the formulas of mla_problem.h, taken literally.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/range.h"

__extension__ typedef __int128 wide; /* room for every intermediate value of the formulas */

static wide floor_div(wide a, wide b)
{
    return a / b - (a % b < 0);
}

/* The header's lines, one for one. */
static void literal(const mla_visible *v, int64_t residual, int64_t len, int64_t n_q, int64_t i, int64_t *begin,
                    int64_t *end)
{
    wide t = (wide)len - n_q + i + 1, lo = 0, hi = len;
    switch (v->rule) {
    case MLA_VISIBLE_ALL: break;
    case MLA_VISIBLE_CAUSAL: hi = t; break;
    case MLA_VISIBLE_WINDOW:
        lo = v->left == -1 ? 0 : t - v->left - 1;
        hi = v->right == -1 ? len : t + v->right;
        break;
    case MLA_VISIBLE_COMPRESSED: hi = floor_div((wide)len * v->ratio + residual - n_q + i + 1, v->ratio); break;
    }
    lo = lo < 0 ? 0 : lo;
    hi = hi > len ? len : hi;
    *begin = hi > lo ? (int64_t)lo : 0;
    *end = hi > lo ? (int64_t)hi : 0;
}

static void check(const mla_visible *v, int64_t residual, int64_t len, int64_t n_q, int64_t i)
{
    int64_t begin, end, expected_begin, expected_end;
    mla_rule_range(v, residual, len, n_q, i, &begin, &end);
    literal(v, residual, len, n_q, i, &expected_begin, &expected_end);
    assert_true(0 <= begin && begin <= end && end <= len);
    if (expected_begin == expected_end) { /* any empty range will do */
        assert_int_equal(begin, end);
        return;
    }
    assert_int_equal(begin, expected_begin);
    assert_int_equal(end, expected_end);
}

static void test_small_ranges(void **state)
{
    (void)state;
    for (int64_t len = 0; len <= 9; len++) {
        for (int64_t n_q = 1; n_q <= 6; n_q++) {
            for (int64_t i = 0; i < n_q; i++) {
                check(&(mla_visible){.rule = MLA_VISIBLE_ALL}, 0, len, n_q, i);
                check(&(mla_visible){.rule = MLA_VISIBLE_CAUSAL}, 0, len, n_q, i);
                for (int64_t left = -1; left <= 10; left++) {
                    for (int64_t right = -1; right <= 7; right++) {
                        check(&(mla_visible){.rule = MLA_VISIBLE_WINDOW, .left = left, .right = right}, 0, len, n_q, i);
                    }
                }
                for (int64_t ratio = 1; ratio <= 5; ratio++) {
                    for (int64_t residual = 0; residual <= 7; residual++) {
                        check(&(mla_visible){.rule = MLA_VISIBLE_COMPRESSED, .ratio = ratio}, residual, len, n_q, i);
                    }
                }
            }
        }
    }
}

/* Limits, ratios and sizes next to the ends of int64: with -fsanitize=undefined no step may overflow. */
static void test_extreme_ranges(void **state)
{
    (void)state;
    const int64_t big[] = {0, 1, 2, 63, INT32_MAX, (int64_t)1 << 62, INT64_MAX - 1, INT64_MAX};
    const int n = sizeof big / sizeof *big;
    for (int a = 0; a < n; a++) {
        for (int b = 1; b < n; b++) {
            const int64_t token[] = {0, big[b] / 2, big[b] - 1};
            for (int at = 0; at < 3; at++) {
                check(&(mla_visible){.rule = MLA_VISIBLE_CAUSAL}, 0, big[a], big[b], token[at]);
                for (int c = 0; c < n; c++) {
                    for (int d = 0; d < n; d++) {
                        check(&(mla_visible){.rule = MLA_VISIBLE_WINDOW, .left = big[c], .right = big[d]}, 0, big[a],
                              big[b], token[at]);
                    }
                    check(&(mla_visible){.rule = MLA_VISIBLE_COMPRESSED, .ratio = big[c] < 1 ? 1 : big[c]}, INT32_MAX,
                          big[a], big[b], token[at]);
                }
            }
        }
    }
    /* values that the checker refuses must still be harmless */
    int64_t begin, end;
    mla_rule_range(&(mla_visible){.rule = MLA_VISIBLE_WINDOW, .left = INT64_MIN, .right = INT64_MIN}, 0, 5, 2, 1,
                   &begin, &end);
    assert_int_equal(begin, 0);
    assert_int_equal(end, 5);
    mla_rule_range(&(mla_visible){.rule = MLA_VISIBLE_COMPRESSED, .ratio = INT64_MIN}, INT64_MIN, 5, 2, 0, &begin,
                   &end);
    assert_int_equal(begin, 0);
    assert_int_equal(end, 4);
}

/* Numbers that the specification works out, or that follow from it by counting on fingers. */
static void test_known_ranges(void **state)
{
    (void)state;
    static const struct {
        mla_visible visible;
        int64_t residual, len, n_q, i, begin, end;
    } known[] = {
        /* four query tokens over two keys: bottom-right alignment leaves the first two without any */
        {{.rule = MLA_VISIBLE_CAUSAL}, 0, 2, 4, 1, 0, 0},
        {{.rule = MLA_VISIBLE_CAUSAL}, 0, 2, 4, 2, 0, 1},
        {{.rule = MLA_VISIBLE_CAUSAL}, 0, 2, 4, 3, 0, 2},
        /* a window of 127 before and 0 after: the 128 newest keys, the token's own included */
        {{.rule = MLA_VISIBLE_WINDOW, .left = 127, .right = 0}, 0, 1024, 1, 0, 896, 1024},
        {{.rule = MLA_VISIBLE_WINDOW, .left = 3, .right = 0}, 0, 10, 1, 0, 6, 10},
        {{.rule = MLA_VISIBLE_WINDOW, .left = 0, .right = -1}, 0, 10, 3, 0, 7, 10},
        {{.rule = MLA_VISIBLE_WINDOW, .left = 0, .right = 1}, 0, 10, 3, 0, 7, 9},
        /* 256 rows of 4 tokens each, 3 tokens waiting: the last of 5 new tokens sees all rows, the first one 255 */
        {{.rule = MLA_VISIBLE_COMPRESSED, .ratio = 4}, 3, 256, 5, 4, 0, 256},
        {{.rule = MLA_VISIBLE_COMPRESSED, .ratio = 4}, 3, 256, 5, 0, 0, 255},
        {{.rule = MLA_VISIBLE_COMPRESSED, .ratio = 4}, 0, 1, 9, 0, 0, 0}, /* (4 - 9 + 1) / 4 = -1 */
    };
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        int64_t begin, end;
        mla_rule_range(&known[k].visible, known[k].residual, known[k].len, known[k].n_q, known[k].i, &begin, &end);
        assert_int_equal(begin, known[k].begin);
        assert_int_equal(end, known[k].end);
    }
}

/* ---- through a problem ------------------------------------------------------------------------------------------- */

#define N_SEQ 3

/* Ragged queries (3, 0 and 2 tokens, of which 2 are used in the first) over lengths 5, 4, -1. */
static void make_problem(mla_problem *p, mla_shape *shape, int32_t *q_begin, int32_t *q_length, int32_t *length)
{
    const int32_t begins[] = {0, 3, 3, 5}, used[] = {2, 0, 2}, lengths[] = {5, 4, -1};
    for (int i = 0; i < N_SEQ; i++) {
        q_length[i] = used[i];
        length[i] = lengths[i];
    }
    for (int i = 0; i <= N_SEQ; i++) {
        q_begin[i] = begins[i];
    }
    mla_problem_init(p);
    p->q_begin = mla_tensor_make(q_begin, MLA_DTYPE_I32, 1, (int64_t[]){N_SEQ + 1});
    p->q_length = mla_tensor_make(q_length, MLA_DTYPE_I32, 1, (int64_t[]){N_SEQ});
    p->segment[0].length = mla_tensor_make(length, MLA_DTYPE_I32, 1, (int64_t[]){N_SEQ});
    *shape = (mla_shape){.n_seq = N_SEQ, .n_token = 5, .n_segment = 1};
    shape->segment[0] =
        (mla_segment_shape){.addressing = MLA_ADDRESS_PAGED, .n_page = 7, .page_size = 4, .max_page = 2};
}

static void test_unused_tokens_see_nothing(void **state)
{
    (void)state;
    mla_problem p;
    mla_shape shape;
    int32_t q_begin[N_SEQ + 1], q_length[N_SEQ], length[N_SEQ];
    make_problem(&p, &shape, q_begin, q_length, length);
    static const int64_t expected[N_SEQ][3][2] = {{{0, 5}, {0, 5}, {0, 0}},
                                                  {{0, 0}, {0, 0}, {0, 0}},
                                                  {{0, 0}, {0, 0}, {0, 0}}};
    for (int s = 0; s < N_SEQ; s++) {
        for (int i = 0; i < 3; i++) {
            int64_t begin, end;
            mla_visible_range(&p, &shape, 0, s, i, &begin, &end);
            assert_int_equal(begin, expected[s][i][0]);
            assert_int_equal(end, expected[s][i][1]);
        }
    }
    /* a physical list sees the pool, but not from an unused token */
    shape.segment[0].has_list = true;
    p.segment[0].list_address = MLA_LIST_PHYSICAL;
    int64_t begin, end;
    mla_visible_range(&p, &shape, 0, 2, 1, &begin, &end);
    assert_int_equal(begin, 0);
    assert_int_equal(end, 28);
    mla_visible_range(&p, &shape, 0, 0, 2, &begin, &end);
    assert_int_equal(begin, end);
}

/* The union is exactly the set of positions that some token sees: no hole inside, nothing beyond. */
static void test_union(void **state)
{
    (void)state;
    mla_problem p;
    mla_shape shape;
    int32_t q_begin[N_SEQ + 1], q_length[N_SEQ], length[N_SEQ], residual[N_SEQ] = {1, 0, 0};
    make_problem(&p, &shape, q_begin, q_length, length);
    mla_visible *v = &p.segment[0].visible;
    v->residual = mla_tensor_make(residual, MLA_DTYPE_I32, 1, (int64_t[]){N_SEQ});
    for (int rule = MLA_VISIBLE_ALL; rule <= MLA_VISIBLE_COMPRESSED; rule++) {
        v->rule = (mla_visible_rule)rule;
        for (int variant = 0; variant < 3 * 3 * 3 * 7 * 4; variant++) {
            int rest = variant;
            v->left = rest % 3 - 1;
            v->right = (rest /= 3) % 3 - 1;
            v->ratio = (rest /= 3) % 3 + 1;
            length[0] = (rest /= 3) % 7;
            q_length[0] = rest / 7;
            bool seen[8] = {false};
            for (int i = 0; i < 3; i++) {
                int64_t begin, end;
                mla_visible_range(&p, &shape, 0, 0, i, &begin, &end);
                for (int64_t j = begin; j < end; j++) {
                    seen[j] = true;
                }
            }
            int64_t begin, end;
            mla_visible_union(&p, &shape, 0, 0, &begin, &end);
            for (int64_t j = 0; j < 8; j++) {
                assert_int_equal(seen[j], begin <= j && j < end);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_ranges), cmocka_unit_test(test_extreme_ranges),
        cmocka_unit_test(test_known_ranges), cmocka_unit_test(test_unused_tokens_see_nothing),
        cmocka_unit_test(test_union),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
