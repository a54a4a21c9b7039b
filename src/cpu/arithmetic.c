/*
 * arithmetic.c - what a problem is computed in on the CPU.
 */
#include "arithmetic.h"

#include <pthread.h>
#include <string.h>

#include "core/environment.h"
#include "core/status.h"
#include "fixed.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char environment[MLA_WORD_BYTES]; /* MLA_ARITH when it was first looked at */

static void look(void)
{
    mla_environment_word("MLA_ARITH", environment);
}

mla_status mla_arithmetic_wanted(const mla_problem *problem, mla_arithmetic *wanted)
{
    static const struct {
        const char *word;
        mla_arithmetic arithmetic;
    } known[] = {{"auto", MLA_ARITHMETIC_AUTO},
                 {"f32", MLA_ARITHMETIC_F32},
                 {"bf16", MLA_ARITHMETIC_BF16},
                 {"bf16x2", MLA_ARITHMETIC_BF16X2},
                 {"int16", MLA_ARITHMETIC_INT16}};
    *wanted = problem->arithmetic;
    if (*wanted != MLA_ARITHMETIC_AUTO) {
        return MLA_STATUS_OK;
    }
    pthread_once(&once, look);
    if (!environment[0]) {
        return MLA_STATUS_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(environment, known[i].word) == 0) {
            *wanted = known[i].arithmetic;
            return MLA_STATUS_OK;
        }
    }
    return mla_fail(MLA_STATUS_BAD_VALUE, "MLA_ARITH = \"%s\" must be auto, f32, bf16, bf16x2 or int16", environment);
}

static bool is_bf16(const mla_tensor *t)
{
    return !mla_tensor_present(t) || t->dtype == MLA_DTYPE_BF16;
}

/* Can panel_bf16.c compute it? All operands are bf16 and lie in rows of one piece; scores are one sum. */
static bool suits_bf16(const mla_problem *problem, const mla_shape *shape)
{
    bool suits = problem->p_rounding == MLA_P_ROUND_NONE && is_bf16(&problem->q) && is_bf16(&problem->q_rope) &&
                 !(shape->d_rope > 0 && mla_tensor_present(&problem->qk_descale));
    for (int32_t g = 0; g < shape->n_segment; g++) {
        const mla_segment *segment = &problem->segment[g];
        suits = suits && is_bf16(&segment->k) && is_bf16(&segment->k_rope) && is_bf16(&segment->v) &&
                segment->layout == MLA_KEY_LAYOUT_ROW &&
                (mla_tensor_present(&segment->v) || shape->d_v <= shape->d_nope);
    }
    return suits;
}

mla_status mla_arithmetic_choose(const mla_problem *problem, const mla_shape *shape, const mla_cpu_kernels **kernels,
                                 mla_arithmetic *chosen)
{
    mla_arithmetic wanted;
    MLA_TRY(mla_arithmetic_wanted(problem, &wanted));
    if (wanted == MLA_ARITHMETIC_INT16) {
        *chosen = mla_fixed_offered(*kernels, problem, shape) ? wanted : MLA_ARITHMETIC_F32;
        return MLA_STATUS_OK;
    }
    /* Rounded once, as o in bf16 is, probabilities in two parts are as good as fp32. An o in fp32 would show them. */
    bool automatic = wanted == MLA_ARITHMETIC_AUTO && (*kernels)->bf16.faster && problem->o.dtype == MLA_DTYPE_BF16;
    wanted = automatic ? MLA_ARITHMETIC_BF16X2 : wanted;
    bool bf16 = mla_arithmetic_is_bf16(wanted) && (*kernels)->bf16.qk && suits_bf16(problem, shape);
    if (bf16 && (*kernels)->bf16.permitted && !(*kernels)->bf16.permitted()) {
        *kernels = mla_cpu_kernels_below(*kernels);
        bf16 = !automatic && (*kernels)->bf16.qk;
    }
    *chosen = bf16 ? wanted : MLA_ARITHMETIC_F32;
    return MLA_STATUS_OK;
}
