/*
 * test_flash_mla_metadata.c - the tile scheduler tensors of flash_mla: worked examples, what must hold of any schedule,
 * and refusals.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "mla/flash_mla.h"
#include "mla/mla.h"

enum {
    COLUMNS = FLASH_MLA_METADATA_COLUMNS,
    BLOCK = FLASH_MLA_KEYS_PER_BLOCK,
    OVERHEAD = FLASH_MLA_FIXED_OVERHEAD_BLOCKS
};
enum { MAX_B = 48, MAX_PART = 256 };

static mla_tensor view_i32(int32_t *data, int32_t ndim, int64_t dim0, int64_t dim1)
{
    return mla_tensor_make(data, MLA_DTYPE_I32, ndim, (int64_t[]){dim0, dim1});
}

/* Fills rows [n_part][8] and splits [b + 1], which hold garbage before. */
static void schedule(const int32_t *lens, int64_t b, int64_t n_part, int32_t *rows, int32_t *splits)
{
    int32_t copy[MAX_B + 1];
    memcpy(copy, lens, (size_t)b * sizeof *lens);
    memset(rows, 0xa5, (size_t)n_part * COLUMNS * sizeof *rows);
    memset(splits, 0xa5, (size_t)(b + 1) * sizeof *splits);
    mla_tensor seqlens = view_i32(copy, 1, b, 0), metadata = view_i32(rows, 2, n_part, COLUMNS);
    mla_tensor num_splits = view_i32(splits, 1, b + 1, 0);
    if (flash_mla_get_metadata(&seqlens, 128, 1, &metadata, &num_splits) != MLA_STATUS_OK) {
        fail_msg("%s", mla_last_error());
    }
    assert_memory_equal(copy, lens, (size_t)b * sizeof *lens);
}

/* ---- worked examples --------------------------------------------------------------------------------------------- */

/* Rows of the February 2025 interface: columns 1 and 3 count tokens. The rows of [4096, 4096] were worked out in blocks
 * for a later interface, whose schedule is the same when no request is empty. */
static const struct {
    int64_t b, n_part;
    int32_t lens[4], splits[5], rows[5][5];
} EXAMPLES[] = {
    {1, 4, {1000}, {0, 3}, {{0, 0, 0, 384, 0}, {0, 384, 0, 768, 1}, {0, 768, 0, 1000, 2}, {1, 0, 0, 1000, 0}}},
    {4, 3, {0, 64, 65, 4096}, {0, 1, 2, 3, 6}, {{0, 0, 3, 704, 0}, {3, 704, 3, 2560, 1}, {3, 2560, 3, 4096, 2}}},
    {2,
     5,
     {4096, 4096},
     {0, 3, 6},
     {{0, 0, 0, 28 * 64, 0},
      {0, 28 * 64, 0, 56 * 64, 1},
      {0, 56 * 64, 1, 15 * 64, 2},
      {1, 15 * 64, 1, 43 * 64, 1},
      {1, 43 * 64, 1, 4096, 2}}},
    {1, 2, {0}, {0, 1}, {{0, 0, 0, 0, 0}, {1, 0, 0, 0, 0}}},
    {1, 2, {-5}, {0, 1}, {{0, 0, 0, 0, 0}, {1, 0, 0, 0, 0}}}, /* negative counts as 0 */
    /* one part takes all; more parts than work leave the rest idle */
    {3, 1, {5, 0, 100}, {0, 1, 2, 3}, {{0, 0, 2, 100, 0}}},
    {2, 4, {1, 1}, {0, 1, 2}, {{0, 0, 0, 1, 0}, {1, 0, 1, 1, 0}, {2, 0, 1, 1, 0}, {2, 0, 1, 1, 0}}},
    /* no request at all: every part is idle, and nobody's last request is the one before the first */
    {0, 2, {0}, {0}, {{0, 0, -1, 0, 0}, {0, 0, -1, 0, 0}}},
};

