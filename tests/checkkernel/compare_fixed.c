/*
 * compare_fixed.c - what fixed point (src/cpu/kernels_fixed.h, src/cpu/fixed.h) may add to the bounds of compare.c,
 * from the definition alone, in fp64.
 *
 * An integer is off by e, |e| <= 1/2. Where the inputs are random, so are the e: independent and uniform, and a sum of
 * a_i e_i is below 8 sqrt(sum a_i^2 / 12) but for a probability of 2 exp(-32), a uniform number being as tame as a
 * normal one of its variance. Structured inputs get sum |a_i| / 2.
 *
 * (1) A score: q folded and k unfolded, unit_q and unit_k the worth of their integers, the larger of norm / 46000 and
 *     size / 32700: a_i = |q_i| unit_k for the key's integers, |k_i| unit_q for the row's. A row whose deviation, or a
 *     bound of it, 46000 unit_q unit_k scale / sqrt(6), is above 2^-9 has no such error in that block.
 * (2) A value: a = p_j unit_j fold_c for the integer of column c, and for the integer of p, whose worth in its block is
 *     w = max(max p_j unit_j / 32700, sum p_j |v_j| / 2.1e9), |v_j| the largest of the unfolded key: a = w |v_jc| /
 *     unit_j. w is that of the subject's p, of which the last block's errors are part: a tenth more is granted.
 * (3) A key that a list names several times has the same e each time, and so have equal p in a block: what is to be
 *     squared is then the sum of their a.
 */
#include <math.h>
#include <stdlib.h>

#include "compare.h"
#include "cpu/fixed.h"
#include "ref/ref_internal.h"

enum { BLOCK = MLA_KEY_BLOCK, CHUNK = 6 * MLA_KEY_BLOCK };

bool ck_fixed_level(void)
{
    const char *isa = ck_subject_now->isa;
    const mla_cpu_kernels *kernels = isa ? mla_cpu_kernels_of(isa) : NULL;
    return !ck_subject_now->broken && kernels && kernels->fixed;
}

bool ck_fixed_may_apply(const ck_judge *j)
{
    const mla_problem *p = j->problem;
    mla_arithmetic asked = p->arithmetic == MLA_ARITHMETIC_AUTO ? ck_subject_now->arithmetic : p->arithmetic;
    if (!ck_fixed_level() || asked != MLA_ARITHMETIC_INT16 || p->p_rounding != MLA_P_ROUND_NONE) {
        return false;
    }
    for (int32_t g = 0; g < j->shape.n_segment; g++) {
        if (mla_tensor_present(&p->segment[g].v)) {
            return false;
        }
    }
    return !(j->shape.d_rope > 0 && mla_tensor_present(&p->qk_descale));
}

/* The scales of a score of head h in segment g, without softmax_scale's sign. */
static double scale_of(const ck_judge *j, int32_t g, int64_t h)
{
    const mla_problem *p = j->problem;
    return fabs((double)p->softmax_scale * mla_ref_factor(&p->q_descale, 0) * mla_ref_factor(&p->qk_descale, h) *
                mla_ref_factor(&p->segment[g].descale, 0));
}

static void fold_of(const ck_judge *j, const ck_place *at, int32_t g, int64_t first, int64_t n_candidate, double *k,
                    double *fold)
{
    int64_t d = j->shape.d_k, order[256] = {0}, below = 0;
    for (int64_t c = 0; c < d; c++) {
        fold[c] = 0;
    }
    for (int64_t x = first; x < first + MLA_FIXED_SAMPLE && x < n_candidate; x++) {
        mla_ref_key key;
        if (mla_ref_key_find(j->problem, &j->shape, g, at->s, at->i, x, &key)) {
            mla_ref_key_columns(j->problem, &j->shape, g, &key, at->h / j->shape.group, d, k);
            for (int64_t c = 0; c < d; c++) {
                fold[c] += k[c] * k[c];
            }
        }
    }
    bool none = mla_tensor_present(&j->problem->segment[g].mask);
    for (int64_t c = 0; c < d; c++) {
        none = none || !isfinite(fold[c]) || fold[c] > 0x1p127;
        int exponent = fold[c] < 0x1p-126 || none ? 0 : ilogb(fold[c]) + 127;
        order[exponent]++;
        fold[c] = exponent;
    }
    int middle = 0;
    while (middle < 255 && (below += order[middle]) <= d / 2) {
        middle++;
    }
    for (int64_t c = 0; c < d; c++) {
        double above = fold[c] - middle;
        fold[c] = none || middle == 0 || above < 4 ? 1 : ldexp(1, (int)(above + 2) / 4);
    }
}

