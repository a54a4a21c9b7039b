/*
 * cuda_generic.c - the variant for every problem: kernels/generic.cu, and rounded.cu where probabilities are rounded.
 *
 * Shapes alone decide the plan: how many rows a thread block takes, how many row blocks there are at most, and into how
 * many parts their keys may be cut. How many parts are in use follows from the lengths, which the kernels read.
 */
#include <inttypes.h>
#include <string.h>

#include "cuda_variant.h"
#include "kernels/cuda_problem.h"

/* What the plan remembers. */
enum { NUMBER_ROWS, NUMBER_BLOCKS, NUMBER_SPLITS, NUMBER_Q_RESIDENT, NUMBER_SHARED_BYTES, NUMBER_PART_BLOCKS };
enum { FUNCTION_ATTEND, FUNCTION_COMBINE };

static const struct {
    int32_t rows;
    const char *function;
} kernels[] = {{4, "mla_generic_4"}, {16, "mla_generic_16"}, {64, "mla_generic_64"}};

#define N_KERNEL (sizeof kernels / sizeof kernels[0])

/* Floats of mla_shared in generic.cu besides its two tiles, generously: offsets and positions of keys and rows. */
#define SHARED_EXTRA_BYTES 8192

/* Of rounded.cu: rows of a thread block, and what it has in shared memory besides: a tile of probabilities, the tile's
 * keys. */
#define ROUNDED_ROWS 16
#define ROUNDED_EXTRA_BYTES (ROUNDED_ROWS * (MLA_CUDA_MAX_TILE + 4) * 4 + MLA_CUDA_MAX_TILE * 32 + 1024)

/* Waves of thread blocks that a launch should have at least, where the keys allow it. */
#define WAVES 4

static bool serves(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape)
{
    (void)device;
    (void)problem;
    (void)shape;
    return true;
}

/* Row blocks of one token only: with lists each token has keys of its own, with rounding tiles of its own. */
static bool by_token(const mla_problem *problem, const mla_shape *shape)
{
    bool alone = problem->p_rounding != MLA_P_ROUND_NONE;
    for (int32_t g = 0; g < shape->n_segment; g++) {
        alone = alone || shape->segment[g].has_list;
    }
    return alone;
}

