/*
 * check_kernels_bf16.c - the kernels of arithmetic in bf16, each against its contract in cpu/kernels.h.
 */
#include <math.h>
#include <string.h>

#include "kernel_tools.h"
#include "ref/number.h"

enum { ROWS = MLA_ROW_PANEL, STEP = MLA_BF16_STEP, TILE = MLA_BF16_TILE, PANELS = 8 };

/* What is lost where operands and sums below 2^-126 count as 0: next to nothing beside normal numbers of size 1. */
#define FLUSHED 0x1p-100

static uint16_t *numbers(const char *name, int64_t n)
{
    return ck_buffer(name, (size_t)n * sizeof(uint16_t));
}

static uint16_t bf16(double x)
{
    uint16_t bits;
    mla_ref_store(&bits, MLA_DTYPE_BF16, 0, x);
    return bits;
}

static double value(uint16_t bits)
{
    return mla_ref_load(&bits, MLA_DTYPE_BF16, 0);
}

static void enter(const kernel_case *k)
{
    CK_REQUIRE(k->table->bf16.permitted == NULL || k->table->bf16.permitted());
    if (k->table->bf16.enter) {
        k->table->bf16.enter();
    }
}

static void leave(const kernel_case *k)
{
    if (k->table->bf16.leave) {
        k->table->bf16.leave();
    }
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

void kernel_check_qpairs(void)
{
    static const int64_t columns[] = {1, 2, 15, 31, 32, 33, 64, 100, 191, 512, 576};
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int i = 0; i < 11; i++) {
        for (int32_t n_row = 1; n_row <= ROWS; n_row++) {
            size_t mark = ck_mark();
            int64_t n_col = columns[i], n_step = (n_col + STEP - 1) / STEP;
            const void **row = kernel_rows(k, n_row, n_col, &r);
            float factor[ROWS];
            for (int32_t x = 0; x < n_row; x++) {
                factor[x] = (float)ldexp(1, (int)ck_between(&r, -20, 20));
            }
            uint16_t *q = numbers("q", n_step * TILE);
            k->table->bf16.qpairs(row, factor, n_row, n_col, q);
            for (int64_t c = 0; c < n_step * STEP; c++) {
                for (int32_t x = 0; x < ROWS; x++) {
                    bool there = x < n_row && c < n_col;
                    double want = there ? mla_ref_load(row[x], MLA_DTYPE_BF16, c) * (double)factor[x] : 0;
                    double got = value(q[c / STEP * TILE + c % STEP / 2 * STEP + x * 2 + c % 2]);
                    if (got != want) {
                        ck_fail("%lld columns, %d rows: q[%lld][%d] = %g, expected %g", (long long)n_col, (int)n_row,
                                (long long)c, (int)x, got, want);
                    }
                }
            }
            ck_release(mark);
        }
    }
}

void kernel_check_vpairs(void)
{
    static const int64_t columns[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 65, 100, 512};
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int i = 0; i < 12; i++) {
        for (int64_t n_key = STEP; n_key <= MLA_KEY_BLOCK_BF16; n_key += STEP) {
            size_t mark = ck_mark();
            int64_t n_col = columns[i], n_group = (n_col + 15) / 16, stride = n_key * 16 + ck_below(&r, 3) * 32;
            const void **row = kernel_rows(k, n_key, n_col, &r);
            for (int64_t n = 0; n < n_key; n++) { /* numbers of every kind pass as they are */
                static const uint16_t special[] = {0x7f80, 0xff80, 0x7fc1, 0x7f81, 0x8000, 0x0001};
                ((uint16_t *)(uintptr_t)row[n])[ck_below(&r, n_col)] = special[ck_below(&r, 6)];
            }
            uint16_t *v = numbers("v", (n_group - 1) * stride + n_key * 16), untouched;
            memcpy(&untouched, v, sizeof untouched);
            k->table->bf16.vpairs(row, n_key, n_col, v, stride);
            for (int64_t c = 0; c < n_group * 16; c++) {
                for (int64_t n = 0; n < n_key; n++) {
                    uint16_t want = c < n_col ? ((const uint16_t *)row[n])[c] : 0;
                    uint16_t got = v[c / 16 * stride + n / STEP * TILE + n % STEP / 2 * STEP + c % 16 * 2 + n % 2];
                    if (got != want) {
                        ck_fail("%lld columns, %lld keys: v[%lld][%lld] = %04x, expected %04x", (long long)n_col,
                                (long long)n_key, (long long)n, (long long)c, (unsigned)got, (unsigned)want);
                    }
                }
            }
            for (int64_t g = 0; g + 1 < n_group; g++) {
                for (int64_t x = n_key * 16; x < stride; x++) {
                    if (((x ^ g * stride) & 1) == 0 && v[g * stride + x] != untouched) {
                        ck_fail("%lld columns, %lld keys: written between groups", (long long)n_col, (long long)n_key);
                    }
                }
            }
            ck_release(mark);
        }
    }
}