static double unit_of(double square, double largest)
{
    return fmax(sqrt(square) / 46000, largest / 32700);
}

/* The sum of a_i e_i: of squares and of sizes of a_i. */
static double rounded_sum(const ck_judge *j, double squares, double sizes)
{
    double worst = sizes / 2, probable = 8 * sqrt(squares / 12);
    return j->structured || worst < probable ? worst : probable;
}

/* A candidate of a segment, and what its key's error in the values is multiplied by. */
typedef struct candidate {
    mla_ref_key key;
    bool seen;
    int64_t first;  /* the first seen candidate with this key */
    double *shares; /* [d_v], of all candidates with this key; the first's alone; NULL: a range has each key once */
} candidate;

/* The candidates of segment g, n of them; the caller frees them with free_candidates(). */
static candidate *find_candidates(const ck_judge *j, const ck_place *at, int32_t g, int64_t n)
{
    candidate *found = calloc((size_t)n + 1, sizeof *found);
    CK_REQUIRE(found != NULL);
    for (int64_t x = 0; x < n; x++) {
        found[x].seen = mla_ref_key_find(j->problem, &j->shape, g, at->s, at->i, x, &found[x].key);
        found[x].first = x;
        if (!found[x].seen || !j->shape.segment[g].has_list) {
            continue;
        }
        for (int64_t y = 0; y < x; y++) {
            if (found[y].seen && found[y].key.page == found[x].key.page && found[y].key.slot == found[x].key.slot) {
                found[x].first = y;
                break;
            }
        }
        if (found[x].first == x) {
            found[x].shares = calloc((size_t)j->shape.d_v, sizeof *found[x].shares);
            CK_REQUIRE(found[x].shares != NULL);
        }
    }
    return found;
}

static void free_candidates(candidate *found, int64_t n)
{
    for (int64_t x = 0; x < n; x++) {
        free(found[x].shares);
    }
    free(found);
}

/* How many candidates of [begin, end) have x's key and score; 0: one of them stands before x. */
static int64_t alike(const candidate *found, const double *score, int64_t begin, int64_t end, int64_t x)
{
    int64_t count = 0;
    for (int64_t y = begin; y < end; y++) {
        if (found[y].seen && found[y].first == found[x].first && score[y] == score[x]) {
            if (y < x) {
                return 0;
            }
            count++;
        }
    }
    return count;
}

/* Does the row go by fp32 in these candidates, because one of them is not finite or out of range? */
static bool out_of_range(const ck_judge *j, const ck_place *at, int32_t g, const candidate *found, int64_t begin,
                         int64_t end, const double *fold, double *k)
{
    for (int64_t x = begin; x < end; x++) {
        double square = 0;
        if (!found[x].seen) {
            continue;
        }
        mla_ref_key_columns(j->problem, &j->shape, g, &found[x].key, at->h / j->shape.group, j->shape.d_k, k);
        for (int64_t c = 0; c < j->shape.d_k; c++) {
            square += k[c] * k[c] / (fold[c] * fold[c]);
        }
        if (!(square <= 0x1p81) || (square > 0 && square < 0x1p-81)) {
            return true;
        }
    }
    return false;
}

/* One chunk of candidates [first, end) of segment g, whose scores begin at score[0]; error [candidate], shares, and
 * column_squares and column_sizes [d_v] are added to. memory: 5 d_k. */
