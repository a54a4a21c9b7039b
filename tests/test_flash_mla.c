/*
 * test_flash_mla.c - the attention call of the flash_mla door, from its arguments to its numbers.
 *
 * Two tricks make exact results without a reference. With q = 0 all probabilities are equal, so an output is the mean
 * of the visible values and lse is the log of their number. With "V = t" the value row of token t holds the number t,
 * so the mean tells which tokens were seen. Small integers and their means are exact in bf16: a result differs from the
 * mean by a few fp32 roundings, and one rounding to bf16 removes them, so outputs are compared with ==.
 */
#include "flash_mla_call.h"

/* A token that sees `n` keys whose mean value is `mean`, scores 0; n = 0: the lonely row. All heads, all columns. lse
 * is at most four roundings away from the double logarithm: of the log itself, its sum with the maximum, the change of
 * base, and ln 2. */
static void expect_mean(const call *c, int64_t i, int64_t j, float mean, int64_t n)
{
    for (int64_t h = 0; h < c->h_q; h++) {
        for (int64_t x = 0; x < c->d_v; x++) {
            float got = out_at(c, i, j, h, x);
            if (float_to_bits(got) != float_to_bits(n == 0 ? 0.0f : mean)) { /* +0, not -0, for a lonely row */
                fail_msg("out[%d][%d][%d][%d] = %g instead of %g", (int)i, (int)j, (int)h, (int)x, (double)got,
                         (double)mean);
            }
        }
        double lse = lse_at(c, i, j, h), expected = n == 0 ? INFINITY : log((double)n);
        if (n == 0 ? lse != expected : !(fabs(lse - expected) <= 4 * FLT_EPSILON * fmax(1, fabs(expected)))) {
            fail_msg("lse[%d][%d][%d] = %.9g instead of %.9g", (int)i, (int)h, (int)j, lse, expected);
        }
    }
}

/* ---- lengths, paging, padding ------------------------------------------------------------------------------------ */

static void test_empty_requests(void **state)
{
    (void)state;
    call c;
    open_default(&c, 3, 1, 16, 1, 64, (int32_t[]){0, 5, 0}, false);
    fill_rows(&c, 1, 0);
    run_call(&c);
    expect_mean(&c, 0, 0, 0, 0);
    expect_mean(&c, 1, 0, 2, 5);
    expect_mean(&c, 2, 0, 0, 0);
    close_call(&c);

    open_default(&c, 2, 1, 16, 1, 64, (int32_t[]){0, 4}, false);
    fill_rows(&c, 1, 0);
    run_call(&c);
    expect_mean(&c, 0, 0, 0, 0);
    expect_mean(&c, 1, 0, 1.5f, 4);
    close_call(&c);

    open_default(&c, 2, 1, 4, 1, 64, (int32_t[]){-3, INT32_MIN}, false); /* negative counts as 0 */
    run_call(&c);
    expect_mean(&c, 0, 0, 0, 0);
    expect_mean(&c, 1, 0, 0, 0);
    close_call(&c);
}

/* Padded slots of a captured batch: length 0 and a table of -1; or length 1 and page 0. With the scheduler rows that
 * other stacks write by hand: -1 for idle parts, equal neighbours in num_splits. */
static void test_padded_slots(void **state)
{
    (void)state;
    int32_t rows[4 * FLASH_MLA_METADATA_COLUMNS] = {0, 0, 0, 7, 0}, splits[] = {0, 1, 1, 1, 1};
    for (int part = 1; part < 4; part++) {
        rows[part * FLASH_MLA_METADATA_COLUMNS] = -1;
    }
    mla_tensor metadata = mla_tensor_make(rows, MLA_DTYPE_I32, 2, (int64_t[]){4, FLASH_MLA_METADATA_COLUMNS});
    mla_tensor num_splits = mla_tensor_make(splits, MLA_DTYPE_I32, 1, (int64_t[]){5});
    for (int hinted = 0; hinted <= 1; hinted++) {
        call c;
        open_default(&c, 4, 1, 16, 1, 64, (int32_t[]){7, 0, 0, 0}, false);
        fill_rows(&c, 1, 0);
        for (int64_t i = 1; i < 4; i++) {
            c.table[i * c.max_page] = -1;
        }
        c.metadata = hinted ? &metadata : NULL;
        c.num_splits = hinted ? &num_splits : NULL;
        run_call(&c);
        expect_mean(&c, 0, 0, 3, 7);
        for (int64_t i = 1; i < 4; i++) {
            expect_mean(&c, i, 0, 0, 0);
        }
        for (int64_t i = 1; i < 4; i++) {
            c.lens[i] = 1;
            c.table[i * c.max_page] = 0;
        }
        run_call(&c);
        expect_mean(&c, 0, 0, 3, 7);
        for (int64_t i = 1; i < 4; i++) {
            expect_mean(&c, i, 0, 0, 1);
        }
        close_call(&c);
    }
}

