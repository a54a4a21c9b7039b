/*
 * problem_fixture.h - small valid problems of every kind, with all the memory they speak of, for tests that break them.
 *
 * Three sequences, six query tokens, four query heads over two kv heads, d_k 8 (or 8 + 4), d_v 6, pages of four rows.
 */
#ifndef PROBLEM_FIXTURE_H
#define PROBLEM_FIXTURE_H

#include <string.h>

#include "mla/mla.h"

enum { N_SEQ = 3, N_Q = 2, N_TOKEN = 6, N_HEAD = 4, N_KV_HEAD = 2, D = 8, D_ROPE = 4, D_V = 6 };
enum { N_PAGE = 5, PAGE_SIZE = 4, MAX_PAGE = 3, MAX_LEN = 7, N_ROW = 20, N_ENTRY = 5 };

#define UNUSED_PAGE 2147480000 /* what serving stacks leave in the tail of a page table */

typedef enum fixture_kind {
    PAGED,      /* causal, batched q, page table */
    BATCHED,    /* k [n_seq][max_len], lengths, mask */
    PACKED,     /* ragged q and k, q_length */
    SPLIT,      /* paged, with q_rope, k_rope and v, every output */
    LISTED,     /* paged, with a logical list cut per token */
    PHYSICAL,   /* a pool and a physical list cut per sequence */
    COMPRESSED, /* packed q; a window over segment 0 and compressed rows in segment 1, sink, rounding of P */
    NZ,         /* paged, k and k_rope of layout NZ in pieces of 4 and 2 columns, one kv head */
    N_KIND
} fixture_kind;

typedef struct fixture_segment {
    int32_t length[N_SEQ], table[N_SEQ * MAX_PAGE], begin[N_SEQ + 1], residual[N_SEQ];
    int32_t list[N_TOKEN * N_ENTRY], list_length[N_TOKEN];
    float descale[1];
    uint16_t k[N_SEQ * MAX_LEN * N_KV_HEAD * D], rope[N_PAGE * PAGE_SIZE * N_KV_HEAD * D_ROPE];
    uint16_t v[N_PAGE * PAGE_SIZE * N_KV_HEAD * D_V], mask[N_TOKEN * MAX_PAGE * PAGE_SIZE];
} fixture_segment;

typedef struct fixture {
    mla_problem p;
    int32_t q_begin[N_SEQ + 1], q_length[N_SEQ];
    float q_descale[1], qk_descale[N_HEAD], pv_descale[N_HEAD], sink[N_HEAD];
    uint16_t q[N_TOKEN * N_HEAD * D], q_rope[N_TOKEN * N_HEAD * D_ROPE], o[N_TOKEN * N_HEAD * D_V];
    float lse[N_TOKEN * N_HEAD], max[N_TOKEN * N_HEAD];
    fixture_segment segment[2];
} fixture;

#define DIMS(...)                                                              \
    (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) \
    {                                                                          \
        __VA_ARGS__                                                            \
    }

static inline void fixture_queries(fixture *f, bool batched)
{
    mla_problem *p = &f->p;
    if (batched) {
        p->q = mla_tensor_make(f->q, MLA_DTYPE_BF16, DIMS(N_SEQ, N_Q, N_HEAD, D));
        p->o = mla_tensor_make(f->o, MLA_DTYPE_BF16, DIMS(N_SEQ, N_Q, N_HEAD, D_V));
        p->lse = mla_tensor_make(f->lse, MLA_DTYPE_F32, DIMS(N_SEQ, N_Q, N_HEAD));
    } else {
        p->q = mla_tensor_make(f->q, MLA_DTYPE_BF16, DIMS(N_TOKEN, N_HEAD, D));
        p->o = mla_tensor_make(f->o, MLA_DTYPE_BF16, DIMS(N_TOKEN, N_HEAD, D_V));
        p->lse = mla_tensor_make(f->lse, MLA_DTYPE_F32, DIMS(N_TOKEN, N_HEAD));
        memcpy(f->q_begin, (int32_t[]){0, 2, 3, 5}, sizeof f->q_begin); /* the last token belongs to nobody */
        p->q_begin = mla_tensor_make(f->q_begin, MLA_DTYPE_I32, DIMS(N_SEQ + 1));
    }
    p->d_v = D_V;
    p->softmax_scale = 0.25f;
}