void kernel_check_ppairs(void)
{
    /* ties to even both ways, just beside them, what is too small and what is no number */
    static const double special[] =
        {1 + 0x1p-8, 1 + 0x1.8p-7, 1 + 0x1.000002p-8, 1 + 0x1.fffffcp-9, 0x1p-126, 0x1p-149, 0x1.8p-140, 0, NAN, 255.99,
         1,          0.3};
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int64_t n_key = STEP; n_key <= MLA_KEY_BLOCK_BF16; n_key += STEP) {
        for (int round = 0; round < 20; round++) {
            int32_t n_part = 1 + round % 2;
            size_t mark = ck_mark();
            float *from = kernel_floats("p in fp32", n_key * ROWS);
            for (int64_t i = 0; i < n_key * ROWS; i++) {
                from[i] = (float)(ck_chance(&r, 0.2) ? special[ck_below(&r, 12)] : ck_uniform(&r) * 3);
            }
            uint16_t *p = numbers("p", n_key * ROWS * n_part);
            k->table->bf16.ppairs(from, n_key, n_part, p);
            for (int64_t i = 0; i < n_key * ROWS * n_part; i++) {
                int64_t part = i % n_part, n = i / n_part / ROWS, x = i / n_part % ROWS;
                double exact = (double)from[n * ROWS + x], want = exact < 0x1p-126 ? 0 : value(bf16(exact));
                if (part > 0) { /* what is left of a number that counts as 0 counts as 0 too */
                    double left = exact < 0x1p-126 ? 0 : exact - want;
                    want = fabs(left) < 0x1p-126 ? 0 : value(bf16(left));
                }
                double got = value(p[(n / STEP * n_part + part) * TILE + x * STEP + n % STEP]);
                if (isnan(exact) ? !isnan(got) : got != want) {
                    ck_fail("%lld keys: part %d of p[%d][%lld] = %a of %a", (long long)n_key, (int)part, (int)x,
                            (long long)n, got, exact);
                }
            }
            ck_release(mark);
        }
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void fill(uint16_t *to, int64_t n, bool positive, ck_random *r)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = bf16(positive ? ck_uniform(r) : ck_normal(r));
    }
}

static mla_prefetch nothing_ahead(void)
{
    return (mla_prefetch){0};
}

static void qk_once(const kernel_case *k, int64_t n_tile, int64_t n_panel, int64_t n_col, bool accumulate, ck_random *r)
{
    size_t mark = ck_mark();
    int64_t q_stride = ROWS * n_col + ck_below(r, 3) * TILE, s_stride = (n_tile + ck_below(r, 2)) * 16 * ROWS;
    int64_t n_s = (n_panel - 1) * s_stride + n_tile * 16 * ROWS;
    uint16_t *q = numbers("q", (n_panel - 1) * q_stride + ROWS * n_col);
    float *s = kernel_floats("s", n_s), *before = kernel_floats("s before", n_s),
          *alone = kernel_floats("s", 16 * ROWS);
    mla_key_tile *tile = ck_buffer("tiles", (size_t)n_tile * sizeof *tile);
    for (int64_t x = 0; x < n_panel; x++) { /* what lies between stays NaN */
        fill(q + x * q_stride, ROWS * n_col, false, r);
    }
    for (int64_t i = 0; i < n_tile; i++) { /* rows end in front of an inaccessible page, some run backwards */
        int64_t stride = n_col + ck_below(r, 40);
        uint16_t *rows = numbers("keys", 15 * stride + n_col);
        for (int64_t n = 0; n < 16; n++) {
            fill(rows + n * stride, n_col, false, r);
        }
        bool back = ck_chance(r, 0.2);
        tile[i] = (mla_key_tile){back ? rows + 15 * stride : rows, (back ? -2 : 2) * stride};
    }
    for (int64_t x = 0; accumulate && x < n_panel; x++) {
        for (int64_t i = 0; i < n_tile * 16 * ROWS; i++) {
            before[x * s_stride + i] = s[x * s_stride + i] = (float)ck_normal(r);
        }
    }
    mla_prefetch ahead = nothing_ahead();
    enter(k);
    k->table->bf16.qk(q, q_stride, tile, n_tile, n_col, n_panel, accumulate, s, s_stride, &ahead);
    leave(k);
    for (int64_t x = 0; x < n_panel; x++) {
        for (int64_t n = 0; n < n_tile * 16; n++) {
            const uint16_t *key = (const void *)((const char *)tile[n / 16].row + n % 16 * tile[n / 16].stride);
            for (int32_t lane = 0; lane < ROWS; lane++) {
                int64_t at = x * s_stride + n * ROWS + lane;
                double want = accumulate ? (double)before[at] : 0, size = fabs(want);
                for (int64_t c = 0; c < n_col; c++) {
                    double term = value(key[c]) *
                                  value(q[x * q_stride + c / STEP * TILE + c % STEP / 2 * STEP + lane * 2 + c % 2]);
                    want += term;
                    size += fabs(term);
                }
                kernel_near((double)s[at], want, 0x1p-24 * kernel_chain((double)n_col + 1) * size + FLUSHED,
                            "%lld tiles, %lld panels, %lld columns: s[%lld][%lld][%d]", (long long)n_tile,
                            (long long)n_panel, (long long)n_col, (long long)x, (long long)n, (int)lane);
            }
        }
        for (int64_t i = n_tile * 16 * ROWS; x + 1 < n_panel && i < s_stride; i++) {
            CK_REQUIRE(kernel_untouched(s[x * s_stride + i]));
        }
    }
    /* a score's bits do not depend on the other tiles and panels */
    int64_t x = ck_below(r, n_panel), i = ck_below(r, n_tile), at = x * s_stride + i * 16 * ROWS;
    memcpy(alone, before + at, 16 * ROWS * sizeof *alone);
    enter(k);
    k->table->bf16.qk(q + x * q_stride, q_stride, tile + i, 1, n_col, 1, accumulate, alone, s_stride, &ahead);
    leave(k);
    if (memcmp(alone, s + at, 16 * ROWS * sizeof *alone) != 0) {
        ck_fail("%lld tiles, %lld panels, %lld columns: scores of tile %lld differ in their bits when it is alone",
                (long long)n_tile, (long long)n_panel, (long long)n_col, (long long)i);
    }
    ck_release(mark);
}

