/*
 * row_result.cuh - how a row ends: the sink joins, the sum divides, lse and max are written.
 */
#ifndef MLA_CUDA_ROW_RESULT_CUH
#define MLA_CUDA_ROW_RESULT_CUH

#include "cuda_problem.h"
#include "number.cuh"

#define MLA_LOG2_E 1.44269504088896340736
#define MLA_LN_2 0.69314718055994530942

struct mla_row_result {
    float factor; /* of the sum of p v; 0: o is +0 whatever that sum holds */
    float lse, max;
};

/* m, l: maximum and sum of a row's keys in base 2. fp64: it is done once a row, and lse keeps its bits. */
__device__ inline mla_row_result mla_finish_row(const mla_cuda_problem &p, int64_t head, float m_part, float l_part)
{
    const double m = m_part, l = l_part;
    mla_row_result result;
    if (l_part == 0) { /* no key seen, or none with a score above -inf */
        result.factor = 0;
        result.max = -INFINITY;
        result.lse = p.lse_empty == MLA_LSE_EMPTY_POS_INF   ? INFINITY
                     : p.lse_empty == MLA_LSE_EMPTY_NEG_INF ? -INFINITY
                                                            : 0.0f;
        return result;
    }
    double lse = m + log2(l), factor = 1 / l;
    const double sink = p.sink ? (double)p.sink[head] : -INFINITY;
    if (sink != -INFINITY && !isnan(l)) { /* a NaN score shows even beside an infinite sink */
        const double top = m > sink * MLA_LOG2_E ? m : sink * MLA_LOG2_E;
        const double sum = top == INFINITY ? INFINITY : l * exp2(m - top) + exp2(sink * MLA_LOG2_E - top);
        if (p.lse_with_sink) {
            lse = top + log2(sum);
        }
        factor = top == INFINITY ? 0.0 : exp2(m - top) / sum;
    }
    if (p.pv_descale) {
        factor *= (double)p.pv_descale[head];
    }
    result.factor = (float)factor;
    result.lse = (float)(p.lse_base == MLA_LSE_NATURAL ? lse * MLA_LN_2 : lse);
    /* a NaN score shows in the sum, not in the maximum; no -0, since which of equal zeros won is chance */
    result.max = isnan(l_part) ? l_part : (float)(m * MLA_LN_2) + 0.0f;
    return result;
}

/* lse and max of a row, as far as they are wanted. */
__device__ inline void mla_store_row(const mla_cuda_problem &p, int64_t seq, int64_t token, int64_t head,
                                     const mla_row_result &result)
{
    if (p.lse.data) {
        mla_store_element(p.lse.data, p.lse.dtype,
                          seq * p.lse.stride[0] + token * p.lse.stride[1] + head * p.lse.stride[2], result.lse);
    }
    if (p.max.data) {
        mla_store_element(p.max.data, p.max.dtype,
                          seq * p.max.stride[0] + token * p.max.stride[1] + head * p.max.stride[2], result.max);
    }
}

#endif