/* Lengths 5, 0 and 12 need two pages, none and three; the other entries must never be looked at. */
static inline void fixture_pages(fixture *f, int g)
{
    fixture_segment *data = &f->segment[g];
    mla_segment *s = &f->p.segment[g];
    s->k = mla_tensor_make(data->k, MLA_DTYPE_BF16, DIMS(N_PAGE, PAGE_SIZE, N_KV_HEAD, D));
    s->page_table = mla_tensor_make(data->table, MLA_DTYPE_I32, DIMS(N_SEQ, MAX_PAGE));
    s->length = mla_tensor_make(data->length, MLA_DTYPE_I32, DIMS(N_SEQ));
    memcpy(data->length, (int32_t[]){5, 0, 12}, sizeof data->length);
    memcpy(data->table, (int32_t[]){3, 1, UNUSED_PAGE, -1, UNUSED_PAGE, -1, 0, 2, 4}, sizeof data->table);
}

static inline void fixture_list(fixture *f, bool per_token)
{
    fixture_segment *data = &f->segment[0];
    mla_segment *s = &f->p.segment[0];
    s->list = mla_tensor_make(data->list, MLA_DTYPE_I32, DIMS(N_SEQ, N_Q, N_ENTRY));
    s->list_length = per_token ? mla_tensor_make(data->list_length, MLA_DTYPE_I32, DIMS(N_SEQ, N_Q))
                               : mla_tensor_make(data->list_length, MLA_DTYPE_I32, DIMS(N_SEQ));
    memcpy(data->list, (int32_t[]){4, -1, 0, 4, INT32_MAX}, N_ENTRY * sizeof *data->list);
    memcpy(data->list_length, (int32_t[]){5, 0, -3, 2, 5, 1}, sizeof data->list_length);
}

