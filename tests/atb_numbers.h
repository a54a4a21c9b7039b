/*
 * atb_numbers.h - numbers for the tests of the ATB door: storage, random data, and the two criteria by which ATB's own
 * tests accept a result.
 */
#ifndef ATB_NUMBERS_H
#define ATB_NUMBERS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mla/atb_mla.h"
#include "ref/number.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static inline mla_dtype stored_as(int32_t dtype)
{
    return dtype == MLA_ATB_BF16 ? MLA_DTYPE_BF16 : dtype == MLA_ATB_FLOAT16 ? MLA_DTYPE_F16 : MLA_DTYPE_F32;
}

/* Relative distance of neighbouring numbers, halved: what one rounding may cost. */
static inline double half_ulp(int32_t dtype)
{
    return dtype == MLA_ATB_BF16 ? 0x1p-8 : dtype == MLA_ATB_FLOAT16 ? 0x1p-11 : 0x1p-24;
}

/* Memory that must be there; the sanitizers see every byte past its end. */
static inline void *allocate(int64_t bytes)
{
    void *memory = calloc(bytes > 0 ? (size_t)bytes : 1, 1);
    assert_non_null(memory);
    return memory;
}

/* ---- random data ------------------------------------------------------------------------------------------------- */

static uint64_t random_state = 42;

static inline uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state >> 16;
}

/* uniform in (-range, range) */
static inline double random_number(double range)
{
    return ((double)(random_bits() & 0xffffff) / 0x800000 - 1) * range;
}

/* value [n]: numbers that `dtype` holds exactly, stored in data [n] too */
static inline void random_fill(void *data, int32_t dtype, float *value, int64_t n, double range)
{
    for (int64_t i = 0; i < n; i++) {
        if (dtype == MLA_ATB_INT8) {
            ((int8_t *)data)[i] = (int8_t)random_number(range);
            value[i] = ((int8_t *)data)[i];
        } else {
            mla_ref_store(data, stored_as(dtype), i, random_number(range));
            value[i] = (float)mla_ref_load(data, stored_as(dtype), i);
        }
    }
}

/* ---- acceptance -------------------------------------------------------------------------------------------------- */

/* N: |x - gold| <= e * max(1, |gold|) for every element; `work` is the size of one dot product. */
static inline bool accepted_by_n(const double *x, const double *gold, int64_t n, int32_t dtype, double work)
{
    double e = dtype == MLA_ATB_BF16 ? 0x1p-7 : dtype == MLA_ATB_FLOAT16 ? 0x1p-8 : 0x1p-14;
    e = work >= 2048 && dtype != MLA_ATB_FLOAT ? 2 * e : e;
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs(x[i] - gold[i]) <= e * fmax(1, fabs(gold[i])))) {
            return false;
        }
    }
    return true;
}

typedef struct error_metrics {
    double most, mean, rms;
} error_metrics;

static inline error_metrics measure(const double *x, const double *truth, int64_t n)
{
    error_metrics m = {0};
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(x[i] - truth[i]), relative = d / (fabs(truth[i]) + 1e-7);
        m.most = relative > m.most || isnan(relative) ? relative : m.most;
        m.mean += relative / (double)n;
        m.rms += d * d / (double)n;
    }
    m.rms = sqrt(m.rms);
    return m;
}

/* D: the errors against the truth are no more than 10 (largest), 2 (mean) and 2 (rms) times those of the reference that
 * rounds P to 16 bits. */
static inline bool accepted_by_d(const double *x, const double *truth, const double *rounded, int64_t n, int32_t dtype)
{
    double tau = dtype == MLA_ATB_BF16 ? 0x1p-8 : dtype == MLA_ATB_FLOAT16 ? 0x1p-11 : 0x1p-14;
    error_metrics a = measure(x, truth, n), g = measure(rounded, truth, n);
    return a.most / fmax(g.most, tau) < 10 && a.mean / fmax(g.mean, tau) < 2 && a.rms / fmax(g.rms, tau) < 2;
}

#endif
