/*
 * paged_case.c - see paged_case.h.
 */
#include "paged_case.h"

#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_number.h"

static int64_t pages_for(int64_t n_key, int64_t page_size)
{
    return (n_key + page_size - 1) / page_size;
}

/* Longest request that a shape may have. */
static int64_t longest(const paged_shape *shape)
{
    return shape->ragged ? shape->n_key + shape->n_key / 4 : shape->n_key;
}

double paged_case_bytes(const paged_shape *shape, int64_t n_copy)
{
    double page_bytes = (double)shape->page_size * (double)shape->d_k * (double)mla_dtype_size(shape->dtype);
    double cache = (double)shape->n_seq * (double)pages_for(longest(shape), shape->page_size) * page_bytes;
    double rows = (double)shape->n_seq * (double)shape->n_q * (double)shape->n_head;
    return cache * (double)n_copy + rows * 4.0 * (double)(shape->d_k + shape->d_v);
}

static void fill_lengths(paged_case *c, number_rng *rng)
{
    const paged_shape *s = &c->shape;
    c->max_page = 1;
    for (int64_t i = 0; i < s->n_seq; i++) {
        int64_t length = s->ragged ? number_range(rng, s->n_key - s->n_key / 4, longest(s)) : s->n_key;
        c->length[i] = (int32_t)length;
        int64_t pages = pages_for(length, s->page_size);
        c->n_page += pages;
        c->max_page = pages > c->max_page ? pages : c->max_page;
        c->keys += (double)length;
        for (int64_t t = 0; t < s->n_q; t++) {
            int64_t seen = s->causal ? length - s->n_q + t + 1 : length;
            c->pairs += seen > 0 ? (double)seen : 0;
        }
    }
}

/* Pages of all requests, shuffled over the pool as a running server would have them. */
static bool fill_page_table(paged_case *c, number_rng *rng)
{
    const paged_shape *s = &c->shape;
    int32_t *page = cli_alloc((size_t)c->n_page, sizeof *page);
    c->page_table = cli_alloc((size_t)(s->n_seq * c->max_page), sizeof *c->page_table);
    if (page == NULL || c->page_table == NULL) {
        free(page);
        return false;
    }
    number_fill_permutation(page, c->n_page, rng);
    int64_t next = 0;
    for (int64_t i = 0; i < s->n_seq; i++) {
        for (int64_t j = 0; j < c->max_page; j++) {
            bool used = j < pages_for(c->length[i], s->page_size);
            c->page_table[i * c->max_page + j] = used ? page[next++] : -1;
        }
    }
    free(page);
    return true;
}

bool paged_case_make(const paged_shape *shape, int64_t n_copy, uint64_t seed, paged_case *c)
{
    number_rng rng = {seed};
    *c = (paged_case){.shape = *shape, .n_copy = n_copy};
    c->length = cli_alloc((size_t)shape->n_seq, sizeof *c->length);
    if (c->length == NULL) {
        return false;
    }
    fill_lengths(c, &rng);
    int64_t n_value = c->n_page * shape->page_size * shape->d_k;
    int64_t n_row = shape->n_seq * shape->n_q * shape->n_head;
    c->copy_bytes = (size_t)n_value * mla_dtype_size(shape->dtype);
    c->q = cli_alloc((size_t)(n_row * shape->d_k), mla_dtype_size(shape->dtype));
    c->o = cli_alloc((size_t)(n_row * shape->d_v), sizeof(float));
    c->lse = cli_alloc((size_t)n_row, sizeof *c->lse);
    c->cache = cli_alloc((size_t)n_copy, c->copy_bytes);
    if (c->q == NULL || c->o == NULL || c->lse == NULL || c->cache == NULL || !fill_page_table(c, &rng)) {
        paged_case_release(c);
        return false;
    }
    number_fill_normal(c->q, shape->dtype, n_row * shape->d_k, PAGED_QUERY_SPREAD, &rng);
    number_fill_normal(c->cache, shape->dtype, n_value, 1, &rng);
    for (int64_t i = 1; i < n_copy; i++) {
        memcpy(c->cache + (size_t)i * c->copy_bytes, c->cache, c->copy_bytes);
    }
    return true;
}

void paged_case_release(paged_case *c)
{
    free(c->q);
    free(c->cache);
    free(c->page_table);
    free(c->length);
    free(c->o);
    free(c->lse);
    *c = (paged_case){0};
}

mla_problem paged_case_problem(const paged_case *c, int64_t copy, mla_dtype o_dtype)
{
    const paged_shape *s = &c->shape;
    mla_problem p;
    mla_problem_init(&p);
    p.q = mla_tensor_make(c->q, s->dtype, 4, (int64_t[]){s->n_seq, s->n_q, s->n_head, s->d_k});
    p.segment[0].k = mla_tensor_make(c->cache + (size_t)copy * c->copy_bytes, s->dtype, 4,
                                     (int64_t[]){c->n_page, s->page_size, 1, s->d_k});
    p.segment[0].page_table = mla_tensor_make(c->page_table, MLA_DTYPE_I32, 2, (int64_t[]){s->n_seq, c->max_page});
    p.segment[0].length = mla_tensor_make(c->length, MLA_DTYPE_I32, 1, (int64_t[]){s->n_seq});
    p.segment[0].visible.rule = s->causal ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
    p.d_v = s->d_v;
    p.softmax_scale = DEEPSEEK_V3_SCALE;
    p.o = mla_tensor_make(c->o, o_dtype, 4, (int64_t[]){s->n_seq, s->n_q, s->n_head, s->d_v});
    p.lse = mla_tensor_make(c->lse, MLA_DTYPE_F32, 3, (int64_t[]){s->n_seq, s->n_q, s->n_head});
    return p;
}

mla_problem paged_case_sample(const mla_problem *problem, int64_t stride)
{
    mla_problem p = *problem;
    mla_tensor *views[] = {&p.q, &p.q_rope, &p.o, &p.lse};
    for (int i = 0; i < 4; i++) {
        if (views[i]->ndim > 0) {
            int32_t head = views[i]->ndim - (views[i] == &p.lse ? 1 : 2);
            views[i]->dim[head] = (views[i]->dim[head] + stride - 1) / stride;
            views[i]->stride[head] *= stride;
        }
    }
    return p;
}

double paged_case_flops(const paged_case *c)
{
    return 2 * c->pairs * (double)c->shape.n_head * (double)(c->shape.d_k + c->shape.d_v);
}

double paged_case_key_bytes(const paged_case *c)
{
    return c->keys * (double)c->shape.d_k * (double)mla_dtype_size(c->shape.dtype);
}
