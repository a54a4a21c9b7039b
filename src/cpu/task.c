/*
 * task.c - rows of a task: their queries, scales and visible ranges.
 */
#include "task.h"

#include <float.h>
#include <math.h>

#include "fixed.h"
#include "result.h"

mla_format mla_format_of(mla_dtype dtype)
{
    switch (dtype) {
    case MLA_DTYPE_F16: return MLA_FORMAT_F16;
    case MLA_DTYPE_BF16: return MLA_FORMAT_BF16;
    case MLA_DTYPE_HIF8: return MLA_FORMAT_HIF8;
    case MLA_DTYPE_I8: return MLA_FORMAT_I8;
    default: return MLA_FORMAT_F32;
    }
}

float mla_factor_at(const mla_tensor *t, int64_t i)
{
    return mla_tensor_present(t) ? ((const float *)t->data)[i * t->stride[0]] : 1.0f;
}

int32_t mla_task_panel_rows(const mla_task_state *t, int64_t panel)
{
    int64_t left = t->n_row - panel * MLA_ROW_PANEL;
    return (int32_t)(left < MLA_ROW_PANEL ? left : MLA_ROW_PANEL);
}

float mla_task_split_scale(mla_task_state *t, int64_t i, double descale)
{
    const mla_problem *p = t->run->problem;
    double scale = descale * (double)p->softmax_scale * (double)mla_factor_at(&p->q_descale, 0);
    if (t->nope_apart) {
        t->nope_factor[i] = mla_factor_at(&p->qk_descale, mla_task_head(t, i));
    } else {
        scale *= (double)mla_factor_at(&p->qk_descale, mla_task_head(t, i));
    }
    if (scale == 0) { /* all scores are 0, however large q.k may be */
        t->scale[i] = 1;
        return 0;
    }
    int exponent = ilogb(scale); /* of the leading bit; fp32 holds 2^-126 .. 2^127 */
    double power = ldexp(1.0, exponent < -126 ? -126 : exponent > 127 ? 127 : exponent);
    t->scale[i] = (float)(scale / power * MLA_LOG2_E);
    return (float)power;
}

void mla_task_query(const mla_task_state *t, int64_t i, const void **q, const void **q_rope)
{
    const mla_problem *p = t->run->problem;
    const mla_shape *shape = t->run->shape;
    int64_t seq = t->item->seq, head = mla_task_head(t, i);
    int64_t token = mla_query_begin(p, shape, seq) + mla_task_token(t, i);
    int64_t at = seq * shape->q_stride[0] + token * shape->q_stride[1] + head * shape->q_stride[2];
    *q = (const char *)p->q.data + at * (int64_t)mla_dtype_size(p->q.dtype);
    *q_rope = NULL;
    if (mla_tensor_present(&p->q_rope)) {
        at = seq * shape->q_rope_stride[0] + token * shape->q_rope_stride[1] + head * shape->q_rope_stride[2];
        *q_rope = (const char *)p->q_rope.data + at * (int64_t)mla_dtype_size(p->q_rope.dtype);
    }
}

void mla_task_pack(mla_task_state *t, int32_t g)
{
    double descale = (double)mla_factor_at(&t->run->problem->segment[g].descale, 0);
    if (t->packed_descale != descale) { /* also when nothing is packed yet */
        (t->stream ? mla_stream_pack : t->bf16 ? mla_bf16_pack : mla_panel_pack)(t, descale);
        t->packed_descale = descale;
        if (t->fixed) {
            t->fixed->packed = false;
        }
    }
}

void mla_task_find_ranges(mla_task_state *t, int32_t g, int64_t *begin, int64_t *end)
{
    *begin = INT64_MAX;
    *end = 0;
    for (int64_t i = 0; i < t->n_row; i++) {
        if (i > 0 && mla_task_token(t, i) == mla_task_token(t, i - 1)) {
            t->begin[i] = t->begin[i - 1];
            t->end[i] = t->end[i - 1];
            continue;
        }
        mla_index_range(t->run->problem, t->run->shape, g, t->item->seq, mla_task_token(t, i), &t->begin[i],
                        &t->end[i]);
        if (t->begin[i] < t->end[i]) {
            *begin = t->begin[i] < *begin ? t->begin[i] : *begin;
            *end = t->end[i] > *end ? t->end[i] : *end;
        }
    }
}

bool mla_task_place_ranges(mla_task_state *t, const mla_key_rows *rows, bool list)
{
    bool partial = false;
    int32_t n_key = (int32_t)rows->n_key;
    for (int64_t i = 0; i < t->n_panel * MLA_ROW_PANEL; i++) {
        int32_t begin = 0, end = n_key;
        if (i >= t->n_row) {
            /* padding: sees everything, counts for nothing */
        } else if (list) {
            end = t->begin[i] < t->end[i] ? n_key : 0;
        } else if (i > 0 && t->begin[i] == t->begin[i - 1] && t->end[i] == t->end[i - 1]) {
            begin = t->block_begin[i - 1];
            end = t->block_end[i - 1];
        } else {
            while (begin < n_key && rows->position[begin] < t->begin[i]) {
                begin++;
            }
            while (end > begin && rows->position[end - 1] >= t->end[i]) {
                end--;
            }
        }
        t->block_begin[i] = begin;
        t->block_end[i] = end;
        partial = partial || begin > 0 || end < n_key;
    }
    return partial;
}

bool mla_task_sees(const mla_task_state *t, int32_t g, const mla_key_rows *rows, int64_t i, int64_t n)
{
    const mla_tensor *mask = &t->run->problem->segment[g].mask;
    return n >= t->block_begin[i] && n < t->block_end[i] &&
           (!mla_tensor_present(mask) || mla_task_mask_at(t, mask, rows, i, n) != -INFINITY);
}

float mla_task_mask_at(const mla_task_state *t, const mla_tensor *mask, const mla_key_rows *rows, int64_t i, int64_t n)
{
    if (i >= t->n_row || n < t->block_begin[i] || n >= t->block_end[i]) {
        return 0;
    }
    const mla_shape *shape = t->run->shape;
    int64_t token = mla_task_token(t, i), column = rows->position[n];
    int64_t at = shape->batched ? t->item->seq * mask->stride[0] + token * mask->stride[1] + column * mask->stride[2]
                                : (mla_query_begin(t->run->problem, shape, t->item->seq) + token) * mask->stride[0] +
                                      column * mask->stride[1];
    /* a finite mask stays finite: only -inf hides */
    float value = mla_element_f32(mask->data, mask->dtype, at), scaled = value * (float)MLA_LOG2_E;
    return isinf(scaled) && !isinf(value) ? copysignf(FLT_MAX, value) : scaled;
}
