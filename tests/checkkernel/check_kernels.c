/*
 * check_kernels.c - every kernel of every table against fp64, in its own words (cpu/kernels.h), edge sizes first.
 *
 * The list of kernels comes from the library, so a new kernel has a test by itself if its kind is known here, and a
 * test that fails if it is not.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "broken.h"
#include "checkkernel.h"
#include "cpu/kernels.h"
#include "kernel_tools.h"
#include "ref/number.h"

const kernel_case *kernel_now(void)
{
    static kernel_case now;
    const char *name = ck_test_now->name + strlen("kernel/");
    mla_kernel_info info[KERNEL_MAX];
    size_t n = mla_kernel_list(info, KERNEL_MAX);
    for (size_t i = 0; i < n && i < KERNEL_MAX; i++) {
        if (strcmp(info[i].name, name) == 0) {
            now.isa = info[i].isa;
            now.table = mla_cpu_kernels_of(info[i].isa);
            static const struct {
                const char *word;
                mla_format format;
                mla_dtype dtype;
            } types[] = {{"_f32_", MLA_FORMAT_F32, MLA_DTYPE_F32},
                         {"_f16_", MLA_FORMAT_F16, MLA_DTYPE_F16},
                         {"_bf16_", MLA_FORMAT_BF16, MLA_DTYPE_BF16},
                         {"_hif8_", MLA_FORMAT_HIF8, MLA_DTYPE_HIF8},
                         {"_i8_", MLA_FORMAT_I8, MLA_DTYPE_I8},
                         {"_i16_", MLA_FORMAT_COUNT, MLA_DTYPE_NONE}}; /* nothing stored */
            size_t type = 0;
            while (type < sizeof types / sizeof *types && !strstr(name, types[type].word)) {
                type++;
            }
            CK_REQUIRE(type < sizeof types / sizeof *types);
            now.format = types[type].format;
            now.dtype = types[type].dtype;
            CK_REQUIRE(now.table != NULL);
            if (ck_subject_now->broken) {
                now.table = ck_broken_kernels(now.table, (ck_bug)ck_subject_now->bug);
            }
            return &now;
        }
    }
    ck_fail("no kernel of this name");
}

void kernel_near(double got, double want, double allowed, const char *format, ...)
{
    double error = fabs(got - want);
    if (error <= allowed) {
        if (allowed > 0 && error / allowed > ck_worst_ratio) {
            ck_worst_ratio = error / allowed;
        }
        return;
    }
    char what[200];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    ck_fail("%s = %.9g, expected %.9g within %.3g", what, got, want, allowed);
}

double kernel_chain(double n)
{
    return fmin(n, 8 * sqrt(n)); /* compare.c (1) */
}

float *kernel_floats(const char *name, int64_t n)
{
    return ck_buffer(name, (size_t)n * sizeof(float));
}

bool kernel_untouched(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits == CK_UNTOUCHED;
}

const void **kernel_rows(const kernel_case *k, int64_t n_key, int64_t n_col, ck_random *r)
{
    const void **row = ck_buffer("row addresses", (size_t)n_key * sizeof *row);
    for (int64_t n = 0; n < n_key; n++) {
        char *data = ck_buffer("row", (size_t)n_col * mla_dtype_size(k->dtype)); /* a guard page behind each */
        double spread = k->dtype == MLA_DTYPE_I8 ? 50 : 1;
        for (int64_t c = 0; c < n_col; c++) {
            mla_ref_store(data, k->dtype, c, spread * ck_normal(r));
        }
        row[n] = data;
    }
    return row;
}

/* ---- load -------------------------------------------------------------------------------------------------------- */