/* Has a row block one token only, be it because a sequence has no more? */
static bool one_token(const mla_problem *problem, const mla_shape *shape)
{
    return by_token(problem, shape) || (!shape->batched && !mla_tensor_present(&problem->q_begin));
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Row blocks per kv head: see mla_find_rows(). */
static int64_t count_blocks(const mla_problem *problem, const mla_shape *shape, int64_t rows)
{
    if (one_token(problem, shape)) {
        return shape->n_token * ceil_div(shape->group, rows);
    }
    return shape->batched ? shape->n_seq * ceil_div(shape->n_q * shape->group, rows)
                          : shape->n_token * shape->group / rows + shape->n_seq;
}

/* Rows that a sequence, or with lists a token, has per kv head. */
static int64_t rows_together(const mla_problem *problem, const mla_shape *shape)
{
    if (one_token(problem, shape)) {
        return shape->group;
    }
    return shape->batched ? shape->n_q * shape->group
                          : shape->n_token * shape->group / (shape->n_seq > 0 ? shape->n_seq : 1);
}

/* Key blocks that the shapes leave room for in a segment: of one sequence, or of a list. */
static int64_t key_blocks(const mla_shape *shape, int32_t g)
{
    const mla_segment_shape *s = &shape->segment[g];
    int64_t keys = s->page_size;
    if (s->has_list) {
        keys = s->n_entry;
    } else if (s->addressing == MLA_ADDRESS_PAGED && __builtin_mul_overflow(s->max_page, s->page_size, &keys)) {
        keys = INT64_MAX;
    }
    return ceil_div(keys, MLA_CUDA_KEYS);
}

/* Parts at fixed places: how many there can be, and how many key blocks each has. More than a table of half a million
 * keys makes them longer. */
static int64_t count_fixed_parts(const mla_shape *shape, int64_t *part_blocks)
{
    int64_t n;
    *part_blocks = MLA_CUDA_INVARIANT_BLOCKS;
    for (;; *part_blocks *= 2) {
        n = 0;
        for (int32_t g = 0; g < shape->n_segment; g++) {
            n += ceil_div(key_blocks(shape, g), *part_blocks);
        }
        if (n <= MLA_CUDA_MAX_SPLIT) {
            return n > 0 ? n : 1;
        }
    }
}

static mla_status build(const mla_cuda_device *device, const mla_problem *problem, const mla_shape *shape,
                        mla_plan *plan)
{
    size_t k = 0;
    /* which kernel must not depend on how many tokens a sequence has, either */
    int64_t wanted = plan->batch_invariant ? shape->group : rows_together(problem, shape);
    while (k + 1 < N_KERNEL && kernels[k].rows < wanted) {
        k++;
    }
    const bool rounded = problem->p_rounding != MLA_P_ROUND_NONE;
    const char *image = rounded ? "rounded" : "generic", *function = rounded ? "mla_rounded_16" : kernels[k].function;
    int64_t rows = rounded ? ROUNDED_ROWS : kernels[k].rows, n_block = count_blocks(problem, shape, rows);
    int64_t n_column = ceil_div(shape->d_v, MLA_CUDA_COLUMNS);
    int64_t q_columns =
        (ceil_div(shape->d_nope, MLA_CUDA_CHUNK) + ceil_div(shape->d_rope, MLA_CUDA_CHUNK)) * MLA_CUDA_CHUNK + 4;
    int64_t tiles = (MLA_CUDA_KEYS + rows) * MLA_CUDA_STRIDE * 4 + SHARED_EXTRA_BYTES;
    tiles += rounded ? ROUNDED_EXTRA_BYTES : 0;
    bool resident =
        !rounded && q_columns < device->max_shared_bytes && tiles + rows * q_columns * 4 <= device->max_shared_bytes;
    int64_t shared_bytes = tiles + rows * (resident ? q_columns : MLA_CUDA_STRIDE) * 4;

    cuda_function attend, combine;
    int per_sm = 1;
    bool pushed;
    MLA_TRY(mla_cuda_kernel_get(device, image, function, (int32_t)shared_bytes, &attend));
    MLA_TRY(mla_cuda_kernel_get(device, "generic", "mla_generic_combine", 0, &combine));
    MLA_TRY(mla_cuda_enter(device, &pushed));
    mla_status status =
        mla_cuda_check(device->driver,
                       device->driver->cuOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, attend, MLA_CUDA_THREADS,
                                                                                   (size_t)shared_bytes),
                       "asking for the occupancy of a kernel");
    mla_cuda_leave(device, pushed);
    MLA_TRY(status);

    int64_t base = 0, n_split = 1, part_blocks = 0;
    if (__builtin_mul_overflow(n_block, shape->n_kv_head * n_column, &base)) {
        base = INT64_MAX;
    }
    int64_t room = (int64_t)WAVES * device->n_sm * (per_sm > 0 ? per_sm : 1);
    n_split = base < room && !rounded ? room / base : 1;
    n_split = n_split > MLA_CUDA_MAX_SPLIT ? MLA_CUDA_MAX_SPLIT : n_split;
    if (plan->batch_invariant && !rounded) { /* rounded probabilities are: their tiles are the row's own */
        n_split = count_fixed_parts(shape, &part_blocks);
    }
    int64_t n_thread_block;
    if (base > INT32_MAX / rows || __builtin_mul_overflow(base, n_split, &n_thread_block) ||
        n_thread_block > INT32_MAX) { /* a grid has no more thread blocks, and the combining one has one a row */
        return mla_fail(MLA_STATUS_UNSUPPORTED,
                        "%" PRId64 " query tokens of %" PRId64 " heads are more than one launch can take",
                        shape->n_token, shape->n_head);
    }
    plan->function[FUNCTION_ATTEND] = attend;
    plan->function[FUNCTION_COMBINE] = combine;
    plan->number[NUMBER_ROWS] = rows;
    plan->number[NUMBER_BLOCKS] = n_block;
    plan->number[NUMBER_SPLITS] = n_split;
    plan->number[NUMBER_Q_RESIDENT] = resident;
    plan->number[NUMBER_SHARED_BYTES] = shared_bytes;
    plan->number[NUMBER_PART_BLOCKS] = part_blocks;
    plan->n_item = base * n_split;
    if (n_split > 1) {
        plan->n_slot = n_block * shape->n_kv_head * n_split;
        plan->workspace_bytes = (size_t)(plan->n_slot * MLA_CUDA_SLOT_FLOATS(rows, shape->d_v)) * sizeof(float) +
                                (size_t)(n_block * shape->n_kv_head) * sizeof(int32_t);
    }
    return MLA_STATUS_OK;
}