static void test_worked_examples(void **state)
{
    (void)state;
    for (size_t e = 0; e < sizeof EXAMPLES / sizeof *EXAMPLES; e++) {
        int32_t rows[5 * COLUMNS], splits[5];
        schedule(EXAMPLES[e].lens, EXAMPLES[e].b, EXAMPLES[e].n_part, rows, splits);
        for (int64_t i = 0; i < EXAMPLES[e].n_part; i++) {
            for (int c = 0; c < COLUMNS; c++) {
                int32_t expected = c < 5 ? EXAMPLES[e].rows[i][c] : 0;
                if (rows[i * COLUMNS + c] != expected) {
                    fail_msg("example %zu, row %d, column %d: %d instead of %d", e, (int)i, c, rows[i * COLUMNS + c],
                             expected);
                }
            }
        }
        assert_memory_equal(splits, EXAMPLES[e].splits, (size_t)(EXAMPLES[e].b + 1) * sizeof *splits);
    }
}

/* ---- what must hold of any schedule ------------------------------------------------------------------------------ */

static int64_t keys_of(int32_t length)
{
    return length < 0 ? 0 : length;
}

static int64_t blocks_of(int32_t length)
{
    return (keys_of(length) + BLOCK - 1) / BLOCK;
}

/* Walks over the parts with a cursor of its own. Beyond the invariants, it asks that a part stops only where the rules
 * make it stop, which leaves no other schedule. */
static void check_schedule(const int32_t *lens, int64_t b, int64_t n_part, const int32_t *rows, const int32_t *splits)
{
    int64_t total = 0;
    for (int64_t i = 0; i < b; i++) {
        total += blocks_of(lens[i]) + OVERHEAD;
    }
    int64_t payload = (total + n_part - 1) / n_part + OVERHEAD;
    int64_t request = 0, block = 0, split = 0;

    assert_int_equal(splits[0], 0);
    for (int64_t i = 0; i < b; i++) {
        int64_t count = splits[i + 1] - splits[i];
        assert_true(count >= 1);
        assert_true(blocks_of(lens[i]) > 0 || count == 1);
    }
    assert_true(splits[b] <= b + n_part - 1);

    for (int64_t i = 0; i < n_part; i++) {
        const int32_t *row = rows + i * COLUMNS;
        assert_true(row[5] == 0 && row[6] == 0 && row[7] == 0);
        assert_int_equal(row[0], request);
        assert_int_equal(row[1], block * BLOCK);
        assert_int_equal(row[4], split);
        if (request == b) { /* idle */
            assert_true(block == 0 && split == 0);
            assert_int_equal(row[2], b - 1);
            assert_int_equal(row[3], b > 0 ? keys_of(lens[b - 1]) : 0);
            continue;
        }
        int64_t last = row[2], end = row[3], n_split = 0;
        assert_in_range(last, request, b - 1);
        bool finished = end == keys_of(lens[last]);
        assert_true(end >= 0 && end <= keys_of(lens[last]) && (finished || (end % BLOCK == 0 && end > 0)));
        int64_t end_block = finished ? blocks_of(lens[last]) : end / BLOCK;
        int64_t cost = 0;
        for (int64_t r = request; r <= last; r++) {
            int64_t from = r == request ? block : 0, to = r == last ? end_block : blocks_of(lens[r]);
            assert_true(to > from || blocks_of(lens[r]) == 0);
            cost += to - from + OVERHEAD;
            n_split += splits[r + 1] - splits[r] > 1;
            assert_true(r == request || r == last || splits[r + 1] - splits[r] == 1); /* the middle ones are whole */
        }
        assert_true(n_split <= 2);
        assert_true(cost <= payload);
        if (!finished) { /* cut exactly where the budget ends */
            assert_int_equal(cost, payload);
            split = last == request ? split + 1 : 1;
            request = last;
            block = end_block;
        } else {
            int64_t splits_of_last = last == request ? split + 1 : 1;
            assert_int_equal(splits[last + 1] - splits[last], splits_of_last);
            assert_true(last + 1 == b || payload - cost <= OVERHEAD); /* else it would have taken more */
            request = last + 1;
            block = split = 0;
        }
    }
    assert_int_equal(request, b); /* everything is given out */
}

