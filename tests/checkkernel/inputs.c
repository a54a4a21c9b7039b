/*
 * inputs.c - random numbers, and values drawn to hurt.
 *
 * Rows are made from their identity (seed, sequence, position), never from their place in memory, so that the same
 * sequence has the same keys in any batch, page order or layout.
 */
#include <math.h>

#include "checkkernel.h"
#include "ref/number.h"

uint64_t ck_hash(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t ck_next(ck_random *r)
{
    r->state += 0x9e3779b97f4a7c15u;
    uint64_t x = r->state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int64_t ck_below(ck_random *r, int64_t n)
{
    return (int64_t)(ck_next(r) % (uint64_t)n);
}

int64_t ck_between(ck_random *r, int64_t low, int64_t high)
{
    return low + ck_below(r, high - low + 1);
}

double ck_uniform(ck_random *r)
{
    return (double)(ck_next(r) >> 11) * 0x1p-53;
}

bool ck_chance(ck_random *r, double probability)
{
    return ck_uniform(r) < probability;
}

/* Sum of uniforms: near enough to normal, tails to +-6, no logarithm. */
double ck_normal(ck_random *r)
{
    double sum = -6;
    for (int i = 0; i < 3; i++) { /* four 16-bit uniforms per draw */
        uint64_t x = ck_next(r);
        sum += (double)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48)) * 0x1p-16;
    }
    return sum;
}

const char *ck_inputs_name(ck_inputs inputs)
{
    static const char *const names[CK_INPUTS_COUNT] = {
        [CK_NORMAL] = "normal",
        [CK_UNIFORM] = "uniform",
        [CK_WIDE] = "wide",
        [CK_TINY] = "tiny",
        [CK_LARGE_Q] = "large_q",
        [CK_HUGE_LOGITS] = "huge_logits",
        [CK_ONE_DOMINANT] = "one_dominant",
        [CK_ALL_EQUAL] = "all_equal",
        [CK_POWERS] = "powers",
        [CK_CANCELLING] = "cancelling",
        [CK_DENORMAL] = "denormal",
        [CK_RISING] = "rising",
        [CK_CODES_Q] = "codes_q",
        [CK_CODES_K] = "codes_k",
        [CK_OUTLIERS] = "outliers",
        [CK_FAR_OUTLIERS] = "far_outliers",
    };
    return names[inputs];
}

bool ck_inputs_structured(ck_inputs inputs)
{
    return inputs == CK_ALL_EQUAL || inputs == CK_POWERS || inputs == CK_CANCELLING || inputs == CK_DENORMAL ||
           inputs == CK_RISING;
}

double ck_inputs_scale(ck_inputs inputs)
{
    return inputs == CK_HUGE_LOGITS ? 1e4 : 1;
}

static double smallest_subnormal(mla_dtype dtype)
{
    switch (dtype) {
    case MLA_DTYPE_F16: return 0x1p-24;
    case MLA_DTYPE_BF16: return 0x1p-133;
    case MLA_DTYPE_HIF8: return 0x1p-22;
    case MLA_DTYPE_I8: return 0x1p-6; /* 1 when stored */
    default: return 0x1p-149;
    }
}

/* The number of a HiFloat8 code that has one, of at most this magnitude. */
static double draw_code(ck_random *r, double most)
{
    for (;;) {
        double value = mla_ref_decode(MLA_DTYPE_HIF8, (uint32_t)ck_below(r, 256));
        if (fabs(value) <= most) { /* not so for NaN */
            return value;
        }
    }
}

static double draw(ck_inputs inputs, ck_random *r, mla_dtype dtype)
{
    switch (inputs) {
    case CK_UNIFORM: return 2 * ck_uniform(r) - 1;
    case CK_WIDE: return ldexp(ck_uniform(r) + 1, (int)ck_between(r, -12, 3)) * (ck_chance(r, 0.5) ? 1 : -1);
    case CK_TINY: return 1e-6 * ck_normal(r);
    case CK_POWERS: return ldexp(1, (int)ck_between(r, -3, 2)) * (ck_chance(r, 0.5) ? 1 : -1);
    case CK_DENORMAL: return smallest_subnormal(dtype) * (double)ck_between(r, -100, 100);
    default: return ck_normal(r);
    }
}

static double outlier(int64_t d, int64_t n, double end, double single)
{
    return d >= n - n / 9 ? end : d == n / 80 || d == n / 6 || d == n / 2 ? single : 1;
}

void ck_query_row(ck_inputs inputs, uint64_t seed, mla_dtype dtype, int64_t n, double *row)
{
    ck_random r = {seed};
    for (int64_t d = 0; d < n; d++) {
        switch (inputs) {
        case CK_LARGE_Q: row[d] = 100 * ck_normal(&r); break;
        case CK_ONE_DOMINANT: row[d] = fabs(ck_normal(&r)) + 0.25; break;
        case CK_CANCELLING: row[d] = 1 + 0x1p-6 * (double)ck_between(&r, 0, 1); break;
        case CK_RISING: row[d] = 1; break;
        case CK_DENORMAL: {
            bool narrow = dtype == MLA_DTYPE_F16 || dtype == MLA_DTYPE_HIF8;
            row[d] = narrow ? 30000 * ck_uniform(&r) : 1e10 * ck_normal(&r);
            break;
        }
        case CK_CODES_Q: row[d] = draw_code(&r, 32768); break;
        case CK_CODES_K: row[d] = draw_code(&r, 0x1p-9); break;
        default: row[d] = draw(inputs, &r, dtype); break;
        }
    }
}

void ck_key_row(ck_inputs inputs, uint64_t seed, mla_dtype dtype, int64_t position, int64_t length, int64_t n,
                double *row)
{
    ck_random r = {inputs == CK_ALL_EQUAL ? seed : ck_hash(seed, (uint64_t)position)};
    for (int64_t d = 0; d < n; d++) {
        switch (inputs) {
        case CK_ONE_DOMINANT: row[d] = position == length * 2 / 3 ? 2 + ck_uniform(&r) : 0.1 * ck_normal(&r); break;
        case CK_CANCELLING: /* neighbours cancel up to a part in 2^7 */
            row[d] = (d % 2 ? -1 : 1) * (16 + (double)(position % 7) + 0.125 * (double)ck_between(&r, 0, 1));
            break;
        case CK_CODES_Q: row[d] = draw_code(&r, 0x1p-9); break;
        case CK_CODES_K: row[d] = draw_code(&r, 32768); break;
        case CK_OUTLIERS: row[d] = outlier(d, n, 8, 16) * ck_normal(&r); break;
        case CK_FAR_OUTLIERS: row[d] = outlier(d, n, 30, 60) * ck_normal(&r); break;
        case CK_RISING: row[d] = 0.02 * ck_normal(&r) + 0.4 * (double)position / (double)(length + 1); break;
        default: row[d] = draw(inputs, &r, dtype); break;
        }
    }
}