void kernel_check_qk_bf16(void)
{
    static const int64_t columns[] = {32, 64, 96, 288, 320, 512, 576, 608};
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int64_t n_tile = 1; n_tile <= MLA_KEY_BLOCK_BF16 / 16; n_tile++) {
        for (int64_t n_panel = 1; n_panel <= PANELS; n_panel++) {
            qk_once(k, n_tile, n_panel, columns[ck_below(&r, 8)], ck_chance(&r, 0.5), &r);
        }
    }
    for (int i = 0; i < 8; i++) {
        qk_once(k, 3, 3, columns[i], i % 2, &r);
    }
}

static void pv_once(const kernel_case *k, int64_t n_key, int32_t n_part, int64_t n_panel, int64_t n_col, ck_random *r)
{
    size_t mark = ck_mark();
    int64_t cp = k->table->col_panel, n_group = (n_col + 15) / 16, n_o = (n_col + cp - 1) / cp * ROWS * cp;
    int64_t p_stride = n_key * ROWS * n_part + ck_below(r, 3) * TILE, v_stride = n_key * 16 + ck_below(r, 3) * 32;
    uint16_t *p = numbers("p", (n_panel - 1) * p_stride + n_key * ROWS * n_part);
    uint16_t *v = numbers("v", (n_group - 1) * v_stride + n_key * 16);
    float *o[PANELS], *before[PANELS], *alone = kernel_floats("o", n_o);
    for (int64_t x = 0; x < n_panel; x++) {
        fill(p + x * p_stride, n_key * ROWS * n_part, true, r);
        o[x] = kernel_floats("o", n_o);
        before[x] = kernel_floats("o before", n_o);
        for (int64_t i = 0; i < n_o; i++) {
            before[x][i] = o[x][i] = (float)ck_normal(r);
        }
    }
    for (int64_t g = 0; g < n_group; g++) {
        fill(v + g * v_stride, n_key * 16, false, r);
    }
    mla_prefetch ahead = nothing_ahead();
    enter(k);
    k->table->bf16.pv(p, p_stride, n_part, v, v_stride, n_key, n_panel, n_col, o, &ahead);
    leave(k);
    for (int64_t x = 0; x < n_panel; x++) {
        for (int64_t i = 0; i < n_o; i++) {
            int64_t c = i / (ROWS * cp) * cp + i % cp, lane = i / cp % ROWS;
            if (c >= n_col) { /* up to the next multiple of 16 anything may be there, behind that what was */
                CK_REQUIRE(c < n_group * 16 || o[x][i] == before[x][i]);
                continue;
            }
            double want = (double)before[x][i], size = fabs(want);
            for (int64_t j = 0; j < n_key * n_part; j++) {
                int64_t n = j / n_part, tile = n / STEP * n_part + j % n_part;
                double term = value(p[x * p_stride + tile * TILE + lane * STEP + n % STEP]) *
                              value(v[c / 16 * v_stride + n / STEP * TILE + n % STEP / 2 * STEP + c % 16 * 2 + n % 2]);
                want += term;
                size += fabs(term);
            }
            kernel_near((double)o[x][i], want, 0x1p-24 * kernel_chain((double)(n_key * n_part) + 1) * size + FLUSHED,
                        "%lld keys, %lld panels, %lld columns: o[%lld][%lld][%lld]", (long long)n_key,
                        (long long)n_panel, (long long)n_col, (long long)x, (long long)lane, (long long)c);
        }
    }
    int64_t x = ck_below(r, n_panel);
    memcpy(alone, before[x], (size_t)n_o * sizeof *alone);
    enter(k);
    k->table->bf16.pv(p + x * p_stride, p_stride, n_part, v, v_stride, n_key, 1, n_col, &alone, &ahead);
    leave(k);
    if (memcmp(alone, o[x], (size_t)n_o * sizeof *alone) != 0) {
        ck_fail("%lld keys, %lld panels, %lld columns: panel %lld differs in its bits when it is alone",
                (long long)n_key, (long long)n_panel, (long long)n_col, (long long)x);
    }
    ck_release(mark);
}