static void test_table_without_columns(void **state)
{
    (void)state;
    call c;
    open_default(&c, 4, 1, 16, 1, 64, (int32_t[]){0, 0, 0, 0}, false);
    assert_int_equal(c.block_table.dim[1], 0);
    c.block_table.data = NULL;
    run_call(&c);
    for (int64_t i = 0; i < 4; i++) {
        expect_mean(&c, i, 0, 0, 0);
    }
    close_call(&c);
}

static void test_empty_batch(void **state)
{
    (void)state;
    call c;
    open_default(&c, 0, 1, 16, 1, 64, NULL, false);
    c.q.data = c.out.data = c.lse.data = c.block_table.data = c.seqlens.data = NULL;
    run_call(&c);
    close_call(&c);
    open_default(&c, 2, 0, 16, 1, 64, (int32_t[]){5, 3}, true);
    run_call(&c);
    close_call(&c);
}

/* A table of exactly two columns for 17 keys in pages of 16: nothing beyond it may be read. */
static void test_table_of_exact_width(void **state)
{
    (void)state;
    call c;
    open_default(&c, 1, 4, 16, 1, 16, (int32_t[]){17}, true);
    fill_rows(&c, 1, 0);
    int32_t wide[] = {0, 1, UNUSED_PAGE, UNUSED_PAGE};
    c.block_table.data = wide;
    run_call(&c);
    for (int64_t j = 0; j < 4; j++) {
        expect_mean(&c, 0, j, 6.5f + 0.5f * (float)j, 14 + j);
    }
    close_call(&c);
}

static void test_large_pages(void **state)
{
    (void)state;
    static const int64_t pages[] = {129, 192, 256};
    for (int64_t k = 0; k < COUNT(pages); k++) {
        call c;
        open_default(&c, 1, 1, 16, 1, pages[k], (int32_t[]){200}, false);
        fill_rows(&c, 1, 0);
        run_call(&c);
        expect_mean(&c, 0, 0, 99.5f, 200);
        close_call(&c);
    }
}

/* A table entry is a page, not a token. */
static void test_table_counts_pages(void **state)
{
    (void)state;
    call c;
    open_default(&c, 1, 1, 16, 1, 64, (int32_t[]){64 * 3 + 1}, false);
    c.lens[0] = 5;
    c.table[0] = 3;
    fill_rows(&c, 1, 0);
    run_call(&c);
    expect_mean(&c, 0, 0, 2, 5);
    close_call(&c);
}

/* ---- several query tokens ---------------------------------------------------------------------------------------- */

static void test_causal(void **state)
{
    (void)state;
    call c;
    open_default(&c, 1, 2, 16, 1, 64, (int32_t[]){65}, true); /* the last key is alone in its page */
    fill_rows(&c, 1, 0);
    run_call(&c);
    expect_mean(&c, 0, 0, 31.5f, 64);
    expect_mean(&c, 0, 1, 32, 65);
    c.causal = false;
    run_call(&c);
    expect_mean(&c, 0, 0, 32, 65);
    expect_mean(&c, 0, 1, 32, 65);
    close_call(&c);

    open_default(&c, 1, 4, 2, 1, 64, (int32_t[]){2}, true); /* fewer keys than query tokens: aligned at the end */
    fill_rows(&c, 1, 0);
    run_call(&c);
    expect_mean(&c, 0, 0, 0, 0);
    expect_mean(&c, 0, 1, 0, 0);
    expect_mean(&c, 0, 2, 0, 1);
    expect_mean(&c, 0, 3, 0.5f, 2);
    close_call(&c);
}