static void load_once(const kernel_case *k, int64_t n_key, int64_t n_col, int64_t col, ck_random *r)
{
    size_t mark = ck_mark();
    int64_t cp = k->table->col_panel, n_panel = (col + n_col + cp - 1) / cp, stride = MLA_KEY_BLOCK_MAX * cp + 16;
    const void **row = kernel_rows(k, n_key, n_col, r);
    for (int64_t n = 0; n < n_key; n++) { /* numbers of every kind */
        static const double special[] = {INFINITY, -INFINITY, NAN, 0.0, -0.0, 0x1p-24, 0x1p-130, 65504, -3e38};
        if (ck_chance(r, 0.5)) {
            mla_ref_store((void *)(uintptr_t)row[n], k->dtype, ck_below(r, n_col), special[ck_below(r, 9)]);
        }
    }
    float *block = kernel_floats("block", n_panel * stride);
    k->table->load[k->format](row, n_key, n_col, col, block, stride);
    for (int64_t panel = 0; panel < n_panel; panel++) {
        for (int64_t at = 0; at < stride; at++) {
            int64_t n = at / cp, c = panel * cp + at % cp - col;
            float got = block[panel * stride + at];
            if (n >= n_key || c < 0 || c >= n_col) {
                if (!kernel_untouched(got)) {
                    ck_fail("%lld keys, columns %lld to %lld: wrote key %lld, column %lld", (long long)n_key,
                            (long long)col, (long long)(col + n_col - 1), (long long)n, (long long)(c + col));
                }
                continue;
            }
            double want = mla_ref_load(row[n], k->dtype, c);
            bool same = isnan(want) ? isnan(got) : (double)got == want && !signbit(got) == !signbit(want);
            if (!same) {
                ck_fail("%lld keys, columns %lld to %lld: key %lld, column %lld is %g, expected %g", (long long)n_key,
                        (long long)col, (long long)(col + n_col - 1), (long long)n, (long long)(c + col), (double)got,
                        want);
            }
        }
    }
    ck_release(mark);
}

/* Every code of an 8-bit format, from two columns. */
static void load_codes(const kernel_case *k)
{
    for (int64_t col = 0; col < 2; col++) {
        size_t mark = ck_mark();
        int64_t cp = k->table->col_panel, stride = cp;
        uint8_t *code = ck_buffer("codes", 256);
        for (int i = 0; i < 256; i++) {
            code[i] = (uint8_t)i;
        }
        const void *row[] = {code};
        float *block = kernel_floats("block", (256 + col + cp - 1) / cp * stride);
        k->table->load[k->format](row, 1, 256, col, block, stride);
        for (int64_t i = 0; i < 256; i++) {
            double want = mla_ref_decode(k->dtype, (uint32_t)i),
                   got = (double)block[(col + i) / cp * stride + (col + i) % cp];
            if (isnan(want) ? !isnan(got) : got != want || !signbit(got) != !signbit(want)) {
                ck_fail("code %02x at column %lld is %g, expected %g", (unsigned)i, (long long)(col + i), got, want);
            }
        }
        ck_release(mark);
    }
}

static void check_load(void)
{
    static const int64_t keys[] = {1, 2, 3, 7, 8, 95, MLA_KEY_BLOCK_MAX};
    static const int64_t columns[] = {1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 33, 47, 48, 49, 64, 65, 257, 512, 576};
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int i = 0; i < 21; i++) {
        for (int64_t col = 0; col < 60; col += col < 8 ? 1 : 13) {
            load_once(k, keys[(i + col) % (columns[i] > 64 ? 4 : 7)], columns[i], col, &r);
        }
    }
    load_once(k, MLA_KEY_BLOCK_MAX, 576, 0, &r);
    if (mla_dtype_size(k->dtype) == 1) {
        load_codes(k);
    }
}

/* ---- pack -------------------------------------------------------------------------------------------------------- */

