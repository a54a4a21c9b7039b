/*
 * random_case.c - see random_case.h.
 *
 * Poison: memory that no query may reach is NaN (rows past a request's length, pages that nobody owns, padding between
 * rows; of int8, which has none, -128), page table entries past a request's last page are garbage, and outputs start as
 * NaN. One stray read and the result is no number any more.
 */
#include "random_case.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_number.h"

#define INT8_UNIT 24.0f
#define WORK_LIMIT 6e6 /* multiplications of a case, so that the oracle takes milliseconds */

/* What is drawn first, and everything else follows from. */
typedef struct draw {
    random_case *c;
    number_rng rng;
    bool failed;
    mla_dtype q_dtype, k_dtype;
    mla_dtype rope_dtype;        /* of rope parts that are apart */
    bool nz;                     /* keys in pieces of columns */
    int64_t d_nope, d_rope, d_v; /* d_rope 0: inside */
    int64_t n_seq, n_q, n_kv_head, group;
    int64_t n_token; /* packed queries; batched: n_seq * n_q */
    bool batched;
    int32_t q_begin[8];
    float spread; /* of keys */
} draw;

static int64_t pick(draw *d, size_t n, const int64_t *choice)
{
    return choice[number_range(&d->rng, 0, (int64_t)n - 1)];
}

#define PICK(d, ...) pick((d), sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})

/* true once in n times */
static bool once_in(draw *d, int64_t n)
{
    return number_range(&d->rng, 1, n) == 1;
}

__attribute__((format(printf, 2, 3))) static void say(draw *d, const char *format, ...)
{
    char *text = d->c->description;
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, sizeof d->c->description - used, format, arguments);
    va_end(arguments);
}

static void *take(draw *d, size_t count, size_t size)
{
    random_case *c = d->c;
    void *memory = c->n_owned < RANDOM_CASE_MAX_OWNED ? cli_alloc(count, size) : NULL;
    if (memory == NULL) {
        d->failed = true;
        return NULL;
    }
    c->owned[c->n_owned++] = memory;
    return memory;
}

/* A tensor of NaNs with `pad` elements between rows of the last dim. */
static mla_tensor take_tensor(draw *d, mla_dtype dtype, int64_t pad, int32_t ndim, const int64_t *dim)
{
    mla_tensor t = mla_tensor_make(NULL, dtype, ndim, dim);
    int64_t n_row = 1;
    for (int32_t i = ndim - 2; i >= 0; i--) {
        t.stride[i] = i == ndim - 2 ? dim[ndim - 1] + pad : t.stride[i + 1] * dim[i + 1];
        n_row *= dim[i];
    }
    size_t count = (size_t)(n_row * (dim[ndim - 1] + pad));
    t.data = take(d, count, mla_dtype_size(dtype));
    if (t.data != NULL) {
        bool is_byte = mla_dtype_size(dtype) == 1;
        memset(t.data, is_byte ? 0x80 : 0xff, count * mla_dtype_size(dtype)); /* a NaN in every float dtype */
    }
    return t;
}

static mla_tensor take_i32(draw *d, int32_t ndim, const int64_t *dim)
{
    return take_tensor(d, MLA_DTYPE_I32, 0, ndim, dim);
}

static int32_t *i32(const mla_tensor *t)
{
    return t->data;
}

/* int8 is stored as INT8_UNIT times the number, and a descale divides by that. */
static void store_any(const mla_tensor *t, int64_t at, float x)
{
    float whole = rintf(INT8_UNIT * x);
    switch (t->dtype) {
    case MLA_DTYPE_HIF8: ((uint8_t *)t->data)[at] = mla_hif8_encode(x, MLA_HIF8_SATURATE); break;
    case MLA_DTYPE_I8: ((int8_t *)t->data)[at] = (int8_t)(whole > 127 ? 127 : whole < -127 ? -127 : whole); break;
    default: number_store(t->data, t->dtype, at, x); break;
    }
}

static void fill_row(draw *d, const mla_tensor *t, int64_t offset, float spread)
{
    int64_t n = t->dim[t->ndim - 1];
    for (int64_t i = 0; i < n && !d->failed; i++) {
        store_any(t, offset + i, spread * number_normal(&d->rng));
    }
}

