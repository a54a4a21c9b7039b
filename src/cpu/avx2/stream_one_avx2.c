/*
 * stream_one_avx2.c - one row against keys where they lie, four keys at a time: what decode with a single head is made
 * of, and bound by memory.
 *
 * A group's scores come key after key, because that is the order that hardware prefetchers follow; then one exponential
 * serves all four, and the accumulators pass through the registers once for all four. The group that comes next is
 * fetched meanwhile, in the order in which it will be read and at an even pace: line by line in both loops. Bursts, or
 * several rows side by side, leave the memory idle in between (docs/performance.md).
 */
#include "stream_step_avx2.h"
#include "tables_avx2.h"

enum { GROUP = 4, LANES = 8, LINE = 64 };

/*
 * Fetches a line of the row MLA_STREAM_AHEAD after the first one of `row`. AMD's processors forget fetches when many come
 * at once, far fewer of them when another one follows directly: of a line that is needed soon, and most likely there
 * (docs/performance.md).
 */
INLINE void fetch_ahead(const void *const *row, int64_t at, bool again)
{
    fetch_line((const char *)row[MLA_STREAM_AHEAD] + at);
    if (again) {
        __builtin_prefetch((const char *)row[GROUP] + at, 0, 3);
    }
}

/* The same for bytes [begin, end). */
INLINE void fetch_bytes(const void *const *row, int64_t begin, int64_t end, bool again)
{
    for (int64_t at = begin; at < end; at += LINE) {
        fetch_ahead(row, at, again);
    }
}

INLINE int64_t bytes_of(int64_t n_col, mla_format format)
{
    return n_col * (format == MLA_FORMAT_F32 ? 4 : 2);
}

/*
 * Four steps of bf16, two lines of a key, `n` times, with both fetches of a line. In assembly, because on Zen 3 it decides
 * over a sixth of the speed that the second fetch stands between the first and the key: compilers move fetches about.
 */
INLINE void dot_bf16_again(const char *row, const float *q, int64_t n, const char *far, const char *near,
                           __m256 *restrict sum)
{
#define STEP_BF16(at, x, y)                                 \
    "vmovdqu 32 * " #at "(%[row]), %%ymm0\n\t"              \
    "vpslld $16, %%ymm0, %%ymm1\n\t"                        \
    "vpand %[odd], %%ymm0, %%ymm0\n\t"                      \
    "vfmadd231ps 64 * " #at "(%[q]), %%ymm1, %[" #x "]\n\t" \
    "vfmadd231ps 64 * " #at " + 32(%[q]), %%ymm0, %[" #y "]\n\t"
    __m256i odd = _mm256_set1_epi32((int)0xffff0000u);
    __asm__ volatile(".p2align 6\n"
                     "1:\n\t"
                     "prefetcht1 (%[far])\n\t"
                     "add $64, %[far]\n\t"
                     "prefetcht0 (%[near])\n\t"
                     "add $64, %[near]\n\t" /* clang-format off */
                     STEP_BF16(0, x0, y0)
                     STEP_BF16(1, x1, y1)
                     STEP_BF16(2, x0, y0)
                     STEP_BF16(3, x1, y1) /* clang-format on */
                     "add $128, %[row]\n\t"
                     "add $256, %[q]\n\t"
                     "dec %[n]\n\t"
                     "jnz 1b"
                     : [row] "+r"(row), [q] "+r"(q), [n] "+r"(n), [far] "+r"(far), [near] "+r"(near), [x0] "+x"(sum[0]),
                       [y0] "+x"(sum[1]), [x1] "+x"(sum[2]), [y1] "+x"(sum[3])
                     : [odd] "x"(odd)
                     : "cc", "memory", "ymm0", "ymm1");
#undef STEP_BF16
}

/* Adds a key part's products to four chains; fetches bytes [at, end) ahead of the row at `from` on the way. */
INLINE void dot_part(const mla_stream_part *k, const float *q, int64_t n, int64_t from, int64_t at, int64_t end,
                     bool again, mla_format format, __m256 *restrict sum)
{
    const void *row = k->row[n], *const *ahead = k->row + from;
    int64_t c = 0, n_four = k->n_col / (4 * STEP);
    if (again && format == MLA_FORMAT_BF16 && n_four > 0) {
        dot_bf16_again(row, q, n_four, (const char *)ahead[MLA_STREAM_AHEAD] + at, (const char *)ahead[GROUP] + at,
                       sum);
        c = n_four * 4 * STEP;
        at += n_four * LINE;
    }
    __m256 x0 = sum[0], y0 = sum[1], x1 = sum[2], y1 = sum[3], x, y;
#define DOT(i, c)                                              \
    load_step(column(row, c, format), format, &x, &y);         \
    x##i = _mm256_fmadd_ps(_mm256_loadu_ps(q + (c)), x, x##i); \
    y##i = _mm256_fmadd_ps(_mm256_loadu_ps(q + (c) + 8), y, y##i);
    for (; c + 4 * STEP <= k->n_col; c += 4 * STEP) {
        fetch_ahead(ahead, at, again);
        at += LINE;
        if (format == MLA_FORMAT_F32) {
            fetch_ahead(ahead, at, again);
            at += LINE;
        }
        DOT(0, c)
        DOT(1, c + STEP)
        DOT(0, c + 2 * STEP)
        DOT(1, c + 3 * STEP)
    }
    for (; c + STEP <= k->n_col; c += STEP) {
        DOT(0, c)
    }
    if (c < k->n_col) {
        load_tail(row, c, k->n_col, format, &x, &y);
        x1 = _mm256_fmadd_ps(_mm256_loadu_ps(q + c), x, x1);
        y1 = _mm256_fmadd_ps(_mm256_loadu_ps(q + c + 8), y, y1);
    }
#undef DOT
    fetch_bytes(ahead, at, end, again);
    sum[0] = x0;
    sum[1] = y0;
    sum[2] = x1;
    sum[3] = y1;
}