static void pack_once(const kernel_case *k, int32_t n_row, int64_t n_col, ck_random *r)
{
    size_t mark = ck_mark();
    const void **row = kernel_rows(k, n_row, n_col, r);
    float *q = kernel_floats("q", n_col * MLA_ROW_PANEL), *factor = kernel_floats("factor", n_row);
    for (int32_t i = 0; i < n_row; i++) {
        factor[i] = ldexpf(1, (int)ck_between(r, -20, 20));
    }
    k->table->pack[k->format](row, factor, n_row, n_col, q);
    for (int64_t i = 0; i < n_col * MLA_ROW_PANEL; i++) {
        int64_t lane = i % MLA_ROW_PANEL, c = i / MLA_ROW_PANEL;
        double want = lane < n_row ? mla_ref_load(row[lane], k->dtype, c) * (double)factor[lane] : 0;
        if ((double)q[i] != want) {
            ck_fail("%d rows of %lld columns: column %lld, lane %lld is %g, expected %g", (int)n_row, (long long)n_col,
                    (long long)c, (long long)lane, (double)q[i], want);
        }
    }
    ck_release(mark);
}

static void check_pack(void)
{
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int64_t n_col = 1; n_col <= 576; n_col += n_col < 70 ? 1 : 101) {
        pack_once(k, MLA_ROW_PANEL, n_col, &r);
        pack_once(k, (int32_t)ck_between(&r, 1, MLA_ROW_PANEL - 1), n_col, &r);
    }
}

/* ---- qk and pv --------------------------------------------------------------------------------------------------- */

static mla_prefetch nothing_ahead(void)
{
    return (mla_prefetch){0};
}

static void qk_once(const kernel_case *k, int64_t n_col, int64_t n_key, int32_t n_row, bool accumulate, ck_random *r)
{
    size_t mark = ck_mark();
    int64_t cp = k->table->col_panel, n_panel = (n_col + cp - 1) / cp, stride = MLA_KEY_BLOCK_MAX * cp + 16;
    float *q = kernel_floats("q", n_col * MLA_ROW_PANEL), *block = kernel_floats("block", n_panel * stride);
    float *s = kernel_floats("s", n_key * MLA_ROW_PANEL), *before = kernel_floats("s before", n_key * MLA_ROW_PANEL);
    for (int64_t c = 0; c < n_col; c++) { /* columns, keys and lanes that do not count stay NaN */
        for (int32_t lane = 0; lane < n_row; lane++) {
            q[c * MLA_ROW_PANEL + lane] = (float)ck_normal(r);
        }
        for (int64_t n = 0; n < n_key; n++) {
            block[c / cp * stride + n * cp + c % cp] = (float)ck_normal(r);
        }
    }
    for (int64_t i = 0; accumulate && i < n_key * MLA_ROW_PANEL; i++) {
        before[i] = s[i] = (float)ck_normal(r);
    }
    mla_prefetch ahead = nothing_ahead();
    k->table->qk(q, block, stride, n_col, n_key, n_row, accumulate, s, &ahead);
    for (int64_t n = 0; n < n_key; n++) {
        for (int32_t lane = 0; lane < n_row; lane++) {
            double want = accumulate ? (double)before[n * MLA_ROW_PANEL + lane] : 0, size = fabs(want);
            for (int64_t c = 0; c < n_col; c++) {
                double term = (double)q[c * MLA_ROW_PANEL + lane] * (double)block[c / cp * stride + n * cp + c % cp];
                want += term;
                size += fabs(term);
            }
            kernel_near((double)s[n * MLA_ROW_PANEL + lane], want, 0x1p-24 * kernel_chain((double)n_col + 1) * size,
                        "%lld columns, %lld keys, %d rows: s[%lld][%d]", (long long)n_col, (long long)n_key, (int)n_row,
                        (long long)n, (int)lane);
        }
    }
    /* the bits of a score do not depend on how many other keys there are */
    float *fewer = kernel_floats("s", n_key * MLA_ROW_PANEL);
    int64_t n_fewer = (n_key + 1) / 2;
    memcpy(fewer, before, (size_t)(n_key * MLA_ROW_PANEL) * sizeof *fewer);
    k->table->qk(q, block, stride, n_col, n_fewer, n_row, accumulate, fewer, &ahead);
    for (int64_t n = 0; n < n_fewer; n++) {
        if (memcmp(fewer + n * MLA_ROW_PANEL, s + n * MLA_ROW_PANEL, (size_t)n_row * sizeof *s) != 0) {
            ck_fail("%lld columns: scores of key %lld differ in their bits for %lld and %lld keys", (long long)n_col,
                    (long long)n, (long long)n_key, (long long)n_fewer);
        }
    }
    ck_release(mark);
}