/* ---- from the problem to the kernel's parameter ------------------------------------------------------------------ */

/* Does every run of 16 columns that starts at a multiple of 16 lie on a 16-byte border? */
static bool is_vector(const mla_cuda_rows *rows, int32_t n_stride)
{
    int64_t size = (int64_t)mla_dtype_size((mla_dtype)rows->dtype);
    bool aligned = (uintptr_t)rows->data % 16 == 0;
    for (int32_t i = 0; i < n_stride; i++) {
        aligned = aligned && rows->stride[i] * size % 16 == 0;
    }
    return aligned && (rows->piece == INT32_MAX || (rows->piece % 16 == 0 && rows->piece_stride * size % 16 == 0));
}

static mla_cuda_rows lower_rows(const mla_tensor *t, const int64_t *stride, const mla_pieces *pieces, int64_t d)
{
    mla_cuda_rows rows = {0};
    if (!mla_tensor_present(t)) {
        return rows;
    }
    rows.data = t->data;
    rows.dtype = (int32_t)t->dtype;
    memcpy(rows.stride, stride, sizeof rows.stride);
    rows.piece = INT32_MAX;
    if (pieces != NULL && pieces->columns < d) {
        rows.piece = (int32_t)pieces->columns;
        rows.piece_stride = pieces->stride;
    }
    rows.vector = is_vector(&rows, 3);
    return rows;
}

static mla_cuda_output lower_output(const mla_tensor *t, const int64_t *stride)
{
    mla_cuda_output output = {.data = t->data, .dtype = (int32_t)t->dtype};
    memcpy(output.stride, stride, sizeof output.stride);
    return output;
}

static mla_cuda_index lower_index(const mla_tensor *t)
{
    mla_cuda_index index = {.data = t->data};
    for (int32_t i = 0; i < t->ndim && i < 3; i++) {
        index.stride[i] = t->stride[i];
    }
    return index;
}

/* An index tensor, or mask, with a row per query token: strides by sequence, token and column. */
static void per_token_strides(const mla_tensor *t, const mla_shape *shape, int64_t *stride)
{
    int32_t axis = 0;
    memset(stride, 0, 3 * sizeof *stride);
    if (shape->batched) {
        stride[0] = t->stride[axis++];
    }
    stride[1] = t->stride[axis++];
    stride[2] = axis < t->ndim ? t->stride[axis] : 0;
}

static const float *lower_factor(const mla_tensor *t)
{
    return t->data;
}

static void lower_segment(const mla_problem *problem, const mla_shape *shape, int32_t g, mla_cuda_segment *to)
{
    const mla_segment *from = &problem->segment[g];
    const mla_segment_shape *s = &shape->segment[g];
    to->k = lower_rows(&from->k, s->k_stride, &s->k_pieces, shape->d_nope);
    to->k_rope = lower_rows(&from->k_rope, s->k_rope_stride, &s->k_rope_pieces, shape->d_rope);
    to->v = lower_rows(&from->v, s->v_stride, NULL, shape->d_v);
    to->length = lower_index(&from->length);
    to->k_begin = lower_index(&from->k_begin);
    to->page_table = lower_index(&from->page_table);
    to->residual = lower_index(&from->visible.residual);
    to->list = lower_index(&from->list);
    to->list_length = lower_index(&from->list_length);
    if (s->has_list) {
        per_token_strides(&from->list, shape, to->list.stride);
        const mla_tensor *length = &from->list_length;
        bool per_token = shape->batched ? length->ndim == 2 : length->ndim == 1 && length->dim[0] == shape->n_token;
        if (mla_tensor_present(length) && per_token) {
            per_token_strides(length, shape, to->list_length.stride);
        }
    }
    if (mla_tensor_present(&from->mask)) {
        to->mask.data = from->mask.data;
        to->mask.dtype = (int32_t)from->mask.dtype;
        per_token_strides(&from->mask, shape, to->mask.stride);
        to->mask_width = from->mask.dim[from->mask.ndim - 1];
    }
    to->n_page = s->n_page;
    to->page_size = s->page_size;
    to->max_page = s->max_page;
    if (__builtin_mul_overflow(s->max_page, s->page_size, &to->capacity)) {
        to->capacity = INT64_MAX;
    }
    to->n_entry = s->n_entry;
    to->left = from->visible.left;
    to->right = from->visible.right;
    to->ratio = from->visible.ratio;
    to->rule = (int32_t)from->visible.rule;
    to->addressing = (int32_t)s->addressing;
    to->descale = lower_factor(&from->descale);
    to->physical = s->has_list && from->list_address == MLA_LIST_PHYSICAL;
    to->stop = s->has_list && from->list_rule == MLA_LIST_STOP;
}

