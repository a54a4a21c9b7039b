/*
 * flash_mla_metadata.c - the tile scheduler tensors of the flash_mla door.
 *
 * They exist for callers that look into them or pass them on; flash_mla_with_kvcache() takes them as a hint.
 */
#include <inttypes.h>
#include <string.h>

#include "core/parallel.h"
#include "core/tensor.h"
#include "cuda/cuda_metadata.h"
#include "mla/flash_mla.h"

int64_t flash_mla_num_parts(int64_t num_heads_per_head_k, int64_t num_heads_k)
{
    (void)num_heads_per_head_k; /* a GPU gives each kv head and each 64 rows a part of their own; a worker takes any */
    (void)num_heads_k;
    return mla_default_threads();
}

/* Rows (query token, query head) that the original computes side by side. */
#define ROWS_PER_BLOCK 64

mla_status flash_mla_num_parts_on(mla_device device, int64_t num_heads_per_head_k, int64_t num_heads_k, int64_t *n_part)
{
    int32_t n_sm;
    if (n_part == NULL) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "n_part is NULL");
    }
    if (num_heads_per_head_k < 0 || num_heads_k < 1) {
        return mla_fail(MLA_STATUS_BAD_VALUE,
                        "num_heads_per_head_k = %" PRId64 " and num_heads_k = %" PRId64 " must be at least 0 and 1",
                        num_heads_per_head_k, num_heads_k);
    }
    if (device.type == MLA_DEVICE_CPU) {
        *n_part = flash_mla_num_parts(num_heads_per_head_k, num_heads_k);
        return MLA_STATUS_OK;
    }
    if (device.type != MLA_DEVICE_CUDA) {
        return mla_fail(MLA_STATUS_BAD_DEVICE, "device.type = %d is not a device type", (int)device.type);
    }
    MLA_TRY(mla_cuda_multiprocessors(device.id, &n_sm));
    int64_t blocks = num_heads_per_head_k / ROWS_PER_BLOCK + (num_heads_per_head_k % ROWS_PER_BLOCK != 0);
    *n_part = n_sm / num_heads_k / (blocks > 0 ? blocks : 1);
    *n_part = *n_part > 0 ? *n_part : 1;
    return MLA_STATUS_OK;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static mla_status check_index_tensor(const mla_tensor *t, const char *name, const char *layout, int32_t ndim,
                                     const mla_extent *extent)
{
    mla_field field = {.tensor = t, .path = name, .segment = -1};
    if (t == NULL) {
        return mla_fail(MLA_STATUS_NULL_POINTER, "%s is NULL", name);
    }
    MLA_TRY(mla_field_check(&field));
    MLA_TRY(mla_field_check_dtype(&field, MLA_DTYPE_BIT(MLA_DTYPE_I32)));
    MLA_TRY(mla_field_check_dims(&field, layout, ndim, extent));
    return mla_field_check_contiguous(&field);
}

static mla_status check_arguments(const mla_tensor *cache_seqlens, int64_t num_heads_per_head_k, int64_t num_heads_k,
                                  const mla_tensor *metadata, const mla_tensor *num_splits)
{
    mla_field seqlens = {.tensor = cache_seqlens, .path = "cache_seqlens", .segment = -1};
    mla_field parts = {.tensor = metadata, .path = "tile_scheduler_metadata", .segment = -1};
    mla_field splits = {.tensor = num_splits, .path = "num_splits", .segment = -1};
    mla_extent any = mla_any_extent(), columns = mla_number_extent("columns", FLASH_MLA_METADATA_COLUMNS);
    MLA_TRY(check_index_tensor(cache_seqlens, seqlens.path, "[b]", 1, &any));
    MLA_TRY(check_index_tensor(metadata, parts.path, "[n_part][8]", 2, (mla_extent[]){any, columns}));
    MLA_TRY(check_index_tensor(num_splits, splits.path, "[b + 1]", 1, &any));
    MLA_TRY(mla_field_check_device(&parts, &seqlens));
    MLA_TRY(mla_field_check_device(&splits, &seqlens));
    int64_t b = cache_seqlens->dim[0], n_part = metadata->dim[0];
    if (num_heads_per_head_k < 0) { /* 0: no query tokens */
        return mla_fail(MLA_STATUS_BAD_VALUE, "num_heads_per_head_k = %" PRId64 " must not be negative",
                        num_heads_per_head_k);
    }
    if (num_heads_k < 1) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "num_heads_k = %" PRId64 " must be at least 1", num_heads_k);
    }
    if (num_splits->dim[0] - 1 != b) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[0] = %" PRId64 " must be b + 1 = %" PRId64 " + 1",
                        mla_field_label(&splits).text, num_splits->dim[0], b);
    }
    if (n_part < 1) {
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[0] = 0 must be at least 1", mla_field_label(&parts).text);
    }
    if (n_part > INT32_MAX - b) { /* num_splits[b] may reach b + n_part - 1 */
        return mla_fail(MLA_STATUS_BAD_SHAPE, "%s.dim[0] = %" PRId64 " parts of %" PRId64 " requests exceed int32",
                        mla_field_label(&parts).text, n_part, b);
    }
    MLA_TRY(mla_field_check_apart(&parts, &seqlens));
    MLA_TRY(mla_field_check_apart(&splits, &seqlens));
    return mla_field_check_apart(&splits, &parts);
}