/* Sums over the lanes of four vectors, in the first four lanes; the others hold 0. */
INLINE __m256 sum_lanes(const __m256 *v)
{
    __m256 sum = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    return _mm256_zextps128_ps256(_mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1)));
}

/* Is part i of the keys read as values too? Its rows are then fetched half by the scores' loop, half by the values'. */
INLINE bool shared(const mla_stream_block *b, int32_t i)
{
    return i < b->n_v_part && b->v[i].row == b->k[i].row;
}

/* Raw scores of the keys [n, n + n_key), at most a group; lanes behind them hold 0. */
INLINE __m256 scores_of_group(const mla_stream_block *b, int64_t n, int64_t n_key, bool again, mla_format format)
{
    __m256 total[GROUP];
    for (int64_t j = 0; j < GROUP; j++) {
        __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int32_t i = 0; i < b->n_k_part && j < n_key; i++) {
            const mla_stream_part *k = &b->k[i];
            int64_t bytes = bytes_of(k->n_col, format), half = (bytes / 2 + LINE - 1) / LINE * LINE;
            bool halves = shared(b, i);
            dot_part(k, b->q + k->at, n + j, n + (halves ? j / 2 : j), halves && j % 2 ? half : 0,
                     halves && j % 2 == 0 ? half : bytes, again, format, sum);
        }
        total[j] = _mm256_add_ps(_mm256_add_ps(sum[0], sum[2]), _mm256_add_ps(sum[1], sum[3]));
    }
    return sum_lanes(total);
}

typedef struct one_row {
    float m, max;
    __m256 l; /* by place in the group */
} one_row;

/* Raw scores become probabilities; lanes that the row does not see are 0. */
INLINE __m256 probabilities_of_group(const mla_stream_block *b, int64_t n, int64_t n_key, __m256 raw, one_row *run)
{
    const __m256 nothing = _mm256_set1_ps(-INFINITY);
    __m256 t = below_infinity_avx2(_mm256_mul_ps(raw, _mm256_broadcast_ss(b->scale)));
    if (b->addend || n_key < GROUP) {
        float addend[LANES];
        for (int64_t j = 0; j < LANES; j++) {
            addend[j] = j >= n_key ? -INFINITY : b->addend ? b->addend[(n + j) * MLA_STREAM_ROWS] : 0;
        }
        __m256 a = _mm256_loadu_ps(addend);
        t = _mm256_blendv_ps(below_infinity_avx2(_mm256_add_ps(t, a)), nothing, _mm256_cmp_ps(a, nothing, _CMP_EQ_OQ));
    } else {
        t = _mm256_blend_ps(t, nothing, 0xf0);
    }
    /* operand order: a NaN does not become the maximum */
    __m256 limit = _mm256_set1_ps(run->max);
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(t, limit, _CMP_GT_OQ)), 0)) {
        float lane[LANES], top = run->max;
        _mm256_storeu_ps(lane, t);
        for (int64_t j = 0; j < GROUP; j++) {
            top = lane[j] > top ? lane[j] : top;
        }
        run->max = top;
        if (top > run->m + MLA_RESCALE_SLACK) {                      /* from -inf, too: nothing seen so far */
            __m256 factor = exp2_avx2(_mm256_set1_ps(run->m - top)); /* 0 from -inf, when there is nothing to scale */
            run->m = top;
            run->l = _mm256_mul_ps(run->l, factor);
            float lanes[MLA_STREAM_ROWS];
            _mm256_storeu_ps(lanes, factor);
            scale_rows(b, lanes);
        }
    }
    /* a row that has seen nothing keeps m = -inf; its probabilities are taken relative to 0 and come out as 0 */
    __m256 p = exp2_avx2(_mm256_sub_ps(t, _mm256_set1_ps(run->m == -INFINITY ? 0 : run->m)));
    run->l = _mm256_add_ps(run->l, p);
    return p;
}

