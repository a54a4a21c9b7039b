/*
 * cuda_dense_sm90.c - the variant for dense decode on Hopper: kernels/dense_sm90.cu and dense_combine_sm90.cu.
 *
 * The host knows shapes only. Who computes what follows from the lengths, which every thread block reads for itself, so
 * that a captured graph follows lengths that change.
 */
#include <math.h>
#include <string.h>

#include "cuda_dense_sm90.h"
#include "kernels/dense_sm90.h"

enum { FUNCTION_DECODE, FUNCTION_COMBINE };

/* Of cuTensorMapEncodeTiled(). */
enum {
    MAP_F16 = 6,
    MAP_BF16 = 9,
    MAP_NO_INTERLEAVE = 0,
    MAP_SWIZZLE_128 = 3,
    MAP_PROMOTE_128 = 2,
    MAP_PROMOTE_256 = 3,
    MAP_FILL_ZERO = 0
};

/* How the rows of a request are dealt out to thread blocks. When its tokens follow each other like heads, in q and o, they
 * are folded into one run of rows; else every token has row blocks of its own. */
typedef struct row_map {
    bool folded;
    int64_t token, row; /* tokens of the q map, rows of one of them for a kv head */
    int64_t block_per_token, block_per_head, n_block;
} row_map;

static row_map map_rows(const mla_shape *shape)
{
    row_map map;
    map.folded =
        shape->n_q == 1 || (shape->n_kv_head == 1 && shape->q_stride[1] == shape->n_head * shape->q_stride[2] &&
                            shape->o_stride[1] == shape->n_head * shape->o_stride[2]);
    map.token = map.folded ? 1 : shape->n_q;
    map.row = map.folded ? shape->n_q * shape->group : shape->group;
    map.block_per_token = (map.row + DENSE_SM90_ROWS - 1) / DENSE_SM90_ROWS;
    map.block_per_head = map.token * map.block_per_token;
    map.n_block = map.block_per_head * shape->n_kv_head;
    return map;
}

/* One worker per multiprocessor. With two parts or more, parts times row blocks <= n_sm and DENSE_SM90_MAX_PART. */
static int64_t count_parts(const mla_cuda_device *device, int64_t n_block)
{
    int64_t n_sm = device->n_sm < DENSE_SM90_MAX_PART ? device->n_sm : DENSE_SM90_MAX_PART;
    int64_t n = n_sm / (n_block > 0 ? n_block : 1);
    return n > 1 ? n : 1;
}

bool mla_dense_sm90_is_tiled(const void *data, const int64_t *stride, const int64_t *extent, int32_t n)
{
    bool ok = (uintptr_t)data % 16 == 0;
    for (int32_t i = 0; i < n; i++) {
        ok = ok && (extent[i] <= 1 || (stride[i] > 0 && stride[i] % 8 == 0 && stride[i] < ((int64_t)1 << 38)));
    }
    return ok;
}

