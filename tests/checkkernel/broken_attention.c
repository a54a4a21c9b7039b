/*
 * broken_attention.c - a plain fp32 attention, tile by tile and split by split as kernels do it, that can be told to
 * have one of the bugs of broken.h. Without a bug it is right, and every check must say so.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "broken_attention.h"

#define TILE CK_BROKEN_TILE
#define SPLIT 512

static void load_columns(const ck_broken *b, const mla_tensor *t, int64_t at, int64_t n, float *to)
{
    for (int64_t d = 0; d < n; d++) {
        to[d] = ck_broken_load(b->bug, t, at + d);
    }
}

float ck_broken_factor(const mla_tensor *t, int64_t i)
{
    return mla_tensor_present(t) ? ck_broken_load(BUG_NONE, t, i * t->stride[0]) : 1.0f;
}

/* ---- which keys -------------------------------------------------------------------------------------------------- */

static int64_t per_token(const ck_broken *b, const mla_tensor *t, int64_t s, int64_t token)
{
    return b->shape.batched ? s * t->stride[0] + token * t->stride[1]
                            : (mla_query_begin(b->p, &b->shape, s) + token) * t->stride[0];
}

static void range_of(const ck_broken *b, int32_t g, int64_t s, int64_t token, int64_t *begin, int64_t *end)
{
    const mla_visible *visible = &b->p->segment[g].visible;
    int64_t length = mla_key_length(b->p, &b->shape, g, s), used = mla_query_used(b->p, &b->shape, s);
    if (b->bug == BUG_Q_LENGTH) {
        used = mla_query_slots(b->p, &b->shape, s);
    }
    int64_t t = length - used + token + 1;
    *begin = 0;
    *end = length;
    if (visible->rule == MLA_VISIBLE_CAUSAL) {
        *end = b->bug == BUG_CAUSAL_TOP_LEFT ? token + 1 : b->bug == BUG_CAUSAL_OFF_BY_ONE ? t - 1 : t;
    } else if (visible->rule == MLA_VISIBLE_WINDOW) {
        int64_t far = length + used; /* a limit beyond it is no limit */
        int64_t left = visible->left > far ? far : visible->left, right = visible->right > far ? far : visible->right;
        *begin = left < 0 ? 0 : t - left - 1 - (b->bug == BUG_WINDOW_LEFT);
        *end = right < 0 ? length : t + right;
    } else if (visible->rule == MLA_VISIBLE_COMPRESSED) {
        int64_t residual = mla_tensor_present(&visible->residual) ? mla_index_at(&visible->residual, s) : 0;
        int64_t rest = residual - used + token + 1; /* beyond length * ratio */
        rest += b->bug == BUG_COMPRESSED_TRUNCATES ? visible->ratio - 1 : 0;
        *end = length + rest / visible->ratio - (rest % visible->ratio < 0);
    }
    *begin = *begin < 0 ? 0 : *begin;
    *end = *end > length ? length : *end;
    if (token >= used || *end < *begin) {
        *begin = *end = 0;
    }
}

void ck_broken_candidates(const ck_broken *b, int32_t g, int64_t s, int64_t token, int64_t *begin, int64_t *end)
{
    const mla_segment *segment = &b->p->segment[g];
    range_of(b, g, s, token, begin, end);
    if (!b->shape.segment[g].has_list || token >= mla_query_used(b->p, &b->shape, s)) {
        return;
    }
    int64_t n = b->shape.segment[g].n_entry, width = *end - *begin;
    const mla_tensor *length = &segment->list_length;
    if (mla_tensor_present(length)) {
        bool each = b->shape.batched ? length->ndim == 2 : length->dim[0] == b->shape.n_token;
        int64_t limit = ((int32_t *)length->data)[each ? per_token(b, length, s, token) : s * length->stride[0]];
        n = limit < n ? limit : n;
    }
    bool stop = segment->list_rule == MLA_LIST_STOP && b->bug != BUG_LIST_NO_STOP;
    if (stop && segment->list_address == MLA_LIST_LOGICAL && segment->visible.rule != MLA_VISIBLE_ALL && width < n) {
        n = width;
    }
    const int32_t *list = (const int32_t *)segment->list.data + per_token(b, &segment->list, s, token);
    for (int64_t j = 0; stop && j < n; j++) {
        if (list[j] < 0) {
            n = j;
        }
    }
    *begin = 0;
    *end = n < 0 ? 0 : n;
    *end -= b->bug == BUG_LIST_LAST && *end > 0;
}