static void check_qk(void)
{
    static const int64_t columns[] = {1, 2, 7, 8, 23, 24, 25, 48, 64, 100, 288, 576};
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    if (k->format == MLA_FORMAT_BF16) {
        kernel_check_qk_bf16();
        return;
    }
    for (int i = 0; i < 12; i++) {
        for (int64_t n_key = 1; n_key <= MLA_KEY_BLOCK_MAX; n_key += n_key < 14 ? 1 : n_key < 90 ? 19 : 3) {
            qk_once(k, columns[i], n_key, (int32_t)ck_between(&r, 1, MLA_ROW_PANEL), ck_chance(&r, 0.5), &r);
        }
    }
    for (int32_t n_row = 1; n_row <= MLA_ROW_PANEL; n_row++) {
        qk_once(k, 72, MLA_KEY_BLOCK_MAX, n_row, n_row % 2, &r);
    }
}

static void pv_once(const kernel_case *k, int64_t n_key, int32_t n_row, int32_t n_col, ck_random *r)
{
    size_t mark = ck_mark();
    int64_t cp = k->table->col_panel;
    float *p = kernel_floats("p", n_key * MLA_ROW_PANEL), *v = kernel_floats("v", n_key * cp);
    float *o = kernel_floats("o", MLA_ROW_PANEL * cp), *before = kernel_floats("o before", MLA_ROW_PANEL * cp);
    for (int64_t n = 0; n < n_key; n++) {
        for (int32_t lane = 0; lane < n_row; lane++) {
            p[n * MLA_ROW_PANEL + lane] = (float)ck_uniform(r);
        }
        for (int32_t c = 0; c < n_col; c++) {
            v[n * cp + c] = (float)ck_normal(r);
        }
    }
    for (int64_t i = 0; i < MLA_ROW_PANEL * cp; i++) {
        before[i] = o[i] = i / cp < n_row && i % cp < n_col ? (float)ck_normal(r) : 0;
    }
    const char *row[3] = {(const char *)p, (const char *)v, (const char *)o}; /* what is fetched changes nothing */
    mla_prefetch ahead = {.row = row,
                          .n_row = ck_below(r, 4),
                          .row_step = 1,
                          .row_bytes = ck_between(r, 2, 4096),
                          .n_piece = 1,
                          .lines_per_step = ck_between(r, 1, 64)};
    k->table->pv(p, v, n_key, n_row, n_col, o, &ahead);
    for (int32_t lane = 0; lane < n_row; lane++) {
        for (int32_t c = 0; c < n_col; c++) {
            double want = (double)before[lane * cp + c], size = fabs(want);
            for (int64_t n = 0; n < n_key; n++) {
                double term = (double)p[n * MLA_ROW_PANEL + lane] * (double)v[n * cp + c];
                want += term;
                size += fabs(term);
            }
            kernel_near((double)o[lane * cp + c], want, 0x1p-24 * kernel_chain((double)n_key + 1) * size,
                        "%lld keys, %d rows, %d columns: o[%d][%d]", (long long)n_key, (int)n_row, (int)n_col,
                        (int)lane, (int)c);
        }
    }
    ck_release(mark);
}

static void check_pv(void)
{
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    if (k->format == MLA_FORMAT_BF16) {
        kernel_check_pv_bf16();
        return;
    }
    for (int32_t n_row = 1; n_row <= MLA_ROW_PANEL; n_row++) {
        for (int32_t n_col = 1; n_col <= k->table->col_panel; n_col++) {
            pv_once(k, ck_between(&r, 1, MLA_KEY_BLOCK_MAX), n_row, n_col, &r);
        }
    }
    for (int64_t n_key = 1; n_key <= MLA_KEY_BLOCK_MAX; n_key++) {
        pv_once(k, n_key, MLA_ROW_PANEL, k->table->col_panel, &r);
    }
}

/* ---- load and qk in one ------------------------------------------------------------------------------------------ */