bool mla_dense_sm90_accepts(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape)
{
    const mla_segment *segment = &problem->segment[0];
    const mla_segment_shape *keys = &shape->segment[0];
    const mla_tensor *absent[] = {&problem->q_rope,     &problem->q_begin,    &problem->q_length, &problem->q_descale,
                                  &problem->qk_descale, &problem->pv_descale, &problem->sink,     &problem->max,
                                  &segment->k_rope,     &segment->v,          &segment->list,     &segment->list_length,
                                  &segment->mask,       &segment->descale,    &segment->k_begin};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
        if (mla_tensor_present(absent[i])) {
            return false;
        }
    }
    mla_dtype dtype = problem->q.dtype;
    if (device->compute_capability != 90 || device->driver->cuLaunchKernelEx == NULL ||
        device->driver->cuTensorMapEncodeTiled == NULL || device->max_shared_bytes < DENSE_SM90_SHARED_BYTES ||
        shape->n_segment != 1 || !shape->batched || keys->addressing != MLA_ADDRESS_PAGED ||
        keys->page_size % DENSE_SM90_KEYS != 0 || (shape->d_k != 576 && shape->d_k != 512) ||
        shape->d_v != DENSE_SM90_D_V || (dtype != MLA_DTYPE_BF16 && dtype != MLA_DTYPE_F16) ||
        segment->k.dtype != dtype || problem->o.dtype != dtype || keys->k_pieces.columns < shape->d_k ||
        (segment->visible.rule != MLA_VISIBLE_ALL && segment->visible.rule != MLA_VISIBLE_CAUSAL) ||
        problem->p_rounding != MLA_P_ROUND_NONE || problem->arithmetic == MLA_ARITHMETIC_F32 ||
        problem->arithmetic == MLA_ARITHMETIC_BF16X2 || !(problem->softmax_scale > 0.0f)) {
        return false;
    }
    int64_t k_extent[3] = {keys->n_page, keys->page_size, shape->n_kv_head};
    int64_t o_extent[3] = {shape->n_seq, shape->n_q, shape->n_head};
    return mla_dense_sm90_is_tiled(segment->k.data, keys->k_stride, k_extent, 3) &&
           mla_dense_sm90_is_tiled(problem->o.data, shape->o_stride, o_extent, 3) && keys->n_page > 0 &&
           segment->page_table.dim[1] > 0 && segment->page_table.stride[1] == 1 &&
           mla_tensor_present(&segment->length) && (segment->length.stride[0] == 1 || shape->n_seq == 1) &&
           keys->n_page < INT32_MAX && keys->page_size < ((int64_t)1 << 24) && shape->n_seq < ((int64_t)1 << 24) &&
           shape->n_head < ((int64_t)1 << 24) && shape->n_q < ((int64_t)1 << 24);
}

mla_arithmetic mla_dense_sm90_arithmetic(const mla_problem *problem)
{
    return problem->q.dtype == MLA_DTYPE_F16 ? MLA_ARITHMETIC_F16 : MLA_ARITHMETIC_BF16;
}

static bool serves(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape)
{
    if (!mla_dense_sm90_accepts(device, problem, shape)) {
        return false;
    }
    row_map map = map_rows(shape);
    int64_t q_extent[3] = {shape->n_seq, map.folded ? 1 : shape->n_q, shape->n_head * (map.folded ? shape->n_q : 1)};
    return mla_dense_sm90_is_tiled(problem->q.data, shape->q_stride, q_extent, 3) && q_extent[2] < ((int64_t)1 << 24) &&
           map.n_block * (map.n_block > device->n_sm ? 1 : device->n_sm) < INT32_MAX / 256;
}

/* Bytes in front of the pieces: dense_sm90.h. */
static size_t counters_bytes(int64_t n_sm)
{
    return (size_t)n_sm * (DENSE_SM90_MAX_PIECE(1) * 8 * sizeof(uint64_t) + sizeof(dense_sm90_int4));
}

static mla_status build(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape,
                        mla_plan *plan)
{
    bool bf16 = problem->q.dtype == MLA_DTYPE_BF16;
    const char *decode = bf16 ? (shape->d_k == 576 ? "dense_sm90_bf16_576" : "dense_sm90_bf16_512")
                              : (shape->d_k == 576 ? "dense_sm90_f16_576" : "dense_sm90_f16_512");
    cuda_function function[2];
    MLA_TRY(mla_cuda_kernel_get(device, "dense_sm90", decode, DENSE_SM90_SHARED_BYTES, &function[FUNCTION_DECODE]));
    MLA_TRY(mla_cuda_kernel_get(device, "dense_combine_sm90",
                                bf16 ? "dense_sm90_combine_bf16" : "dense_sm90_combine_f16", 0,
                                &function[FUNCTION_COMBINE]));
    for (int i = 0; i < 2; i++) {
        plan->function[i] = function[i];
    }
    plan->arithmetic = mla_dense_sm90_arithmetic(problem);
    /* strides, which decide on folding, may be others at the launch: room for whatever they are */
    int64_t n_block = map_rows(shape).n_block;
    plan->n_item = count_parts(device, n_block) * n_block;
    plan->n_slot = DENSE_SM90_MAX_PIECE(device->n_sm);
    plan->workspace_bytes =
        counters_bytes(device->n_sm) + (size_t)plan->n_slot * DENSE_SM90_ROWS * (DENSE_SM90_D_V + 1) * sizeof(float);
    return MLA_STATUS_OK;
}

