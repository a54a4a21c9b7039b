/*
 * test_validation.c - every rule of the checker: one broken argument, the status, and the words of the sentence.
 *
 * A row of the tables names a valid problem, some writes into it, and what must come out. Writes address the fixture
 * by offset, so that a row is data and not code.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/shape.h"
#include "problem_fixture.h"

enum { MAX_PATCH = 6 };

typedef struct patch {
    size_t offset, size; /* size 0: no patch */
    int64_t value;       /* written in the width of the member; a wider member is cleared */
    size_t copy;         /* or, when not 0, 1 + offset of a member to copy from */
} patch;

#define SIZE_OF(member) sizeof(((fixture *)NULL)->member)
#define SET(member, number) {offsetof(fixture, member), SIZE_OF(member), (int64_t)(number), 0}
#define CLEAR(member) SET(member, 0)
#define COPY(member, from) {offsetof(fixture, member), SIZE_OF(member), 0, 1 + offsetof(fixture, from)}
#define NAN_BITS 0x7fc00000
#define INF_BITS 0x7f800000

typedef struct row {
    fixture_kind kind;
    mla_status status;
    const char *words; /* must appear in the sentence */
    patch patches[MAX_PATCH];
} row;

static void apply(fixture *f, const patch *patches)
{
    for (int i = 0; i < MAX_PATCH && patches[i].size != 0; i++) {
        char *at = (char *)f + patches[i].offset;
        if (patches[i].copy != 0) {
            memmove(at, (char *)f + patches[i].copy - 1, patches[i].size);
        } else if (patches[i].size == 1) {
            *at = (char)patches[i].value;
        } else if (patches[i].size == 4) {
            int32_t value = (int32_t)patches[i].value;
            memcpy(at, &value, sizeof value);
        } else if (patches[i].size == 8) {
            memcpy(at, &patches[i].value, 8);
        } else {
            memset(at, 0, patches[i].size);
        }
    }
}