/* With one query token `causal` changes nothing, not even bits; with two it does, in both dtypes. */
static void test_causal_of_one_token(void **state)
{
    (void)state;
    for (mla_dtype dtype = MLA_DTYPE_F16; dtype <= MLA_DTYPE_BF16; dtype++) {
        for (int64_t s_q = 1; s_q <= 2; s_q++) {
            call on, off;
            open_call(&on, dtype, 2, s_q, 8, 1, 576, 512, 64, (int32_t[]){40, 70}, true);
            open_call(&off, dtype, 2, s_q, 8, 1, 576, 512, 64, (int32_t[]){40, 70}, false);
            fill_rows(&on, 1, 0);
            fill_rows(&off, 1, 0);
            run_call(&on);
            run_call(&off);
            bool same = memcmp(on.out_data, off.out_data, (size_t)(2 * s_q * 8 * 512) * sizeof *on.out_data) == 0 &&
                        memcmp(on.lse_data, off.lse_data, (size_t)(2 * s_q * 8) * sizeof *on.lse_data) == 0;
            assert_int_equal(same, s_q == 1);
            close_call(&on);
            close_call(&off);
        }
    }
}

/* Neighbouring query heads share a kv head: 0, 0, 1, 1, 2, 2. */
static void test_grouped_heads(void **state)
{
    (void)state;
    call c;
    open_default(&c, 1, 1, 6, 3, 64, (int32_t[]){9}, false);
    fill_rows(&c, 0, 1);
    run_call(&c);
    for (int64_t h = 0; h < 6; h++) {
        for (int64_t x = 0; x < c.d_v; x++) {
            assert_true(out_at(&c, 0, 0, h, x) == (float)(h / 2));
        }
    }
    close_call(&c);

    open_default(&c, 2, 4, 126, 3, 64, (int32_t[]){66, 3}, true); /* 42 heads each, causal, a lonely first token */
    fill_rows(&c, 1, 16);
    run_call(&c);
    for (int64_t i = 0; i < 2; i++) {
        for (int64_t j = 0; j < 4; j++) {
            int64_t n = c.lens[i] - 3 + j;
            for (int64_t h = 0; h < 126; h++) {
                float expected = n == 0 ? 0 : 0.5f * (float)(n - 1) + 16 * (float)(h / 42);
                assert_true(out_at(&c, i, j, h, 0) == expected && out_at(&c, i, j, h, 511) == expected);
                assert_true(n == 0 ? lse_at(&c, i, j, h) == INFINITY
                                   : fabs(lse_at(&c, i, j, h) - log((double)n)) <=
                                         4 * FLT_EPSILON * fmax(1, log((double)n)));
            }
        }
    }
    close_call(&c);
}

/* ---- scores and their logarithm ---------------------------------------------------------------------------------- */

/* lse is a natural logarithm. */
static void test_lse_of_equal_keys(void **state)
{
    (void)state;
    call c;
    open_default(&c, 1, 1, 16, 1, 64, (int32_t[]){256}, false);
    fill_rows(&c, 0, 0);
    run_call(&c);
    expect_mean(&c, 0, 0, 0, 256);
    close_call(&c);
}

/* A sum of d products in fp32, in any order, is within d roundings of the sum of their sizes; scaling before or after
 * adds two, the change of base and the logarithm four. */
static double score_bound(int64_t d, double sizes)
{
    return (double)(d + 6) * (FLT_EPSILON / 2) * sizes;
}

