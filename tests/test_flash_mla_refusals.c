/*
 * test_flash_mla_refusals.c - what the attention call of the flash_mla door refuses, in the words of its arguments.
 */
#include "flash_mla_call.h"

static void refuse(call *c, mla_status status, const char *words)
{
    mla_status got = try_call(c);
    if (got != status || strstr(mla_last_error(), words) == NULL) {
        fail_msg("%s \"%s\" instead of %s \"%s\"", mla_status_name(got), mla_last_error(), mla_status_name(status),
                 words);
    }
    for (int64_t i = 0; i < c->b * c->s_q * c->h_q; i++) { /* outputs are untouched */
        assert_true(isnan(c->lse_data[i]));
    }
}

static call *fresh(call *c)
{
    if (c->q_data != NULL) {
        close_call(c);
    }
    open_default(c, 4, 2, 16, 1, 64, (int32_t[]){65, 3, 0, 100}, true);
    fill_rows(c, 0, 0);
    return c;
}

static void test_refusals(void **state)
{
    (void)state;
    call c = {0};
    fresh(&c)->lens[3] = 9000;
    refuse(&c, MLA_STATUS_OUT_OF_RANGE, "cache_seqlens[3] = 9000 exceeds the page table's 2 pages * 64 tokens");
    fresh(&c)->table[1] = UNUSED_PAGE;
    refuse(&c, MLA_STATUS_OUT_OF_RANGE, "block_table[0][1] = 2147480000 is not one of the 6 pages of k_cache");
    fresh(&c)->seqlens.dtype = MLA_DTYPE_I64;
    refuse(&c, MLA_STATUS_BAD_DTYPE, "cache_seqlens.dtype = i64 must be i32");
    fresh(&c)->block_table.dtype = MLA_DTYPE_I64;
    refuse(&c, MLA_STATUS_BAD_DTYPE, "block_table.dtype = i64 must be i32");
    fresh(&c)->seqlens = mla_tensor_make(c.lens, MLA_DTYPE_I32, 2, (int64_t[]){4, 1});
    refuse(&c, MLA_STATUS_BAD_SHAPE, "cache_seqlens.ndim = 2 must be 1");
    fresh(&c)->seqlens.dim[0] = 3;
    refuse(&c, MLA_STATUS_BAD_SHAPE, "cache_seqlens.dim[0] = 3 differs from q.dim[0] = 4");
    fresh(&c)->cache.dim[3] = 512;
    refuse(&c, MLA_STATUS_BAD_SHAPE, "k_cache.dim[3] = 512 differs from q.dim[3] = 576");
    fresh(&c)->cache.dim[2] = 3;
    refuse(&c, MLA_STATUS_BAD_SHAPE, "k_cache.dim[2] = 3 kv heads do not divide q.dim[2] = 16 query heads");
    fresh(&c)->cache.dtype = MLA_DTYPE_F16;
    refuse(&c, MLA_STATUS_BAD_DTYPE, "k_cache.dtype = f16 differs from q.dtype = bf16");
    fresh(&c)->out.dtype = MLA_DTYPE_F32;
    refuse(&c, MLA_STATUS_BAD_DTYPE, "out.dtype = f32 differs from q.dtype = bf16");
    fresh(&c)->q.dtype = MLA_DTYPE_F32;
    refuse(&c, MLA_STATUS_BAD_DTYPE, "q.dtype = f32 must be f16 or bf16");
    fresh(&c)->q.ndim = 3; /* would be a packed q, and another problem */
    refuse(&c, MLA_STATUS_BAD_SHAPE, "q.ndim = 3 must be 4: [b][s_q][h_q][d]");
    fresh(&c)->cache.ndim = 3;
    refuse(&c, MLA_STATUS_BAD_SHAPE, "k_cache.ndim = 3 must be 4: [n_page][page_size][h_kv][d]");
    fresh(&c)->block_table = (mla_tensor){0}; /* would be a cache without pages */
    refuse(&c, MLA_STATUS_NULL_POINTER, "block_table is missing");
    fresh(&c)->seqlens = (mla_tensor){0};
    refuse(&c, MLA_STATUS_NULL_POINTER, "cache_seqlens is missing");
    fresh(&c)->cache = (mla_tensor){0};
    refuse(&c, MLA_STATUS_NULL_POINTER, "k_cache is missing");
    fresh(&c)->q = (mla_tensor){0};
    refuse(&c, MLA_STATUS_NULL_POINTER, "q is missing");
    fresh(&c)->out = (mla_tensor){0};
    refuse(&c, MLA_STATUS_NULL_POINTER, "out is missing");
    fresh(&c)->cache.stride[3] = 2;
    refuse(&c, MLA_STATUS_BAD_STRIDE, "k_cache.stride[3] = 2 must be 1");
    fresh(&c)->block_table.stride[1] = 2;
    refuse(&c, MLA_STATUS_BAD_STRIDE, "block_table.stride[1] = 2 must be 1");
    fresh(&c)->seqlens.stride[0] = 2;
    refuse(&c, MLA_STATUS_BAD_STRIDE, "cache_seqlens.stride[0] = 2 must be 1");
    fresh(&c)->cache.dim[1] = 0;
    refuse(&c, MLA_STATUS_BAD_SHAPE, "k_cache.dim[1] = 0 must be at least 1: the page size");
    fresh(&c)->q.dim[2] = 0;
    c.lse.dim[1] = 0;
    refuse(&c, MLA_STATUS_BAD_SHAPE, "q.dim[2] = 0 must be at least 1");
    fresh(&c)->lse.dim[1] = 2; /* [b][s_q][h_q], the order of the core, is not the order of this door */
    c.lse.dim[2] = 16;
    refuse(&c, MLA_STATUS_BAD_SHAPE, "softmax_lse.dim[1] = 2 differs from q.dim[2] = 16: [b][h_q][s_q]");
    fresh(&c)->lse.dtype = MLA_DTYPE_BF16;
    refuse(&c, MLA_STATUS_BAD_DTYPE, "softmax_lse.dtype = bf16 must be f32");
    fresh(&c)->out.data = c.q_data;
    refuse(&c, MLA_STATUS_BAD_VALUE, "overlaps q");
    fresh(&c)->cache.device.type = MLA_DEVICE_CUDA;
    refuse(&c, MLA_STATUS_BAD_DEVICE, "k_cache is on device 1:0, but q is on device 0:0");

    static const float scales[] = {NAN, INFINITY};
    fresh(&c)->scale = &scales[0];
    refuse(&c, MLA_STATUS_BAD_VALUE, "softmax_scale = nan must be finite");
    fresh(&c)->scale = &scales[1];
    refuse(&c, MLA_STATUS_BAD_VALUE, "softmax_scale = inf must be finite");
    static const int64_t widths[] = {0, -1, 577, INT64_MAX};
    for (int64_t k = 0; k < COUNT(widths); k++) {
        fresh(&c);
        assert_int_equal(flash_mla_with_kvcache(&c.q, &c.cache, &c.block_table, &c.seqlens, widths[k], NULL, NULL, NULL,
                                                false, &c.out, NULL),
                         MLA_STATUS_BAD_VALUE);
        assert_non_null(strstr(mla_last_error(), "must be between 1 and q.dim[3] = 576"));
    }
    fresh(&c)->out.dim[3] = 500;
    refuse(&c, MLA_STATUS_BAD_SHAPE, "out.dim[3] = 500 differs from d_v = 512");
    assert_int_equal(flash_mla_with_kvcache(NULL, NULL, NULL, NULL, 512, NULL, NULL, NULL, false, NULL, NULL),
                     MLA_STATUS_NULL_POINTER);
    assert_string_equal(mla_last_error(), "q is missing");
    close_call(&c);
}