static void load_qk_once(const kernel_case *k, int64_t n_key, int64_t n_col, int64_t col, int32_t n_row,
                         bool accumulate, ck_random *r)
{
    size_t mark = ck_mark();
    int64_t cp = k->table->col_panel, n_panel = (col + n_col + cp - 1) / cp, stride = MLA_KEY_BLOCK_MAX * cp + 16;
    const void **row = kernel_rows(k, n_key + MLA_LOAD_AHEAD, n_col, r);
    float *q = kernel_floats("q", n_col * MLA_ROW_PANEL), *block[2], *s[2];
    for (int64_t i = 0; i < n_col * MLA_ROW_PANEL; i++) {
        q[i] = (float)ck_normal(r);
    }
    for (int i = 0; i < 2; i++) {
        block[i] = kernel_floats("block", n_panel * stride);
        s[i] = kernel_floats("s", n_key * MLA_ROW_PANEL);
    }
    for (int64_t i = 0; accumulate && i < n_key * MLA_ROW_PANEL; i++) {
        s[0][i] = s[1][i] = (float)ck_normal(r);
    }
    mla_prefetch ahead = nothing_ahead();
    k->table->load[k->format](row, n_key, n_col, col, block[0], stride);
    k->table->qk(q, block[0] + col / cp * stride, stride, n_col, n_key, n_row, accumulate, s[0], &ahead);
    k->table->load_qk[k->format](q, row, n_key, n_col, col, n_row, accumulate, block[1], stride, s[1]);
    if (memcmp(block[0], block[1], (size_t)(n_panel * stride) * sizeof(float)) != 0) {
        ck_fail("%lld keys, columns %lld to %lld: not the block that load writes", (long long)n_key, (long long)col,
                (long long)(col + n_col - 1));
    }
    for (int64_t i = 0; i < n_key * MLA_ROW_PANEL; i++) {
        if (i % MLA_ROW_PANEL < n_row && memcmp(&s[0][i], &s[1][i], sizeof *s[0]) != 0) {
            ck_fail("%lld keys, columns %lld to %lld, %d rows: s[%lld][%lld] is %g, %g from qk", (long long)n_key,
                    (long long)col, (long long)(col + n_col - 1), (int)n_row, (long long)(i / MLA_ROW_PANEL),
                    (long long)(i % MLA_ROW_PANEL), (double)s[1][i], (double)s[0][i]);
        }
    }
    ck_release(mark);
}

static void check_load_qk(void)
{
    static const int64_t columns[] = {1, 7, 8, 23, 24, 25, 48, 64, 100, 224, 288};
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        for (int64_t n_key = 1; n_key <= MLA_KEY_BLOCK; n_key += n_key < 14 ? 1 : n_key < 90 ? 19 : 1) {
            load_qk_once(k, n_key, columns[i], ck_below(&r, 3) * k->table->col_panel,
                         (int32_t)ck_between(&r, 1, MLA_ROW_PANEL), ck_chance(&r, 0.5), &r);
        }
    }
    load_qk_once(k, MLA_KEY_BLOCK_MAX, 288, 0, MLA_ROW_PANEL, false, &r);
    load_qk_once(k, MLA_KEY_BLOCK_MAX, 288, 12 * k->table->col_panel, MLA_ROW_PANEL, true, &r);
}

/* ---- qk and pv from stored rows ---------------------------------------------------------------------------------- */

/* Columns of stored rows, converted. */
static float *rows_as_block(const kernel_case *k, const void **row, int64_t col, int64_t n_col, int64_t n_key,
                            int64_t stride)
{
    int64_t cp = k->table->col_panel;
    float *block = kernel_floats("block", (n_col + cp - 1) / cp * stride);
    for (int64_t n = 0; n < n_key; n++) {
        for (int64_t c = 0; c < n_col; c++) {
            block[c / cp * stride + n * cp + c % cp] = (float)mla_ref_load(row[n], k->dtype, col + c);
        }
    }
    return block;
}