/* o += p[key] * value[key] over a whole group; fetches on the way ahead of `n_ahead` rows of `bytes` each, from row `from` on. */
INLINE void values_of_group(const mla_stream_part *v, int64_t n, float *o, const float *p, int64_t from,
                            int64_t n_ahead, int64_t bytes, bool again, mla_format format)
{
    const void *const *row = v->row + n;
    __m256 w0 = _mm256_broadcast_ss(p), w1 = _mm256_broadcast_ss(p + 1), w2 = _mm256_broadcast_ss(p + 2);
    __m256 w3 = _mm256_broadcast_ss(p + 3), x, y;
    const void *r0 = row[0], *r1 = row[1], *r2 = row[2], *r3 = row[3];
    int64_t c = 0, half = (v->n_col / 2 + 2 * STEP - 1) / (2 * STEP) * (2 * STEP);
#define KEY(j, LOAD)                         \
    LOAD(r##j);                              \
    sum_x = _mm256_fmadd_ps(w##j, x, sum_x); \
    sum_y = _mm256_fmadd_ps(w##j, y, sum_y);
#define VALUES(LOAD)                                                               \
    {                                                                              \
        __m256 sum_x = _mm256_loadu_ps(o + c), sum_y = _mm256_loadu_ps(o + c + 8); \
        KEY(0, LOAD)                                                               \
        KEY(1, LOAD)                                                               \
        KEY(2, LOAD)                                                               \
        KEY(3, LOAD)                                                               \
        _mm256_storeu_ps(o + c, sum_x);                                            \
        _mm256_storeu_ps(o + c + 8, sum_y);                                        \
    }
#define WHOLE(row) load_step(column(row, c, format), format, &x, &y)
#define PART(row) load_tail(row, c, v->n_col, format, &x, &y)
    for (int64_t i = 0; i < 2; i++) { /* half the columns for half the rows that are fetched */
        const void *const *ahead = v->row + from + i * n_ahead / 2;
        int64_t at = 0, end = (i + 1) * half < v->n_col ? (i + 1) * half : v->n_col;
        for (; c + 2 * STEP <= end; c += STEP) {
            fetch_bytes(ahead, at, at + 2 * LINE, again);
            at += 2 * LINE;
            VALUES(WHOLE)
            c += STEP;
            VALUES(WHOLE)
        }
        fetch_bytes(ahead, at, bytes, again);
        for (int64_t j = 1; j < n_ahead / 2; j++) {
            fetch_bytes(ahead + j, 0, bytes, again);
        }
    }
    for (; c + STEP <= v->n_col; c += STEP) {
        VALUES(WHOLE)
    }
    if (c < v->n_col) {
        VALUES(PART)
    }
#undef KEY
#undef VALUES
#undef WHOLE
#undef PART
}

INLINE void stream_groups(const mla_stream_block *b, bool again, mla_format format)
{
    one_row run = {b->state->m[0], b->state->max[0], _mm256_setr_ps(b->state->l[0], 0, 0, 0, 0, 0, 0, 0)};
    for (int64_t n = 0; n < b->n_key; n += GROUP) {
        int64_t n_key = b->n_key - n < GROUP ? b->n_key - n : GROUP;
        float p[LANES];
        __m256 raw = scores_of_group(b, n, n_key, again, format);
        _mm256_storeu_ps(p, probabilities_of_group(b, n, n_key, raw, &run));
        for (int32_t i = 0; i < b->n_v_part; i++) {
            const mla_stream_part *v = &b->v[i];
            if (n_key == GROUP && !b->addend) {
                bool halves = i < b->n_k_part && shared(b, i);
                values_of_group(v, n, b->o + v->at, p, n + (halves ? GROUP / 2 : 0), halves ? GROUP / 2 : GROUP,
                                bytes_of(halves ? b->k[i].n_col : v->n_col, format), again, format);
                continue;
            }
            for (int64_t j = 0; j < n_key; j++) {
                /* a hidden value may be NaN, and 0 * NaN is NaN */
                if (!b->addend || b->addend[(n + j) * MLA_STREAM_ROWS] != -INFINITY) {
                    values_1x1(v, n + j, b->o + v->at, p[j], format);
                }
            }
        }
    }
    float lane[LANES];
    _mm256_storeu_ps(lane, run.l);
    b->state->m[0] = run.m;
    b->state->max[0] = run.max;
    b->state->l[0] = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

INLINE void stream_one(const mla_stream_block *b, mla_format format)
{
    if (b->fetch_again) {
        stream_groups(b, true, format);
    } else {
        stream_groups(b, false, format);
    }
}

void mla_stream_one_f32_avx2(const mla_stream_block *block)
{
    stream_one(block, MLA_FORMAT_F32);
}

void mla_stream_one_f16_avx2(const mla_stream_block *block)
{
    stream_one(block, MLA_FORMAT_F16);
}

void mla_stream_one_bf16_avx2(const mla_stream_block *block)
{
    stream_one(block, MLA_FORMAT_BF16);
}