/* f32 [1] */
static mla_tensor take_factor(draw *d, float value)
{
    mla_tensor t = take_tensor(d, MLA_DTYPE_F32, 0, 1, (int64_t[]){1});
    if (!d->failed) {
        *(float *)t.data = value;
    }
    return t;
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

static void draw_sizes(draw *d)
{
    static const int64_t model[][3] = {{512, 64, 512}, {512, 0, 512},  {256, 64, 256},
                                       {256, 32, 256}, {128, 64, 128}, {64, 0, 64}};
    static const mla_dtype dtypes[] = {MLA_DTYPE_BF16, MLA_DTYPE_BF16, MLA_DTYPE_F16, MLA_DTYPE_F32};
    d->q_dtype = dtypes[number_range(&d->rng, 0, 3)];
    d->k_dtype = once_in(d, 8) ? dtypes[number_range(&d->rng, 0, 3)] : d->q_dtype;
    d->rope_dtype = d->q_dtype;
    if (once_in(d, 3)) { /* 8 bits: both, or the keys alone */
        d->k_dtype = once_in(d, 2) ? MLA_DTYPE_HIF8 : MLA_DTYPE_I8;
        d->q_dtype = once_in(d, 4) ? d->q_dtype : d->k_dtype;
    }
    d->nz = once_in(d, 5);
    if (once_in(d, 4)) {
        d->d_nope = number_range(&d->rng, 1, 100);
        d->d_rope = number_range(&d->rng, 0, 20);
        d->d_v = number_range(&d->rng, 1, d->d_nope + d->d_rope);
    } else {
        size_t i = (size_t)number_range(&d->rng, 0, 5);
        d->d_nope = model[i][0];
        d->d_rope = model[i][1];
        d->d_v = model[i][2];
    }
    if (!once_in(d, 3)) { /* together in one row */
        d->d_nope += d->d_rope;
        d->d_rope = 0;
    }
    d->n_seq = once_in(d, 40) ? 0 : number_range(&d->rng, 1, 5);
    d->n_q = once_in(d, 40) ? 0 : PICK(d, 1, 1, 1, 2, 3, 4, 7);
    d->n_kv_head = PICK(d, 1, 1, 1, 1, 2, 3);
    if (d->nz) {
        d->n_kv_head = 1;
        d->d_v = d->d_v < d->d_nope ? d->d_v : d->d_nope;
    }
    d->group = PICK(d, 1, 2, 3, 5, 8, 15, 16, 17, 20, 32, 64, 128);
    d->batched = !once_in(d, 3);
    d->spread = (float)(once_in(d, 4) ? pow(2, (double)number_range(&d->rng, -6, 3)) : 1);
}

static void draw_queries(draw *d)
{
    mla_problem *p = &d->c->problem;
    int64_t n_head = d->n_kv_head * d->group, pad = once_in(d, 3) ? number_range(&d->rng, 1, 9) : 0;
    if (d->batched) {
        d->n_token = d->n_seq * d->n_q;
        p->q = take_tensor(d, d->q_dtype, pad, 4, (int64_t[]){d->n_seq, d->n_q, n_head, d->d_nope});
    } else {
        for (int64_t s = 0; s < d->n_seq; s++) { /* ragged */
            d->q_begin[s + 1] = d->q_begin[s] + (int32_t)number_range(&d->rng, 0, d->n_q);
        }
        d->n_token = d->q_begin[d->n_seq];
        p->q = take_tensor(d, d->q_dtype, pad, 3, (int64_t[]){d->n_token, n_head, d->d_nope});
        p->q_begin = take_i32(d, 1, (int64_t[]){d->n_seq + 1});
        if (!d->failed) {
            memcpy(p->q_begin.data, d->q_begin, (size_t)(d->n_seq + 1) * sizeof(int32_t));
        }
    }
    if (d->d_rope > 0) {
        int64_t dim[4];
        memcpy(dim, p->q.dim, sizeof dim);
        dim[p->q.ndim - 1] = d->d_rope;
        p->q_rope = take_tensor(d, d->rope_dtype, 0, p->q.ndim, dim);
    }
    for (int64_t row = 0; row < d->n_token * n_head; row++) {
        fill_row(d, &p->q, row * (d->d_nope + pad), 1);
        if (d->d_rope > 0) {
            fill_row(d, &p->q_rope, row * d->d_rope, 1);
        }
    }
    if (d->batched && once_in(d, 5)) {
        p->q_length = take_i32(d, 1, (int64_t[]){d->n_seq});
        for (int64_t s = 0; s < d->n_seq && !d->failed; s++) {
            i32(&p->q_length)[s] = (int32_t)number_range(&d->rng, 0, d->n_q);
        }
    }
    if (d->q_dtype == MLA_DTYPE_I8) {
        p->q_descale = take_factor(d, 1 / INT8_UNIT);
    }
    say(d, "%s q %" PRId64 " requests x %s%" PRId64 " tokens x %" PRId64 " heads, %" PRId64 " kv heads, d %" PRId64,
        mla_dtype_name(d->q_dtype), d->n_seq, d->batched ? "" : "up to ", d->n_q, n_head, d->n_kv_head, d->d_nope);
    if (d->d_rope > 0) {
        say(d, "+%" PRId64, d->d_rope);
    }
    say(d, "/%" PRId64 "%s", d->d_v, p->q_length.ndim != 0 ? ", q_length" : "");
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Columns of a piece of NZ: 32 bytes of them where that fits, as on Ascend, or any other divisor. */
static int64_t draw_piece(draw *d, mla_dtype dtype, int64_t columns)
{
    int64_t piece = 32 / (int64_t)mla_dtype_size(dtype);
    if (columns % piece != 0 || once_in(d, 3)) {
        for (piece = number_range(&d->rng, 1, columns); columns % piece != 0; piece--) {
        }
    }
    return piece;
}

/* Tensor k, k_rope or v of a pool, its rows still NaN. */
static mla_tensor take_rows(draw *d, mla_dtype dtype, bool packed, int64_t n_page, int64_t page_size, int64_t columns)
{
    int64_t pad = once_in(d, 3) ? number_range(&d->rng, 1, 9) : 0;
    if (d->nz) {
        int64_t piece = draw_piece(d, dtype, columns);
        return take_tensor(d, dtype, pad, 4, (int64_t[]){n_page, columns / piece, page_size, piece});
    }
    if (packed) {
        return take_tensor(d, dtype, pad, 3, (int64_t[]){page_size, d->n_kv_head, columns});
    }
    return take_tensor(d, dtype, pad, 4, (int64_t[]){n_page, page_size, d->n_kv_head, columns});
}

/* All that a pool stores. */
static void take_pool(draw *d, mla_segment *s, bool packed, int64_t n_page, int64_t page_size)
{
    s->layout = d->nz ? MLA_KEY_LAYOUT_NZ : MLA_KEY_LAYOUT_ROW;
    s->k = take_rows(d, d->k_dtype, packed, n_page, page_size, d->d_nope);
    if (d->d_rope > 0) {
        bool is_byte = mla_dtype_size(d->k_dtype) == 1;
        s->k_rope = take_rows(d, is_byte ? d->rope_dtype : d->k_dtype, packed, n_page, page_size, d->d_rope);
    }
    if (!d->nz && d->c->problem.p_rounding != MLA_P_ROUND_INT8 && once_in(d, 8)) {
        s->v = take_rows(d, d->k_dtype, packed, n_page, page_size, d->d_v);
    }
}

/* Gives numbers to one row of the pool. */
static void fill_key(draw *d, const mla_segment *s, int64_t page, int64_t slot)
{
    const mla_tensor *part[] = {&s->k, &s->k_rope, &s->v};
    for (int i = 0; i < 3; i++) {
        const mla_tensor *t = part[i];
        if (t->ndim == 0) {
            continue;
        }
        if (s->layout == MLA_KEY_LAYOUT_NZ) {
            for (int64_t x = 0; x < t->dim[1]; x++) {
                fill_row(d, t, page * t->stride[0] + x * t->stride[1] + slot * t->stride[2], d->spread);
            }
            continue;
        }
        int64_t at = t->ndim == 4 ? page * t->stride[0] + slot * t->stride[1] : slot * t->stride[0];
        for (int64_t h = 0; h < d->n_kv_head; h++) {
            fill_row(d, t, at + h * t->stride[t->ndim - 2], d->spread);
        }
    }
}

static int64_t draw_length(draw *d, int64_t page_size, int64_t limit)
{
    int64_t length;
    switch (number_range(&d->rng, 0, 5)) {
    case 0: length = PICK(d, 0, 1, 2, 5); break;
    case 1: length = page_size * number_range(&d->rng, 0, 3) + number_range(&d->rng, -1, 1); break;
    case 2: length = PICK(d, 63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193); break;
    default: length = number_range(&d->rng, 1, limit); break;
    }
    return length < 0 ? 0 : length > limit ? limit : length;
}

/* Pages in shuffled order, some of them unowned; garbage past the end of each request. */
static void draw_paged(draw *d, mla_segment *s, const int64_t *length, int64_t page_size)
{
    int64_t n_page = 0, max_page = 0;
    for (int64_t i = 0; i < d->n_seq; i++) {
        int64_t pages = (length[i] + page_size - 1) / page_size;
        n_page += pages;
        max_page = pages > max_page ? pages : max_page;
    }
    n_page += number_range(&d->rng, 0, 3);
    max_page += number_range(&d->rng, 0, 2);
    take_pool(d, s, false, n_page, page_size);
    s->page_table = take_i32(d, 2, (int64_t[]){d->n_seq, max_page});
    s->length = take_i32(d, 1, (int64_t[]){d->n_seq});
    int32_t *order = take(d, (size_t)n_page, sizeof *order);
    if (d->failed) {
        return;
    }
    number_fill_permutation(order, n_page, &d->rng);
    int64_t next = 0;
    for (int64_t i = 0; i < d->n_seq; i++) {
        i32(&s->length)[i] = length[i] == 0 && once_in(d, 4) ? -3 : (int32_t)length[i];
        for (int64_t j = 0; j < max_page; j++) {
            bool used = j * page_size < length[i];
            i32(&s->page_table)[i * max_page + j] = used ? order[next++] : (int32_t)PICK(d, -1, 2147480000, INT32_MIN);
        }
        for (int64_t t = 0; t < length[i]; t++) {
            fill_key(d, s, i32(&s->page_table)[i * max_page + t / page_size], t % page_size);
        }
    }
}

static void draw_batched(draw *d, mla_segment *s, const int64_t *length, int64_t limit)
{
    take_pool(d, s, false, d->n_seq, limit);
    s->length = take_i32(d, 1, (int64_t[]){d->n_seq});
    for (int64_t i = 0; i < d->n_seq && !d->failed; i++) {
        i32(&s->length)[i] = (int32_t)length[i];
        for (int64_t t = 0; t < length[i]; t++) {
            fill_key(d, s, i, t);
        }
    }
}

static void draw_packed(draw *d, mla_segment *s, const int64_t *length)
{
    int64_t n_row = number_range(&d->rng, 0, 2), first = n_row;
    for (int64_t i = 0; i < d->n_seq; i++) {
        n_row += length[i];
    }
    take_pool(d, s, true, 1, n_row);
    s->k_begin = take_i32(d, 1, (int64_t[]){d->n_seq + 1});
    for (int64_t i = 0; i <= d->n_seq && !d->failed; i++) {
        i32(&s->k_begin)[i] = (int32_t)first;
        for (int64_t t = 0; i < d->n_seq && t < length[i]; t++) {
            fill_key(d, s, 0, first++);
        }
    }
}

static void draw_visible(draw *d, mla_segment *s)
{
    mla_visible *v = &s->visible;
    switch (number_range(&d->rng, 0, 7)) {
    case 0:
    case 1:
    case 2: v->rule = MLA_VISIBLE_CAUSAL; break;
    case 3:
    case 4:
        v->rule = MLA_VISIBLE_WINDOW;
        v->left = number_range(&d->rng, -1, 150);
        v->right = number_range(&d->rng, -1, 3);
        break;
    case 5:
        v->rule = MLA_VISIBLE_COMPRESSED;
        v->ratio = PICK(d, 1, 2, 4, 128);
        if (once_in(d, 2)) {
            v->residual = take_i32(d, 1, (int64_t[]){d->n_seq});
            for (int64_t i = 0; i < d->n_seq && !d->failed; i++) {
                i32(&v->residual)[i] = (int32_t)number_range(&d->rng, 0, v->ratio);
            }
        }
        break;
    default: v->rule = MLA_VISIBLE_ALL; break;
    }
    static const char *const name[] = {"all", "causal", "window", "compressed"};
    say(d, ", %s", name[v->rule]);
    if (v->rule == MLA_VISIBLE_WINDOW) {
        say(d, " %" PRId64 ":%" PRId64, v->left, v->right);
    } else if (v->rule == MLA_VISIBLE_COMPRESSED) {
        say(d, " 1/%" PRId64 "%s", v->ratio, v->residual.ndim != 0 ? " residual" : "");
    }
}

/* A list of positions: good ones, repeated ones, and names of nothing. */
static void draw_list(draw *d, mla_segment *s, int64_t limit)
{
    int64_t n_entry = PICK(d, 0, 1, 7, 64, 100, 130);
    int64_t dim[3] = {d->n_seq, d->n_q, n_entry};
    if (d->batched) {
        s->list = take_i32(d, 3, dim);
    } else {
        s->list = take_i32(d, 2, (int64_t[]){d->n_token, n_entry});
    }
    s->list_rule = once_in(d, 2) ? MLA_LIST_STOP : MLA_LIST_SKIP;
    for (int64_t i = 0; i < d->n_token * n_entry && !d->failed; i++) {
        i32(&s->list)[i] = (int32_t)(once_in(d, 10) ? PICK(d, -1, INT32_MIN, INT32_MAX, limit, limit + 1)
                                                    : number_range(&d->rng, 0, limit > 0 ? limit - 1 : 0));
    }
    if (once_in(d, 2)) {
        s->list_length = take_i32(d, 1, (int64_t[]){d->n_seq});
        for (int64_t i = 0; i < d->n_seq && !d->failed; i++) {
            i32(&s->list_length)[i] = (int32_t)number_range(&d->rng, -1, n_entry);
        }
    }
    say(d, ", list of %" PRId64 "%s%s", n_entry, s->list_rule == MLA_LIST_STOP ? " stop" : " skip",
        s->list_length.ndim != 0 ? " with lengths" : "");
}

static void draw_mask(draw *d, mla_segment *s, int64_t limit)
{
    if (d->batched) {
        s->mask = take_tensor(d, MLA_DTYPE_F32, 0, 3, (int64_t[]){d->n_seq, d->n_q, limit});
    } else {
        s->mask = take_tensor(d, MLA_DTYPE_F32, 0, 2, (int64_t[]){d->n_token, limit});
    }
    for (int64_t i = 0; i < d->n_token * limit && !d->failed; i++) {
        ((float *)s->mask.data)[i] = once_in(d, 4) ? -INFINITY : number_normal(&d->rng);
    }
    say(d, ", mask");
}

static void draw_segment(draw *d, int32_t g)
{
    mla_segment *s = &d->c->problem.segment[g];
    double per_key =
        (double)(d->n_token + 1) * (double)(d->n_kv_head * d->group) * (double)(d->d_nope + d->d_rope + d->d_v);
    int64_t limit = (int64_t)(WORK_LIMIT / per_key / (double)d->c->problem.n_segment);
    limit = limit < 70 ? 70 : limit > 700 ? 700 : limit;
    int64_t page_size = PICK(d, 1, 2, 16, 61, 64, 64, 64, 69, 128, 576), length[8] = {0};
    say(d, "; %s keys [", mla_dtype_name(d->k_dtype));
    for (int64_t i = 0; i < d->n_seq; i++) {
        length[i] = draw_length(d, page_size, limit);
        say(d, "%s%" PRId64, i > 0 ? " " : "", length[i]);
    }
    say(d, "]");
    switch (number_range(&d->rng, d->nz ? 1 : 0, 4)) {
    case 1:
        draw_batched(d, s, length, limit);
        say(d, " batched");
        break;
    case 0:
        draw_packed(d, s, length);
        say(d, " packed");
        break;
    default:
        draw_paged(d, s, length, page_size);
        say(d, " in pages of %" PRId64, page_size);
        break;
    }
    if (s->layout == MLA_KEY_LAYOUT_NZ) {
        say(d, ", NZ by %" PRId64, s->k.dim[3]);
        if (d->d_rope > 0) {
            say(d, "+%" PRId64, s->k_rope.dim[3]);
        }
    }
    if (s->v.ndim != 0) {
        say(d, ", own v");
    }
    draw_visible(d, s);
    if (once_in(d, 8)) {
        draw_list(d, s, limit);
    }
    if (once_in(d, 8)) {
        draw_mask(d, s, limit);
    }
    bool unit = d->k_dtype == MLA_DTYPE_I8;
    if (unit || once_in(d, 10)) {
        s->descale = take_factor(d, unit ? 1 / INT8_UNIT : 0.75f);
        say(d, ", descale");
    }
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static mla_tensor draw_factors(draw *d, const char *name)
{
    int64_t n = d->n_kv_head * d->group;
    mla_tensor t = take_tensor(d, MLA_DTYPE_F32, 0, 1, &n);
    for (int64_t i = 0; i < n && !d->failed; i++) {
        ((float *)t.data)[i] = (float)(0.5 + number_uniform(&d->rng));
    }
    say(d, ", %s", name);
    return t;
}

/* Before the keys, because integer probabilities want them without values of their own. */
static void draw_rounding(draw *d)
{
    mla_problem *p = &d->c->problem;
    if (!once_in(d, mla_dtype_size(d->k_dtype) == 1 ? 2 : 8)) {
        return;
    }
    bool can_int8 = d->k_dtype == MLA_DTYPE_I8 && d->d_v <= d->d_nope;
    bool can_16bit = d->q_dtype == MLA_DTYPE_F16 || d->q_dtype == MLA_DTYPE_BF16;
    p->p_rounding = can_int8 && !once_in(d, 4)    ? MLA_P_ROUND_INT8
                    : can_16bit && !once_in(d, 4) ? MLA_P_ROUND_16BIT
                                                  : MLA_P_ROUND_HIF8;
    p->p_tile = (int32_t)PICK(d, 128, 128, 512, 512, 1, 7, 64, 96, 100);
    static const char *const name[] = {"none", "16bit", "int8", "hif8"};
    say(d, ", p %s by %d", name[p->p_rounding], (int)p->p_tile);
}

static void draw_scores(draw *d)
{
    mla_problem *p = &d->c->problem;
    double scale = 1 / sqrt((double)(d->d_nope + d->d_rope));
    p->softmax_scale = (float)(scale * (once_in(d, 4) ? 8 : once_in(d, 10) ? -1 : once_in(d, 20) ? 0 : 1));
    say(d, "; scale %.4g", (double)p->softmax_scale);
    if (d->spread != 1) {
        say(d, ", keys of size %g", (double)d->spread);
    }
    if (once_in(d, 6)) {
        p->sink = draw_factors(d, "sink");
        for (int64_t i = 0; i < d->n_kv_head * d->group && !d->failed; i++) {
            float *sink = (float *)p->sink.data + i;
            *sink = once_in(d, 5) ? -INFINITY : once_in(d, 8) ? INFINITY : 4 * number_normal(&d->rng);
        }
    }
    if (once_in(d, 10)) {
        p->qk_descale = draw_factors(d, "qk_descale");
    }
    if (once_in(d, 10)) {
        p->pv_descale = draw_factors(d, "pv_descale");
    }
}

static void draw_outputs(draw *d)
{
    static const mla_dtype dtypes[] = {MLA_DTYPE_F32, MLA_DTYPE_F16, MLA_DTYPE_BF16};
    mla_problem *p = &d->c->problem;
    int64_t dim[4];
    memcpy(dim, p->q.dim, sizeof dim);
    dim[p->q.ndim - 1] = d->d_v;
    mla_dtype dtype = dtypes[number_range(&d->rng, 0, 2)];
    p->d_v = d->d_v;
    p->o = take_tensor(d, dtype, 0, p->q.ndim, dim);
    p->lse = take_tensor(d, MLA_DTYPE_F32, 0, p->q.ndim - 1, dim);
    int64_t n_pair = d->n_token * d->n_kv_head * d->group;
    d->c->o_bytes = (size_t)(n_pair * d->d_v) * mla_dtype_size(dtype);
    d->c->lse_bytes = (size_t)n_pair * sizeof(float);
    p->lse_base = once_in(d, 4) ? MLA_LSE_BASE2 : MLA_LSE_NATURAL;
    p->lse_empty = (mla_lse_empty)number_range(&d->rng, 0, 2);
    p->lse_with_sink = once_in(d, 2);
    say(d, "; %s out%s%s", mla_dtype_name(dtype), p->lse_base == MLA_LSE_BASE2 ? ", base 2 lse" : "",
        p->lse_with_sink && p->sink.ndim != 0 ? " with sink" : "");
}

bool random_case_make(uint64_t seed, random_case *c)
{
    *c = (random_case){0};
    mla_problem_init(&c->problem);
    draw d = {.c = c, .rng = {seed}};
    number_random(&d.rng);
    draw_sizes(&d);
    draw_queries(&d);
    draw_rounding(&d);
    c->problem.n_segment = once_in(&d, 8) ? 2 : 1;
    for (int32_t g = 0; g < c->problem.n_segment; g++) {
        draw_segment(&d, g);
    }
    draw_scores(&d);
    draw_outputs(&d);
    if (d.failed) {
        random_case_release(c);
    }
    return !d.failed;
}

void random_case_release(random_case *c)
{
    while (c->n_owned > 0) {
        free(c->owned[--c->n_owned]);
    }
    *c = (random_case){0};
}