static const row REFUSED[] = {
    /* ---- the struct and its scalars ---- */
    {PAGED, MLA_STATUS_BAD_VALUE, "struct_size = 0 differs from this library's", {SET(p.struct_size, 0)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "struct_size = 8 ", {SET(p.struct_size, 8)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "n_segment = 0 must be between 1 and 2", {SET(p.n_segment, 0)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "n_segment = 3 must be", {SET(p.n_segment, 3)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "n_segment = -2147483648 must be", {SET(p.n_segment, INT32_MIN)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "softmax_scale = nan must be finite", {SET(p.softmax_scale, NAN_BITS)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "softmax_scale = inf must be finite", {SET(p.softmax_scale, INF_BITS)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "lse_base = 2 must be between 0 and 1", {SET(p.lse_base, 2)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "lse_empty = 3 must", {SET(p.lse_empty, 3)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "p_rounding = -1 must", {SET(p.p_rounding, -1)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "arithmetic = 2 must", {SET(p.arithmetic, 2)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "p_tile = 64 must be 0 with p_rounding = 0", {SET(p.p_tile, 64)}},
    {COMPRESSED, MLA_STATUS_BAD_VALUE, "p_tile = 0 must be at least 1 with p_rounding = 3", {SET(p.p_tile, 0)}},
    {COMPRESSED, MLA_STATUS_BAD_VALUE, "p_tile = -128 must be", {SET(p.p_tile, -128)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "segment[0].visible.rule = 4 must", {SET(p.segment[0].visible.rule, 4)}},
    {COMPRESSED, MLA_STATUS_BAD_VALUE, "segment[0].visible.left = -2 must be at least -1",
     {SET(p.segment[0].visible.left, -2)}},
    {COMPRESSED, MLA_STATUS_BAD_VALUE, "segment[0].visible.right = -9223372036854775808 must",
     {SET(p.segment[0].visible.right, INT64_MIN)}},
    {COMPRESSED, MLA_STATUS_BAD_VALUE, "segment[1].visible.ratio = 0 must be at least 1",
     {SET(p.segment[1].visible.ratio, 0)}},
    {LISTED, MLA_STATUS_BAD_VALUE, "segment[0].list_address = 2 must", {SET(p.segment[0].list_address, 2)}},
    {LISTED, MLA_STATUS_BAD_VALUE, "segment[0].list_rule = 7 must", {SET(p.segment[0].list_rule, 7)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "d_v = 0 must be at least 1", {SET(p.d_v, 0)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "d_v = 9 must be at most d_k = 8", {SET(p.d_v, 9), SET(p.o.dim[3], 9)}},

    /* ---- presence ---- */
    {PAGED, MLA_STATUS_NULL_POINTER, "q is missing", {CLEAR(p.q)}},
    {PAGED, MLA_STATUS_NULL_POINTER, "o is missing", {CLEAR(p.o)}},
    {PAGED, MLA_STATUS_NULL_POINTER, "segment[0].k is missing", {CLEAR(p.segment[0].k)}},
    {COMPRESSED, MLA_STATUS_NULL_POINTER, "segment[1].k is missing", {CLEAR(p.segment[1].k)}},
    {PAGED, MLA_STATUS_NULL_POINTER, "q.data is NULL, but there are 192 elements", {SET(p.q.data, 0)}},
    {PAGED, MLA_STATUS_NULL_POINTER, "segment[0].page_table.data is NULL", {SET(p.segment[0].page_table.data, 0)}},
    {PAGED, MLA_STATUS_NULL_POINTER, "segment[0].length is missing", {CLEAR(p.segment[0].length)}},
    {LISTED, MLA_STATUS_NULL_POINTER, "segment[0].length is missing", {CLEAR(p.segment[0].length)}},
    {SPLIT, MLA_STATUS_NULL_POINTER, "segment[0].k_rope is missing: q_rope is given", {CLEAR(p.segment[0].k_rope)}},
    {SPLIT, MLA_STATUS_BAD_VALUE, "segment[0].k_rope must be absent: q_rope is absent", {CLEAR(p.q_rope)}},
    {PACKED, MLA_STATUS_NULL_POINTER, "segment[0].k_begin is missing", {CLEAR(p.segment[0].k_begin)}},
    {LISTED, MLA_STATUS_BAD_VALUE, "segment[0].list_length must be absent: there is no list", {CLEAR(p.segment[0].list)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "segment[0].visible.residual must be absent: the rule is not COMPRESSED",
     {COPY(p.segment[0].visible.residual, p.segment[0].length)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "segment[0].k_begin must be absent: a k of 4 dims",
     {COPY(p.segment[0].k_begin, p.segment[0].length)}},
    {PACKED, MLA_STATUS_BAD_VALUE, "segment[0].page_table must be absent: a k of 3 dims",
     {COPY(p.segment[0].page_table, p.segment[0].length)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "q_begin belongs to a packed q", {COPY(p.q_begin, p.segment[0].length)}},

    /* ---- one tensor alone ---- */
    {PAGED, MLA_STATUS_BAD_SHAPE, "q.ndim = 7 must be between 1 and 6", {SET(p.q.ndim, 7)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "q.ndim = -1 must be", {SET(p.q.ndim, -1)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "q.ndim = 0 must be", {SET(p.q.ndim, 0)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "segment[0].length.ndim = 0 must be", {SET(p.segment[0].length.ndim, 0)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "q.dim[1] = -1 is negative", {SET(p.q.dim[1], -1)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "q reaches over more bytes than 63 bits count", {SET(p.q.dim[0], INT64_MAX)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "q reaches over", {SET(p.q.stride[0], INT64_MIN)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "q reaches over", {SET(p.q.stride[0], INT64_MAX / 2)}},
    /* each end fits, their distance does not */
    {PAGED, MLA_STATUS_BAD_SHAPE, "q reaches over",
     {SET(p.q.stride[0], INT64_MAX / 6), SET(p.q.stride[2], -(INT64_MAX / 8))}},
    /* no memory behind it, but more elements than int64 has */
    {PAGED, MLA_STATUS_BAD_SHAPE, "q reaches over",
     {SET(p.q.dim[0], (int64_t)1 << 40), SET(p.q.dim[1], (int64_t)1 << 40), SET(p.q.stride[0], 0), SET(p.q.stride[1], 0)}},
    {PAGED, MLA_STATUS_BAD_DTYPE, "q.dtype = 99 is not a dtype", {SET(p.q.dtype, 99)}},
    {PAGED, MLA_STATUS_BAD_DTYPE, "q.dtype = -1 is not a dtype", {SET(p.q.dtype, -1)}},
    {PAGED, MLA_STATUS_BAD_DTYPE, "q.dtype = 0 is not a dtype", {SET(p.q.dtype, MLA_DTYPE_NONE)}},
    {PAGED, MLA_STATUS_BAD_DTYPE, "q.dtype = i8 must be f32, f16 or bf16", {SET(p.q.dtype, MLA_DTYPE_I8)}},
    {PAGED, MLA_STATUS_BAD_DTYPE, "o.dtype = i32 must be f32, f16 or bf16", {SET(p.o.dtype, MLA_DTYPE_I32)}},
    {PAGED, MLA_STATUS_BAD_DTYPE, "segment[0].k.dtype = u8 must be f32, f16 or bf16",
     {SET(p.segment[0].k.dtype, MLA_DTYPE_U8)}},
    {PAGED, MLA_STATUS_BAD_DTYPE, "lse.dtype = bf16 must be f32", {SET(p.lse.dtype, MLA_DTYPE_BF16)}},
    {SPLIT, MLA_STATUS_BAD_DTYPE, "max.dtype = f16 must be f32", {SET(p.max.dtype, MLA_DTYPE_F16)}},
    {SPLIT, MLA_STATUS_BAD_DTYPE, "q_rope.dtype = f16 must be bf16", {SET(p.q_rope.dtype, MLA_DTYPE_F16)}},
    {COMPRESSED, MLA_STATUS_BAD_DTYPE, "sink.dtype = i32 must be f32", {SET(p.sink.dtype, MLA_DTYPE_I32)}},
    {BATCHED, MLA_STATUS_BAD_DTYPE, "segment[0].mask.dtype = u8 must be", {SET(p.segment[0].mask.dtype, MLA_DTYPE_U8)}},
    {PAGED, MLA_STATUS_BAD_DTYPE, "segment[0].length.dtype = i64 must be i32",
     {SET(p.segment[0].length.dtype, MLA_DTYPE_I64), COPY(p.segment[0].length.data, p.q.data)}},
    {PAGED, MLA_STATUS_BAD_DTYPE, "segment[0].page_table.dtype = i64 must be i32",
     {SET(p.segment[0].page_table.dtype, MLA_DTYPE_I64), COPY(p.segment[0].page_table.data, p.q.data)}},
    {LISTED, MLA_STATUS_BAD_DTYPE, "segment[0].list.dtype = i64 must be i32",
     {SET(p.segment[0].list.dtype, MLA_DTYPE_I64), COPY(p.segment[0].list.data, p.q.data)}},
    {PACKED, MLA_STATUS_BAD_DTYPE, "q_begin.dtype = f32 must be i32", {SET(p.q_begin.dtype, MLA_DTYPE_F32)}},
    {COMPRESSED, MLA_STATUS_BAD_DTYPE, "q.dtype = f32 must be f16 or bf16",
     {SET(p.p_rounding, MLA_P_ROUND_16BIT), SET(p.q.dtype, MLA_DTYPE_F32)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "is not aligned to its 4-byte elements", {SET(p.lse.data, 0x1002)}},
    {PAGED, MLA_STATUS_BAD_DEVICE, "q.device.type = 5 is not a device type", {SET(p.q.device.type, 5)}},
    {PAGED, MLA_STATUS_BAD_DEVICE, "q.device.id = 1 is not a device of type 0", {SET(p.q.device.id, 1)}},
    {PAGED, MLA_STATUS_BAD_DEVICE, "segment[0].k is on device 1:0, but q is on device 0:0",
     {SET(p.segment[0].k.device.type, MLA_DEVICE_CUDA)}},
    {PAGED, MLA_STATUS_BAD_DEVICE, "lse is on device 1:2, but q is on device 0:0",
     {SET(p.lse.device.type, MLA_DEVICE_CUDA), SET(p.lse.device.id, 2)}},
    {PAGED, MLA_STATUS_BAD_DEVICE, "q.device.id = -1 is not", {SET(p.q.device.type, MLA_DEVICE_CUDA), SET(p.q.device.id, -1)}},

    /* ---- strides ---- */
    {PAGED, MLA_STATUS_BAD_STRIDE, "q.stride[3] = 2 must be 1", {SET(p.q.stride[3], 2)}},
    {PAGED, MLA_STATUS_BAD_STRIDE, "o.stride[3] = 0 must be 1", {SET(p.o.stride[3], 0)}},
    {PAGED, MLA_STATUS_BAD_STRIDE, "segment[0].k.stride[3] = -1 must be 1", {SET(p.segment[0].k.stride[3], -1)}},
    {SPLIT, MLA_STATUS_BAD_STRIDE, "q_rope.stride[3] = 3 must be 1", {SET(p.q_rope.stride[3], 3)}},
    {SPLIT, MLA_STATUS_BAD_STRIDE, "segment[0].k_rope.stride[3] = 2 must be 1", {SET(p.segment[0].k_rope.stride[3], 2)}},
    {SPLIT, MLA_STATUS_BAD_STRIDE, "segment[0].v.stride[3] = 2 must be 1", {SET(p.segment[0].v.stride[3], 2)}},
    {PAGED, MLA_STATUS_BAD_STRIDE, "segment[0].page_table.stride[1] = 3 must be 1",
     {SET(p.segment[0].page_table.stride[1], 3)}},
    {PAGED, MLA_STATUS_BAD_STRIDE, "segment[0].length.stride[0] = 2 must be 1", {SET(p.segment[0].length.stride[0], 2)}},
    {LISTED, MLA_STATUS_BAD_STRIDE, "segment[0].list.stride[2] = 0 must be 1", {SET(p.segment[0].list.stride[2], 0)}},
    {COMPRESSED, MLA_STATUS_BAD_STRIDE, "sink.stride[0] = 0 must be 1", {SET(p.sink.stride[0], 0)}},
    {PAGED, MLA_STATUS_BAD_STRIDE, "o.stride[0] = 0 must be positive for an output", {SET(p.o.stride[0], 0)}},
    {PAGED, MLA_STATUS_BAD_STRIDE, "o.stride[2] = -6 must be positive", {SET(p.o.stride[2], -6)}},
    {PAGED, MLA_STATUS_BAD_STRIDE, "lse.stride[1] = 0 must be positive", {SET(p.lse.stride[1], 0)}},
    {SPLIT, MLA_STATUS_BAD_STRIDE, "max.stride[2] = 0 must be positive", {SET(p.max.stride[2], 0)}},

    /* ---- dims against each other ---- */
    {PAGED, MLA_STATUS_BAD_SHAPE, "q.ndim = 2 must be 4 ([n_seq][n_q][n_head][d]) or 3", {SET(p.q.ndim, 2)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "q.ndim = 5 must be", {SET(p.q.ndim, 5)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "q.ndim = 6 must be 4", {SET(p.q.ndim, 6)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "q.dim[2] = 0 must be at least 1", {SET(p.q.dim[2], 0)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "q.dim[3] = 0 must be at least 1", {SET(p.q.dim[3], 0)}},
    {PACKED, MLA_STATUS_BAD_SHAPE, "q.dim[1] = 0 must be at least 1", {SET(p.q.dim[1], 0)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "q_rope.dim[3] = 0 must be at least 1", {SET(p.q_rope.dim[3], 0)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "q_rope.dim[2] = 3 differs from q.dim[2] = 4", {SET(p.q_rope.dim[2], 3)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "q_rope.ndim = 3 must be 4", {SET(p.q_rope.ndim, 3)}},
    {PACKED, MLA_STATUS_BAD_SHAPE, "q_begin.ndim = 2 must be 1: [n_seq + 1]", {SET(p.q_begin.ndim, 2)}},
    {PACKED, MLA_STATUS_BAD_SHAPE, "q_begin.dim[0] = 0 must be at least 1", {SET(p.q_begin.dim[0], 0)}},
    {PACKED, MLA_STATUS_BAD_SHAPE, "q_length.dim[0] = 3 differs from q_begin.dim[0] - 1 = 2", {SET(p.q_begin.dim[0], 3)}},
    {PACKED, MLA_STATUS_BAD_SHAPE, "segment[0].k_begin.dim[0] = 3 must be n_seq + 1 = 3 + 1",
     {SET(p.segment[0].k_begin.dim[0], 3)}},
    {PACKED, MLA_STATUS_BAD_SHAPE, "segment[0].k_begin.ndim = 2 must be 1: [n_seq + 1]",
     {SET(p.segment[0].k_begin.ndim, 2), SET(p.segment[0].k_begin.dim[1], 1)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "segment[0].k.ndim = 5 must be 4", {SET(p.segment[0].k.ndim, 5)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "segment[0].k.dim[3] = 7 differs from q.dim[3] = 8", {SET(p.segment[0].k.dim[3], 7)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "segment[0].k.dim[2] = 3 kv heads do not divide q.dim[2] = 4 query heads",
     {SET(p.segment[0].k.dim[2], 3)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "segment[0].k.dim[2] = 0 kv heads", {SET(p.segment[0].k.dim[2], 0)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "segment[0].k.dim[1] = 0 must be at least 1: the page size",
     {SET(p.segment[0].k.dim[1], 0)}},
    {PHYSICAL, MLA_STATUS_BAD_SHAPE, "segment[0].k.dim[1] = 0 must be at least 1", {SET(p.segment[0].k.dim[1], 0)}},
    {COMPRESSED, MLA_STATUS_BAD_SHAPE, "segment[1].k.dim[2] = 1 differs from segment[0].k.dim[2] = 2",
     {SET(p.segment[1].k.dim[2], 1)}},
    {BATCHED, MLA_STATUS_BAD_SHAPE, "segment[0].k.dim[0] = 2 differs from q.dim[0] = 3", {SET(p.segment[0].k.dim[0], 2)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "segment[0].page_table.dim[0] = 2 differs from q.dim[0] = 3",
     {SET(p.segment[0].page_table.dim[0], 2)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "segment[0].page_table.ndim = 1 must be 2: [n_seq][max_page]",
     {SET(p.segment[0].page_table.ndim, 1)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "segment[0].length.dim[0] = 2 differs from q.dim[0] = 3",
     {SET(p.segment[0].length.dim[0], 2)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "segment[0].length.ndim = 2 must be 1: [n_seq]", /* shape (b, 1) */
     {SET(p.segment[0].length.ndim, 2), SET(p.segment[0].length.dim[1], 1), SET(p.segment[0].length.stride[1], 1)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "segment[0].k_rope.dim[0] = 4 differs from segment[0].k.dim[0] = 5",
     {SET(p.segment[0].k_rope.dim[0], 4)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "segment[0].k_rope.dim[3] = 3 differs from q_rope.dim[3] = 4",
     {SET(p.segment[0].k_rope.dim[3], 3)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "segment[0].v.dim[3] = 5 differs from d_v = 6", {SET(p.segment[0].v.dim[3], 5)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "segment[0].v.dim[1] = 3 differs from segment[0].k.dim[1] = 4",
     {SET(p.segment[0].v.dim[1], 3)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "segment[0].v.ndim = 3 must be 4", {SET(p.segment[0].v.ndim, 3)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "q_descale.ndim = 2 must be 1: [1]", {SET(p.q_descale.ndim, 2)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "segment[0].descale.dim[0] = 0 differs from", {SET(p.segment[0].descale.dim[0], 0)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "qk_descale.dim[0] = 3 differs from q.dim[2] = 4", {SET(p.qk_descale.dim[0], 3)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "pv_descale.dim[0] = 1 differs from q.dim[2] = 4", {SET(p.pv_descale.dim[0], 1)}},
    {COMPRESSED, MLA_STATUS_BAD_SHAPE, "sink.dim[0] = 2 differs from q.dim[1] = 4", {SET(p.sink.dim[0], 2)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "o.dim[3] = 5 differs from d_v = 6", {SET(p.o.dim[3], 5)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "o.dim[0] = 2 differs from q.dim[0] = 3", {SET(p.o.dim[0], 2)}},
    {PACKED, MLA_STATUS_BAD_SHAPE, "o.ndim = 4 must be 3: [n_token][n_head][d_v]", {SET(p.o.ndim, 4)}},
    {PAGED, MLA_STATUS_BAD_SHAPE, "lse.dim[2] = 3 differs from q.dim[2] = 4", {SET(p.lse.dim[2], 3)}},
    {PACKED, MLA_STATUS_BAD_SHAPE, "lse.dim[0] = 5 differs from q.dim[0] = 6", {SET(p.lse.dim[0], 5)}},
    {SPLIT, MLA_STATUS_BAD_SHAPE, "max.ndim = 2 must be 3", {SET(p.max.ndim, 2)}},
    {LISTED, MLA_STATUS_BAD_SHAPE, "segment[0].list.ndim = 2 must be 3: [n_seq][n_q][n_entry]",
     {SET(p.segment[0].list.ndim, 2)}},
    {LISTED, MLA_STATUS_BAD_SHAPE, "segment[0].list.dim[1] = 1 differs from q.dim[1] = 2", {SET(p.segment[0].list.dim[1], 1)}},
    {LISTED, MLA_STATUS_BAD_SHAPE, "segment[0].list_length.dim[1] = 1 differs from q.dim[1] = 2",
     {SET(p.segment[0].list_length.dim[1], 1)}},
    {PHYSICAL, MLA_STATUS_BAD_SHAPE, "segment[0].list_length.dim[0] = 2 differs from q.dim[0] = 3",
     {SET(p.segment[0].list_length.dim[0], 2)}},
    {PHYSICAL, MLA_STATUS_BAD_SHAPE, "segment[0].list_length.ndim = 3 must be 1", {SET(p.segment[0].list_length.ndim, 3)}},
    {PHYSICAL, MLA_STATUS_BAD_VALUE, "segment[0].visible.rule = 1 must be 0: a PHYSICAL list",
     {SET(p.segment[0].visible.rule, MLA_VISIBLE_CAUSAL)}},
    {PHYSICAL, MLA_STATUS_BAD_VALUE, "segment[0].mask must be absent: a PHYSICAL list",
     {COPY(p.segment[0].mask, p.segment[0].k)}},
    {BATCHED, MLA_STATUS_BAD_SHAPE, "segment[0].mask.ndim = 2 must be 3", {SET(p.segment[0].mask.ndim, 2)}},
    {BATCHED, MLA_STATUS_BAD_SHAPE, "segment[0].mask.dim[1] = 1 differs from q.dim[1] = 2", {SET(p.segment[0].mask.dim[1], 1)}},
    {BATCHED, MLA_STATUS_BAD_SHAPE, "segment[0].mask.dim[2] = 6 does not cover the 7 keys that sequence 0 may see",
     {SET(p.segment[0].mask.dim[2], 6)}},
    {BATCHED, MLA_STATUS_BAD_SHAPE, "segment[0].mask.dim[2] = 6 does not cover",
     {SET(p.segment[0].mask.dim[2], 6), CLEAR(p.segment[0].length)}},
    {COMPRESSED, MLA_STATUS_BAD_SHAPE, "segment[1].visible.residual.dim[0] = 2 differs from q_begin.dim[0] - 1 = 3",
     {SET(p.segment[1].visible.residual.dim[0], 2)}},

    /* ---- overlap ---- */
    {PAGED, MLA_STATUS_BAD_VALUE, "o.data", {COPY(p.o.data, p.q.data)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "overlaps q: an output shares no memory", {COPY(p.o.data, p.q.data)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "overlaps segment[0].k:", {COPY(p.o.data, p.segment[0].k.data)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "overlaps lse:", {COPY(p.o.data, p.lse.data)}},
    {PAGED, MLA_STATUS_BAD_VALUE, "overlaps segment[0].page_table:", {COPY(p.lse.data, p.segment[0].length.data)}},
    {SPLIT, MLA_STATUS_BAD_VALUE, "overlaps max:", {COPY(p.lse.data, p.max.data)}},

    /* ---- values inside index tensors ---- */
    {PAGED, MLA_STATUS_OUT_OF_RANGE, "segment[0].length[2] = 13 exceeds the page table's 3 pages * 4 tokens",
     {SET(segment[0].length[2], 13)}},
    {PAGED, MLA_STATUS_OUT_OF_RANGE, "segment[0].length[0] = 2147483647 exceeds", {SET(segment[0].length[0], INT32_MAX)}},
    {PAGED, MLA_STATUS_OUT_OF_RANGE, "segment[0].page_table[0][1] = -1 is not one of the 5 pages of segment[0].k",
     {SET(segment[0].table[1], -1)}},
    {PAGED, MLA_STATUS_OUT_OF_RANGE, "segment[0].page_table[2][2] = 5 is not one of the 5 pages",
     {SET(segment[0].table[8], 5)}},
    {PAGED, MLA_STATUS_OUT_OF_RANGE, "segment[0].page_table[1][0] = -1 is not", {SET(segment[0].length[1], 1)}},
    {PAGED, MLA_STATUS_OUT_OF_RANGE, "segment[0].page_table[0][0] = 3 is not one of the 0 pages",
     {SET(p.segment[0].k.dim[0], 0)}},
    {LISTED, MLA_STATUS_OUT_OF_RANGE, "segment[0].page_table[2][0] = 9 is not", {SET(segment[0].table[6], 9)}},
    {BATCHED, MLA_STATUS_OUT_OF_RANGE, "segment[0].length[1] = 8 exceeds the sequence's 7 keys",
     {SET(segment[0].length[1], 8)}},
    {PACKED, MLA_STATUS_OUT_OF_RANGE, "segment[0].length[1] = 1 exceeds the sequence's 0 keys",
     {SET(segment[0].length[1], 1)}},
    {PACKED, MLA_STATUS_OUT_OF_RANGE, "q_begin[0] = -1 must be at least 0", {SET(q_begin[0], -1)}},
    {PACKED, MLA_STATUS_OUT_OF_RANGE, "q_begin[2] = 1 must be at least the one before it, 2", {SET(q_begin[2], 1)}},
    {PACKED, MLA_STATUS_OUT_OF_RANGE, "q_begin[3] = 7 exceeds the 6 tokens of q", {SET(q_begin[3], 7)}},
    {PACKED, MLA_STATUS_OUT_OF_RANGE, "q_length[1] = 2 exceeds the sequence's 1 query tokens", {SET(q_length[1], 2)}},
    {PACKED, MLA_STATUS_OUT_OF_RANGE, "segment[0].k_begin[2] = 4 must be at least the one before it, 5",
     {SET(segment[0].begin[2], 4)}},
    {PACKED, MLA_STATUS_OUT_OF_RANGE, "segment[0].k_begin[3] = 21 exceeds the 20 rows of k", {SET(segment[0].begin[3], 21)}},
    {LISTED, MLA_STATUS_OUT_OF_RANGE, "segment[0].list_length entry 5 = 6 exceeds the list's 5 entries",
     {SET(segment[0].list_length[5], 6)}},
    {PHYSICAL, MLA_STATUS_OUT_OF_RANGE, "segment[0].list_length entry 1 = 6 exceeds", {SET(segment[0].list_length[1], 6)}},
    /* a packed q may count per token: entry 3 of six */
    {COMPRESSED, MLA_STATUS_OUT_OF_RANGE, "segment[0].list_length entry 3 = 5 exceeds the list's 3 entries",
     {COPY(p.segment[0].list, p.segment[0].page_table), SET(p.segment[0].list.dim[0], N_TOKEN),
      COPY(p.segment[0].list_length, p.q_begin), SET(p.segment[0].list_length.dim[0], N_TOKEN)}},
    {COMPRESSED, MLA_STATUS_BAD_SHAPE, "segment[0].list_length.ndim = 2 must be 1: [n_seq] or [n_token]",
     {COPY(p.segment[0].list, p.segment[0].page_table), SET(p.segment[0].list.dim[0], N_TOKEN),
      COPY(p.segment[0].list_length, p.segment[0].list)}},
    {COMPRESSED, MLA_STATUS_OUT_OF_RANGE, "segment[1].visible.residual[2] = -1 is negative",
     {SET(segment[1].residual[2], -1)}},
    /* the window [8, 12) needs the last page alone; one key further back it needs the one before as well */
    {COMPRESSED, MLA_STATUS_OUT_OF_RANGE, "segment[0].page_table[2][1] = 77 is not",
     {SET(segment[0].table[7], 77), SET(p.segment[0].visible.left, 4)}},
};

/* The same tables, for what must be accepted: the generous side of every rule. */
static const row ACCEPTED[] = {
    {PAGED, MLA_STATUS_OK, "negative lengths", {SET(segment[0].length[0], -7), SET(segment[0].length[2], INT32_MIN)}},
    {PAGED, MLA_STATUS_OK, "a full table", {SET(segment[0].length[2], 12)}},
    {PAGED, MLA_STATUS_OK, "scale 0 and below", {SET(p.softmax_scale, 0x80000000)}},
    {PAGED, MLA_STATUS_OK, "no lse", {CLEAR(p.lse)}},
    {PAGED, MLA_STATUS_OK, "one column of values", {SET(p.d_v, 1), SET(p.o.dim[3], 1), SET(p.o.stride[3], 0)}},
    {PAGED, MLA_STATUS_OK, "the whole key as value",
     {SET(p.d_v, D), SET(p.o.dim[3], D), SET(p.segment[0].k.dim[2], 1), SET(p.lse.data, 0x10000)}},
    {PAGED, MLA_STATUS_OK, "strides of dims of extent 1",
     {SET(p.q.dim[1], 1), SET(p.q.stride[1], INT64_MIN), SET(p.o.dim[1], 1), SET(p.o.stride[1], 0), SET(p.lse.dim[1], 1),
      SET(p.lse.stride[1], -5)}},
    {PAGED, MLA_STATUS_OK, "an empty cache has no place",
     {COPY(p.segment[0].k.data, p.o.data), SET(p.segment[0].k.dim[0], 0), SET(segment[0].length[0], 0),
      SET(segment[0].length[2], 0)}},
    {PAGED, MLA_STATUS_OK, "lse as a view [n_seq][n_head][n_q]", {SET(p.lse.stride[1], 1), SET(p.lse.stride[2], N_Q)}},
    {PAGED, MLA_STATUS_OK, "one page for all", {SET(p.segment[0].k.stride[0], 0)}},
    {PAGED, MLA_STATUS_OK, "q of one token, shared", {SET(p.q.stride[0], 0), SET(p.q.stride[1], 0)}},
    {PAGED, MLA_STATUS_OK, "one table for all",
     {SET(p.segment[0].page_table.stride[0], 0), SET(segment[0].length[2], 5), SET(segment[0].length[1], 8)}},
    {PAGED, MLA_STATUS_OK, "a page twice", {SET(segment[0].table[7], 0)}},
    {PAGED, MLA_STATUS_OK, "mixed dtypes", {SET(p.segment[0].k.dtype, MLA_DTYPE_F16)}},
    {PAGED, MLA_STATUS_OK, "no columns, no keys",
     {SET(p.segment[0].page_table.dim[1], 0), SET(p.segment[0].page_table.data, 0), SET(segment[0].length[0], 0),
      SET(segment[0].length[2], -1)}},
    {PAGED, MLA_STATUS_OK, "no pages, no keys",
     {SET(p.segment[0].k.dim[0], 0), SET(p.segment[0].k.data, 0), SET(segment[0].length[0], 0),
      SET(segment[0].length[2], 0)}},
    {BATCHED, MLA_STATUS_OK, "no lengths", {CLEAR(p.segment[0].length)}},
    {BATCHED, MLA_STATUS_OK, "one mask row for all",
     {SET(p.segment[0].mask.stride[0], 0), SET(p.segment[0].mask.stride[1], 0), SET(p.segment[0].mask.stride[2], 0)}},
    {BATCHED, MLA_STATUS_OK, "a mask as wide as the longest length",
     {SET(segment[0].length[0], 4), SET(p.segment[0].mask.dim[2], 4)}},
    {BATCHED, MLA_STATUS_OK, "a wider mask", {SET(p.segment[0].mask.dim[2], 12)}},
    {PACKED, MLA_STATUS_OK, "no lengths", {CLEAR(p.segment[0].length), CLEAR(p.q_length)}},
    {PACKED, MLA_STATUS_OK, "tokens of nobody at both ends", {SET(q_begin[0], 1), SET(q_begin[3], 3)}},
    {SPLIT, MLA_STATUS_OK, "rope and values of another dtype",
     {SET(p.segment[0].k_rope.dtype, MLA_DTYPE_F16), SET(p.segment[0].v.dtype, MLA_DTYPE_F16)}},
    {SPLIT, MLA_STATUS_OK, "values out of both parts of the key", {CLEAR(p.segment[0].v)}},
    {LISTED, MLA_STATUS_OK, "any entry", {SET(segment[0].list[2], INT32_MIN), SET(segment[0].list[3], 99)}},
    {LISTED, MLA_STATUS_OK, "negative list lengths", {SET(segment[0].list_length[0], INT32_MIN)}},
    {LISTED, MLA_STATUS_OK, "no list length", {CLEAR(p.segment[0].list_length)}},
    {LISTED, MLA_STATUS_OK, "a list of no entries",
     {SET(p.segment[0].list.dim[2], 0), SET(p.segment[0].list.data, 0), CLEAR(p.segment[0].list_length)}},
    {LISTED, MLA_STATUS_OK, "an address rule without a list",
     {CLEAR(p.segment[0].list), CLEAR(p.segment[0].list_length), SET(p.segment[0].list_address, MLA_LIST_PHYSICAL)}},
    {LISTED, MLA_STATUS_OK, "table and lengths beside a PHYSICAL list are not looked into",
     {SET(p.segment[0].list_address, MLA_LIST_PHYSICAL), SET(segment[0].length[0], INT32_MAX), SET(segment[0].table[6], -1)}},
    {COMPRESSED, MLA_STATUS_OK, "windows without limits on one side, or wider than int64 less one",
     {SET(p.segment[0].visible.left, INT64_MAX), SET(p.segment[0].visible.right, -1), SET(segment[0].table[6], 0)}},
    {COMPRESSED, MLA_STATUS_OK, "a page that the window has not yet left", {SET(segment[0].length[2], 9),
     SET(segment[0].table[6], 0)}},
    {COMPRESSED, MLA_STATUS_OK, "no residual", {CLEAR(p.segment[1].visible.residual)}},
    {COMPRESSED, MLA_STATUS_OK, "the smallest ratio and tile, no limit to the left",
     {SET(p.segment[1].visible.ratio, 1), SET(p.p_tile, 1), SET(p.segment[0].visible.left, -1),
      SET(segment[0].table[6], 0)}},
    {COMPRESSED, MLA_STATUS_OK, "a list length per sequence of a packed q",
     {COPY(p.segment[0].list, p.segment[0].page_table), SET(p.segment[0].list.dim[0], N_TOKEN),
      COPY(p.segment[0].list_length, p.q_begin), SET(p.segment[0].list_length.dim[0], N_SEQ)}},
    {COMPRESSED, MLA_STATUS_OK, "a second segment that is not in use",
     {SET(p.n_segment, 1), CLEAR(p.segment[1].k), SET(p.segment[1].visible.rule, 99)}},
};

/* First line of evidence for a failing row: which one, and what was said. */
static void expect(const row *r, const char *table, size_t at, mla_status status)
{
    const char *said = mla_last_error();
    bool words = r->status == MLA_STATUS_OK || strstr(said, r->words) != NULL;
    if (status != r->status || !words) {
        fail_msg("%s[%zu] (%s): %s \"%s\" instead of %s", table, at, r->words, mla_status_name(status), said,
                 mla_status_name(r->status));
    }
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        fixture f;
        fixture_init(&f, REFUSED[i].kind);
        assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OK);
        apply(&f, REFUSED[i].patches);
        expect(&REFUSED[i], "REFUSED", i, mla_problem_check(&f.p));
        const char *said = mla_last_error();
        assert_true(strlen(said) > 0 && said[strlen(said) - 1] != '.');
    }
}

static void test_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ACCEPTED / sizeof *ACCEPTED; i++) {
        fixture f;
        fixture_init(&f, ACCEPTED[i].kind);
        apply(&f, ACCEPTED[i].patches);
        mla_status status = mla_problem_check(&f.p);
        expect(&ACCEPTED[i], "ACCEPTED", i, status);
    }
}

/* ---- what a table cannot say ---------------------------------------------------------------------------------------- */

/* A door's names take the place of the fields' own. */
static void test_names(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f, PAGED);
    f.p.q.name = "query";
    f.p.segment[0].k.name = "k_cache";
    f.p.segment[0].page_table.name = "block_table";
    f.p.segment[0].length.name = "cache_seqlens";
    f.segment[0].length[1] = 99;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OUT_OF_RANGE);
    assert_string_equal(mla_last_error(), "cache_seqlens[1] = 99 exceeds the page table's 3 pages * 4 tokens");
    f.segment[0].length[1] = 2;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OUT_OF_RANGE);
    assert_string_equal(mla_last_error(), "block_table[1][0] = -1 is not one of the 5 pages of k_cache");
    f.p.segment[0].k.dim[3] = 7;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_BAD_SHAPE);
    assert_string_equal(mla_last_error(),
                        "k_cache.dim[3] = 7 differs from query.dim[3] = 8: [n_page][page_size][n_kv_head][d]");
    char endless[2000];
    memset(endless, 'x', sizeof endless);
    endless[sizeof endless - 1] = '\0';
    f.p.q.name = f.p.segment[0].k.name = endless;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_BAD_SHAPE);
    assert_true(strlen(mla_last_error()) < 512);
}

/* An absent tensor may carry the name under which a door wants it missed. */
static void test_name_of_a_missing_tensor(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f, PAGED);
    f.p.segment[0].length = (mla_tensor){.name = "cache_seqlens"};
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_NULL_POINTER);
    assert_non_null(strstr(mla_last_error(), "cache_seqlens is missing"));
}

static void test_null_problem(void **state)
{
    (void)state;
    assert_int_equal(mla_problem_check(NULL), MLA_STATUS_NULL_POINTER);
    assert_string_equal(mla_last_error(), "problem is NULL");
    mla_problem_init_sized(NULL, sizeof(mla_problem));
}

/* Nothing to do is not an error: no sequences, or no query slots, in any addressing. */
static void test_nothing_to_do(void **state)
{
    (void)state;
    for (int kind = PAGED; kind < N_KIND; kind++) {
        fixture f;
        fixture_init(&f, (fixture_kind)kind);
        mla_problem *p = &f.p;
        bool batched = p->q.ndim == 4;
        if (batched) {
            mla_tensor *per_token[] = {&p->q, &p->q_rope, &p->o, &p->lse, &p->max, &p->segment[0].list, &p->segment[0].mask};
            for (size_t i = 0; i < sizeof per_token / sizeof *per_token; i++) {
                per_token[i]->dim[1] = 0;
                per_token[i]->data = NULL;
            }
            if (p->segment[0].list_length.ndim == 2) {
                p->segment[0].list_length.dim[1] = 0;
            }
            assert_int_equal(mla_problem_check(p), MLA_STATUS_OK);
        }
        fixture_init(&f, (fixture_kind)kind);
        mla_tensor *per_sequence[] = {&p->q, &p->q_rope, &p->o, &p->lse, &p->max, &p->segment[0].list,
                                      &p->segment[0].mask, &p->q_length, &p->segment[0].list_length,
                                      &p->segment[0].length, &p->segment[0].page_table, &p->segment[1].length,
                                      &p->segment[1].page_table, &p->segment[1].visible.residual};
        for (size_t i = 0; i < sizeof per_sequence / sizeof *per_sequence; i++) {
            per_sequence[i]->dim[0] = 0;
            per_sequence[i]->data = NULL;
        }
        p->q_begin.dim[0] = p->segment[0].k_begin.dim[0] = 1;
        if (kind == BATCHED) {
            p->segment[0].k.dim[0] = 0;
        }
        mla_status status = mla_problem_check(p);
        if (status != MLA_STATUS_OK) {
            fail_msg("kind %d without sequences: %s", kind, mla_last_error());
        }
    }
}

/* Values that the host cannot read are not read: these addresses would fault. */
static void test_device_tensors_are_not_read(void **state)
{
    (void)state;
    for (int kind = PAGED; kind < N_KIND; kind++) {
        fixture f;
        fixture_init(&f, (fixture_kind)kind);
        mla_problem *p = &f.p;
        char *at = (char *)p + offsetof(mla_problem, q);
        mla_tensor *t[] = {&p->q, &p->q_rope, &p->q_begin, &p->q_length, &p->q_descale, &p->qk_descale, &p->pv_descale,
                           &p->sink, &p->o, &p->lse, &p->max};
        assert_ptr_equal(at, t[0]);
        int n = 0;
        for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
            t[i]->device.type = MLA_DEVICE_CUDA;
            t[i]->data = t[i]->ndim != 0 ? (void *)(uintptr_t)(0x10000 * ++n) : NULL;
        }
        for (int g = 0; g < 2; g++) {
            mla_segment *s = &p->segment[g];
            mla_tensor *u[] = {&s->k, &s->k_rope, &s->v, &s->k_begin, &s->page_table, &s->length, &s->list,
                               &s->list_length, &s->visible.residual, &s->mask, &s->descale};
            for (size_t i = 0; i < sizeof u / sizeof *u; i++) {
                u[i]->device.type = MLA_DEVICE_CUDA;
                u[i]->data = u[i]->ndim != 0 ? (void *)(uintptr_t)(0x10000 * ++n) : NULL;
            }
        }
        mla_status status = mla_problem_check(p);
        if (status != MLA_STATUS_OK) {
            fail_msg("kind %d on a device: %s", kind, mla_last_error());
        }
    }
}

/* One buffer [token][head][8] may hold q in columns 0..1 and o in 2..7: interleaved views are legal. So are pages in
 * reverse. */
static void test_unusual_views(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f, PAGED);
    f.p.segment[0].k.data = f.segment[0].k + (N_PAGE - 1) * f.p.segment[0].k.stride[0];
    f.p.segment[0].k.stride[0] *= -1;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OK);
    f.p.o.data = f.segment[0].k; /* the first byte of k, which is not where its view starts */
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_BAD_VALUE);
    assert_non_null(strstr(mla_last_error(), "overlaps segment[0].k"));
    fixture_init(&f, PACKED);
    f.p.q.dim[2] = f.p.segment[0].k.dim[2] = 2;
    f.p.segment[0].v = f.p.segment[0].k;
    f.p.segment[0].v.dim[2] = D_V;
    f.p.o = f.p.q;
    f.p.o.data = f.q + 2;
    f.p.o.dim[2] = D_V;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OK);
    /* the same o inside a dense q: refused, from whichever side the dense one is */
    fixture_init(&f, PACKED);
    f.p.o.data = f.q + 7;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_BAD_VALUE);
    assert_non_null(strstr(mla_last_error(), "overlaps q"));
    fixture_init(&f, PACKED);
    f.p.q.data = f.o + 3;
    f.p.q.stride[0] = 64; /* q has holes, o has none */
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_BAD_VALUE);
    assert_non_null(strstr(mla_last_error(), "overlaps q"));
}

/* The page ids of a huge table are read only where keys are: the rest of this one is not there. */
static void test_sparse_page_table(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f, PAGED);
    f.p.segment[0].page_table.dim[1] = (int64_t)1 << 58;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OK);
    f.p.segment[0].page_table.dim[0] = f.p.segment[0].length.dim[0] = f.p.q.dim[0] = f.p.o.dim[0] = f.p.lse.dim[0] = 1;
    f.p.segment[0].k.dim[1] = 1;
    f.p.segment[0].k.stride[0] = 0;
    f.p.segment[0].k.dim[0] = (int64_t)1 << 40; /* more pages than an i32 can name */
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OUT_OF_RANGE); /* page ids 3, 1, 2147480000, -1, ... */
    assert_non_null(strstr(mla_last_error(), "page_table[0][3] = -1"));
}

/* Uncountably many empty sequences, no memory at all: decided without walking over them. */
static void test_quick_verdict(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f, BATCHED);
    mla_problem *p = &f.p;
    int64_t many = (int64_t)1 << 40;
    p->q.dim[0] = p->o.dim[0] = p->lse.dim[0] = p->segment[0].mask.dim[0] = p->segment[0].k.dim[0] = many;
    p->q.dim[1] = p->o.dim[1] = p->lse.dim[1] = p->segment[0].mask.dim[1] = 0;
    p->segment[0].length = (mla_tensor){0};
    p->segment[0].k.stride[0] = 0;
    assert_int_equal(mla_problem_check(p), MLA_STATUS_OK);
}

/* What a checked problem implies. */
static void test_shapes(void **state)
{
    (void)state;
    fixture f;
    mla_shape s;
    fixture_init(&f, SPLIT);
    f.p.lse.stride[1] = 1;
    f.p.lse.stride[2] = N_Q;
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_OK);
    assert_true(s.batched && s.n_segment == 1 && !s.segment[0].has_list);
    assert_int_equal(s.n_seq, N_SEQ);
    assert_int_equal(s.n_q, N_Q);
    assert_int_equal(s.n_token, N_TOKEN);
    assert_int_equal(s.n_head, N_HEAD);
    assert_int_equal(s.n_kv_head, N_KV_HEAD);
    assert_int_equal(s.group, 2);
    assert_int_equal(s.d_nope, D);
    assert_int_equal(s.d_rope, D_ROPE);
    assert_int_equal(s.d_k, D + D_ROPE);
    assert_int_equal(s.d_v, D_V);
    assert_int_equal(s.segment[0].addressing, MLA_ADDRESS_PAGED);
    assert_int_equal(s.segment[0].n_page, N_PAGE);
    assert_int_equal(s.segment[0].page_size, PAGE_SIZE);
    assert_int_equal(s.segment[0].max_page, MAX_PAGE);
    assert_memory_equal(s.q_stride, ((int64_t[]){64, 32, 8}), sizeof s.q_stride);
    assert_memory_equal(s.q_rope_stride, ((int64_t[]){32, 16, 4}), sizeof s.q_rope_stride);
    assert_memory_equal(s.o_stride, ((int64_t[]){48, 24, 6}), sizeof s.o_stride);
    assert_memory_equal(s.lse_stride, ((int64_t[]){8, 1, 2}), sizeof s.lse_stride);
    assert_memory_equal(s.max_stride, ((int64_t[]){8, 4, 1}), sizeof s.max_stride);
    assert_memory_equal(s.segment[0].k_stride, ((int64_t[]){64, 16, 8}), sizeof s.segment[0].k_stride);
    assert_memory_equal(s.segment[0].k_rope_stride, ((int64_t[]){32, 8, 4}), sizeof s.segment[0].k_rope_stride);
    assert_memory_equal(s.segment[0].v_stride, ((int64_t[]){48, 12, 6}), sizeof s.segment[0].v_stride);

    fixture_init(&f, PACKED);
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_OK);
    assert_false(s.batched);
    assert_int_equal(s.n_seq, N_SEQ);
    assert_int_equal(s.n_q, 0);
    assert_int_equal(s.n_token, N_TOKEN);
    assert_int_equal(s.d_rope, 0);
    assert_int_equal(s.segment[0].addressing, MLA_ADDRESS_PACKED);
    assert_int_equal(s.segment[0].n_page, 1);
    assert_int_equal(s.segment[0].page_size, N_ROW);
    assert_memory_equal(s.q_stride, ((int64_t[]){0, 32, 8}), sizeof s.q_stride);
    assert_memory_equal(s.segment[0].k_stride, ((int64_t[]){0, 16, 8}), sizeof s.segment[0].k_stride);
    assert_memory_equal(s.max_stride, ((int64_t[]){0, 0, 0}), sizeof s.max_stride);

    fixture_init(&f, BATCHED);
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_OK);
    assert_int_equal(s.segment[0].addressing, MLA_ADDRESS_BATCHED);
    assert_int_equal(s.segment[0].n_page, N_SEQ);
    assert_int_equal(s.segment[0].page_size, MAX_LEN);

    fixture_init(&f, PHYSICAL);
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_OK);
    assert_int_equal(s.segment[0].addressing, MLA_ADDRESS_PAGED);
    assert_int_equal(s.segment[0].max_page, 0);
    assert_int_equal(s.segment[0].n_entry, N_ENTRY);
    assert_true(s.segment[0].has_list);

    /* one query token per sequence when nobody says otherwise */
    fixture_init(&f, PACKED);
    f.p.q_begin = f.p.q_length = f.p.lse = (mla_tensor){0};
    f.p.q.dim[0] = f.p.o.dim[0] = N_SEQ;
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_OK);
    assert_int_equal(s.n_seq, N_SEQ);
    assert_int_equal(s.n_token, N_SEQ);

    /* a failure leaves the caller's shape alone */
    mla_shape before = s;
    f.p.d_v = 0;
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_BAD_VALUE);
    assert_memory_equal(&s, &before, sizeof s);
}

/* A caller built with a smaller struct: nothing is written past its end, and the check says why it refuses. */
static void test_init_of_another_size(void **state)
{
    (void)state;
    union {
        mla_problem p;
        unsigned char bytes[sizeof(mla_problem) + 64];
    } u;
    memset(&u, 0xa5, sizeof u);
    mla_problem_init_sized(&u.p, 100);
    for (size_t i = sizeof u.p.struct_size; i < sizeof u.bytes; i++) {
        assert_int_equal(u.bytes[i], i < 100 ? 0 : 0xa5);
    }
    assert_int_equal(mla_problem_check(&u.p), MLA_STATUS_BAD_VALUE);
    assert_non_null(strstr(mla_last_error(), "struct_size = 100"));
    mla_problem_init_sized(&u.p, sizeof u.p.struct_size);
    assert_int_equal(u.p.struct_size, sizeof u.p.struct_size);
    memset(&u, 0xa5, sizeof u);
    mla_problem_init_sized(&u.p, 3);
    assert_int_equal(u.bytes[3], 0xa5);
    mla_problem_init(&u.p);
    assert_int_equal(u.p.struct_size, sizeof(mla_problem));
    assert_int_equal(u.p.n_segment, 1);
    assert_int_equal(u.p.segment[1].visible.left, -1);
    assert_int_equal(u.p.segment[1].visible.right, -1);
    assert_int_equal(u.p.segment[0].visible.ratio, 1);
    assert_int_equal(u.bytes[sizeof(mla_problem)], 0xa5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_name_of_a_missing_tensor),
        cmocka_unit_test(test_null_problem),
        cmocka_unit_test(test_nothing_to_do),
        cmocka_unit_test(test_device_tensors_are_not_read),
        cmocka_unit_test(test_unusual_views),
        cmocka_unit_test(test_sparse_page_table),
        cmocka_unit_test(test_quick_verdict),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_init_of_another_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