mla_status mla_dense_sm90_map(const mla_cuda_driver *driver, cuda_tensor_map *map, mla_dtype dtype, void *data,
                              int32_t rank, const int64_t *dim, const int64_t *stride, const uint32_t *box, bool alone)
{
    uint64_t extent[5], bytes[4];
    uint32_t step[5] = {1, 1, 1, 1, 1};
    for (int i = 0; i < rank; i++) {
        extent[i] = (uint64_t)dim[i];
    }
    for (int i = 0; i + 1 < rank; i++) { /* the stride of a single element does not matter, but it must look like one */
        bytes[i] = dim[i + 1] > 1 ? (uint64_t)stride[i] * 2 : 2 * (uint64_t)dim[0];
    }
    return mla_cuda_check(driver,
                          driver->cuTensorMapEncodeTiled(map, dtype == MLA_DTYPE_BF16 ? MAP_BF16 : MAP_F16,
                                                         (uint32_t)rank, data, extent, bytes, box, step,
                                                         MAP_NO_INTERLEAVE, MAP_SWIZZLE_128,
                                                         alone ? MAP_PROMOTE_128 : MAP_PROMOTE_256, MAP_FILL_ZERO),
                          "describing a tensor to the GPU");
}

mla_status mla_dense_sm90_launch(const mla_cuda_driver *driver, cuda_function function, int64_t grid, uint32_t threads,
                                 uint32_t shared_bytes, cuda_stream stream, void **parameters, const char *doing)
{
    cuda_launch_attribute early = {.id = CUDA_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION};
    early.value.programmatic_stream_serialization = 1;
    cuda_launch_config config = {.grid_x = (uint32_t)grid,
                                 .grid_y = 1,
                                 .grid_z = 1,
                                 .block_x = threads,
                                 .block_y = 1,
                                 .block_z = 1,
                                 .shared_bytes = shared_bytes,
                                 .stream = stream,
                                 .attribute = &early,
                                 .n_attribute = 1};
    return mla_cuda_check(driver, driver->cuLaunchKernelEx(&config, function, parameters, NULL), doing);
}

/* Rows that TMA reads 64 at a time, DENSE_SM90_BOXES boxes of 64 columns at once. dim, stride: of what lies around the
 * columns. */
static mla_status map_boxes(const mla_cuda_driver *driver, cuda_tensor_map *map, mla_dtype dtype, void *data,
                            int64_t columns, const int64_t dim[3], const int64_t stride[3])
{
    const int64_t dims[5] = {64, dim[0], columns / 64, dim[1], dim[2]};
    const int64_t strides[4] = {stride[0], 64, stride[1], stride[2]};
    const uint32_t box[5] = {64, 64, DENSE_SM90_BOXES, 1, 1};
    return mla_dense_sm90_map(driver, map, dtype, data, 5, dims, strides, box, true);
}