static void judge_chunk(const ck_judge *j, const ck_place *at, int32_t g, candidate *found, int64_t first, int64_t end,
                        int64_t n_candidate, const mla_ref_row_result *row, const double *score, double *error,
                        double *column_squares, double *column_sizes, double *memory)
{
    int64_t d = j->shape.d_k, d_v = j->shape.d_v;
    double *k = memory, *q = k + d, *fold = q + d, *sum_squares = fold + d, *sum_sizes = sum_squares + d;
    double scale = scale_of(j, g, at->h), q_square = 0, q_largest = 0, q_size = 0;
    fold_of(j, at, g, first, n_candidate, k, fold);
    mla_ref_query(j->problem, &j->shape, at->s, at->token, at->h, q);
    for (int64_t c = 0; c < d; c++) {
        q[c] *= fold[c];
        q_square += q[c] * q[c];
        q_size += fabs(q[c]);
        q_largest = fmax(q_largest, fabs(q[c]));
    }
    double unit_q = unit_of(q_square, q_largest);
    if (!isfinite(q_square)) {
        return; /* the row goes by fp32 */
    }
    for (int64_t begin = first; begin < end; begin += BLOCK) {
        int64_t to = begin + BLOCK < end ? begin + BLOCK : end;
        if (out_of_range(j, at, g, found, begin, to, fold, k)) {
            continue;
        }
        double weight_top = 0, weight_sum = 0;
        for (int64_t c = 0; c < d_v; c++) {
            sum_squares[c] = sum_sizes[c] = 0;
        }
        for (int64_t x = begin; x < to; x++) {
            if (!found[x].seen) {
                continue;
            }
            mla_ref_key_columns(j->problem, &j->shape, g, &found[x].key, at->h / j->shape.group, d, k);
            double square = 0, largest = 0, size = 0, *shares = found[found[x].first].shares;
            double count = shares ? (double)alike(found, score, begin, to, x) : 1;
            for (int64_t c = 0; c < d; c++) {
                double y = fabs(k[c] / fold[c]);
                square += y * y;
                size += y;
                largest = fmax(largest, y);
            }
            double unit = unit_of(square, largest), p = exp(score[x] - row->max) / row->sum;
            if (46000 * unit * unit_q * scale / sqrt(6) <= 1.001 * MLA_FIXED_DEVIATION) {
                error[x] = scale * rounded_sum(j, q_square * unit * unit + square * unit_q * unit_q,
                                               q_size * unit + size * unit_q);
            }
            weight_top = fmax(weight_top, p * unit);
            weight_sum += p * largest;
            for (int64_t c = 0; c < d_v; c++) {
                double b = unit > 0 ? count * fabs(k[c]) / unit : 0;
                double a = p * unit * fold[c];
                if (shares) {
                    shares[c] += a;
                } else {
                    column_squares[c] += a * a;
                    column_sizes[c] += a;
                }
                sum_squares[c] += b * b;
                sum_sizes[c] += b;
            }
        }
        double weight = 1.1 * fmax(weight_top / 32700, weight_sum / 2.1e9);
        for (int64_t c = 0; c < d_v; c++) {
            column_squares[c] += weight * weight * sum_squares[c];
            column_sizes[c] += weight * sum_sizes[c];
        }
    }
}

void ck_fixed_errors(ck_judge *j, const ck_place *at, const mla_ref_row_result *row)
{
    int64_t d = j->shape.d_k, d_v = j->shape.d_v, base = 0;
    for (int64_t x = 0; x < row->n_candidate; x++) {
        j->score_error[x] = 0;
    }
    for (int64_t c = 0; c < d_v; c++) {
        j->value_error[c] = 0;
    }
    if (!ck_fixed_may_apply(j) || mla_query_slots(j->problem, &j->shape, at->s) * j->shape.group < MLA_FIXED_ROWS) {
        return;
    }
    double *memory = calloc((size_t)(5 * d + 2 * d_v), sizeof *memory);
    CK_REQUIRE(memory != NULL);
    double *squares = memory + 5 * d, *sizes = squares + d_v;
    for (int32_t g = 0; g < j->shape.n_segment; g++) {
        /* candidates of a range are counted from its begin, chunks from position 0 */
        int64_t n = mla_ref_candidates(j->problem, &j->shape, g, at->s, at->i), offset = 0;
        mla_ref_key key;
        if (!j->shape.segment[g].has_list && n > 0 &&
            mla_ref_key_place(j->problem, &j->shape, g, at->s, at->i, 0, &key)) {
            offset = key.position;
        }
        candidate *found = find_candidates(j, at, g, n);
        /* a row goes by fixed point in the chunks whose beginning it sees */
        for (int64_t first = (offset + CHUNK - 1) / CHUNK * CHUNK - offset; first < n; first += CHUNK) {
            judge_chunk(j, at, g, found, first, first + CHUNK < n ? first + CHUNK : n, n, row, row->score + base,
                        j->score_error + base, squares, sizes, memory);
        }
        for (int64_t x = 0; x < n; x++) {
            for (int64_t c = 0; c < d_v && found[x].shares; c++) {
                squares[c] += found[x].shares[c] * found[x].shares[c];
                sizes[c] += found[x].shares[c];
            }
        }
        free_candidates(found, n);
        base += n;
    }
    double descale = 0;
    for (int32_t g = 0; g < j->shape.n_segment; g++) {
        descale = fmax(descale, fabs(mla_ref_factor(&j->problem->segment[g].descale, 0)));
    }
    for (int64_t c = 0; c < d_v; c++) {
        j->value_error[c] = descale * rounded_sum(j, squares[c], sizes[c]);
    }
    free(memory);
}