/* q = k = 16 in 576 columns: q.k = 147,456 is beyond f16. One key, so lse is the scaled score. */
static void test_scores_beyond_f16(void **state)
{
    (void)state;
    static const float scale = 1e-5f;
    for (mla_dtype dtype = MLA_DTYPE_F16; dtype <= MLA_DTYPE_BF16; dtype++) {
        call c;
        open_call(&c, dtype, 1, 1, 16, 1, 576, 512, 64, (int32_t[]){1}, false);
        for (int64_t x = 0; x < 16 * 576; x++) {
            c.q_data[x] = encode(dtype, 16);
        }
        for (int64_t x = 0; x < 576; x++) {
            c.cache_data[x] = encode(dtype, 16);
        }
        c.scale = &scale;
        run_call(&c);
        for (int64_t h = 0; h < 16; h++) {
            assert_true(fabs(lse_at(&c, 0, 0, h) - 147456 * (double)scale) <= score_bound(576, 147456 * (double)scale));
            assert_true(out_at(&c, 0, 0, h, 0) == 16 && out_at(&c, 0, 0, h, 511) == 16);
        }
        close_call(&c);
    }
}

/* Without a scale: 1 / sqrt(d), of the whole row. A negative one and 0 are as good as any. */
static void test_scale(void **state)
{
    (void)state;
    static const float scales[] = {0.5f, 0, -0.25f};
    static const struct {
        int64_t d, d_v;
    } dims[] = {{576, 512}, {512, 512}, {320, 256}, {288, 256}, {64, 64}, {192, 128}, {1, 1}};
    for (int64_t k = 0; k < COUNT(dims); k++) {
        for (int64_t s = -1; s < COUNT(scales); s++) {
            call c;
            open_call(&c, MLA_DTYPE_BF16, 1, 1, 2, 1, dims[k].d, dims[k].d_v, 16, (int32_t[]){1}, false);
            double sum = 0;
            for (int64_t x = 0; x < c.d; x++) {
                float value = (float)(x % 7) - 2;
                c.q_data[x] = c.q_data[c.d + x] = encode(c.dtype, value);
                c.cache_data[x] = encode(c.dtype, 1);
                sum += value;
            }
            c.scale = s < 0 ? NULL : &scales[s];
            run_call(&c);
            double scale = s < 0 ? 1 / sqrt((double)c.d) : (double)scales[s];
            for (int64_t h = 0; h < 2; h++) {
                assert_true(fabs(lse_at(&c, 0, 0, h) - scale * sum) <= score_bound(c.d, fabs(scale) * 4 * (double)c.d));
                assert_true(out_at(&c, 0, 0, h, c.d_v - 1) == 1);
            }
            close_call(&c);
        }
    }
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

/* Numbers that differ everywhere, with 8 significant bits at most. */
static float pattern(int64_t i)
{
    uint64_t z = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return (float)((int64_t)(z >> 40) % 127 - 63) / 32;
}

static void open_pattern(call *c, int64_t page, bool causal)
{
    open_default(c, 2, 3, 8, 2, page, (int32_t[]){70, 33}, causal);
    for (int64_t i = 0; i < 2 * 3 * 8 * 576; i++) {
        c->q_data[i] = encode(c->dtype, pattern(i));
    }
    for (int64_t i = 0; i < c->b; i++) {
        for (int64_t t = 0; t < c->lens[i]; t++) {
            for (int64_t h = 0; h < c->h_kv; h++) {
                for (int64_t x = 0; x < c->d; x++) {
                    cache_row(c, i, t, h)[x] = encode(c->dtype, pattern(1000000 + ((i * 100 + t) * 2 + h) * 576 + x));
                }
            }
        }
    }
}

static void expect_same(const call *a, const call *b)
{
    for (int64_t i = 0; i < a->b; i++) {
        for (int64_t j = 0; j < a->s_q; j++) {
            for (int64_t h = 0; h < a->h_q; h++) {
                assert_int_equal(float_to_bits(lse_at(a, i, j, h)), float_to_bits(lse_at(b, i, j, h)));
                for (int64_t x = 0; x < a->d_v; x++) {
                    assert_int_equal(float_to_bits(out_at(a, i, j, h, x)), float_to_bits(out_at(b, i, j, h, x)));
                }
            }
        }
    }
}

/* Not only like each other, but right: the formula in double. A probability is off by at most twice the error of a
 * score, a result by that times the sizes it sums, and by half a unit in the last of the 8 bits of bf16. */
static void expect_formula(const call *c)
{
    for (int64_t i = 0; i < c->b; i++) {
        for (int64_t j = 0; j < c->s_q; j++) {
            int64_t n = c->lens[i] - (c->causal ? c->s_q - 1 - j : 0);
            for (int64_t h = 0; h < c->h_q; h++) {
                const uint16_t *q =
                    (uint16_t *)c->q.data + i * c->q.stride[0] + j * c->q.stride[1] + h * c->q.stride[2];
                double score[128], most = -INFINITY, sum = 0, error = 0;
                for (int64_t t = 0; t < n; t++) {
                    const uint16_t *k = cache_row(c, i, t, h / (c->h_q / c->h_kv));
                    double dot = 0, sizes = 0;
                    for (int64_t x = 0; x < c->d; x++) {
                        double product = (double)decode(c->dtype, q[x]) * (double)decode(c->dtype, k[x]);
                        dot += product;
                        sizes += fabs(product);
                    }
                    score[t] = dot / sqrt((double)c->d);
                    most = fmax(most, score[t]);
                    error = fmax(error, score_bound(c->d, sizes / sqrt((double)c->d)));
                }
                for (int64_t t = 0; t < n; t++) {
                    sum += exp(score[t] - most);
                }
                assert_true(fabs(lse_at(c, i, j, h) - (most + log(sum))) <= error + 4 * FLT_EPSILON);
                for (int64_t x = 0; x < c->d_v; x++) {
                    double value = 0, sizes = 0;
                    for (int64_t t = 0; t < n; t++) {
                        double term = exp(score[t] - most) / sum *
                                      (double)decode(c->dtype, cache_row(c, i, t, h / (c->h_q / c->h_kv))[x]);
                        value += term;
                        sizes += fabs(term);
                    }
                    double bound = (2 * error + (double)(n + 8) * FLT_EPSILON) * sizes;
                    assert_true(fabs(out_at(c, i, j, h, x) - value) <= bound + (fabs(value) + bound) / 256);
                }
            }
        }
    }
}

/* Bits do not depend on the page size, nor on where pages lie. */
static void test_pages_do_not_matter(void **state)
{
    (void)state;
    static const int64_t pages[] = {1, 2, 3, 16, 61, 64, 70};
    call whole;
    open_pattern(&whole, 100, true);
    run_call(&whole);
    expect_formula(&whole);
    for (int64_t k = 0; k < COUNT(pages); k++) {
        call c;
        open_pattern(&c, pages[k], true);
        run_call(&c);
        expect_same(&c, &whole);
        close_call(&c);
    }
    close_call(&whole);
}

/* Every second head of a larger q, one layer of a cache of layers with wider rows, a table of larger rows, out and lse
 * inside larger buffers in another order. */
static void test_strided_views(void **state)
{
    (void)state;
    call plain, c;
    open_pattern(&plain, 16, false);
    run_call(&plain);
    expect_formula(&plain);

    open_pattern(&c, 16, false);
    int64_t layers = 3, wide = 600;
    uint16_t *q = allocate(2 * 3 * 16 * 576, sizeof *q),
             *pool = allocate(c.n_page * layers * 16 * 2 * wide, sizeof *pool);
    uint16_t *out = allocate(8 * 3 * 2 * 520, sizeof *out);
    int32_t *table = allocate(2 * 9, sizeof *table);
    float *lse = allocate(2 * 3 * 8, sizeof *lse);
    memset(q, 0xff, (size_t)(2 * 3 * 16 * 576) * sizeof *q); /* NaN */
    memset(pool, 0xff, (size_t)(c.n_page * layers * 16 * 2 * wide) * sizeof *pool);
    memset(out, 0x5a, (size_t)(8 * 3 * 2 * 520) * sizeof *out);
    for (int64_t i = 0; i < 2 * 3 * 8; i++) {
        memcpy(q + i * 2 * 576, c.q_data + i * 576, 576 * sizeof *q);
    }
    for (int64_t i = 0; i < c.n_page * 16 * 2; i++) {
        memcpy(pool + ((i / 32 * layers + 1) * 32 + i % 32) * wide, c.cache_data + i * 576, 576 * sizeof *pool);
    }
    for (int64_t i = 0; i < 2; i++) {
        memcpy(table + i * 9, c.table + i * c.max_page, (size_t)c.max_page * sizeof *table);
    }
    c.q.data = q;
    c.q.stride[0] = 3 * 16 * 576;
    c.q.stride[1] = 16 * 576;
    c.q.stride[2] = 2 * 576;
    c.cache.data = pool + 32 * wide;
    c.cache.stride[0] = layers * 32 * wide;
    c.cache.stride[1] = 2 * wide;
    c.cache.stride[2] = wide;
    c.block_table.data = table;
    c.block_table.stride[0] = 9;
    c.out.data = out;
    c.out.stride[0] = 520; /* [head][token][request] */
    c.out.stride[1] = 2 * 520;
    c.out.stride[2] = 3 * 2 * 520;
    c.lse.data = lse;
    c.lse.stride[0] = 3 * 8; /* [request][token][head], as the original returns it */
    c.lse.stride[1] = 1;
    c.lse.stride[2] = 8;
    run_call(&c);
    expect_same(&c, &plain);
    for (int64_t i = 0; i < 8 * 3 * 2; i++) { /* nothing is written beside the columns of the view */
        for (int64_t x = 512; x < 520; x++) {
            assert_int_equal(out[i * 520 + x], 0x5a5a);
        }
    }
    free(q);
    free(pool);
    free(out);
    free(table);
    free(lse);
    close_call(&c);
    close_call(&plain);
}

static void test_without_lse(void **state)
{
    (void)state;
    call with, without;
    open_pattern(&with, 64, true);
    open_pattern(&without, 64, true);
    run_call(&with);
    mla_status status = flash_mla_with_kvcache(&without.q, &without.cache, &without.block_table, &without.seqlens, 512,
                                               NULL, NULL, NULL, true, &without.out, NULL);
    assert_int_equal(status, MLA_STATUS_OK);
    assert_memory_equal(with.out_data, without.out_data, 2 * 3 * 8 * 512 * sizeof *with.out_data);
    close_call(&with);
    close_call(&without);
}

/* Whatever the scheduler tensors hold, right or made up, bits are the same. */
static void test_metadata_is_a_hint(void **state)
{
    (void)state;
    call plain, c;
    open_pattern(&plain, 16, true);
    open_pattern(&c, 16, true);
    run_call(&plain);
    int32_t rows[5 * FLASH_MLA_METADATA_COLUMNS], splits[3];
    mla_tensor metadata = mla_tensor_make(rows, MLA_DTYPE_I32, 2, (int64_t[]){5, FLASH_MLA_METADATA_COLUMNS});
    mla_tensor num_splits = mla_tensor_make(splits, MLA_DTYPE_I32, 1, (int64_t[]){3});
    assert_int_equal(flash_mla_get_metadata(&c.seqlens, 3 * 8 / 2, 2, &metadata, &num_splits), MLA_STATUS_OK);
    c.metadata = &metadata;
    c.num_splits = &num_splits;
    run_call(&c);
    expect_same(&c, &plain);
    static const int bytes[] = {0x00, 0xff, 0x7f, 0x80, 0x01};
    for (int64_t k = 0; k < COUNT(bytes); k++) {
        memset(rows, bytes[k], sizeof rows);
        memset(splits, bytes[k], sizeof splits);
        run_call(&c);
        expect_same(&c, &plain);
    }
    /* a caller that has only one of the two, or rows of a larger machine */
    c.num_splits = NULL;
    metadata.dim[0] = 1;
    run_call(&c);
    expect_same(&c, &plain);
    close_call(&c);
    close_call(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_requests),
        cmocka_unit_test(test_padded_slots),
        cmocka_unit_test(test_table_without_columns),
        cmocka_unit_test(test_empty_batch),
        cmocka_unit_test(test_table_of_exact_width),
        cmocka_unit_test(test_large_pages),
        cmocka_unit_test(test_table_counts_pages),
        cmocka_unit_test(test_causal),
        cmocka_unit_test(test_causal_of_one_token),
        cmocka_unit_test(test_grouped_heads),
        cmocka_unit_test(test_lse_of_equal_keys),
        cmocka_unit_test(test_scores_beyond_f16),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_pages_do_not_matter),
        cmocka_unit_test(test_strided_views),
        cmocka_unit_test(test_without_lse),
        cmocka_unit_test(test_metadata_is_a_hint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
