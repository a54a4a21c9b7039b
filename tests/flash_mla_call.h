/*
 * flash_mla_call.h - one call of flash_mla_with_kvcache() with all the memory it speaks of, for tests.
 *
 * Every cache row that no token may see holds NaN, and outputs hold NaN before the call.
 */
#ifndef FLASH_MLA_CALL_H
#define FLASH_MLA_CALL_H

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mla/flash_mla.h"
#include "mla/mla.h"

#define UNUSED_PAGE 2147480000 /* what serving stacks leave in the tail of a page table */
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

/* ---- 16-bit numbers ---------------------------------------------------------------------------------------------- */

static inline float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Exact for what the tests store: NaN, 0, and numbers of at most 8 significant bits within the range of f16. */
static inline uint16_t encode(mla_dtype dtype, float value)
{
    uint32_t bits = float_to_bits(value);
    if (dtype == MLA_DTYPE_BF16) {
        assert_true(isnan(value) || (bits & 0xffff) == 0);
        return (uint16_t)(bits >> 16);
    }
    if (isnan(value)) {
        return 0x7e00;
    }
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    int exponent = (int)(bits >> 23 & 0xff) - 127;
    if (value == 0) {
        return sign;
    }
    assert_true(exponent >= -14 && exponent <= 15 && (bits & 0x1fff) == 0);
    return (uint16_t)(sign | (exponent + 15) << 10 | (bits >> 13 & 0x3ff));
}