static void qk_rows_once(const kernel_case *k, int64_t d_k, int64_t col, int64_t n_col, int64_t n_key, bool accumulate,
                         ck_random *r)
{
    size_t mark = ck_mark();
    int64_t stride = MLA_KEY_BLOCK_MAX * k->table->col_panel + 16, n = n_key * MLA_ROW_PANEL;
    const void **row = kernel_rows(k, n_key, d_k, r);
    const float *block = rows_as_block(k, row, col, n_col, n_key, stride);
    float *q = kernel_floats("q", n_col * MLA_ROW_PANEL), *got = kernel_floats("s", n), *want = kernel_floats("s", n);
    for (int64_t i = 0; i < n_col * MLA_ROW_PANEL; i++) {
        q[i] = (float)ck_normal(r);
    }
    for (int64_t i = 0; accumulate && i < n; i++) {
        got[i] = want[i] = (float)ck_normal(r);
    }
    mla_prefetch ahead = nothing_ahead();
    k->table->qk(q, block, stride, n_col, n_key, MLA_ROW_PANEL, accumulate, want, &ahead);
    k->table->qk_rows[k->format](q, row, col, n_col, n_key, accumulate, got, &ahead);
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof *got) != 0) {
            ck_fail("columns %lld to %lld of %lld, %lld keys: s[%lld][%lld] is %g, %g from a block", (long long)col,
                    (long long)(col + n_col - 1), (long long)d_k, (long long)n_key, (long long)(i / MLA_ROW_PANEL),
                    (long long)(i % MLA_ROW_PANEL), (double)got[i], (double)want[i]);
        }
    }
    ck_release(mark);
}

enum { COLUMNS_OF_A_PAGE = 2048 }; /* such a row has an inaccessible page before it, too */

static void check_qk_rows(void)
{
    static const int64_t columns[] = {1, 2, 3, 4, 5, 7, 8, 9, 24, 33, 64, 288, 576};
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        for (int64_t n_key = 1; n_key <= MLA_KEY_BLOCK; n_key += n_key < 14 ? 1 : n_key < 90 ? 19 : 1) {
            qk_rows_once(k, columns[i] > 1 ? columns[i] : 2, 0, columns[i], n_key, ck_chance(&r, 0.5), &r);
        }
        int64_t col = ck_below(&r, 40);
        qk_rows_once(k, col + columns[i] + 1, col, columns[i], ck_between(&r, 1, MLA_KEY_BLOCK), ck_chance(&r, 0.5),
                     &r);
    }
    for (int64_t n_key = 1; n_key <= 13; n_key++) {
        qk_rows_once(k, COLUMNS_OF_A_PAGE, 0, 288, n_key, false, &r);
        qk_rows_once(k, COLUMNS_OF_A_PAGE, COLUMNS_OF_A_PAGE - 288, 288, n_key, true, &r);
    }
}

static void pv_rows_once(const kernel_case *k, int64_t d_k, int64_t n_col, int64_t n_key, int32_t n_row, ck_random *r)
{
    size_t mark = ck_mark();
    int64_t cp = k->table->col_panel, stride = MLA_KEY_BLOCK_MAX * cp + 16, n_panel = (n_col + cp - 1) / cp;
    const void **row = kernel_rows(k, n_key, d_k, r);
    const float *block = rows_as_block(k, row, 0, n_col, n_key, stride);
    float *p = kernel_floats("p", n_key * MLA_ROW_PANEL);
    float *got = kernel_floats("o", n_panel * MLA_ROW_PANEL * cp),
          *want = kernel_floats("o", n_panel * MLA_ROW_PANEL * cp);
    for (int64_t i = 0; i < n_key * MLA_ROW_PANEL; i++) {
        p[i] = i % MLA_ROW_PANEL < n_row ? (float)ck_uniform(r) : 0;
    }
    for (int64_t i = 0; i < n_panel * MLA_ROW_PANEL * cp; i++) {
        got[i] = want[i] = (float)ck_normal(r);
    }
    mla_prefetch ahead = nothing_ahead();
    for (int64_t c = 0; c < n_col; c += cp) {
        k->table->pv(p, block + c / cp * stride, n_key, n_row, (int32_t)(n_col - c < cp ? n_col - c : cp),
                     want + c * MLA_ROW_PANEL, &ahead);
    }
    k->table->pv_rows[k->format](p, row, n_key, n_row, n_col, got, &ahead);
    for (int64_t c = 0; c < n_col; c++) {
        for (int32_t lane = 0; lane < n_row; lane++) {
            int64_t at = (c / cp * MLA_ROW_PANEL + lane) * cp + c % cp;
            if (memcmp(&got[at], &want[at], sizeof *got) != 0) {
                ck_fail("%lld keys, %d rows, %lld columns: o[%d][%lld] is %g, %g from a block", (long long)n_key,
                        (int)n_row, (long long)n_col, (int)lane, (long long)c, (double)got[at], (double)want[at]);
            }
        }
    }
    ck_release(mark);
}

