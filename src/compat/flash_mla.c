/*
 * flash_mla.c - the attention call of the flash_mla door: lowers its arguments to a mla_problem.
 *
 * Checks here are those that only this door can make: ranks and layouts that decide how arguments are lowered, and its
 * own restrictions. Everything else is the core's to refuse, under the names that are set here.
 */
#include "mla/flash_mla.h"

#include <inttypes.h>
#include <math.h>

#include "core/shape.h"
#include "core/tensor.h"
#include "mla/mla.h"

/* A copy under the name of the argument; absent when NULL. */
static mla_tensor named(const mla_tensor *t, const char *name)
{
    mla_tensor copy = t == NULL ? (mla_tensor){0} : *t;
    copy.name = name;
    return copy;
}

/* An argument without which the problem would mean something else, or could not be lowered. */
static mla_status check_argument(const mla_tensor *t, int32_t ndim, const char *layout)
{
    if (!mla_tensor_present(t)) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "%s is missing", t->name);
    }
    if (t->ndim != ndim) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.ndim = %" PRId32 " must be %" PRId32 ": %s", t->name, t->ndim, ndim,
                        layout);
    }
    return MLA_STATUS_OK;
}

static mla_status check_dtype_of_q(const mla_tensor *t, const mla_tensor *q)
{
    if (t->dtype == q->dtype) {
        return MLA_STATUS_OK;
    }
    return mla_fail(MLA_STATUS_BAD_DTYPE, "%s.dtype = %s differs from q.dtype = %s", t->name, mla_dtype_name(t->dtype),
                    mla_dtype_name(q->dtype));
}

/* Scheduler tensors: dtype, shape and device only. Their contents are a hint that no backend has a use for. */
static mla_status check_hint(const mla_tensor *t, const mla_tensor *q, const char *layout, int32_t ndim,
                             const mla_extent *extent)
{
    mla_field field = {.tensor = t, .path = t->name, .segment = -1};
    MLA_TRY(mla_field_check(&field));
    MLA_TRY(mla_field_check_dtype(&field, MLA_DTYPE_BIT(MLA_DTYPE_I32)));
    MLA_TRY(mla_field_check_dims(&field, layout, ndim, extent));
    return mla_field_check_device(&field, &(mla_field){.tensor = q, .path = "q", .segment = -1});
}

static mla_status check_hints(const mla_tensor *metadata, const mla_tensor *splits, const mla_tensor *q)
{
    mla_tensor parts = named(metadata, "tile_scheduler_metadata"), num_splits = named(splits, "num_splits");
    mla_extent any = mla_any_extent(), columns = mla_number_extent("columns", FLASH_MLA_METADATA_COLUMNS);
    if (metadata != NULL) {
        MLA_TRY(check_hint(&parts, q, "[n_part][8]", 2, (mla_extent[]){any, columns}));
    }
    if (splits != NULL) {
        MLA_TRY(check_hint(&num_splits, q, "[b + 1]", 1, &any));
        if (num_splits.dim[0] - 1 != q->dim[0]) {
            return mla_fail(MLA_STATUS_BAD_SHAPE, "num_splits.dim[0] = %" PRId64 " must be b + 1 = %" PRId64 " + 1",
                            num_splits.dim[0], q->dim[0]);
        }
    }
    return MLA_STATUS_OK;
}

/* The caller's [b][h_q][s_q] as the core's [n_seq][n_q][n_head]. */
static mla_status lower_lse(const mla_tensor *lse, const mla_tensor *q, mla_tensor *lowered)
{
    *lowered = named(lse, "softmax_lse");
    if (!mla_tensor_present(lowered)) {
        return MLA_STATUS_OK;
    }
    if (lowered->dtype != MLA_DTYPE_F32) {
        return mla_fail(MLA_STATUS_BAD_DTYPE, "softmax_lse.dtype = %s must be f32", mla_dtype_name(lowered->dtype));
    }
    mla_field field = {.tensor = lowered, .segment = -1}, of = {.tensor = q, .segment = -1};
    mla_extent extent[] = {mla_dim_extent(of, 0), mla_dim_extent(of, 2), mla_dim_extent(of, 1)};
    MLA_TRY(mla_field_check_dims(&field, "[b][h_q][s_q]", 3, extent)); /* here: the core would speak of other dims */
    mla_tensor caller = *lowered;
    for (int i = 1; i <= 2; i++) {
        lowered->dim[i] = caller.dim[3 - i];
        lowered->stride[i] = caller.stride[3 - i];
    }
    return MLA_STATUS_OK;
}

mla_status flash_mla_with_kvcache(const mla_tensor *q, const mla_tensor *k_cache, const mla_tensor *block_table,
                                  const mla_tensor *cache_seqlens, int64_t head_dim_v,
                                  const mla_tensor *tile_scheduler_metadata, const mla_tensor *num_splits,
                                  const float *softmax_scale, bool causal, const mla_tensor *out,
                                  const mla_tensor *softmax_lse)
{
    return flash_mla_with_kvcache_on(NULL, q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata,
                                     num_splits, softmax_scale, causal, out, softmax_lse);
}

mla_status flash_mla_with_kvcache_on(const mla_plan_options *options, const mla_tensor *q, const mla_tensor *k_cache,
                                     const mla_tensor *block_table, const mla_tensor *cache_seqlens, int64_t head_dim_v,
                                     const mla_tensor *tile_scheduler_metadata, const mla_tensor *num_splits,
                                     const float *softmax_scale, bool causal, const mla_tensor *out,
                                     const mla_tensor *softmax_lse)
{
    mla_problem p;
    mla_problem_init(&p);
    mla_segment *cache = &p.segment[0];
    p.q = named(q, "q");
    p.o = named(out, "out");
    cache->k = named(k_cache, "k_cache");
    cache->page_table = named(block_table, "block_table");
    cache->length = named(cache_seqlens, "cache_seqlens");

    MLA_TRY(check_argument(&p.q, 4, "[b][s_q][h_q][d]"));
    MLA_TRY(check_argument(&cache->k, 4, "[n_page][page_size][h_kv][d]"));
    MLA_TRY(check_argument(&cache->page_table, 2, "[b][max_page]"));
    MLA_TRY(check_argument(&p.o, 4, "[b][s_q][h_q][head_dim_v]"));
    if (p.q.dtype != MLA_DTYPE_BF16 && p.q.dtype != MLA_DTYPE_F16) {
        return mla_fail(MLA_STATUS_BAD_DTYPE, "q.dtype = %s must be f16 or bf16", mla_dtype_name(p.q.dtype));
    }
    MLA_TRY(check_dtype_of_q(&cache->k, &p.q));
    MLA_TRY(check_dtype_of_q(&p.o, &p.q));
    MLA_TRY(lower_lse(softmax_lse, &p.q, &p.lse));
    MLA_TRY(check_hints(tile_scheduler_metadata, num_splits, &p.q));
    int64_t d = p.q.dim[3];
    if (head_dim_v < 1 || head_dim_v > d) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "head_dim_v = %" PRId64 " must be between 1 and q.dim[3] = %" PRId64,
                        head_dim_v, d);
    }

    p.d_v = head_dim_v;
    p.softmax_scale = softmax_scale != NULL ? *softmax_scale : (float)(1 / sqrt((double)d));
    cache->visible.rule = causal && p.q.dim[1] > 1 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
    return mla_attention(&p, options);
}
