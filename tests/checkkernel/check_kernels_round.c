/*
 * check_kernels_round.c - the two steps of a softmax with rounded probabilities. See check_kernels.c.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernel_tools.h"
#include "ref/number.h"

/* ---- peak -------------------------------------------------------------------------------------------------------- */

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Scores against fp64, the peak against the scores; both against what softmax makes of the same. */
static void peak_once(const kernel_case *k, int64_t n_key, bool ranged, bool masked, double spread, ck_random *r)
{
    size_t mark = ck_mark(), bytes = (size_t)(n_key * MLA_ROW_PANEL) * sizeof(float);
    float *raw = ck_buffer("raw scores", bytes), *s = ck_buffer("s", bytes);
    float *scale = kernel_floats("scale", MLA_ROW_PANEL), *top = kernel_floats("top", MLA_ROW_PANEL);
    float *mask = masked ? ck_buffer("mask", bytes) : NULL;
    int32_t *begin = ranged ? ck_buffer("begin", MLA_ROW_PANEL * sizeof *begin) : NULL;
    int32_t *end = ranged ? ck_buffer("end", MLA_ROW_PANEL * sizeof *end) : NULL;
    float before[MLA_ROW_PANEL], factor[MLA_ROW_PANEL];
    mla_row_state state;
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        state.m[x] = state.max[x] = -INFINITY;
        state.l[x] = 0;
        scale[x] = (float)(ck_uniform(r) + 0.2);
        before[x] = top[x] = x % 3 == 0 ? -INFINITY : (float)(spread * ck_normal(r));
        if (ranged) {
            begin[x] = (int32_t)ck_below(r, n_key + 1);
            end[x] = (int32_t)ck_between(r, begin[x], n_key);
        }
        for (int64_t n = 0; n < n_key; n++) {
            bool seen = !ranged || (n >= begin[x] && n < end[x]);
            raw[n * MLA_ROW_PANEL + x] = seen ? (float)(spread * ck_normal(r)) : ck_chance(r, 0.5) ? NAN : INFINITY;
            if (masked) {
                mask[n * MLA_ROW_PANEL + x] = !seen ? NAN : ck_chance(r, 0.1) ? -INFINITY : (float)ck_normal(r) * 3;
            }
        }
    }
    memcpy(s, raw, bytes);
    k->table->peak(s, n_key, scale, begin, end, mask, top);
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        float largest = before[x];
        for (int64_t n = 0; n < n_key; n++) {
            int64_t at = n * MLA_ROW_PANEL + x;
            bool seen = (!ranged || (n >= begin[x] && n < end[x])) && !(masked && mask[at] == -INFINITY);
            if (!seen) {
                if (s[at] != -INFINITY) {
                    ck_fail("%lld keys: score %lld of row %d is %g although it is hidden", (long long)n_key,
                            (long long)n, x, (double)s[at]);
                }
                continue;
            }
            double product = (double)raw[at] * (double)scale[x], add = masked ? (double)mask[at] : 0;
            kernel_near((double)s[at], product + add, 2 * 0x1p-24 * (fabs(product) + fabs(add)),
                        "%lld keys: score %lld of row %d", (long long)n_key, (long long)n, x);
            largest = s[at] > largest ? s[at] : largest;
        }
        if (top[x] != largest) {
            ck_fail("%lld keys: the peak of row %d is %.9g, its largest score %.9g", (long long)n_key, x,
                    (double)top[x], (double)largest);
        }
    }
    k->table->softmax(raw, n_key, scale, begin, end, mask, &state, factor);
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        if (before[x] == -INFINITY && top[x] != state.max[x]) {
            ck_fail("%lld keys: the peak of row %d is %.9g, softmax finds %.9g", (long long)n_key, x, (double)top[x],
                    (double)state.max[x]);
        }
    }
    ck_release(mark);
}