static inline float decode(mla_dtype dtype, uint16_t code)
{
    if (dtype == MLA_DTYPE_BF16) {
        return bits_to_float((uint32_t)code << 16);
    }
    int exponent = code >> 10 & 0x1f, fraction = code & 0x3ff;
    float magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                      : exponent == 0 ? ldexpf((float)fraction, -24)
                                      : ldexpf((float)(fraction | 0x400), exponent - 25);
    return code & 0x8000 ? -magnitude : magnitude;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

typedef struct call {
    int64_t b, s_q, h_q, h_kv, d, d_v, page, n_page, max_page;
    mla_dtype dtype;
    bool causal;
    const float *scale;
    uint16_t *q_data, *cache_data, *out_data;
    int32_t *table, *lens;
    float *lse_data;
    mla_tensor q, cache, block_table, seqlens, out, lse;
    const mla_tensor *metadata, *num_splits;
} call;

static inline void *allocate(int64_t count, size_t size)
{
    void *memory = malloc((size_t)(count > 0 ? count : 1) * size);
    assert_non_null(memory);
    return memory;
}

/* q = 0, a cache of NaN, pages in order; then whoever calls writes rows and may swap views. */
static inline void open_call(call *c, mla_dtype dtype, int64_t b, int64_t s_q, int64_t h_q, int64_t h_kv, int64_t d,
                             int64_t d_v, int64_t page, const int32_t *lens, bool causal)
{
    *c = (call){.b = b,
                .s_q = s_q,
                .h_q = h_q,
                .h_kv = h_kv,
                .d = d,
                .d_v = d_v,
                .page = page,
                .dtype = dtype,
                .causal = causal};
    for (int64_t i = 0; i < b; i++) {
        int64_t used = lens[i] > 0 ? (lens[i] + page - 1) / page : 0;
        c->max_page = used > c->max_page ? used : c->max_page;
        c->n_page += used;
    }
    c->n_page++; /* one that nobody uses */
    c->q_data = allocate(b * s_q * h_q * d, sizeof *c->q_data);
    c->out_data = allocate(b * s_q * h_q * d_v, sizeof *c->out_data);
    c->lse_data = allocate(b * h_q * s_q, sizeof *c->lse_data);
    c->cache_data = allocate(c->n_page * page * h_kv * d, sizeof *c->cache_data);
    c->table = allocate(b * c->max_page, sizeof *c->table);
    c->lens = allocate(b, sizeof *c->lens);
    memset(c->q_data, 0, (size_t)(b * s_q * h_q * d) * sizeof *c->q_data);
    for (int64_t i = 0; i < c->n_page * page * h_kv * d; i++) {
        c->cache_data[i] = encode(dtype, NAN);
    }
    int32_t next = 0;
    for (int64_t i = 0; i < b; i++) {
        c->lens[i] = lens[i];
        for (int64_t j = 0; j < c->max_page; j++) {
            c->table[i * c->max_page + j] = j * page < lens[i] ? next++ : j % 2 ? UNUSED_PAGE : -1;
        }
    }
    c->q = mla_tensor_make(c->q_data, dtype, 4, (int64_t[]){b, s_q, h_q, d});
    c->cache = mla_tensor_make(c->cache_data, dtype, 4, (int64_t[]){c->n_page, page, h_kv, d});
    c->block_table = mla_tensor_make(c->table, MLA_DTYPE_I32, 2, (int64_t[]){b, c->max_page});
    c->seqlens = mla_tensor_make(c->lens, MLA_DTYPE_I32, 1, &b);
    c->out = mla_tensor_make(c->out_data, dtype, 4, (int64_t[]){b, s_q, h_q, d_v});
    c->lse = mla_tensor_make(c->lse_data, MLA_DTYPE_F32, 3, (int64_t[]){b, h_q, s_q});
}

static inline void close_call(call *c)
{
    free(c->q_data);
    free(c->out_data);
    free(c->lse_data);
    free(c->cache_data);
    free(c->table);
    free(c->lens);
}

/* d 576, d_v 512, bf16: the shape that this interface was made for. */
static inline void open_default(call *c, int64_t b, int64_t s_q, int64_t h_q, int64_t h_kv, int64_t page,
                                const int32_t *lens, bool causal)
{
    open_call(c, MLA_DTYPE_BF16, b, s_q, h_q, h_kv, 576, 512, page, lens, causal);
}

static inline uint16_t *cache_row(const call *c, int64_t request, int64_t token, int64_t head)
{
    int64_t page = c->table[request * c->max_page + token / c->page];
    return (uint16_t *)c->cache.data + page * c->cache.stride[0] + token % c->page * c->cache.stride[1] +
           head * c->cache.stride[2];
}

/* Fills the rows of all tokens in use: V = t, times `by_token`, plus the number of the kv head times `by_head`. */
static inline void fill_rows(const call *c, float by_token, float by_head)
{
    for (int64_t i = 0; i < c->b; i++) {
        for (int64_t t = 0; t < c->lens[i]; t++) {
            for (int64_t h = 0; h < c->h_kv; h++) {
                uint16_t *row = cache_row(c, i, t, h);
                for (int64_t x = 0; x < c->d; x++) {
                    row[x] = encode(c->dtype, (float)t * by_token + (float)h * by_head);
                }
            }
        }
    }
}

static inline mla_status try_call(call *c)
{
    for (int64_t i = 0; i < c->b * c->s_q * c->h_q * c->d_v; i++) {
        c->out_data[i] = encode(c->dtype, NAN);
    }
    for (int64_t i = 0; i < c->b * c->s_q * c->h_q; i++) {
        c->lse_data[i] = NAN;
    }
    return flash_mla_with_kvcache(&c->q, &c->cache, &c->block_table, &c->seqlens, c->d_v, c->metadata, c->num_splits,
                                  c->scale, c->causal, &c->out, &c->lse);
}

static inline void run_call(call *c)
{
    if (try_call(c) != MLA_STATUS_OK) {
        fail_msg("%s", mla_last_error());
    }
}

static inline float out_at(const call *c, int64_t i, int64_t j, int64_t h, int64_t x)
{
    return decode(c->dtype,
                  ((uint16_t *)c->out.data)[i * c->out.stride[0] + j * c->out.stride[1] + h * c->out.stride[2] + x]);
}

static inline float lse_at(const call *c, int64_t i, int64_t j, int64_t h)
{
    return ((float *)c->lse.data)[i * c->lse.stride[0] + h * c->lse.stride[1] + j * c->lse.stride[2]];
}

#endif