static void check_pv_rows(void)
{
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int32_t n_row = MLA_ROW_PANEL / 2 + 1; n_row <= MLA_ROW_PANEL; n_row++) {
        for (int64_t n_col = 16; n_col <= 512; n_col += n_col < 128 ? 16 : 96) {
            pv_rows_once(k, n_col + ck_below(&r, 3) * 32, n_col, ck_between(&r, 1, MLA_KEY_BLOCK), n_row, &r);
        }
        pv_rows_once(k, COLUMNS_OF_A_PAGE, 64, 5, n_row, &r);
    }
    for (int64_t n_key = 1; n_key <= MLA_KEY_BLOCK; n_key++) {
        pv_rows_once(k, 64, 64, n_key, MLA_ROW_PANEL, &r);
    }
}

/* ---- merge and store --------------------------------------------------------------------------------------------- */

static void check_merge(void)
{
    const kernel_case *k = kernel_now();
    int64_t cp = k->table->col_panel;
    ck_random r = {ck_seed};
    for (int64_t n_panel = 1; n_panel <= 24; n_panel++) {
        for (int alone = 0; alone < 2; alone++) {
            size_t mark = ck_mark();
            int64_t n = n_panel * MLA_ROW_PANEL * cp;
            float *o = kernel_floats("o", n), *x = kernel_floats("x", n), *before = kernel_floats("o before", n);
            float *a = kernel_floats("a", MLA_ROW_PANEL), *b = alone ? NULL : kernel_floats("b", MLA_ROW_PANEL);
            for (int64_t i = 0; i < n; i++) {
                before[i] = o[i] = (float)ck_normal(&r);
                x[i] = (float)ck_normal(&r);
            }
            for (int i = 0; i < MLA_ROW_PANEL; i++) {
                a[i] = (float)ck_uniform(&r);
                if (!alone) {
                    b[i] = i == 5 ? 0 : (float)ck_uniform(&r);
                }
            }
            int32_t n_row = 1 + (int32_t)(n_panel % MLA_ROW_PANEL);
            k->table->merge(o, alone ? NULL : x, a, b, n_panel, n_row);
            for (int64_t i = 0; i < n; i++) {
                if (i / cp % MLA_ROW_PANEL >= n_row) { /* not a row to touch */
                    kernel_near((double)o[i], (double)before[i], 0, "%lld panels: element %lld", (long long)n_panel,
                                (long long)i);
                    continue;
                }
                double left = (double)before[i] * (double)a[i / cp % MLA_ROW_PANEL];
                double right = alone ? 0 : (double)x[i] * (double)b[i / cp % MLA_ROW_PANEL];
                kernel_near((double)o[i], left + right, 2 * 0x1p-24 * (fabs(left) + fabs(right)),
                            "%lld panels: element %lld", (long long)n_panel, (long long)i); /* two roundings at most */
            }
            ck_release(mark);
        }
    }
}