void kernel_check_peak(void)
{
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int64_t n_key = 1; n_key <= MLA_KEY_BLOCK_MAX; n_key += n_key < 20 ? 1 : 4) {
        for (int variant = 0; variant < 4; variant++) {
            peak_once(k, n_key, variant & 1, variant & 2, variant % 3 ? 3 : 1e4, &r);
        }
    }
    /* a score beyond fp32 is its largest number; NaN is a score, but no peak */
    float s[3 * MLA_ROW_PANEL], scale[MLA_ROW_PANEL], top[MLA_ROW_PANEL];
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        s[x] = 3e38f;
        s[MLA_ROW_PANEL + x] = NAN;
        s[2 * MLA_ROW_PANEL + x] = 1;
        scale[x] = x % 2 ? 1.4f : 1.0f;
        top[x] = -INFINITY;
    }
    k->table->peak(s, 3, scale, NULL, NULL, NULL, top);
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        CK_REQUIRE(top[x] == (x % 2 ? FLT_MAX : 3e38f) && isnan(s[MLA_ROW_PANEL + x]));
    }
}

/* ---- round ------------------------------------------------------------------------------------------------------- */

/* What a probability p becomes, from mla_problem.h. */
static double rounded(const kernel_case *k, float p, float unit)
{
    switch (k->format) {
    case MLA_FORMAT_HIF8: return mla_ref_decode(MLA_DTYPE_HIF8, mla_ref_encode(MLA_DTYPE_HIF8, 16 * (double)p)) / 16;
    case MLA_FORMAT_I8: {
        float quotient = p / unit;
        return rint(mla_ref_decode(MLA_DTYPE_F16, mla_ref_encode(MLA_DTYPE_F16, (double)quotient)));
    }
    default: return mla_ref_decode(k->dtype, mla_ref_encode(k->dtype, (double)p));
    }
}

/* One key in all 16 rows. The sum of one probability is that probability, so its rounding can be judged exactly. */
static void round_one(const kernel_case *k, const float *t, const float *m, const float *unit, float *p)
{
    float s[MLA_ROW_PANEL];
    memcpy(s, t, sizeof s);
    memset(p, 0, MLA_ROW_PANEL * sizeof *p);
    k->table->round[k->format](s, 1, m, unit, p);
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        double exact = t[x] == -INFINITY ? 0 : exp2((double)t[x] - (double)m[x]);
        double error = KERNEL_EXP_ERROR + 0x1p-24 * fabs((double)t[x] - (double)m[x]);
        kernel_near((double)p[x], exact, (exact > 0 ? exact * error : 0) + (exact > 0 ? KERNEL_VANISHING : 0),
                    "exp2(%.9g - %.9g)", (double)t[x], (double)m[x]);
        double want = rounded(k, p[x], unit[x]);
        if ((double)s[x] != want) {
            ck_fail("row %d: p = %.9g in units of %.9g was rounded to %.9g, expected %.9g", x, (double)p[x],
                    (double)unit[x], (double)s[x], want);
        }
    }
}