static int64_t element(const ck_broken *b, const int64_t *stride, int64_t page, int64_t slot, int64_t kv_head)
{
    int64_t at = page * stride[0] + slot * stride[1] + kv_head * stride[2];
    return b->bug == BUG_OFFSET_32 ? (int64_t)(int32_t)(uint32_t)at : at;
}

bool ck_broken_find_key(const ck_broken *b, int32_t g, int64_t s, int64_t token, int64_t j, int64_t *page,
                        int64_t *slot, int64_t *position)
{
    const mla_segment *segment = &b->p->segment[g];
    const mla_segment_shape *sizes = &b->shape.segment[g];
    *position = j;
    if (sizes->has_list) {
        const int32_t *list = (const int32_t *)segment->list.data + per_token(b, &segment->list, s, token);
        int64_t entry = list[j], begin = 0, end = sizes->n_page * sizes->page_size;
        bool physical = segment->list_address == MLA_LIST_PHYSICAL;
        if (!physical) {
            range_of(b, g, s, token, &begin, &end);
        }
        if (b->bug == BUG_LIST_CLAMPED && begin < end && (entry < begin || entry >= end)) {
            entry = begin;
        }
        for (int64_t x = 0; b->bug == BUG_LIST_UNIQUE && x < j; x++) {
            if (list[x] == entry) {
                return false;
            }
        }
        if (entry < begin || entry >= end) {
            return false;
        }
        *page = entry / sizes->page_size;
        *slot = entry % sizes->page_size;
        *position = physical ? j : entry;
        if (physical) {
            return true;
        }
    }
    if (sizes->addressing == MLA_ADDRESS_PAGED) {
        int64_t size = b->bug == BUG_PAGE_64 ? 64 : sizes->page_size;
        const int32_t *table = (const int32_t *)segment->page_table.data + s * segment->page_table.stride[0];
        if (*position / size >= sizes->max_page) {
            return false;
        }
        *page = table[*position / size * segment->page_table.stride[1]];
        *slot = *position % size;
        if (*page < 0 || *page >= sizes->n_page) {
            return false;
        }
        if (b->bug == BUG_PAGE_UNITS) {
            *slot += *page % sizes->page_size;
            *page /= sizes->page_size;
            *page += *slot / sizes->page_size;
            *slot %= sizes->page_size;
        }
        return true;
    }
    *page = sizes->addressing == MLA_ADDRESS_BATCHED ? s : 0;
    *slot = *position + (sizes->addressing == MLA_ADDRESS_PACKED ? mla_index_at(&segment->k_begin, s) : 0);
    return true;
}

/* ---- one tile ---------------------------------------------------------------------------------------------------- */

static float dot(const float *a, const float *b, int64_t n)
{
    float lane[8] = {0}, sum = 0;
    int64_t d = 0;
    for (; d + 8 <= n; d += 8) {
        for (int x = 0; x < 8; x++) {
            lane[x] += a[d + x] * b[d + x];
        }
    }
    for (; d < n; d++) {
        sum += a[d] * b[d];
    }
    for (int x = 0; x < 8; x++) {
        sum += lane[x];
    }
    return sum;
}

/* n columns of a stored row, in pieces. */
static void load_pieces(const ck_broken *b, const mla_tensor *t, int64_t at, const mla_pieces *pieces, int64_t n,
                        float *to)
{
    if (b->bug == BUG_NZ_AS_ROW || pieces->stride == 0) {
        load_columns(b, t, at, n, to);
        return;
    }
    for (int64_t d = 0; d < n; d++) {
        to[d] = ck_broken_load(b->bug, t, at + d / pieces->columns * pieces->stride + d % pieces->columns);
    }
}