static void check_store(void)
{
    static const float factors[] = {1, 0.5f, 1 / 3.0f, -1.7f, 1e-30f, 1e30f};
    const kernel_case *k = kernel_now();
    int64_t cp = k->table->col_panel;
    ck_random r = {ck_seed};
    for (int64_t d_v = 1; d_v <= 600; d_v += d_v < 130 ? 1 : 47) {
        for (int f = 0; f < 6; f++) {
            size_t mark = ck_mark();
            int64_t n_panel = (d_v + cp - 1) / cp;
            /* a row of the last lane: nothing behind its panel */
            float *o = kernel_floats("o", ((n_panel - 1) * MLA_ROW_PANEL + 1) * cp);
            void *dst = ck_buffer("dst", (size_t)d_v * mla_dtype_size(k->dtype));
            for (int64_t c = 0; c < d_v; c++) {
                uint32_t bits = (uint32_t)ck_next(&r); /* any f32: NaN, infinity and subnormals included */
                if (c % 3 == 0) {
                    bits = (bits & 0xffff0000u) | 0x8000u; /* half way between two bf16 */
                } else if (c % 3 == 1) {
                    bits = (bits & 0xbfffe000u) | 0x1000u |
                           0x30000000u; /* half way between two f16, in their range or near */
                }
                memcpy(&o[c / cp * MLA_ROW_PANEL * cp + c % cp], &bits, sizeof bits);
            }
            k->table->store[k->format](o, d_v, factors[f], dst);
            for (int64_t c = 0; c < d_v; c++) {
                float product = o[c / cp * MLA_ROW_PANEL * cp + c % cp] * factors[f];
                double want = mla_ref_decode(k->dtype, mla_ref_encode(k->dtype, (double)product));
                double got = mla_ref_load(dst, k->dtype, c);
                if (isnan(want) ? !isnan(got) : got != want || !signbit(got) != !signbit(want)) {
                    ck_fail("%lld columns: %.9g * %g was stored as %.9g, expected %.9g", (long long)d_v,
                            (double)o[c / cp * MLA_ROW_PANEL * cp + c % cp], (double)factors[f], got, want);
                }
            }
            ck_release(mark);
        }
    }
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static void check_unknown(void)
{
    ck_fail("there is no check for kernels of this kind");
}

typedef struct kind_check {
    const char *kind;
    void (*run)(void);
} kind_check;

static const kind_check kinds[] = {
    {"load", check_load},
    {"pack", check_pack},
    {"qk", check_qk},
    {"load_qk", check_load_qk},
    {"softmax", kernel_check_softmax},
    {"peak", kernel_check_peak},
    {"round", kernel_check_round},
    {"pv", check_pv},
    {"qk_rows", check_qk_rows},
    {"pv_rows", check_pv_rows},
    {"merge", check_merge},
    {"store", check_store},
    {"stream", kernel_check_stream},
    {"encode", kernel_check_encode},
    {"decode", kernel_check_decode},
    {"fixed_norm", kernel_check_fixed_norm},
    {"fixed_keys", kernel_check_fixed_keys},
    {"fixed_query", kernel_check_fixed_query},
    {"fixed_qk", kernel_check_fixed_qk},
    {"fixed_p", kernel_check_fixed_p},
    {"fixed_pv", kernel_check_fixed_pv},
    {"qpairs", kernel_check_qpairs},
    {"vpairs", kernel_check_vpairs},
    {"vpairs_pv", kernel_check_vpairs_pv},
    {"ppairs", kernel_check_ppairs},
};

const ck_test *ck_kernel_test_at(size_t index)
{
    static ck_test tests[KERNEL_MAX + 1];
    static char names[KERNEL_MAX][64];
    mla_kernel_info info[KERNEL_MAX];
    size_t n = mla_kernel_list(info, KERNEL_MAX);
    if (index >= n || index >= KERNEL_MAX) {
        return NULL;
    }
    snprintf(names[index], sizeof names[0], "kernel/%s", info[index].name);
    tests[index] = (ck_test){.name = names[index], .isa = info[index].isa, .library = true, .run = check_unknown};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(info[index].kind, kinds[i].kind) == 0) {
            tests[index].run = kinds[i].run;
        }
    }
    return &tests[index];
}