/* ---- the scheduler ----------------------------------------------------------------------------------------------- */

static int64_t key_count(const int32_t *seqlens, int64_t request)
{
    return seqlens[request] < 0 ? 0 : seqlens[request];
}

static int64_t block_count(const int32_t *seqlens, int64_t request)
{
    return (key_count(seqlens, request) + FLASH_MLA_KEYS_PER_BLOCK - 1) / FLASH_MLA_KEYS_PER_BLOCK;
}

/*
 * Every part may spend `payload` blocks, and touching a request costs FLASH_MLA_FIXED_OVERHEAD_BLOCKS of them. Parts
 * take requests in order, whole while they fit; the first one that does not fit is cut where the budget ends. A part
 * that is not the last one stops with at most one overhead unspent, or spends one more by cutting: either way it gets
 * at least payload - overhead >= total / n_part of the total done, so the last part always reaches the end.
 */
static void schedule(const int32_t *seqlens, int64_t b, int64_t n_part, int32_t *part, int32_t *num_splits)
{
    const int64_t overhead = FLASH_MLA_FIXED_OVERHEAD_BLOCKS;
    int64_t total = 0;
    for (int64_t i = 0; i < b; i++) {
        total += block_count(seqlens, i) + overhead;
    }
    int64_t payload = (total + n_part - 1) / n_part + overhead;

    int64_t request = 0, block = 0, split = 0, sum = 0; /* the cursor, and the splits of finished requests */
    num_splits[0] = 0;
    for (int64_t i = 0; i < n_part; i++, part += FLASH_MLA_METADATA_COLUMNS) {
        memset(part, 0, FLASH_MLA_METADATA_COLUMNS * sizeof *part);
        part[0] = (int32_t)request;
        part[1] = (int32_t)(block * FLASH_MLA_KEYS_PER_BLOCK);
        part[4] = (int32_t)split;
        for (int64_t budget = payload; request < b;) {
            int64_t left = block_count(seqlens, request) - block;
            if (budget >= left + overhead) {
                budget -= left + overhead;
                sum += split + 1;
                num_splits[++request] = (int32_t)sum;
                block = split = 0;
            } else {
                if (budget > overhead) {
                    block += budget - overhead;
                    split++;
                }
                break;
            }
        }
        if (block > 0) {
            part[2] = (int32_t)request;
            part[3] = (int32_t)(block * FLASH_MLA_KEYS_PER_BLOCK);
        } else { /* ended with a request, or idle: then the last one, as the original has it */
            part[2] = (int32_t)(request - 1);
            part[3] = request > 0 ? (int32_t)key_count(seqlens, request - 1) : 0;
        }
    }
}

mla_status flash_mla_get_metadata(const mla_tensor *cache_seqlens, int64_t num_heads_per_head_k, int64_t num_heads_k,
                                  const mla_tensor *tile_scheduler_metadata, const mla_tensor *num_splits)
{
    return flash_mla_get_metadata_on(NULL, cache_seqlens, num_heads_per_head_k, num_heads_k, tile_scheduler_metadata,
                                     num_splits);
}

mla_status flash_mla_get_metadata_on(void *stream, const mla_tensor *cache_seqlens, int64_t num_heads_per_head_k,
                                     int64_t num_heads_k, const mla_tensor *tile_scheduler_metadata,
                                     const mla_tensor *num_splits)
{
    MLA_TRY(check_arguments(cache_seqlens, num_heads_per_head_k, num_heads_k, tile_scheduler_metadata, num_splits));
    if (cache_seqlens->device.type == MLA_DEVICE_CUDA) {
        return mla_cuda_flash_mla_metadata(cache_seqlens->device.id, cache_seqlens->data, cache_seqlens->dim[0],
                                           tile_scheduler_metadata->dim[0], tile_scheduler_metadata->data,
                                           num_splits->data, stream);
    }
    if (stream != NULL) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "stream must be NULL for tensors in host memory");
    }
    schedule(cache_seqlens->data, cache_seqlens->dim[0], tile_scheduler_metadata->dim[0], tile_scheduler_metadata->data,
             num_splits->data);
    return MLA_STATUS_OK;
}