/* Loads key and value of one row; v is a row of b->v. */
static void load_key(ck_broken *b, int32_t g, int64_t page, int64_t slot, int64_t kv_head, float *v)
{
    const mla_segment *segment = &b->p->segment[g];
    const mla_segment_shape *sizes = &b->shape.segment[g];
    int64_t d_nope = b->shape.d_nope, d_v = b->shape.d_v;
    int64_t more = b->bug == BUG_READS_TOO_FAR ? 8 : 0;
    load_pieces(b, &segment->k, element(b, sizes->k_stride, page, slot, kv_head), &sizes->k_pieces, d_nope + more,
                b->k);
    if (b->shape.d_rope > 0) {
        load_pieces(b, &segment->k_rope, element(b, sizes->k_rope_stride, page, slot, kv_head), &sizes->k_rope_pieces,
                    b->shape.d_rope, b->k + d_nope);
    }
    if (mla_tensor_present(&segment->v) && b->bug != BUG_V_FROM_K) {
        load_columns(b, &segment->v, element(b, sizes->v_stride, page, slot, kv_head), d_v, v);
    } else {
        int64_t n = d_v < b->shape.d_k ? d_v : b->shape.d_k;
        memset(v, 0, sizeof *v * (size_t)d_v);
        memcpy(v, b->k, sizeof *v * (size_t)n);
    }
}

float ck_broken_score(ck_broken *b, int32_t g, int64_t page, int64_t slot, int64_t h, float *v)
{
    const mla_problem *p = b->p;
    int64_t kv_head = b->bug == BUG_HEADS_INTERLEAVED ? h % b->shape.n_kv_head : h / b->shape.group;
    float scale = p->softmax_scale * ck_broken_factor(&p->q_descale, 0) * ck_broken_factor(&p->segment[g].descale, 0);
    float qk = b->bug == BUG_NO_QK_DESCALE ? 1 : ck_broken_factor(&p->qk_descale, h);
    load_key(b, g, page, slot, kv_head, v);
    int64_t d_nope = b->shape.d_nope, d_rope = b->bug == BUG_NO_ROPE ? 0 : b->shape.d_rope;
    if (b->bug == BUG_LAST_COLUMN) {
        *(d_rope > 0 ? &d_rope : &d_nope) -= 1;
    }
    float rope = dot(b->q + b->shape.d_nope, b->k + b->shape.d_nope, d_rope);
    float product = qk * dot(b->q, b->k, d_nope) + (b->bug == BUG_QK_DESCALE_ROPE ? qk * rope : rope);
    if (b->bug == BUG_HALF_SCORES && fabsf(product) > 65504) {
        product = product > 0 ? INFINITY : -INFINITY;
    }
    return scale * product;
}

float ck_broken_mask(const ck_broken *b, int32_t g, int64_t s, int64_t token, int64_t position)
{
    const mla_tensor *mask = &b->p->segment[g].mask;
    if (!mla_tensor_present(mask)) {
        return 0;
    }
    int64_t row = per_token(b, mask, s, token);
    if (b->bug == BUG_MASK_STRIDE && mask->stride[0] == 0) {
        row = (s + token) * mask->dim[mask->ndim - 1];
    }
    return ck_broken_load(b->bug, mask, row + position * mask->stride[mask->ndim - 1]);
}

static float exp_or_zero(float x)
{
    return x == -INFINITY ? 0.0f : expf(x);
}

static float round_p(const ck_broken *b, float p)
{
    if (b->bug != BUG_ROUNDED_P) {
        return p;
    }
    uint32_t bits;
    memcpy(&bits, &p, sizeof bits);
    bits = (bits + 0x800) & ~0xfffu;
    memcpy(&p, &bits, sizeof p);
    return p;
}

