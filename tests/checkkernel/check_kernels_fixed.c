/*
 * check_kernels_fixed.c - the fixed-point kernels. What is integer is exact, and is held against 64-bit sums; factors
 * must be as large as cpu/kernels_fixed.h allows, and no larger.
 */
#include <math.h>
#include <string.h>

#include "checkkernel.h"
#include "cpu/kernels_fixed.h"
#include "kernel_tools.h"
#include "ref/number.h"

enum { ROWS = MLA_ROW_PANEL };

static const int64_t COLUMNS[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 47, 64, 65, 100, 512, 575, 576};
enum { N_COLUMNS = sizeof COLUMNS / sizeof *COLUMNS };

static const mla_fixed_kernels *kernels_now(void)
{
    CK_REQUIRE(kernel_now()->table->fixed != NULL);
    return kernel_now()->table->fixed;
}

static int16_t *integers(const char *name, int64_t n)
{
    return ck_buffer(name, (size_t)n * sizeof(int16_t));
}

static bool integer_untouched(int16_t x)
{
    return (uint16_t)x == (CK_UNTOUCHED & 0xffffu);
}

/* Powers of two, as folding makes them; NULL every third time. */
static float *powers(int64_t n, int64_t turn, ck_random *r)
{
    float *x = turn % 3 == 0 ? NULL : kernel_floats("unfold", n);
    for (int64_t c = 0; x && c < n; c++) {
        x[c] = ldexpf(1, (int)ck_between(r, -5, 0));
    }
    return x;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

void kernel_check_fixed_norm(void)
{
    const kernel_case *k = kernel_now();
    mla_fixed_norm_kernel norm = kernels_now()->norm[k->format];
    ck_random r = {ck_seed};
    for (int64_t i = 0; i < 6 * N_COLUMNS; i++) {
        size_t mark = ck_mark();
        int64_t n = COLUMNS[i % N_COLUMNS];
        float *y = kernel_floats("y", n), *unfold = powers(n, i / N_COLUMNS, &r);
        void *x = ck_buffer("x", (size_t)n * mla_dtype_size(k->dtype));
        bool in_place = k->format == MLA_FORMAT_F32 && i % 5 == 0;
        float square = i % 2 ? 7 : 0, largest = i % 4 > 1 ? 2.5f : 0;
        double want = (double)square, top = (double)largest;
        double *exact = ck_buffer("exact", (size_t)n * sizeof *exact);
        for (int64_t c = 0; c < n; c++) {
            mla_ref_store(x, k->dtype, c, ck_normal(&r));
            exact[c] = mla_ref_load(x, k->dtype, c) * (double)(unfold ? unfold[c] : 1);
            want += exact[c] * exact[c];
            top = fabs(exact[c]) > top ? fabs(exact[c]) : top;
        }
        if (in_place) {
            memcpy(y, x, (size_t)n * sizeof *y);
        }
        norm(in_place ? y : x, unfold, n, y, &square, &largest);
        for (int64_t c = 0; c < n; c++) {
            kernel_near((double)y[c], exact[c], 0, "%lld columns: y[%lld]", (long long)n, (long long)c);
        }
        kernel_near((double)square, want, 0x1p-24 * kernel_chain((double)n + 1) * want, "%lld columns: square",
                    (long long)n);
        kernel_near((double)largest, top, 0, "%lld columns: largest", (long long)n);
        /* one number that is none shows wherever it stands */
        static const double special[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
        mla_ref_store(x, k->dtype, ck_below(&r, n), special[i % 3]);
        square = largest = 0;
        norm(x, unfold, n, y, &square, &largest);
        CK_REQUIRE(!isfinite(square));
        ck_release(mark);
    }
}

/* A key of n columns as the kernel takes it; with a factor of 1, many halves: ties. */
static mla_fixed_key drawn_key(const char *name, int64_t n, bool ties, ck_random *r)
{
    float *y = kernel_floats(name, n);
    for (int64_t c = 0; c < n; c++) {
        y[c] = ties ? (float)ck_between(r, -65000, 65000) * 0.5f : (float)fmax(-4.5, fmin(4.5, ck_normal(r)));
    }
    return (mla_fixed_key){y, ties ? 1 : (float)(7000 * ck_uniform(r)), integers("k", n)};
}

static float integer_of(const mla_fixed_key *key, int64_t c)
{
    return rintf(key->y[c] * key->factor);
}

static void check_integers(const mla_fixed_key *key, int64_t n, const char *which)
{
    for (int64_t c = 0; c < n; c++) {
        if ((float)key->k[c] != integer_of(key, c)) {
            ck_fail("%lld columns: column %lld of the %s key, %.9g times %.9g, is %d, expected %.9g", (long long)n,
                    (long long)c, which, (double)key->y[c], (double)key->factor, (int)key->k[c],
                    (double)integer_of(key, c));
        }
    }
}

static void keys_once(int64_t n, int64_t n_value, bool two, ck_random *r)
{
    size_t mark = ck_mark();
    int64_t cp = kernel_now()->table->col_panel, n_panel = (n_value + cp - 1) / cp, stride = 3 * cp * 2 + 32;
    mla_fixed_key even = drawn_key("even", n, ck_below(r, 2) == 0, r), odd = even;
    if (two) {
        odd = drawn_key("odd", n, ck_below(r, 2) == 0, r);
    }
    int64_t size = (n_panel - 1) * stride + 2 * cp;
    int16_t *v = integers("v", size);
    kernels_now()->keys(&even, two ? &odd : NULL, n, n_value, v, stride);
    check_integers(&even, n, "even");
    check_integers(&odd, n, "odd");
    for (int64_t at = 0; at < size; at++) {
        int64_t place = at % stride, c = at / stride * cp + place / 2;
        if (place >= 2 * cp || c >= n_value) {
            if (!integer_untouched(v[at])) {
                ck_fail("%lld values: wrote integer %lld of panel %lld", (long long)n_value, (long long)place,
                        (long long)(at / stride));
            }
            continue;
        }
        float want = place % 2 == 0 ? integer_of(&even, c) : two ? integer_of(&odd, c) : 0;
        if ((float)v[at] != want) {
            ck_fail("%lld columns, %lld values: column %lld of the pair's %s key is %d, expected %.9g", (long long)n,
                    (long long)n_value, (long long)c, place % 2 ? "odd" : "even", (int)v[at], (double)want);
        }
    }
    ck_release(mark);
}

void kernel_check_fixed_keys(void)
{
    ck_random r = {ck_seed};
    for (int64_t i = 0; i < 8 * N_COLUMNS; i++) {
        int64_t n = COLUMNS[i % N_COLUMNS];
        keys_once(n, i % 3 == 0 ? n : ck_between(&r, 1, n), i / N_COLUMNS % 2 == 0, &r);
    }
    keys_once(576, 512, true, &r);
    keys_once(576, 512, false, &r);
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

void kernel_check_fixed_query(void)
{
    const mla_fixed_kernels *k = kernels_now();
    ck_random r = {ck_seed};
    for (int64_t i = 0; i < 4 * N_COLUMNS; i++) {
        size_t mark = ck_mark();
        int64_t n = COLUMNS[i % N_COLUMNS], pairs = (n + 1) / 2;
        float *q = kernel_floats("q", n * ROWS), *fold = kernel_floats("fold", n), *unit = kernel_floats("unit", ROWS);
        int16_t *to = integers("to", pairs * 2 * ROWS);
        for (int64_t c = 0; c < n; c++) {
            fold[c] = ldexpf(1, (int)ck_between(&r, 0, i % 2 ? 6 : 0));
        }
        for (int64_t x = 0; x < n * ROWS; x++) {
            static const float sizes[ROWS] = {1, 1e-9f, 1e9f, 0, 1, 1e-20f, 1e20f, 3, 0x1p-30f, 50, 1, 1, 1, 1, 0, 2};
            q[x] = (float)ck_normal(&r) * sizes[x % ROWS];
        }
        q[ck_below(&r, n) * ROWS + 10] = NAN;
        q[ck_below(&r, n) * ROWS + 11] = -INFINITY;
        q[ck_below(&r, n) * ROWS + 12] = 4000; /* outweighs the others: its size limits the factor, not the norm */
        k->query(q, fold, n, to, unit);
        for (int64_t lane = 0; lane < ROWS; lane++) {
            double square = 0, largest = 0, squares = 0, top = 0;
            for (int64_t c = 0; c < n; c++) {
                double y = (double)q[c * ROWS + lane] * (double)fold[c];
                int32_t integer = to[c / 2 * 2 * ROWS + lane * 2 + c % 2];
                square += y * y;
                largest = fmax(largest, fabs(y));
                squares += (double)integer * integer;
                top = fmax(top, fabs((double)integer));
                if (isfinite(y) && unit[lane] > 0) {
                    double exact = y / (double)unit[lane];
                    kernel_near(integer, exact, 0.5 + 0x1p-21 * fabs(exact), "%lld columns: column %lld of row %lld",
                                (long long)n, (long long)c, (long long)lane);
                }
            }
            if (n % 2 == 1) {
                CK_REQUIRE(to[n / 2 * 2 * ROWS + lane * 2 + 1] == 0);
            }
            if (!(square < 0x1p100) || (square > 0 && square < 0x1p-100)) {
                CK_REQUIRE(isnan(unit[lane]) && top == 0);
            } else if (square == 0) {
                CK_REQUIRE(unit[lane] == 0 && top == 0);
            } else if (square > 0x1p-75 && square < 0x1p75) { /* as large as may be, and no larger */
                double norm = sqrt(squares), slack = 0.5 * sqrt((double)n) + 1;
                if (norm > 46000 + slack || top > 32701 || (norm < 46000 - slack && top < 32699)) {
                    ck_fail("%lld columns: integers of row %lld have norm %.1f, the largest is %.0f", (long long)n,
                            (long long)lane, norm, top);
                }
            }
        }
        ck_release(mark);
    }
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* n integers of this norm at most; `alike`: all in one direction, so that sums come near the end of 32 bits. */
static void draw(int16_t *to, int64_t step, int64_t n, double norm, bool alike, ck_random *r)
{
    double square = 0, *x = ck_buffer("numbers", (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = alike ? 1 : ck_normal(r);
        square += x[i] * x[i];
    }
    for (int64_t i = 0; i < n; i++) {
        double y = x[i] * norm / sqrt(square);
        to[i * step] = (int16_t)fmax(-32700, fmin(32700, rint(y)));
    }
}

void kernel_check_fixed_qk(void)
{
    const mla_fixed_kernels *k = kernels_now();
    ck_random r = {ck_seed};
    static const int64_t pairs[] = {1, 2, 3, 4, 5, 7, 8, 31, 33, 144, 288};
    for (int64_t i = 0; i < 11 * 9; i++) {
        size_t mark = ck_mark();
        static const int64_t keys[] = {1, 2, 5, 6, 7, 12, 35, 95, 96};
        int64_t n = pairs[i % 11], n_key = keys[i / 11], stride = 2 * n + 2 * ck_below(&r, 20);
        int64_t room = (n_key + MLA_FIXED_TILE - 1) / MLA_FIXED_TILE * MLA_FIXED_TILE;
        int16_t *q = integers("q", n * 2 * ROWS), *key = integers("k", (room - 1) * stride + 2 * n);
        float *s = kernel_floats("s", room * ROWS), *unit = kernel_floats("unit", room);
        for (int64_t lane = 0; lane < ROWS; lane++) {
            int16_t *row = integers("row", 2 * n);
            draw(row, 1, 2 * n, 46000, lane % 4 == 0, &r);
            for (int64_t c = 0; c < 2 * n; c++) {
                q[c / 2 * 2 * ROWS + lane * 2 + c % 2] = lane % 8 == 4 ? (int16_t)-row[c] : row[c];
            }
        }
        for (int64_t x = 0; x < n_key; x++) {
            draw(key + x * stride, 1, 2 * n, 46000, x % 3 == 0, &r);
            unit[x] = x % 7 == 5 ? 0 : (float)ck_uniform(&r);
        }
        mla_prefetch ahead = {0};
        k->qk(q, key, stride, n, n_key, unit, s, &ahead);
        for (int64_t x = 0; x < n_key * ROWS; x++) {
            int64_t sum = 0;
            for (int64_t c = 0; c < 2 * n; c++) {
                sum += (int64_t)q[c / 2 * 2 * ROWS + x % ROWS * 2 + c % 2] * key[x / ROWS * stride + c];
            }
            CK_REQUIRE(sum == (int32_t)sum);
            float want = (float)sum * unit[x / ROWS];
            if (s[x] != want) {
                ck_fail("%lld pairs, %lld keys: s[%lld][%lld] = %.9g, expected %.9g", (long long)n, (long long)n_key,
                        (long long)(x / ROWS), (long long)(x % ROWS), (double)s[x], (double)want);
            }
        }
        ck_release(mark);
    }
}

/* ---- probabilities and values ------------------------------------------------------------------------------------ */

void kernel_check_fixed_p(void)
{
    const mla_fixed_kernels *k = kernels_now();
    ck_random r = {ck_seed};
    for (int64_t n = 1; n <= MLA_KEY_BLOCK; n += n < 10 ? 1 : 17) {
        for (int64_t turn = 0; turn < 6; turn++) {
            size_t mark = ck_mark();
            int64_t pairs = (n + 1) / 2;
            float *p = kernel_floats("p", n * ROWS), *unit = kernel_floats("unit", n);
            float *largest = kernel_floats("largest", n), *weight = kernel_floats("weight", ROWS);
            int16_t *to = integers("to", pairs * 2 * ROWS);
            for (int64_t x = 0; x < n; x++) {
                largest[x] =
                    x % 5 == 4 ? 0 : (float)exp(ck_normal(&r) * (turn % 3)); /* turn 2: keys of very unequal size */
                unit[x] = turn < 3 ? largest[x] / 32700 : largest[x] / 4000;
            }
            for (int64_t x = 0; x < n * ROWS; x++) {
                int64_t lane = x % ROWS; /* 0: as sharp as can be; 1: nothing seen; 2: all alike */
                p[x] = lane == 0   ? (float)(x / ROWS == n / 2)
                       : lane == 1 ? 0
                       : lane == 2 ? 1
                                   : (float)exp2(-20 * ck_uniform(&r));
                p[x] *= lane == 3 ? 256 : lane == 4 ? 0x1p-120f : 1;
            }
            k->p(p, n, unit, largest, to, weight);
            for (int64_t lane = 0; lane < ROWS; lane++) {
                double top = 0, products = 0, exact_top = 0;
                for (int64_t x = 0; x < n; x++) {
                    double y = (double)p[x * ROWS + lane] * (double)unit[x];
                    int32_t integer = to[x / 2 * 2 * ROWS + lane * 2 + x % 2];
                    exact_top = fmax(exact_top, y);
                    top = fmax(top, integer);
                    products += unit[x] > 0 ? integer * (double)largest[x] / (double)unit[x] : 0;
                    CK_REQUIRE(integer >= 0);
                    if (weight[lane] > 0) {
                        double exact = y / (double)weight[lane];
                        kernel_near(integer, exact, 0.5 + 0x1p-21 * exact, "%lld keys: key %lld of row %lld",
                                    (long long)n, (long long)x, (long long)lane);
                    } else {
                        CK_REQUIRE(integer == 0);
                    }
                }
                CK_REQUIRE(n % 2 == 0 || to[n / 2 * 2 * ROWS + lane * 2 + 1] == 0);
                CK_REQUIRE(weight[lane] > 0 || exact_top < 0x1p-99);
                CK_REQUIRE(weight[lane] >= 0);
                double rounding = 0.5 * 32700 * (double)n;
                bool full = top > 32699 || products > 2.1e9 - rounding - 1e4;
                if (top > 32701 || products > 2.1e9 + rounding + 1e4 || (weight[lane] > 0 && !full)) {
                    ck_fail("%lld keys: integers of row %lld: the largest is %.0f, products sum to %.4g", (long long)n,
                            (long long)lane, top, products);
                }
            }
            ck_release(mark);
        }
    }
}

static void pv_once(const mla_fixed_kernels *k, int64_t pairs, int32_t n_row, int32_t n_col, bool exact, ck_random *r)
{
    size_t mark = ck_mark();
    int64_t cp = kernel_now()->table->col_panel;
    int16_t *p = integers("p", pairs * 2 * ROWS), *v = integers("v", pairs * 2 * cp);
    float *o = kernel_floats("o", ROWS * cp), *before = kernel_floats("o before", ROWS * cp);
    float *weight = kernel_floats("weight", ROWS), *fold = kernel_floats("fold", cp);
    for (int64_t i = 0; i < pairs * 2 * ROWS; i++) { /* |v| <= 32700: sums of p within 65,000 */
        p[i] = (int16_t)(i / 2 % ROWS == 3 ? 65000 / (2 * pairs) : ck_below(r, 65000 / (2 * pairs) / 2 + 1));
    }
    for (int64_t i = 0; i < pairs * 2 * cp; i++) {
        v[i] = (int16_t)(i / 2 % cp == 0 ? 32700 : i / 2 % cp == 1 ? -32700 : ck_between(r, -32700, 32700));
    }
    for (int64_t i = 0; i < ROWS; i++) {
        weight[i] = exact ? 1 : i == 7 ? 0 : (float)ck_uniform(r) * 1e-6f;
    }
    for (int64_t i = 0; i < cp; i++) {
        fold[i] = exact ? 1 : ldexpf(1, (int)ck_between(r, 0, 8));
    }
    for (int64_t i = 0; i < ROWS * cp; i++) {
        before[i] = o[i] = exact ? 0 : i / cp < n_row && i % cp < n_col ? (float)ck_normal(r) : 0;
    }
    mla_prefetch ahead = {0};
    k->pv(p, v, pairs, n_row, n_col, weight, fold, o, &ahead);
    for (int32_t lane = 0; lane < n_row; lane++) {
        for (int32_t c = 0; c < n_col; c++) {
            int64_t sum = 0;
            for (int64_t n = 0; n < 2 * pairs; n++) {
                sum += (int64_t)p[n / 2 * 2 * ROWS + lane * 2 + n % 2] * v[n / 2 * 2 * cp + c * 2 + n % 2];
            }
            CK_REQUIRE(sum == (int32_t)sum);
            double term = (double)(float)sum * (double)weight[lane] * (double)fold[c];
            double start = (double)before[lane * cp + c], error = exact ? 0 : 0x1p-23 * (fabs(start) + fabs(term));
            kernel_near((double)o[lane * cp + c], start + term, error, "%lld pairs, %d rows, %d columns: o[%d][%d]",
                        (long long)pairs, (int)n_row, (int)n_col, (int)lane, (int)c);
        }
    }
    ck_release(mark);
}

void kernel_check_fixed_pv(void)
{
    const mla_fixed_kernels *k = kernels_now();
    int32_t cp = kernel_now()->table->col_panel;
    ck_random r = {ck_seed};
    for (int32_t n_row = 1; n_row <= ROWS; n_row++) {
        for (int32_t n_col = 1; n_col <= cp; n_col++) {
            pv_once(k, ck_between(&r, 1, MLA_KEY_BLOCK / 2), n_row, n_col, n_col % 2, &r);
        }
    }
    for (int64_t pairs = 1; pairs <= MLA_KEY_BLOCK / 2; pairs++) {
        pv_once(k, pairs, ROWS, cp, true, &r);
        pv_once(k, pairs, ROWS, cp, false, &r);
    }
}
