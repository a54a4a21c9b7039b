/*
 * cuda_dense_few_sm90.c - the variant for dense decode with few query rows on Hopper: kernels/dense_few_*.cu.
 *
 * The host knows shapes only. Who computes what follows from the lengths, which every thread block reads for itself, so
 * that a captured graph follows lengths that change.
 */
#include <math.h>
#include <string.h>

#include "cuda_dense_sm90.h"
#include "kernels/dense_few_sm90.h"

enum { FUNCTION_DECODE, FUNCTION_COMBINE }; /* of the plan */
enum { NUMBER_SHIFT };

enum { COMBINE_WARPS = DENSE_FEW_SM90_COMBINE_THREADS / 32 };

/* The query heads of a kv head can be cut into blocks, each a head of its own: where they are more than the kernels have
 * rows for, and where thread blocks would else be idle. */
typedef struct row_blocks {
    int64_t n_head, group; /* such heads, and the query heads of one */
    int32_t shift;         /* 2^shift of them have the same keys */
} row_blocks;

static row_blocks cut_rows(const mla_shape *shape, int32_t shift)
{
    return (row_blocks){shape->n_kv_head << shift, shape->group >> shift, shift};
}

/* As few cuts as make blocks of at most so many rows, if their number can be halved so often. */
static row_blocks cut_to(const mla_shape *shape, int64_t rows)
{
    int32_t shift = 0;
    while (shape->n_q * (shape->group >> shift) > rows && (shape->group >> shift) % 2 == 0) {
        shift++;
    }
    return cut_rows(shape, shift);
}

/* Are there at most so many tiles a multiprocessor, by what the page table has room for? */
static bool are_few(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape, row_blocks cut,
                    double tiles)
{
    double of_request =
        (double)problem->segment[0].page_table.dim[1] * (double)shape->segment[0].page_size / DENSE_FEW_SM90_KEYS;
    return of_request * (double)shape->n_seq * (double)cut.n_head <= tiles * device->n_sm;
}

/* Has the causal rule a say? */
static bool is_causal(const mla_problem *problem, const mla_shape *shape)
{
    return problem->segment[0].visible.rule == MLA_VISIBLE_CAUSAL && shape->n_q > 1;
}

static int64_t count_parts(const mla_cuda_device *device)
{
    return device->n_sm < DENSE_FEW_SM90_MAX_PART ? device->n_sm : DENSE_FEW_SM90_MAX_PART;
}

/* Every block reads its keys for itself. That costs less than longer ends as long as there are few tiles; how few was
 * measured. */
static row_blocks choose_blocks(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape)
{
    const struct {
        int64_t rows;
        double tiles;
    } smaller[] = {{16, shape->n_q * shape->group > 32 ? 8 : 6}, {32, 4}};
    for (size_t i = 0; i < sizeof smaller / sizeof *smaller; i++) {
        row_blocks cut = cut_to(shape, smaller[i].rows);
        if (shape->n_q * cut.group <= smaller[i].rows && are_few(device, problem, shape, cut, smaller[i].tiles)) {
            return cut;
        }
    }
    return cut_to(shape, DENSE_FEW_SM90_ROWS);
}

/* Blocks of rows of the same keys only where tiles are few. More than 32 rows, where they are not, only where requests are
 * many: the pieces of one that is cut often are folded faster by the other kernel. */
static bool pays(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape)
{
    row_blocks cut = choose_blocks(device, problem, shape);
    if (shape->n_q * cut.group <= 32) {
        return true;
    }
    return cut.shift == 0 && (shape->n_seq * shape->n_kv_head >= 8 || are_few(device, problem, shape, cut, 4));
}

/* Warps of the combine kernel that share a task: as many as leave it one thread block a multiprocessor. Others would have
 * to wait for the end of a decode thread block before they find out what to do. */
static int32_t share_tasks(const mla_cuda_device *device, int64_t n_task)
{
    int32_t share = COMBINE_WARPS;
    while (share > 1 && n_task * share > (int64_t)device->n_sm * COMBINE_WARPS) {
        share /= 2;
    }
    return share;
}

static bool serves(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape)
{
    int64_t q_extent[3] = {shape->n_seq, shape->n_q, shape->n_head};
    return mla_dense_sm90_accepts(device, problem, shape) &&
           shape->n_q * cut_to(shape, DENSE_FEW_SM90_ROWS).group <= DENSE_FEW_SM90_ROWS &&
           mla_dense_sm90_is_tiled(problem->q.data, shape->q_stride, q_extent, 3);
}