static void lower_problem(const mla_problem *problem, const mla_shape *shape, mla_cuda_problem *to)
{
    memset(to, 0, sizeof *to);
    to->n_seq = shape->n_seq;
    to->n_token = shape->n_token;
    to->n_head = shape->n_head;
    to->n_kv_head = shape->n_kv_head;
    to->group = shape->group;
    to->n_q = shape->batched ? shape->n_q : 0;
    to->d_nope = shape->d_nope;
    to->d_rope = shape->d_rope;
    to->d_v = shape->d_v;
    to->q = lower_rows(&problem->q, shape->q_stride, NULL, shape->d_nope);
    to->q_rope = lower_rows(&problem->q_rope, shape->q_rope_stride, NULL, shape->d_rope);
    to->q_begin = lower_index(&problem->q_begin);
    to->q_length = lower_index(&problem->q_length);
    to->q_descale = lower_factor(&problem->q_descale);
    to->qk_descale = lower_factor(&problem->qk_descale);
    to->pv_descale = lower_factor(&problem->pv_descale);
    to->sink = lower_factor(&problem->sink);
    to->o = lower_output(&problem->o, shape->o_stride);
    to->lse = lower_output(&problem->lse, shape->lse_stride);
    to->max = lower_output(&problem->max, shape->max_stride);
    to->softmax_scale = problem->softmax_scale;
    to->n_segment = shape->n_segment;
    to->lse_base = (int32_t)problem->lse_base;
    to->lse_empty = (int32_t)problem->lse_empty;
    to->lse_with_sink = problem->lse_with_sink;
    to->by_token = by_token(problem, shape);
    to->p_rounding = (int32_t)problem->p_rounding;
    to->p_tile = problem->p_tile;
    for (int32_t g = 0; g < shape->n_segment; g++) {
        lower_segment(problem, shape, g, &to->segment[g]);
    }
}

static mla_status launch(const mla_cuda_device *device, const mla_plan *plan, const mla_problem *problem,
                         const mla_shape *shape, cuda_address workspace, cuda_stream stream)
{
    const mla_cuda_driver *driver = device->driver;
    mla_cuda_problem p;
    int32_t rows = (int32_t)plan->number[NUMBER_ROWS];
    lower_problem(problem, shape, &p);
    p.n_block = plan->number[NUMBER_BLOCKS];
    p.n_split = (int32_t)plan->number[NUMBER_SPLITS];
    p.n_column = (int32_t)ceil_div(shape->d_v, MLA_CUDA_COLUMNS);
    p.q_resident = (int32_t)plan->number[NUMBER_Q_RESIDENT];
    p.part_blocks = plan->number[NUMBER_PART_BLOCKS];
    if (p.n_split > 1) {
        p.slot = (float *)(uintptr_t)workspace;
        p.used_split = (int32_t *)(p.slot + plan->n_slot * MLA_CUDA_SLOT_FLOATS(rows, shape->d_v));
    }
    if (plan->n_item == 0) {
        return MLA_STATUS_OK;
    }
    void *parameters[] = {&p, &rows};
    MLA_TRY(mla_cuda_check(driver,
                           driver->cuLaunchKernel(plan->function[FUNCTION_ATTEND], (unsigned)plan->n_item, 1, 1,
                                                  MLA_CUDA_THREADS, 1, 1, (unsigned)plan->number[NUMBER_SHARED_BYTES],
                                                  stream, parameters, NULL),
                           "launching attention"));
    if (p.n_split == 1) {
        return MLA_STATUS_OK;
    }
    return mla_cuda_check(driver,
                          driver->cuLaunchKernel(plan->function[FUNCTION_COMBINE],
                                                 (unsigned)(p.n_block * p.n_kv_head * rows), 1, 1, MLA_CUDA_THREADS, 1,
                                                 1, 0, stream, parameters, NULL),
                          "launching the combination of parts");
}

const mla_cuda_variant mla_cuda_generic_variant = {
    .name = "generic",
    .invariant = true,
    .serves = serves,
    .build = build,
    .launch = launch,
};