static mla_status launch(const mla_cuda_device *device, const mla_plan *plan, const mla_problem *problem,
                         const mla_shape *shape, cuda_address workspace, cuda_stream stream)
{
    const mla_cuda_driver *driver = device->driver;
    const mla_segment *segment = &problem->segment[0];
    const mla_segment_shape *keys = &shape->segment[0];
    row_map map = map_rows(shape);
    int64_t n_part = count_parts(device, map.n_block), page = keys->page_size;
    int64_t max_length = segment->page_table.dim[1] * page;

    dense_sm90_args a;
    memset(&a, 0, sizeof a);
    a.to_fold = (dense_sm90_int4 *)(uintptr_t)workspace;
    a.word = (uint64_t *)(a.to_fold + device->n_sm);
    a.piece_o = (float *)(uintptr_t)(workspace + counters_bytes(device->n_sm));
    a.piece_lse = a.piece_o + plan->n_slot * DENSE_SM90_ROWS * DENSE_SM90_D_V;
    a.length = segment->length.data;
    a.max_length = max_length < INT32_MAX - 64 ? (int32_t)max_length : INT32_MAX - 64;
    a.page_table = segment->page_table.data;
    a.page_table_stride = segment->page_table.stride[0];
    a.o = problem->o.data;
    a.lse = mla_tensor_present(&problem->lse) ? problem->lse.data : NULL;
    memcpy(a.o_stride, shape->o_stride, sizeof a.o_stride);
    memcpy(a.lse_stride, shape->lse_stride, sizeof a.lse_stride);
    a.n_seq = (int32_t)shape->n_seq;
    a.n_part = (int32_t)n_part;
    a.n_group = (int32_t)map.n_block;
    a.block_per_head = (int32_t)map.block_per_head;
    a.block_per_token = (int32_t)map.block_per_token;
    a.row_per_token = (int32_t)map.row;
    a.head_per_kv = (int32_t)shape->group;
    a.kv_row_stride = (int32_t)shape->group;
    a.n_q = (int32_t)shape->n_q;
    a.causal = segment->visible.rule == MLA_VISIBLE_CAUSAL && shape->n_q > 1;
    a.page_size = (int32_t)page;
    a.page_shift = (page & (page - 1)) == 0 ? __builtin_ctzll((uint64_t)page) : -1;
    a.n_page = (int32_t)keys->n_page;
    a.scale_log2 = (float)(problem->softmax_scale * 1.4426950408889634);
    a.lse_unit = problem->lse_base == MLA_LSE_NATURAL ? 0.69314718f : 1.0f;
    a.lse_empty = (float)mla_empty_lse(problem->lse_empty);
    int64_t n_split = shape->n_seq < n_part ? shape->n_seq : n_part; /* requests that can be split at most */
    int64_t to_fold = n_split * map.n_block;
    a.combine_columns = to_fold <= 4 ? 1 : to_fold <= 16 ? 8 : to_fold <= 128 ? 16 : 64;

    cuda_tensor_map q_map, k_map, o_map;
    int64_t q_dim[3] = {shape->n_head * (map.folded ? shape->n_q : 1), map.token, shape->n_seq};
    int64_t q_stride[3] = {shape->q_stride[2], shape->q_stride[1], shape->q_stride[0]};
    int64_t k_dim[3] = {page, shape->n_kv_head, keys->n_page};
    int64_t k_stride[3] = {keys->k_stride[1], keys->k_stride[2], keys->k_stride[0]};
    MLA_TRY(map_boxes(driver, &q_map, problem->q.dtype, problem->q.data, shape->d_k, q_dim, q_stride));
    MLA_TRY(map_boxes(driver, &k_map, segment->k.dtype, segment->k.data, shape->d_k, k_dim, k_stride));

    /* o goes in boxes of a warp's 16 rows, of which only those of the kv head are written */
    int64_t o_dim[5] = {DENSE_SM90_D_V, map.row, shape->n_kv_head, map.token, shape->n_seq};
    int64_t o_stride[4] = {shape->o_stride[2], shape->group * shape->o_stride[2], shape->o_stride[1],
                           shape->o_stride[0]};
    const uint32_t o_box[5] = {64, DENSE_SM90_ROWS / 4, 1, 1, 1};
    MLA_TRY(mla_dense_sm90_map(driver, &o_map, problem->o.dtype, problem->o.data, 5, o_dim, o_stride, o_box, false));

    void *parameters[] = {&q_map, &k_map, &o_map, &a}, *combine_parameters[] = {&a};
    MLA_TRY(mla_dense_sm90_launch(driver, plan->function[FUNCTION_DECODE], map.n_block * n_part, DENSE_SM90_THREADS,
                                  DENSE_SM90_SHARED_BYTES, stream, parameters, "launching attention"));
    if (n_part == 1) {
        return MLA_STATUS_OK;
    }
    return mla_dense_sm90_launch(driver, plan->function[FUNCTION_COMBINE], to_fold * 4 * (64 / a.combine_columns),
                                 DENSE_SM90_COMBINE_THREADS, 0, stream, combine_parameters,
                                 "launching the combination of parts");
}

const mla_cuda_variant mla_cuda_dense_sm90_variant = {
    .name = "dense_sm90",
    .serves = serves,
    .build = build,
    .launch = launch,
};