/* [rows that see different keys][bf16, f16][d_k 576, 512][rows 8, 16, 32, 64] */
static const char *const decode_image[2] = {"dense_few_sm90", "dense_few_causal_sm90"};
static const char *const wide_image[2] = {"dense_few_64_sm90", "dense_few_64_causal_sm90"};
static const char *const decode_name[2][2][2][4] =
    {{{{"dense_few_sm90_bf16_576_8", "dense_few_sm90_bf16_576_16", "dense_few_sm90_bf16_576_32",
        "dense_few_sm90_bf16_576_64"},
       {"dense_few_sm90_bf16_512_8", "dense_few_sm90_bf16_512_16", "dense_few_sm90_bf16_512_32",
        "dense_few_sm90_bf16_512_64"}},
      {{"dense_few_sm90_f16_576_8", "dense_few_sm90_f16_576_16", "dense_few_sm90_f16_576_32",
        "dense_few_sm90_f16_576_64"},
       {"dense_few_sm90_f16_512_8", "dense_few_sm90_f16_512_16", "dense_few_sm90_f16_512_32",
        "dense_few_sm90_f16_512_64"}}},
     {{{"dense_few_causal_sm90_bf16_576_8", "dense_few_causal_sm90_bf16_576_16", "dense_few_causal_sm90_bf16_576_32",
        "dense_few_causal_sm90_bf16_576_64"},
       {"dense_few_causal_sm90_bf16_512_8", "dense_few_causal_sm90_bf16_512_16", "dense_few_causal_sm90_bf16_512_32",
        "dense_few_causal_sm90_bf16_512_64"}},
      {{"dense_few_causal_sm90_f16_576_8", "dense_few_causal_sm90_f16_576_16", "dense_few_causal_sm90_f16_576_32",
        "dense_few_causal_sm90_f16_576_64"},
       {"dense_few_causal_sm90_f16_512_8", "dense_few_causal_sm90_f16_512_16", "dense_few_causal_sm90_f16_512_32",
        "dense_few_causal_sm90_f16_512_64"}}}};
static const char *const combine_name[2][3] = {{"dense_few_sm90_combine_bf16_8", "dense_few_sm90_combine_bf16_16",
                                                "dense_few_sm90_combine_bf16_32"},
                                               {"dense_few_sm90_combine_f16_8", "dense_few_sm90_combine_f16_16",
                                                "dense_few_sm90_combine_f16_32"}};

static mla_status build(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape,
                        mla_plan *plan)
{
    const int f16 = problem->q.dtype == MLA_DTYPE_F16, narrow = shape->d_k == 512, causal = is_causal(problem, shape);
    row_blocks cut = choose_blocks(device, problem, shape);
    const int32_t rows = dense_few_sm90_padded(shape->n_q * cut.group);
    const bool wide = rows > 32;
    const int size = wide ? 3 : rows / 16;
    cuda_function decode, combine;
    MLA_TRY(mla_cuda_kernel_get(device, (wide ? wide_image : decode_image)[causal],
                                decode_name[causal][f16][narrow][size],
                                DENSE_FEW_SM90_SHARED_BYTES(rows, (int32_t)shape->d_k), &decode));
    MLA_TRY(mla_cuda_kernel_get(device, "dense_few_combine_sm90", combine_name[f16][wide ? 2 : size], 0, &combine));
    /* else the two would not fit on a multiprocessor, or its memory would have to be divided anew between them */
    MLA_TRY(mla_cuda_kernel_fill_shared(device, decode));
    MLA_TRY(mla_cuda_kernel_fill_shared(device, combine));
    plan->function[FUNCTION_DECODE] = decode;
    plan->function[FUNCTION_COMBINE] = combine;
    plan->arithmetic = mla_dense_sm90_arithmetic(problem);
    plan->number[NUMBER_SHIFT] = cut.shift; /* the page table may be wider at the launch */
    plan->n_item = count_parts(device);
    plan->n_slot = 2 * count_parts(device);
    plan->workspace_bytes =
        DENSE_FEW_SM90_WORDS_BYTES + (size_t)(plan->n_slot * rows * (DENSE_FEW_SM90_D_V + 1)) * sizeof(float);
    return MLA_STATUS_OK;
}