static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void test_invariants(void **state)
{
    (void)state;
    static int32_t rows[MAX_PART * COLUMNS];
    int32_t lens[MAX_B], splits[MAX_B + 1];
    uint64_t seed = 414;
    for (int round = 0; round < 40000; round++) {
        int64_t b = (int64_t)(random_bits(&seed) % (round % 4 == 0 ? 4 : MAX_B + 1));
        int64_t n_part = 1 + (int64_t)(random_bits(&seed) % (round % 3 == 0 ? 8 : MAX_PART));
        uint64_t scale = (uint64_t)1 << (random_bits(&seed) % 31);
        for (int64_t i = 0; i < b; i++) {
            uint64_t kind = random_bits(&seed) % 8;
            lens[i] = (int32_t)(random_bits(&seed) % scale);
            lens[i] = kind == 0 ? 0 : kind == 1 ? -lens[i] : kind == 2 ? lens[i] & -BLOCK : lens[i];
        }
        schedule(lens, b, n_part, rows, splits);
        check_schedule(lens, b, n_part, rows, splits);
    }
}

/* Parts as many as GPUs of the original had, and the largest lengths there are. */
static void test_forced_parts(void **state)
{
    (void)state;
    static const int64_t parts[] = {1, 2, 3, 5, 16, 33, 64, 66, 132, 256};
    static int32_t rows[MAX_PART * COLUMNS];
    int32_t lens[MAX_B], splits[MAX_B + 1];
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        for (int64_t i = 0; i < MAX_B; i++) {
            lens[i] = i % 5 == 0 ? INT32_MAX : (int32_t)(i * 1000);
        }
        schedule(lens, MAX_B, parts[k], rows, splits);
        check_schedule(lens, MAX_B, parts[k], rows, splits);
        schedule(lens, 0, parts[k], rows, splits);
        check_schedule(lens, 0, parts[k], rows, splits);
    }
}

/* A request of 1024 query tokens, 16 heads over 8 kv heads: the original divides its way down to 0 parts here. */
static void test_parts_are_never_zero(void **state)
{
    (void)state;
    static const int64_t values[] = {INT64_MIN, -1, 0, 1, 8, 128, 2048, INT64_MAX};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        for (size_t j = 0; j < sizeof values / sizeof *values; j++) {
            assert_true(flash_mla_num_parts(values[i], values[j]) >= 1);
        }
    }
    int64_t n_part = flash_mla_num_parts(1024 * 16 / 8, 8);
    assert_in_range(n_part, 1, MAX_PART);
    static int32_t rows[MAX_PART * COLUMNS];
    int32_t splits[2], lens[1] = {4096};
    mla_tensor seqlens = view_i32(lens, 1, 1, 0), metadata = view_i32(rows, 2, n_part, COLUMNS);
    mla_tensor num_splits = view_i32(splits, 1, 2, 0);
    assert_int_equal(flash_mla_get_metadata(&seqlens, 1024 * 16 / 8, 8, &metadata, &num_splits), MLA_STATUS_OK);
    check_schedule(lens, 1, n_part, rows, splits);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

typedef struct arguments {
    int32_t lens[2 * 3], rows[4 * COLUMNS * 2], splits[8];
    mla_tensor seqlens, metadata, num_splits;
    int64_t rows_per_head, heads;
} arguments;

static void refuse(const arguments *a, mla_status status, const char *words)
{
    mla_status got = flash_mla_get_metadata(&a->seqlens, a->rows_per_head, a->heads, &a->metadata, &a->num_splits);
    if (got != status || strstr(mla_last_error(), words) == NULL) {
        fail_msg("%s \"%s\" instead of %s \"%s\"", mla_status_name(got), mla_last_error(), mla_status_name(status),
                 words);
    }
}

static arguments *valid_arguments(arguments *a)
{
    *a = (arguments){.lens = {1, 2, 3}, .rows_per_head = 1, .heads = 1};
    a->seqlens = view_i32(a->lens, 1, 3, 0);
    a->metadata = view_i32(a->rows, 2, 4, COLUMNS);
    a->num_splits = view_i32(a->splits, 1, 4, 0);
    return a;
}