static void round_panel(const kernel_case *k, int64_t n_key, double spread, ck_random *r)
{
    size_t mark = ck_mark();
    float *s = kernel_floats("s", n_key * MLA_ROW_PANEL), *t = kernel_floats("t", n_key * MLA_ROW_PANEL);
    float *m = kernel_floats("m", MLA_ROW_PANEL), *sum = kernel_floats("sum", MLA_ROW_PANEL);
    float *unit = kernel_floats("unit", MLA_ROW_PANEL), want[MLA_ROW_PANEL];
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        bool blind = x == 3; /* it has seen nothing */
        float peak = -INFINITY;
        for (int64_t n = 0; n < n_key; n++) {
            t[n * MLA_ROW_PANEL + x] = blind || ck_chance(r, 0.1) ? -INFINITY : (float)(spread * ck_normal(r));
            peak = fmaxf(peak, t[n * MLA_ROW_PANEL + x]);
        }
        m[x] = x % 4 == 1 ? peak + (float)ck_below(r, 9) : peak; /* the peak of a tile before */
        if (x % 4 == 1 && peak == -INFINITY) {
            m[x] = 2;
        }
        unit[x] = peak == -INFINITY ? 1.0f : exp2f(peak - m[x]) * (1 / 127.0f);
        want[x] = sum[x] = x % 2 ? (float)ck_uniform(r) : 0;
    }
    memcpy(s, t, (size_t)(n_key * MLA_ROW_PANEL) * sizeof *s);
    k->table->round[k->format](s, n_key, m, unit, sum);
    for (int64_t n = 0; n < n_key; n++) {
        float p[MLA_ROW_PANEL];
        round_one(k, t + n * MLA_ROW_PANEL, m, unit, p);
        for (int x = 0; x < MLA_ROW_PANEL; x++) {
            want[x] += p[x]; /* in this order */
            if ((double)s[n * MLA_ROW_PANEL + x] != rounded(k, p[x], unit[x])) {
                ck_fail("%lld keys: row %d, key %lld is %.9g among others, %.9g alone", (long long)n_key, x,
                        (long long)n, (double)s[n * MLA_ROW_PANEL + x], rounded(k, p[x], unit[x]));
            }
        }
    }
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        if (!same_bits(sum[x], want[x])) {
            ck_fail("%lld keys: row %d sums to %.9g, expected %.9g", (long long)n_key, x, (double)sum[x],
                    (double)want[x]);
        }
    }
    ck_release(mark);
}

/* Probabilities on and beside the middle between two neighbours of the format. */
static void round_ties(const kernel_case *k)
{
    int64_t n_tie = 0;
    const float unit = 1 / 127.0f;
    for (int octave = 0; octave < 30; octave++) {
        for (int step = 0; step < 512; step++) {
            double middle = k->format == MLA_FORMAT_I8
                                ? (octave * 512 + step < 127 ? (octave * 512 + step + 0.5) / 127 : 0)
                                : ldexp(1 + (step + 0.5) / 512, -octave - 1);
            if (k->format == MLA_FORMAT_HIF8) {
                middle = ldexp(1 + step / 512.0, -octave - 1); /* all middles of 3, 2, 1 and 0 bits, and more */
            }
            if (middle == 0) {
                continue;
            }
            float t[MLA_ROW_PANEL], m[MLA_ROW_PANEL], units[MLA_ROW_PANEL], p[MLA_ROW_PANEL];
            float at = (float)log2(middle);
            for (int x = 0; x < 8; x++) {
                at = nextafterf(at, -INFINITY);
            }
            for (int x = 0; x < MLA_ROW_PANEL; x++) {
                t[x] = at;
                m[x] = 0;
                units[x] = unit;
                at = at < 0 ? nextafterf(at, INFINITY) : at;
            }
            round_one(k, t, m, units, p);
            for (int x = 0; x < MLA_ROW_PANEL; x++) {
                n_tie += (double)p[x] == middle || (k->format == MLA_FORMAT_I8 && fabs((double)p[x] - middle) < 1e-4);
            }
        }
    }
    CK_REQUIRE(n_tie >= 20); /* enough of them were met exactly */
}

void kernel_check_round(void)
{
    const kernel_case *k = kernel_now();
    ck_random r = {ck_seed};
    for (int64_t n_key = 1; n_key <= 512; n_key += n_key < 20 ? 1 : 41) {
        round_panel(k, n_key, n_key % 3 == 0 ? 0.01 : n_key % 3 == 1 ? 3 : 40, &r);
    }
    round_ties(k);
    float s[MLA_ROW_PANEL], m[MLA_ROW_PANEL] = {0}, unit[MLA_ROW_PANEL], sum[MLA_ROW_PANEL] = {0};
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        s[x] = x % 2 ? NAN : -1;
        unit[x] = 1;
    }
    k->table->round[k->format](s, 1, m, unit, sum);
    for (int x = 0; x < MLA_ROW_PANEL; x++) {
        CK_REQUIRE(isnan(s[x]) == (x % 2 == 1) && isnan(sum[x]) == (x % 2 == 1));
    }
}