static void test_refused_metadata(void **state)
{
    (void)state;
    call c = {0};
    fresh(&c);
    int32_t rows[3 * FLASH_MLA_METADATA_COLUMNS] = {0}, splits[5] = {0};
    const mla_tensor good = mla_tensor_make(rows, MLA_DTYPE_I32, 2, (int64_t[]){3, FLASH_MLA_METADATA_COLUMNS});
    const mla_tensor good_splits = mla_tensor_make(splits, MLA_DTYPE_I32, 1, (int64_t[]){5});
    mla_tensor metadata = good, num_splits = good_splits;
    c.metadata = &metadata;
    c.num_splits = &num_splits;
    run_call(&c);
    metadata.dtype = MLA_DTYPE_F32;
    refuse(&c, MLA_STATUS_BAD_DTYPE, "tile_scheduler_metadata.dtype = f32 must be i32");
    metadata = good;
    metadata.ndim = 1;
    refuse(&c, MLA_STATUS_BAD_SHAPE, "tile_scheduler_metadata.ndim = 1 must be 2: [n_part][8]");
    metadata = good;
    metadata.dim[1] = 6;
    refuse(&c, MLA_STATUS_BAD_SHAPE, "tile_scheduler_metadata.dim[1] = 6 differs from columns = 8");
    metadata = good;
    metadata.data = NULL;
    refuse(&c, MLA_STATUS_NULL_POINTER, "tile_scheduler_metadata.data is NULL");
    metadata = good;
    metadata.device.type = MLA_DEVICE_CUDA;
    refuse(&c, MLA_STATUS_BAD_DEVICE, "tile_scheduler_metadata is on device 1:0, but q is on device 0:0");
    metadata = good;
    num_splits.dtype = MLA_DTYPE_U8;
    refuse(&c, MLA_STATUS_BAD_DTYPE, "num_splits.dtype = u8 must be i32");
    num_splits = good_splits;
    num_splits.dim[0] = 4;
    refuse(&c, MLA_STATUS_BAD_SHAPE, "num_splits.dim[0] = 4 must be b + 1 = 4 + 1");
    close_call(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refused_metadata),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