static void add_tile(const ck_broken *b, ck_broken_state *to, const float *score, int64_t n)
{
    float m = b->bug == BUG_NO_MAX ? 0 : to->m;
    for (int64_t j = 0; j < n && b->bug != BUG_NO_MAX; j++) {
        m = score[j] > m || isnan(score[j]) ? score[j] : m;
    }
    if (b->bug == BUG_NAN_LOST_IN_MAX) {
        for (int64_t j = 0; j < n; j++) {
            to->max = score[j] > to->max ? score[j] : to->max;
        }
    } else {
        to->max = to->max > m ? to->max : m;
    }
    if (m == -INFINITY && b->bug != BUG_MASKED_ROW_NAN) {
        return;
    }
    float use = b->bug == BUG_STALE_MAX && to->m > -INFINITY ? to->m : m;
    float rescale = b->bug == BUG_NO_RESCALE ? 1 : exp_or_zero(to->m - use);
    to->l *= rescale;
    for (int64_t c = 0; c < b->shape.d_v; c++) {
        to->o[c] *= rescale;
    }
    for (int64_t j = 0; j < n; j++) {
        float p = b->bug == BUG_MASKED_ROW_NAN ? expf(score[j] - use) : exp_or_zero(score[j] - use);
        if (p == 0 && b->bug != BUG_ZERO_TIMES_NAN) {
            continue;
        }
        to->l += p;
        p = round_p(b, p);
        const float *v = b->v + j * b->shape.d_v;
        for (int64_t c = 0; c < b->shape.d_v; c++) {
            to->o[c] += p * v[c];
        }
    }
    to->m = m;
}