static mla_status launch(const mla_cuda_device *device, const mla_plan *plan, const mla_problem *problem,
                         const mla_shape *shape, cuda_address workspace, cuda_stream stream)
{
    const mla_cuda_driver *driver = device->driver;
    const mla_segment *segment = &problem->segment[0];
    const mla_segment_shape *keys = &shape->segment[0];
    const row_blocks cut = cut_rows(shape, (int32_t)plan->number[NUMBER_SHIFT]);
    const int32_t rows = dense_few_sm90_padded(shape->n_q * cut.group);
    int64_t page = keys->page_size, max_length = segment->page_table.dim[1] * page;

    dense_few_sm90_args a;
    memset(&a, 0, sizeof a);
    a.length = segment->length.data;
    a.page_table = segment->page_table.data;
    a.page_table_stride = segment->page_table.stride[0];
    a.o = problem->o.data;
    a.lse = mla_tensor_present(&problem->lse) ? problem->lse.data : NULL;
    a.arrived = (uint64_t *)(uintptr_t)workspace;
    a.piece_o = (float *)(uintptr_t)(workspace + DENSE_FEW_SM90_WORDS_BYTES);
    a.piece_lse = a.piece_o + plan->n_slot * rows * DENSE_FEW_SM90_D_V;
    memcpy(a.o_stride, shape->o_stride, sizeof a.o_stride);
    memcpy(a.lse_stride, shape->lse_stride, sizeof a.lse_stride);
    a.n_seq = (int32_t)shape->n_seq;
    a.n_kv_head = (int32_t)cut.n_head;
    a.kv_shift = cut.shift;
    a.n_part = (int32_t)plan->n_item;
    a.head_per_kv = (int32_t)cut.group;
    a.n_row = (int32_t)(shape->n_q * cut.group);
    a.n_q = (int32_t)shape->n_q;
    a.causal = is_causal(problem, shape);
    a.page_size = (int32_t)page;
    a.page_shift = (page & (page - 1)) == 0 ? __builtin_ctzll((uint64_t)page) : -1;
    a.n_page = (int32_t)keys->n_page;
    a.max_length = max_length < INT32_MAX - 64 ? (int32_t)max_length : INT32_MAX - 64;
    a.scale_log2 = (float)(problem->softmax_scale * 1.4426950408889634);
    a.lse_unit = problem->lse_base == MLA_LSE_NATURAL ? 0.69314718f : 1.0f;
    a.lse_empty = (float)mla_empty_lse(problem->lse_empty);
    int64_t n_item = shape->n_seq * cut.n_head, n_cut = plan->n_item - 1;
    a.fold_items = n_item <= n_cut;
    a.item_cost = rows > 32 ? 8 : 4 + rows / 4;
    a.n_half = DENSE_FEW_SM90_HALVES(rows);
    const int64_t n_fold = (n_item < n_cut ? n_item : n_cut) * a.n_half, n_task = DENSE_FEW_SM90_TASKS(rows / a.n_half);
    a.combine_share = share_tasks(device, n_fold * n_task);
    a.combine_chunks = (int32_t)(n_task * a.combine_share / COMBINE_WARPS);
    while (n_fold * a.combine_chunks > 4 * device->n_sm && a.combine_chunks > 1) {
        a.combine_chunks /= 2;
    }

    cuda_tensor_map q_map, k_map, o_map; /* queries and results go in boxes of all the rows of an item */
    int64_t q_dim[5] = {shape->d_k, cut.group, cut.n_head, shape->n_q, shape->n_seq};
    int64_t q_stride[4] = {shape->q_stride[2], cut.group * shape->q_stride[2], shape->q_stride[1], shape->q_stride[0]};
    int64_t o_dim[5] = {DENSE_FEW_SM90_D_V, cut.group, cut.n_head, shape->n_q, shape->n_seq};
    int64_t o_stride[4] = {shape->o_stride[2], cut.group * shape->o_stride[2], shape->o_stride[1], shape->o_stride[0]};
    uint32_t q_box[5] = {64, (uint32_t)cut.group, 1, (uint32_t)shape->n_q, 1};
    int64_t k_dim[4] = {shape->d_k, page, shape->n_kv_head, keys->n_page};
    int64_t k_stride[3] = {keys->k_stride[1], keys->k_stride[2], keys->k_stride[0]};
    uint32_t k_box[4] = {64, DENSE_FEW_SM90_KEYS, 1, 1};
    MLA_TRY(mla_dense_sm90_map(driver, &q_map, problem->q.dtype, problem->q.data, 5, q_dim, q_stride, q_box, true));
    MLA_TRY(mla_dense_sm90_map(driver, &k_map, segment->k.dtype, segment->k.data, 4, k_dim, k_stride, k_box, true));

    MLA_TRY(mla_dense_sm90_map(driver, &o_map, problem->o.dtype, problem->o.data, 5, o_dim, o_stride, q_box, true));

    void *parameters[] = {&q_map, &k_map, &o_map, &a}, *combine_parameters[] = {&a};
    MLA_TRY(mla_dense_sm90_launch(driver, plan->function[FUNCTION_DECODE], plan->n_item, DENSE_FEW_SM90_THREADS(rows),
                                  DENSE_FEW_SM90_SHARED_BYTES(rows, (uint32_t)shape->d_k), stream, parameters,
                                  "launching attention"));
    int64_t grid = n_fold * a.combine_chunks;
    if (grid == 0) {
        return MLA_STATUS_OK;
    }
    return mla_dense_sm90_launch(driver, plan->function[FUNCTION_COMBINE], grid, DENSE_FEW_SM90_COMBINE_THREADS, 0,
                                 stream, combine_parameters, "launching the combination of parts");
}

const mla_cuda_variant mla_cuda_dense_few_sm90_variant = {
    .name = "dense_few_sm90",
    .serves = serves,
    .pays = pays,
    .build = build,
    .launch = launch,
};