static void vpairs_pv_once(const kernel_case *k, int64_t n_key, int32_t n_part, int64_t n_panel, int64_t n_col,
                           ck_random *r)
{
    size_t mark = ck_mark();
    int64_t cp = k->table->col_panel, n_o = (n_col + cp - 1) / cp * ROWS * cp;
    int64_t p_stride = n_key * ROWS * n_part + ck_below(r, 3) * TILE, v_stride = n_key * 16;
    uint16_t *p = numbers("p", (n_panel - 1) * p_stride + n_key * ROWS * n_part);
    uint16_t *v = numbers("v", n_col * n_key);
    uint16_t *scratch = numbers("v, some of it", (n_col < 64 ? n_col : 64) * n_key);
    const void **row = kernel_rows(k, n_key, n_col, r);
    float *o[PANELS], *want[PANELS];
    for (int64_t x = 0; x < n_panel; x++) {
        fill(p + x * p_stride, n_key * ROWS * n_part, true, r);
        o[x] = kernel_floats("o", n_o);
        want[x] = kernel_floats("o of vpairs and pv", n_o);
        for (int64_t i = 0; i < n_o; i++) {
            want[x][i] = o[x][i] = (float)ck_normal(r);
        }
    }
    mla_prefetch ahead = nothing_ahead();
    enter(k);
    k->table->bf16.vpairs(row, n_key, n_col, v, v_stride);
    k->table->bf16.pv(p, p_stride, n_part, v, v_stride, n_key, n_panel, n_col, want, &ahead);
    k->table->bf16.vpairs_pv(p, p_stride, n_part, row, n_key, n_panel, n_col, o, scratch, &ahead);
    leave(k);
    for (int64_t x = 0; x < n_panel; x++) {
        if (memcmp(o[x], want[x], (size_t)n_o * sizeof(float)) != 0) {
            ck_fail("%lld keys, %lld panels, %lld columns, %d parts: panel %lld is not what vpairs and pv give",
                    (long long)n_key, (long long)n_panel, (long long)n_col, (int)n_part, (long long)x);
        }
    }
    ck_release(mark);
}

void kernel_check_vpairs_pv(void)
{
    static const int64_t columns[] = {32, 64, 96, 128, 224, 512};
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int i = 0; i < 6; i++) {
        for (int64_t n_panel = 1; n_panel <= PANELS; n_panel++) {
            vpairs_pv_once(k, STEP * ck_between(&r, 1, MLA_KEY_BLOCK_BF16 / STEP), 1 + (i + (int32_t)n_panel) % 2,
                           n_panel, columns[i], &r);
        }
    }
    for (int64_t n_key = STEP; n_key <= MLA_KEY_BLOCK_BF16; n_key += STEP) {
        vpairs_pv_once(k, n_key, 1, 3, 96, &r);
        vpairs_pv_once(k, n_key, 2, 8, 64, &r);
    }
}

void kernel_check_pv_bf16(void)
{
    static const int64_t columns[] = {1, 15, 16, 17, 32, 33, 47, 48, 49, 64, 65, 100, 128, 512};
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int i = 0; i < 14; i++) {
        for (int64_t n_panel = 1; n_panel <= PANELS; n_panel++) {
            pv_once(k, STEP * ck_between(&r, 1, MLA_KEY_BLOCK_BF16 / STEP), 1 + (i + (int32_t)n_panel) % 2, n_panel,
                    columns[i], &r);
        }
    }
    for (int64_t n_key = STEP; n_key <= MLA_KEY_BLOCK_BF16; n_key += STEP) {
        pv_once(k, n_key, 1, 3, 80, &r);
        pv_once(k, n_key, 2, 3, 80, &r);
    }
}