static void test_refusals(void **state)
{
    (void)state;
    arguments a;
    valid_arguments(&a);
    assert_int_equal(flash_mla_get_metadata(&a.seqlens, 1, 1, &a.metadata, &a.num_splits), MLA_STATUS_OK);

    assert_int_equal(flash_mla_get_metadata(NULL, 1, 1, &a.metadata, &a.num_splits), MLA_STATUS_NULL_POINTER);
    assert_string_equal(mla_last_error(), "cache_seqlens is NULL");
    assert_int_equal(flash_mla_get_metadata(&a.seqlens, 1, 1, NULL, &a.num_splits), MLA_STATUS_NULL_POINTER);
    assert_string_equal(mla_last_error(), "tile_scheduler_metadata is NULL");
    assert_int_equal(flash_mla_get_metadata(&a.seqlens, 1, 1, &a.metadata, NULL), MLA_STATUS_NULL_POINTER);
    assert_string_equal(mla_last_error(), "num_splits is NULL");

    valid_arguments(&a)->seqlens.data = NULL;
    refuse(&a, MLA_STATUS_NULL_POINTER, "cache_seqlens.data is NULL");
    valid_arguments(&a)->seqlens.dtype = MLA_DTYPE_I64;
    a.seqlens.data = (void *)((uintptr_t)a.rows & ~(uintptr_t)7); /* aligned to 8 wherever the stack is */
    refuse(&a, MLA_STATUS_BAD_DTYPE, "cache_seqlens.dtype = i64 must be i32");
    valid_arguments(&a)->seqlens = view_i32(a.lens, 2, 3, 1);
    refuse(&a, MLA_STATUS_BAD_SHAPE, "cache_seqlens.ndim = 2 must be 1: [b]");
    valid_arguments(&a)->seqlens.stride[0] = 2;
    refuse(&a, MLA_STATUS_BAD_STRIDE, "cache_seqlens.stride[0] = 2 must be 1");
    valid_arguments(&a)->seqlens.device.type = MLA_DEVICE_CUDA;
    refuse(&a, MLA_STATUS_BAD_DEVICE, "cache_seqlens is on device 1:0");
    valid_arguments(&a)->seqlens.name = "lens";
    a.seqlens.dim[0] = -1;
    refuse(&a, MLA_STATUS_BAD_SHAPE, "lens.dim[0] = -1 is negative");

    valid_arguments(&a)->metadata.dim[1] = 7;
    refuse(&a, MLA_STATUS_BAD_SHAPE, "tile_scheduler_metadata.dim[1] = 7 differs from columns = 8");
    valid_arguments(&a)->metadata.dim[0] = 0;
    refuse(&a, MLA_STATUS_BAD_SHAPE, "tile_scheduler_metadata.dim[0] = 0 must be at least 1");
    valid_arguments(&a)->metadata.stride[0] = 16;
    refuse(&a, MLA_STATUS_BAD_STRIDE, "tile_scheduler_metadata.stride[0] = 16 must be 8");
    valid_arguments(&a)->metadata.dim[0] = INT32_MAX;
    refuse(&a, MLA_STATUS_BAD_SHAPE, "exceed int32");
    valid_arguments(&a)->metadata.ndim = 1;
    refuse(&a, MLA_STATUS_BAD_SHAPE, "tile_scheduler_metadata.ndim = 1 must be 2: [n_part][8]");
    valid_arguments(&a)->num_splits.dim[0] = 3;
    refuse(&a, MLA_STATUS_BAD_SHAPE, "num_splits.dim[0] = 3 must be b + 1 = 3 + 1");
    valid_arguments(&a)->num_splits.dtype = MLA_DTYPE_F32;
    refuse(&a, MLA_STATUS_BAD_DTYPE, "num_splits.dtype = f32 must be i32");
    valid_arguments(&a)->num_splits.data = a.lens;
    refuse(&a, MLA_STATUS_BAD_VALUE, "overlaps cache_seqlens");
    valid_arguments(&a)->metadata.data = a.lens;
    refuse(&a, MLA_STATUS_BAD_VALUE, "tile_scheduler_metadata.data");
    valid_arguments(&a)->num_splits.data = a.rows + 3;
    refuse(&a, MLA_STATUS_BAD_VALUE, "overlaps tile_scheduler_metadata");

    valid_arguments(&a)->rows_per_head = -1;
    refuse(&a, MLA_STATUS_BAD_VALUE, "num_heads_per_head_k = -1 must not be negative");
    valid_arguments(&a)->heads = -8;
    refuse(&a, MLA_STATUS_BAD_VALUE, "num_heads_k = -8 must be at least 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_examples), cmocka_unit_test(test_invariants),
        cmocka_unit_test(test_forced_parts),    cmocka_unit_test(test_parts_are_never_zero),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
