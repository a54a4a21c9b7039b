/*
 * make_problem.c - from a few words (ck_config) to a problem in guarded memory.
 *
 * Memory that the problem does not entitle anybody to read holds poison: pages and slots that no token may see, rows of
 * q past q_length, page table entries past a sequence's last page, list entries past the list's length, mask values of
 * keys that are not seen. Which keys those are is asked of the oracle; if it were wrong, the poison would show it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkkernel.h"
#include "ref/number.h"
#include "ref/ref.h"

/* Tags that keep the random streams of different tensors apart. */
enum { TAG_Q = 1, TAG_K, TAG_V, TAG_LIST, TAG_MASK, TAG_SINK, TAG_SCALE, TAG_PAGES, TAG_LENGTH, TAG_RESIDUAL };

static int64_t id_of(const ck_config *c, int64_t s)
{
    return c->has_id ? c->id[s] : s;
}

static uint64_t seed_of(const ck_config *c, int tag, int64_t a, int64_t b)
{
    return ck_hash(ck_hash(ck_hash(c->seed, (uint64_t)tag), (uint64_t)a), (uint64_t)b);
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t slots_of(const ck_config *c, int64_t s)
{
    return c->n_q > 0 ? c->n_q : c->n_slots > 0 ? c->slots[id_of(c, s) % c->n_slots] : 1;
}

static int64_t longest(const ck_config *c, const ck_segment *g)
{
    int64_t most = 0;
    for (int64_t s = 0; s < c->n_seq; s++) {
        most = max64(most, g->length[id_of(c, s) % g->n_length]);
    }
    return most;
}

static int64_t length_of(const ck_config *c, const ck_segment *g, int64_t s)
{
    if (g->no_length && g->addressing == MLA_ADDRESS_BATCHED && g->list != CK_PHYSICAL) {
        return longest(c, g); /* without lengths every sequence fills its slots */
    }
    return g->length[id_of(c, s) % g->n_length];
}

static mla_tensor index_tensor(const char *name, int32_t ndim, int64_t d0, int64_t d1, int64_t d2, ck_layout layout)
{
    return ck_tensor(name, MLA_DTYPE_I32, ndim, (int64_t[]){d0, d1, d2}, layout);
}

static void set_index(const mla_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t value)
{
    ((int32_t *)t->data)[ck_offset(t, i0, i1, i2, 0)] = (int32_t)value;
}

static mla_tensor float_tensor(const char *name, int64_t n)
{
    return ck_tensor(name, MLA_DTYPE_F32, 1, &n, CK_DENSE);
}

/* ---- poison ------------------------------------------------------------------------------------------------------ */

static uint32_t poison_bits(ck_poison poison, mla_dtype dtype)
{
    switch (poison) {
    case CK_POISON_ZERO: return 0;
    case CK_POISON_INF: return mla_ref_encode(dtype, INFINITY);
    default: /* a signalling NaN where there is one; i8 has but large numbers */
        return dtype == MLA_DTYPE_F32    ? 0x7f800123u
               : dtype == MLA_DTYPE_F16  ? 0x7c11u
               : dtype == MLA_DTYPE_HIF8 ? 0x80u
               : dtype == MLA_DTYPE_I8   ? 0x7fu
                                         : 0x7f81u;
    }
}

static void store_bits(const mla_tensor *t, int64_t at, uint32_t bits)
{
    size_t size = mla_dtype_size(t->dtype);
    if (size == 4) {
        ((uint32_t *)t->data)[at] = bits;
    } else if (size == 1) {
        ((uint8_t *)t->data)[at] = (uint8_t)bits;
    } else {
        ((uint16_t *)t->data)[at] = (uint16_t)bits;
    }
}

/* Every element of the tensor. */
static void poison_tensor(const mla_tensor *t, ck_poison poison, int32_t axis, int64_t at)
{
    if (axis == t->ndim) {
        store_bits(t, at, poison_bits(poison, t->dtype));
        return;
    }
    for (int64_t i = 0; i < t->dim[axis]; i++) {
        poison_tensor(t, poison, axis + 1, at + i * t->stride[axis]);
    }
}

/* Integers stand for numbers that are smaller by this factor. */
#define I8_UNITS 64

static double units_of(mla_dtype dtype)
{
    return dtype == MLA_DTYPE_I8 ? I8_UNITS : 1;
}

static void store_row(const mla_tensor *t, int64_t at, int64_t n, const double *row)
{
    for (int64_t d = 0; d < n; d++) {
        mla_ref_store(t->data, t->dtype, at + d, row[d] * units_of(t->dtype));
    }
}

/* Rope parts are never stored in 8 bits. */
static mla_dtype rope_dtype(mla_dtype wanted, mla_dtype beside)
{
    return wanted != MLA_DTYPE_NONE ? wanted : mla_dtype_size(beside) == 1 ? MLA_DTYPE_BF16 : beside;
}

/* ---- queries and outputs ----------------------------------------------------------------------------------------- */

static void make_queries(const ck_config *c, mla_problem *p)
{
    int64_t n_token = c->lead_tokens + c->tail_tokens;
    for (int64_t s = 0; s < c->n_seq; s++) {
        n_token += slots_of(c, s);
    }
    bool batched = c->n_q > 0;
    if (!batched && c->n_slots > 0) {
        p->q_begin = index_tensor("q_begin", 1, c->n_seq + 1, 0, 0, CK_DENSE);
        int64_t at = c->lead_tokens;
        for (int64_t s = 0; s < c->n_seq; s++) {
            set_index(&p->q_begin, s, 0, 0, at);
            at += slots_of(c, s);
        }
        set_index(&p->q_begin, c->n_seq, 0, 0, at);
    }
    int64_t lead[2] = {c->n_seq, c->n_q};
    int64_t *dim =
        batched ? (int64_t[]){lead[0], lead[1], c->n_head, c->d_nope} : (int64_t[]){n_token, c->n_head, c->d_nope};
    int32_t ndim = batched ? 4 : 3;
    p->q = ck_tensor("q", c->q_dtype, ndim, dim, c->layout);
    poison_tensor(&p->q, c->poison, 0, 0);
    if (c->d_rope > 0) {
        dim[ndim - 1] = c->d_rope;
        p->q_rope = ck_tensor("q_rope", rope_dtype(c->q_rope_dtype, c->q_dtype), ndim, dim, c->layout);
        poison_tensor(&p->q_rope, c->poison, 0, 0);
    }
    if (c->n_used > 0) {
        p->q_length = index_tensor("q_length", 1, c->n_seq, 0, 0, CK_DENSE);
        for (int64_t s = 0; s < c->n_seq; s++) {
            set_index(&p->q_length, s, 0, 0, c->used[id_of(c, s) % c->n_used]);
        }
    }
    int64_t d_k = c->d_nope + c->d_rope, token = c->lead_tokens;
    double *row = malloc(sizeof *row * (size_t)d_k);
    for (int64_t s = 0; s < c->n_seq; s++) {
        int64_t slots = slots_of(c, s);
        int64_t used = c->n_used > 0 ? c->used[id_of(c, s) % c->n_used] : slots;
        for (int64_t i = 0; i < slots; i++, token++) {
            for (int64_t h = 0; h < c->n_head && i < used; h++) {
                ck_query_row(c->inputs, ck_hash(seed_of(c, TAG_Q, id_of(c, s), i), (uint64_t)h), c->q_dtype, d_k, row);
                int64_t i0 = batched ? s : token, i1 = batched ? i : h, i2 = batched ? h : 0;
                store_row(&p->q, ck_offset(&p->q, i0, i1, i2, 0), c->d_nope, row);
                if (c->d_rope > 0) {
                    store_row(&p->q_rope, ck_offset(&p->q_rope, i0, i1, i2, 0), c->d_rope, row + c->d_nope);
                }
            }
        }
    }
    free(row);
}

/* [token...][head], or the transposed view of [.][head][.] */
static mla_tensor per_row_output(const char *name, mla_dtype dtype, const mla_tensor *q, bool transposed,
                                 ck_layout layout)
{
    int32_t ndim = q->ndim - 1;
    int64_t dim[3] = {q->dim[0], q->dim[1], q->dim[2]};
    if (!transposed) {
        return ck_tensor(name, dtype, ndim, dim, layout);
    }
    int32_t last = ndim - 1;
    int64_t n_head = dim[last];
    dim[last] = dim[last - 1];
    dim[last - 1] = n_head;
    mla_tensor t = ck_tensor(name, dtype, ndim, dim, layout);
    mla_tensor view = t;
    view.dim[last] = t.dim[last - 1];
    view.dim[last - 1] = t.dim[last];
    view.stride[last] = t.stride[last - 1];
    view.stride[last - 1] = t.stride[last];
    return view;
}

static void make_outputs(const ck_config *c, mla_problem *p)
{
    int64_t dim[4] = {p->q.dim[0], p->q.dim[1], p->q.dim[2], p->q.dim[3]};
    dim[p->q.ndim - 1] = c->d_v;
    p->o = ck_tensor("o", c->o_dtype, p->q.ndim, dim, c->layout);
    if (c->want_lse) {
        mla_dtype dtype = c->lse_dtype != MLA_DTYPE_NONE ? c->lse_dtype : MLA_DTYPE_F32;
        p->lse = per_row_output("lse", dtype, &p->q, c->lse_transposed, c->layout);
    }
    if (c->want_max) {
        p->max = per_row_output("max", MLA_DTYPE_F32, &p->q, c->lse_transposed, c->layout);
    }
}

mla_problem ck_with_new_outputs(const mla_problem *problem, ck_layout layout)
{
    mla_problem copy = *problem;
    copy.o = ck_tensor("o", problem->o.dtype, problem->o.ndim, problem->o.dim, layout);
    if (mla_tensor_present(&problem->lse)) {
        copy.lse = ck_tensor("lse", problem->lse.dtype, problem->lse.ndim, problem->lse.dim, layout);
    }
    if (mla_tensor_present(&problem->max)) {
        copy.max = ck_tensor("max", MLA_DTYPE_F32, problem->max.ndim, problem->max.dim, layout);
    }
    return copy;
}

void ck_reset_outputs(const mla_problem *problem)
{
    ck_reset(&problem->o);
    if (mla_tensor_present(&problem->lse)) {
        ck_reset(&problem->lse);
    }
    if (mla_tensor_present(&problem->max)) {
        ck_reset(&problem->max);
    }
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

/* Where position p of sequence s lies in the pool, whatever the problem itself says about it. */
typedef struct pool_map {
    int64_t n_page, page_size, max_page;
    int64_t *page;  /* paged: [n_seq][max_page] */
    int64_t *begin; /* packed: [n_seq + 1] */
    mla_addressing addressing;
} pool_map;

static void pool_locate(const pool_map *pool, int64_t s, int64_t position, int64_t *page, int64_t *slot)
{
    switch (pool->addressing) {
    case MLA_ADDRESS_PAGED:
        *page = pool->page[s * pool->max_page + position / pool->page_size];
        *slot = position % pool->page_size;
        break;
    case MLA_ADDRESS_BATCHED:
        *page = s;
        *slot = position;
        break;
    default:
        *page = 0;
        *slot = pool->begin[s] + position;
        break;
    }
}

static pool_map make_pool(const ck_config *c, const ck_segment *g)
{
    pool_map pool = {.addressing = g->addressing, .page_size = g->page_size, .max_page = 1};
    pool.begin = calloc((size_t)c->n_seq + 1, sizeof *pool.begin);
    ck_random r = {ck_hash(c->layout_seed, TAG_PAGES)};
    switch (g->addressing) {
    case MLA_ADDRESS_PAGED: {
        int64_t needed = 0;
        for (int64_t s = 0; s < c->n_seq; s++) {
            int64_t pages = (length_of(c, g, s) + g->page_size - 1) / g->page_size;
            needed += pages;
            pool.max_page = max64(pool.max_page, pages);
        }
        pool.n_page = needed + 3;
        int64_t *order = malloc(sizeof *order * (size_t)pool.n_page);
        for (int64_t i = 0; i < pool.n_page; i++) {
            int64_t j = ck_below(&r, i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        pool.page = calloc((size_t)(c->n_seq * pool.max_page) + 1, sizeof *pool.page);
        int64_t next = 0;
        for (int64_t s = 0; s < c->n_seq; s++) {
            for (int64_t i = 0; i < (length_of(c, g, s) + g->page_size - 1) / g->page_size; i++) {
                pool.page[s * pool.max_page + i] = order[next++];
            }
        }
        free(order);
        break;
    }
    case MLA_ADDRESS_BATCHED:
        pool.n_page = c->n_seq;
        pool.page_size = longest(c, g) + (g->no_length && g->list != CK_PHYSICAL ? 0 : 3);
        break;
    default:
        for (int64_t s = 0; s < c->n_seq; s++) {
            int64_t gap = g->no_length ? 0 : s % 3;
            pool.begin[s + 1] = pool.begin[s] + length_of(c, g, s) + gap;
        }
        pool.n_page = 1;
        pool.page_size = pool.begin[c->n_seq] + 1;
        break;
    }
    return pool;
}

/* piece: columns of one in layout NZ, 0: layout ROW */
static mla_tensor pool_tensor(const char *name, mla_dtype dtype, const ck_config *c, const pool_map *pool,
                              int64_t n_column, int64_t piece)
{
    mla_tensor t;
    if (piece > 0) {
        CK_REQUIRE(n_column % piece == 0 && pool->addressing != MLA_ADDRESS_PACKED && c->n_kv_head == 1);
        t = ck_tensor(name, dtype, 4, (int64_t[]){pool->n_page, n_column / piece, pool->page_size, piece}, c->layout);
    } else if (pool->addressing == MLA_ADDRESS_PACKED) {
        t = ck_tensor(name, dtype, 3, (int64_t[]){pool->page_size, c->n_kv_head, n_column}, c->layout);
    } else {
        t = ck_tensor(name, dtype, 4, (int64_t[]){pool->n_page, pool->page_size, c->n_kv_head, n_column}, c->layout);
    }
    poison_tensor(&t, c->poison, 0, 0);
    return t;
}

/* Row [n] of the pool, piece by piece in layout NZ. */
static void store_pool_row(const mla_tensor *t, int64_t piece, int64_t page, int64_t slot, int64_t kv_head, int64_t n,
                           const double *row)
{
    if (piece == 0) {
        store_row(t, t->ndim == 3 ? ck_offset(t, slot, kv_head, 0, 0) : ck_offset(t, page, slot, kv_head, 0), n, row);
        return;
    }
    for (int64_t d = 0; d < n; d += piece) {
        store_row(t, ck_offset(t, page, d / piece, slot, 0), piece, row + d);
    }
}

/* Page tables and lengths; entries past the last page are what an engine leaves there. */
static void make_addressing(const ck_config *c, const ck_segment *g, const pool_map *pool, mla_segment *segment)
{
    static const int64_t garbage[] = {2147480000, -1, INT32_MIN, INT32_MAX};
    if (g->addressing == MLA_ADDRESS_PAGED && g->list != CK_PHYSICAL) {
        int64_t width = pool->max_page + (int64_t)(c->layout_seed % 3) + g->spare_pages;
        segment->page_table = index_tensor("page_table", 2, c->n_seq, width, 0, c->layout);
        for (int64_t s = 0; s < c->n_seq; s++) {
            int64_t pages = (length_of(c, g, s) + g->page_size - 1) / g->page_size;
            for (int64_t i = 0; i < width; i++) {
                set_index(&segment->page_table, s, i, 0,
                          i < pages ? pool->page[s * pool->max_page + i] : garbage[(s + i) % 4]);
            }
        }
    }
    if (g->addressing == MLA_ADDRESS_PACKED) {
        segment->k_begin = index_tensor("k_begin", 1, c->n_seq + 1, 0, 0, CK_DENSE);
        for (int64_t s = 0; s <= c->n_seq; s++) {
            set_index(&segment->k_begin, s, 0, 0, pool->begin[s]);
        }
    }
    bool must = g->addressing == MLA_ADDRESS_PAGED;
    if (g->list != CK_PHYSICAL && (must || !g->no_length)) {
        segment->length = index_tensor("length", 1, c->n_seq, 0, 0, CK_DENSE);
        for (int64_t s = 0; s < c->n_seq; s++) {
            int64_t length = length_of(c, g, s);
            set_index(&segment->length, s, 0, 0, length == 0 && s % 2 ? -3 : length);
        }
    }
}

/* One list entry for place j. Four in five are good; the rest come from the zoo of bad indices. */
static int64_t draw_entry(const ck_segment *g, const pool_map *pool, int64_t s, int64_t length, int64_t previous,
                          ck_random *r)
{
    bool physical = g->list == CK_PHYSICAL;
    int64_t end = physical ? pool->n_page * pool->page_size : length;
    if (length > 0 && ck_chance(r, 0.8)) {
        int64_t position = ck_below(r, length);
        if (!physical) {
            return position;
        }
        int64_t page, slot;
        pool_locate(pool, s, position, &page, &slot);
        return page * pool->page_size + slot;
    }
    const int64_t zoo[] = {end, end + 1, INT32_MAX, 2147480000, previous, previous, -1, INT32_MIN};
    bool negative = g->list_rule == MLA_LIST_SKIP || ck_chance(r, 0.05); /* a negative entry would end the list early */
    return zoo[ck_below(r, negative ? 8 : 4 + 2 * (length > 0))];
}

static void make_list(const ck_config *c, const ck_segment *g, const pool_map *pool, int64_t n_token,
                      mla_segment *segment)
{
    if (g->list == CK_NO_LIST) {
        return;
    }
    bool batched = c->n_q > 0;
    segment->list = batched ? index_tensor("list", 3, c->n_seq, c->n_q, g->n_entry, c->layout)
                            : index_tensor("list", 2, n_token, g->n_entry, 0, c->layout);
    segment->list_address = g->list == CK_PHYSICAL ? MLA_LIST_PHYSICAL : MLA_LIST_LOGICAL;
    segment->list_rule = g->list_rule;
    if (g->list_length == CK_PER_SEQUENCE) {
        segment->list_length = index_tensor("list_length", 1, c->n_seq, 0, 0, CK_DENSE);
    } else if (g->list_length == CK_PER_TOKEN) {
        segment->list_length = batched ? index_tensor("list_length", 2, c->n_seq, c->n_q, 0, c->layout)
                                       : index_tensor("list_length", 1, n_token, 0, 0, CK_DENSE);
    }
    /* rows of no sequence, and of packed q before and behind them, stay what memory was: garbage */
    if (g->list_length == CK_PER_TOKEN && !batched) {
        for (int64_t t = 0; t < n_token; t++) {
            set_index(&segment->list_length, t, 0, 0, 0);
        }
    }
    int64_t token = c->lead_tokens;
    for (int64_t s = 0; s < c->n_seq; s++) {
        ck_random r = {seed_of(c, TAG_LENGTH, id_of(c, s), g - c->segment)};
        if (g->list_length == CK_PER_SEQUENCE) {
            set_index(&segment->list_length, s, 0, 0, ck_between(&r, 0, g->n_entry));
        }
        for (int64_t i = 0; i < slots_of(c, s); i++, token++) {
            int64_t at[2] = {batched ? s : token, batched ? i : 0};
            if (g->list_length == CK_PER_TOKEN) {
                set_index(&segment->list_length, at[0], at[1], 0, ck_between(&r, 0, g->n_entry));
            }
            ck_random e = {seed_of(c, TAG_LIST, id_of(c, s), i * 2 + (g - c->segment))};
            int64_t previous = -1; /* nothing to repeat yet */
            for (int64_t j = 0; j < g->n_entry; j++) {
                int64_t entry = draw_entry(g, pool, s, length_of(c, g, s), previous, &e);
                previous = entry >= 0 ? entry : previous;
                set_index(&segment->list, at[0], batched ? i : j, batched ? j : 0, entry);
            }
        }
    }
}

/* Mask values of the keys that a token may see; the shape is that of the problem still without this mask. */
static void make_mask(const ck_config *c, int32_t g, const pool_map *pool, mla_problem *p)
{
    const ck_segment *config = &c->segment[g];
    if (config->mask == CK_NO_MASK) {
        return;
    }
    mla_shape shape;
    if (mla_problem_resolve(p, &shape) != MLA_STATUS_OK) {
        ck_fail("the library refuses: %s", mla_last_error());
    }
    bool shared = config->mask == CK_MASK_SHARED;
    int64_t width = config->list == CK_PHYSICAL                 ? config->n_entry
                    : config->addressing == MLA_ADDRESS_BATCHED ? pool->page_size
                                                                : longest(c, config);
    mla_tensor mask;
    if (shape.batched) {
        int64_t dim[3] = {shared ? 1 : shape.n_seq, shared ? 1 : shape.n_q, width};
        mask = ck_tensor("mask", config->mask_dtype, 3, dim, c->layout);
        mask.dim[0] = shape.n_seq;
        mask.dim[1] = shape.n_q;
        mask.stride[0] = shared ? 0 : mask.stride[0];
        mask.stride[1] = shared ? 0 : mask.stride[1];
    } else {
        mask = ck_tensor("mask", config->mask_dtype, 2, (int64_t[]){shared ? 1 : shape.n_token, width}, c->layout);
        mask.dim[0] = shape.n_token;
        mask.stride[0] = shared ? 0 : mask.stride[0];
    }
    if (shared) { /* one row for all: every value counts for somebody */
        for (int64_t j = 0; j < width; j++) {
            ck_random r = {seed_of(c, TAG_MASK, g, j)};
            mla_ref_store(mask.data, mask.dtype, j, 3 * ck_normal(&r));
        }
    } else {
        poison_tensor(&mask, c->poison, 0, 0);
    }
    for (int64_t s = 0; s < shape.n_seq && !shared; s++) {
        for (int64_t i = 0; i < slots_of(c, s); i++) {
            int64_t n = mla_ref_candidates(p, &shape, g, s, i);
            bool blank = config->mask == CK_MASK_BLANK_ROWS && (s + i) % 2 == 0;
            for (int64_t j = 0; j < n; j++) {
                mla_ref_key key;
                if (!mla_ref_key_find(p, &shape, g, s, i, j, &key)) {
                    continue;
                }
                ck_random r = {ck_hash(seed_of(c, TAG_MASK, id_of(c, s), i * 2 + g), (uint64_t)key.position)};
                double value = 2 * ck_normal(&r);
                if (blank || (config->mask == CK_MASK_HOLES && ck_chance(&r, 0.3))) {
                    value = -INFINITY;
                }
                int64_t at = shape.batched ? ck_offset(&mask, s, i, key.position, 0)
                                           : ck_offset(&mask, mla_query_begin(p, &shape, s) + i, key.position, 0, 0);
                mla_ref_store(mask.data, mask.dtype, at, value);
            }
        }
    }
    p->segment[g].mask = mask;
}

/* Writes the rows that somebody may see; all others keep their poison. */
static void fill_pool(const ck_config *c, int32_t g, const pool_map *pool, const mla_problem *p)
{
    mla_shape shape;
    if (mla_problem_resolve(p, &shape) != MLA_STATUS_OK) {
        ck_fail("the library refuses: %s", mla_last_error());
    }
    const ck_segment *config = &c->segment[g];
    const mla_segment *segment = &p->segment[g];
    mla_problem without_mask = *p;
    if (!c->poison_masked) { /* then a key hidden by -inf in the mask alone is filled in like any other */
        without_mask.segment[g].mask = (mla_tensor){0};
        p = &without_mask;
    }
    unsigned char *seen = calloc((size_t)(pool->n_page * pool->page_size) + 1, 1);
    for (int64_t s = 0; s < shape.n_seq; s++) {
        for (int64_t i = 0; i < slots_of(c, s); i++) {
            int64_t n = mla_ref_candidates(p, &shape, g, s, i);
            for (int64_t j = 0; j < n; j++) {
                mla_ref_key key;
                if (mla_ref_key_find(p, &shape, g, s, i, j, &key)) {
                    seen[key.page * pool->page_size + key.slot] = 1;
                }
            }
        }
    }
    int64_t d_k = c->d_nope + c->d_rope;
    double *row = malloc(sizeof *row * (size_t)max64(d_k, c->d_v));
    for (int64_t s = 0; s < shape.n_seq; s++) {
        int64_t length = length_of(c, config, s);
        for (int64_t position = 0; position < length; position++) {
            int64_t page, slot;
            pool_locate(pool, s, position, &page, &slot);
            if (!seen[page * pool->page_size + slot]) {
                continue;
            }
            for (int64_t h = 0; h < c->n_kv_head; h++) {
                uint64_t seed = seed_of(c, TAG_K, id_of(c, s), h * 2 + g);
                ck_key_row(c->inputs, seed, config->dtype, position, length, d_k, row);
                store_pool_row(&segment->k, config->piece, page, slot, h, c->d_nope, row);
                if (c->d_rope > 0) {
                    store_pool_row(&segment->k_rope, config->rope_piece, page, slot, h, c->d_rope, row + c->d_nope);
                }
                if (config->v_apart) {
                    seed = seed_of(c, TAG_V, id_of(c, s), h * 2 + g);
                    ck_key_row(c->inputs, seed, config->dtype, position, length, c->d_v, row);
                    store_pool_row(&segment->v, 0, page, slot, h, c->d_v, row);
                }
            }
        }
    }
    free(row);
    free(seen);
}

/* ---- scales and sinks -------------------------------------------------------------------------------------------- */

/* Of both signs. */
static mla_tensor head_factors(const char *name, const ck_config *c, int64_t which, double scale)
{
    mla_tensor t = float_tensor(name, c->n_head);
    for (int64_t h = 0; h < c->n_head; h++) {
        ck_random r = {seed_of(c, TAG_SCALE, which, h)};
        double factor = scale * (0.25 + 1.5 * ck_uniform(&r));
        ((float *)t.data)[h] = (float)(ck_chance(&r, 0.3) ? -factor : factor);
    }
    return t;
}

/* What <q, k> is too large by because of integers that all segments have alike. */
static double score_units(const ck_config *c)
{
    double units = units_of(c->segment[0].dtype);
    for (int32_t g = 1; g < c->n_segment; g++) {
        units = fmin(units, units_of(c->segment[g].dtype));
    }
    return units * units_of(c->q_dtype);
}

/* The descale of a segment: as asked for, and what its integers have beyond those of the others; 0: none. */
static float segment_descale(const ck_config *c, const ck_segment *g)
{
    double units = units_of(g->dtype) * units_of(c->q_dtype) / score_units(c);
    return (float)(units == 1 ? g->descale : (g->descale != 0 ? g->descale : 1) / units);
}

static void make_sinks(const ck_config *c, mla_problem *p)
{
    if (c->sink == CK_NO_SINK) {
        return;
    }
    p->sink = float_tensor("sink", c->n_head);
    for (int64_t h = 0; h < c->n_head; h++) {
        ck_random r = {seed_of(c, TAG_SINK, 0, h)};
        double value = 3 * ck_normal(&r);
        switch (c->sink) {
        case CK_SINK_MINUS_INF: value = -INFINITY; break;
        case CK_SINK_MIXED: value = h % 3 == 0 ? -INFINITY : h % 3 == 1 ? INFINITY : value; break;
        case CK_SINK_LARGE: value = h % 2 ? 1e4 : -1e4; break;
        default: break;
        }
        ((float *)p->sink.data)[h] = (float)value;
    }
}

static mla_tensor single(const char *name, float value)
{
    mla_tensor t = float_tensor(name, 1);
    *(float *)t.data = value;
    return t;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static void protect(const mla_tensor *t)
{
    if (mla_tensor_present(t)) {
        ck_read_only(t->data);
    }
}

void ck_make(const ck_config *c, mla_problem *p)
{
    mla_problem_init(p);
    make_queries(c, p);
    make_outputs(c, p);
    p->n_segment = c->n_segment;
    p->d_v = c->d_v;
    double scale = c->scale != 0 ? c->scale : ck_inputs_scale(c->inputs) / sqrt((double)(c->d_nope + c->d_rope));
    p->softmax_scale = (float)(c->qk_descale ? scale : scale / score_units(c));
    p->p_rounding = c->p_rounding;
    p->arithmetic = c->arithmetic;
    p->p_tile = c->p_tile;
    p->lse_base = c->lse_base;
    p->lse_empty = c->lse_empty;
    p->lse_with_sink = c->lse_with_sink;
    if (c->q_descale != 0) {
        p->q_descale = single("q_descale", c->q_descale);
    }
    if (c->qk_descale) {
        p->qk_descale = head_factors("qk_descale", c, 1, 1 / score_units(c));
    }
    if (c->pv_descale) {
        p->pv_descale = head_factors("pv_descale", c, 2, 1);
    }
    make_sinks(c, p);
    int64_t n_token = c->n_q > 0 ? c->n_seq * c->n_q : p->q.dim[0];
    pool_map pools[MLA_MAX_SEGMENT] = {0};
    for (int32_t g = 0; g < c->n_segment; g++) {
        const ck_segment *config = &c->segment[g];
        mla_segment *segment = &p->segment[g];
        pools[g] = make_pool(c, config);
        segment->layout = config->piece > 0 ? MLA_KEY_LAYOUT_NZ : MLA_KEY_LAYOUT_ROW;
        segment->k = pool_tensor("k", config->dtype, c, &pools[g], c->d_nope, config->piece);
        if (c->d_rope > 0) {
            mla_dtype dtype = rope_dtype(config->rope_dtype, config->dtype);
            segment->k_rope = pool_tensor("k_rope", dtype, c, &pools[g], c->d_rope, config->rope_piece);
        }
        if (config->v_apart) {
            segment->v = pool_tensor("v", config->dtype, c, &pools[g], c->d_v, 0);
        }
        segment->visible = config->visible;
        if (config->has_residual) {
            segment->visible.residual = index_tensor("residual", 1, c->n_seq, 0, 0, CK_DENSE);
            for (int64_t s = 0; s < c->n_seq; s++) {
                ck_random r = {seed_of(c, TAG_RESIDUAL, id_of(c, s), g)};
                set_index(&segment->visible.residual, s, 0, 0, ck_below(&r, max64(config->visible.ratio, 1)));
            }
        }
        if (segment_descale(c, config) != 0) {
            segment->descale = single("descale", segment_descale(c, config));
        }
        make_addressing(c, config, &pools[g], segment);
        make_list(c, config, &pools[g], n_token, segment);
    }
    for (int32_t g = 0; g < c->n_segment; g++) {
        make_mask(c, g, &pools[g], p);
    }
    for (int32_t g = 0; g < c->n_segment; g++) {
        fill_pool(c, g, &pools[g], p);
        free(pools[g].page);
        free(pools[g].begin);
        const mla_segment *s = &p->segment[g];
        const mla_tensor *inputs[] = {&s->k,    &s->k_rope,      &s->v,    &s->k_begin, &s->page_table,      &s->length,
                                      &s->list, &s->list_length, &s->mask, &s->descale, &s->visible.residual};
        for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
            protect(inputs[i]);
        }
    }
    const mla_tensor *inputs[] = {&p->q,         &p->q_rope,     &p->q_begin,    &p->q_length,
                                  &p->q_descale, &p->qk_descale, &p->pv_descale, &p->sink};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        protect(inputs[i]);
    }
}