/* Strings, tensors and pointers lead into *f, so it must not be moved afterwards. */
static inline void fixture_init(fixture *f, fixture_kind kind)
{
    memset(f, 0, sizeof *f);
    mla_problem *p = &f->p;
    mla_segment *s = &p->segment[0];
    fixture_segment *data = &f->segment[0];
    mla_problem_init(p);
    switch (kind) {
    case PAGED:
        fixture_queries(f, true);
        fixture_pages(f, 0);
        s->visible.rule = MLA_VISIBLE_CAUSAL;
        break;
    case BATCHED:
        fixture_queries(f, true);
        s->k = mla_tensor_make(data->k, MLA_DTYPE_BF16, DIMS(N_SEQ, MAX_LEN, N_KV_HEAD, D));
        s->length = mla_tensor_make(data->length, MLA_DTYPE_I32, DIMS(N_SEQ));
        s->mask = mla_tensor_make(data->mask, MLA_DTYPE_F16, DIMS(N_SEQ, N_Q, MAX_LEN));
        memcpy(data->length, (int32_t[]){7, -2, 1}, sizeof data->length);
        break;
    case PACKED:
        fixture_queries(f, false);
        s->k = mla_tensor_make(data->k, MLA_DTYPE_BF16, DIMS(N_ROW, N_KV_HEAD, D));
        s->k_begin = mla_tensor_make(data->begin, MLA_DTYPE_I32, DIMS(N_SEQ + 1));
        memcpy(data->begin, (int32_t[]){0, 5, 5, 17}, sizeof data->begin);
        s->length = mla_tensor_make(data->length, MLA_DTYPE_I32, DIMS(N_SEQ));
        memcpy(data->length, (int32_t[]){5, 0, 9}, sizeof data->length);
        p->q_length = mla_tensor_make(f->q_length, MLA_DTYPE_I32, DIMS(N_SEQ));
        memcpy(f->q_length, (int32_t[]){1, 1, -1}, sizeof f->q_length);
        s->visible.rule = MLA_VISIBLE_CAUSAL;
        break;
    case SPLIT:
        fixture_queries(f, true);
        fixture_pages(f, 0);
        p->q_rope = mla_tensor_make(f->q_rope, MLA_DTYPE_BF16, DIMS(N_SEQ, N_Q, N_HEAD, D_ROPE));
        s->k_rope = mla_tensor_make(data->rope, MLA_DTYPE_BF16, DIMS(N_PAGE, PAGE_SIZE, N_KV_HEAD, D_ROPE));
        s->v = mla_tensor_make(data->v, MLA_DTYPE_BF16, DIMS(N_PAGE, PAGE_SIZE, N_KV_HEAD, D_V));
        p->max = mla_tensor_make(f->max, MLA_DTYPE_F32, DIMS(N_SEQ, N_Q, N_HEAD));
        p->q_descale = mla_tensor_make(f->q_descale, MLA_DTYPE_F32, DIMS(1));
        p->qk_descale = mla_tensor_make(f->qk_descale, MLA_DTYPE_F32, DIMS(N_HEAD));
        p->pv_descale = mla_tensor_make(f->pv_descale, MLA_DTYPE_F32, DIMS(N_HEAD));
        s->descale = mla_tensor_make(data->descale, MLA_DTYPE_F32, DIMS(1));
        break;
    case LISTED:
        fixture_queries(f, true);
        fixture_pages(f, 0);
        fixture_list(f, true);
        break;
    case PHYSICAL:
        fixture_queries(f, true);
        s->k = mla_tensor_make(data->k, MLA_DTYPE_BF16, DIMS(N_PAGE, PAGE_SIZE, N_KV_HEAD, D));
        fixture_list(f, false);
        s->list_address = MLA_LIST_PHYSICAL;
        break;
    case NZ:
        fixture_queries(f, true);
        fixture_pages(f, 0);
        s->layout = MLA_KEY_LAYOUT_NZ;
        s->k = mla_tensor_make(data->k, MLA_DTYPE_BF16, DIMS(N_PAGE, D / 4, PAGE_SIZE, 4));
        p->q_rope = mla_tensor_make(f->q_rope, MLA_DTYPE_BF16, DIMS(N_SEQ, N_Q, N_HEAD, D_ROPE));
        s->k_rope = mla_tensor_make(data->rope, MLA_DTYPE_BF16, DIMS(N_PAGE, D_ROPE / 2, PAGE_SIZE, 2));
        break;
    case COMPRESSED:
    default:
        fixture_queries(f, false);
        fixture_pages(f, 0);
        fixture_pages(f, 1);
        p->n_segment = 2;
        s->visible = (mla_visible){.rule = MLA_VISIBLE_WINDOW, .left = 3, .right = 0};
        p->segment[1].visible.rule = MLA_VISIBLE_COMPRESSED;
        p->segment[1].visible.ratio = 4;
        p->segment[1].visible.residual = mla_tensor_make(f->segment[1].residual, MLA_DTYPE_I32, DIMS(N_SEQ));
        memcpy(f->segment[1].residual, (int32_t[]){3, 0, 1}, sizeof f->segment[1].residual);
        data->table[6] = -1; /* the window has left this page behind */
        p->sink = mla_tensor_make(f->sink, MLA_DTYPE_F32, DIMS(N_HEAD));
        p->lse_empty = MLA_LSE_EMPTY_ZERO;
        p->lse_with_sink = true;
        p->p_rounding = MLA_P_ROUND_HIF8;
        p->p_tile = 128;
        break;
    }
}

#endif