static void merge(const ck_broken *b, ck_broken_state *to, const ck_broken_state *part)
{
    to->max = to->max > part->max ? to->max : part->max;
    if (part->l == 0) {
        return;
    }
    if (b->bug == BUG_SPLIT_UNWEIGHTED && to->l > 0) {
        float all = to->l + part->l;
        for (int64_t c = 0; c < b->shape.d_v; c++) {
            to->o[c] = 0.5f * all * (to->o[c] / to->l + part->o[c] / part->l);
        }
        to->l = all;
        return;
    }
    float m = to->m > part->m || isnan(to->m) ? to->m : part->m;
    float x = exp_or_zero(to->m - m), y = exp_or_zero(part->m - m);
    for (int64_t c = 0; c < b->shape.d_v; c++) {
        to->o[c] = to->o[c] * x + part->o[c] * y;
    }
    to->l = to->l * x + part->l * y;
    to->m = m;
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

static void clear(const ck_broken *b, ck_broken_state *s)
{
    s->m = s->max = -INFINITY;
    s->l = s->joined = 0;
    memset(s->o, 0, sizeof *s->o * (size_t)b->shape.d_v);
}

static void add_candidates(ck_broken *b, int32_t g, int64_t s, int64_t token, int64_t h, int64_t begin, int64_t end,
                           ck_broken_state *part)
{
    const mla_problem *p = b->p;
    const mla_segment *segment = &p->segment[g];
    float descale = ck_broken_factor(&segment->descale, 0);
    for (int64_t at = begin; at < end; at += TILE) {
        int64_t stop = at + TILE < end ? at + TILE : end, n = 0;
        float score[TILE];
        int64_t length = mla_key_length(p, &b->shape, g, s), extra = 0;
        if (b->bug == BUG_ZERO_TIMES_NAN && !b->shape.segment[g].has_list && stop == end && stop - at < TILE &&
            stop < length) {
            extra = 1;
        }
        if (b->bug == BUG_TAIL_KEY && stop == end && stop - at < TILE && stop - at > 1) {
            stop--;
        }
        for (int64_t j = at; j < stop + extra; j++) {
            int64_t page, slot, position;
            if (!ck_broken_find_key(b, g, s, token, j, &page, &slot, &position)) {
                continue;
            }
            float add = j < stop ? ck_broken_mask(b, g, s, token, position) : 0;
            if (add == -INFINITY && b->bug != BUG_MASKED_ROW_NAN && b->bug != BUG_MASKED_KEY_NAN) {
                continue;
            }
            add *= b->bug == BUG_MASK_SCALED ? p->softmax_scale : 1;
            float product = ck_broken_score(b, g, page, slot, h, b->v + n * b->shape.d_v);
            score[n++] = j < stop ? product + add : -INFINITY;
            if (b->bug != BUG_V_DESCALE) {
                for (int64_t c = 0; descale != 1 && c < b->shape.d_v; c++) {
                    b->v[(n - 1) * b->shape.d_v + c] *= descale;
                }
            }
        }
        add_tile(b, part, score, n);
    }
    if (b->bug == BUG_TABLE_TOO_FAR && b->shape.segment[g].addressing == MLA_ADDRESS_PAGED && begin < end &&
        mla_tensor_present(&segment->page_table)) {
        int64_t column = (end - 1) / b->shape.segment[g].page_size + 1;
        if (column < b->shape.segment[g].max_page) {
            int64_t page = ((const int32_t *)segment->page_table.data)[s * segment->page_table.stride[0] + column];
            load_key(b, g, page, 0, h / b->shape.group, b->v);
        }
    }
}

static void write_row(ck_broken *b, int64_t s, int64_t token, int64_t h, ck_broken_state *total)
{
    const mla_problem *p = b->p;
    const mla_shape *shape = &b->shape;
    bool seen = total->l != 0 || isnan(total->l);
    if (!seen && b->bug == BUG_LONELY_ROW) {
        return;
    }
    float sink = mla_tensor_present(&p->sink) ? ck_broken_load(b->bug, &p->sink, h * p->sink.stride[0]) : -INFINITY;
    if (b->bug == BUG_SINK_MINUS_INF && mla_tensor_present(&p->sink) && sink == -INFINITY) {
        sink = -20;
    }
    float keys_lse = total->m + logf(total->l), lse = keys_lse, share = 1;
    if (seen && sink > -INFINITY && b->bug != BUG_SINK_PER_SPLIT) {
        float d = sink - keys_lse;
        share = 1 / (1 + expf(d));
        lse = sink == INFINITY ? sink : d > 0 ? sink + log1pf(expf(-d)) : keys_lse + log1pf(expf(d));
        if (b->bug == BUG_SINK_INF_NAN) {
            share = expf(keys_lse - fmaxf(sink, keys_lse)) /
                    (expf(keys_lse - fmaxf(sink, keys_lse)) + expf(sink - fmaxf(sink, keys_lse)));
        }
    }
    lse = p->lse_with_sink || b->bug == BUG_SINK_IN_LSE ? lse : keys_lse;
    if (b->bug == BUG_LSE_WITHOUT_SCALE && seen) {
        lse /= p->softmax_scale;
    }
    if (p->lse_base == MLA_LSE_BASE2 || b->bug == BUG_LSE_BASE) {
        lse *= 1.44269504f;
    }
    if (!seen) {
        lse = p->lse_empty == MLA_LSE_EMPTY_POS_INF || b->bug == BUG_LSE_EMPTY ? INFINITY
              : p->lse_empty == MLA_LSE_EMPTY_NEG_INF                          ? -INFINITY
                                                                               : 0;
    }
    int64_t row = mla_query_begin(p, shape, s) + token;
    const int64_t *stride = shape->o_stride;
    int64_t at = s * stride[0] + row * stride[1] + h * stride[2];
    float divisor = total->joined != 0 ? total->joined : total->l / share;
    float scale = seen ? ck_broken_factor(&p->pv_descale, h) / divisor : 0;
    if (b->bug == BUG_ONE_ROW && s == 2 && token == shape->n_q / 2 && h == shape->n_head / 2) {
        scale *= 1.001f;
    }
    for (int64_t c = 0; c < shape->d_v; c++) {
        if (b->bug == BUG_ONE_ELEMENT && c == shape->d_v - 1 && h == shape->n_head - 1 && token == 0) {
            continue;
        }
        ck_broken_store(b->bug, &p->o, at + c, seen ? total->o[c] * scale : 0);
    }
    if (b->bug == BUG_WRITES_TOO_FAR) {
        ck_broken_store(b->bug, &p->o, at + shape->d_v, 0);
    }
    if (mla_tensor_present(&p->lse)) {
        stride = shape->lse_stride;
        ck_broken_store(b->bug, &p->lse, s * stride[0] + row * stride[1] + h * stride[2], lse);
    }
    if (mla_tensor_present(&p->max)) {
        stride = shape->max_stride;
        float max = b->bug == BUG_SINK_IN_MAX && seen && sink > total->max ? sink : total->max;
        ck_broken_store(b->bug, &p->max, s * stride[0] + row * stride[1] + h * stride[2], max);
    }
}

static void run_row(ck_broken *b, int64_t s, int64_t token, int64_t h)
{
    const mla_problem *p = b->p;
    const int64_t *stride = b->shape.q_stride, *rope_stride = b->shape.q_rope_stride;
    int64_t head_stride = b->bug == BUG_DENSE_Q ? b->shape.d_nope : stride[2];
    int64_t row = (b->bug == BUG_Q_BEGIN && mla_tensor_present(&p->q_begin) ? -mla_index_at(&p->q_begin, 0) : 0) +
                  mla_query_begin(p, &b->shape, s) + token;
    load_columns(b, &p->q, s * stride[0] + row * stride[1] + h * head_stride, b->shape.d_nope, b->q);
    if (b->shape.d_rope > 0) {
        load_columns(b, &p->q_rope, s * rope_stride[0] + row * rope_stride[1] + h * rope_stride[2], b->shape.d_rope,
                     b->q + b->shape.d_nope);
    }
    ck_broken_state total = {.o = b->total}, part = {.o = b->part};
    clear(b, &total);
    if (p->p_rounding != MLA_P_ROUND_NONE) {
        ck_broken_rounded_row(b, s, token, h, &total);
        write_row(b, s, token, h, &total);
        return;
    }
    for (int32_t g = 0; g < b->shape.n_segment; g++) {
        int64_t begin, end;
        ck_broken_candidates(b, g, s, token, &begin, &end);
        begin += b->bug == BUG_SECOND_SEGMENT && g == 1 && begin < end;
        int64_t split = b->split;
        if (b->bug == BUG_SPLIT_BY_PLACE) {
            split = SPLIT / (s + 1) + 1;
        } else if (b->bug == BUG_SPLIT_BY_PAGE && b->shape.segment[g].addressing == MLA_ADDRESS_PAGED) {
            split = b->shape.segment[g].page_size * 8;
        }
        for (int64_t at = begin; at < end;) {
            int64_t stop = (at / split + 1) * split;
            stop = stop < end ? stop : end;
            clear(b, &part);
            add_candidates(b, g, s, token, h, at, stop, &part);
            if (b->bug == BUG_SINK_PER_SPLIT && mla_tensor_present(&p->sink) && part.l > 0) {
                part.l += expf(ck_broken_load(b->bug, &p->sink, h * p->sink.stride[0]) - part.m);
            }
            if (b->bug == BUG_SEGMENTS_APART && g == 1 && at == begin && total.l > 0 && part.l > 0) {
                float to_m = total.m;
                total.m = part.m = 0;
                merge(b, &total, &part);
                total.m = to_m;
            } else {
                merge(b, &total, &part);
            }
            at = stop;
        }
    }
    write_row(b, s, token, h, &total);
}

mla_status ck_broken_attention(const mla_problem *problem, uint32_t bug, int32_t n_thread)
{
    ck_broken b = {.p = problem, .bug = (ck_bug)bug, .split = SPLIT};
    mla_status status = mla_problem_resolve(problem, &b.shape);
    if (status != MLA_STATUS_OK) {
        return status;
    }
    if (b.bug == BUG_SPLIT_BY_THREADS) {
        b.split = SPLIT / n_thread + 1;
    } else if (b.bug == BUG_SPLIT_BY_BATCH) {
        b.split = SPLIT / b.shape.n_seq + 1;
    }
    size_t d_k = (size_t)b.shape.d_k + 8, d_v = (size_t)b.shape.d_v;
    size_t tile = problem->p_tile > TILE ? (size_t)problem->p_tile : TILE;
    float *memory = calloc(2 * d_k + (tile + 1) * d_v + 2 * d_v, sizeof *memory);
    if (!memory) {
        return MLA_STATUS_OUT_OF_MEMORY;
    }
    b.q = memory;
    b.k = b.q + d_k;
    b.part = b.k + d_k;
    b.total = b.part + d_v;
    b.v = b.total + d_v;
    for (int64_t s = 0; s < b.shape.n_seq && !(b.bug == BUG_GRID && s >= 65535); s++) {
        for (int64_t token = 0; token < mla_query_slots(problem, &b.shape, s); token++) {
            for (int64_t h = 0; h < b.shape.n_head; h++) {
                run_row(&b, s, token, h);
            }
        }
    }
    free(memory);
    return MLA_STATUS_OK;
}
