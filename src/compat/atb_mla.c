/*
 * atb_mla.c - an op of the ATB door: created, set up, executed, released.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "atb_internal.h"
#include "core/parallel.h"
#include "cuda/cuda_ascend.h"
#include "cuda/cuda_metadata.h"
#include "mla/mla_gpu.h"

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

mla_atb_tensor mla_atb_tensor_make(void *data, int32_t dtype, int32_t format, int32_t ndim, const int64_t *dim)
{
    mla_atb_tensor t = {.data = data, .dtype = dtype, .format = format, .ndim = ndim};
    uint64_t stride = 1; /* unsigned: sizes that overflow are refused later */
    for (int32_t i = ndim <= MLA_ATB_MAX_NDIM ? ndim - 1 : -1; i >= 0; i--) {
        t.dim[i] = dim[i];
        t.stride[i] = (int64_t)stride;
        stride *= (uint64_t)dim[i];
    }
    return t;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

int32_t mla_atb_op_create(const mla_atb_param *param, mla_atb_op **op)
{
    if (op == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_OPERATION_ADDR, "op is NULL");
    }
    *op = NULL;
    if (param == NULL || param->struct_size != sizeof *param) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "%s",
                            param == NULL ? "param is NULL" : "struct_size of param is not this library's");
    }
    mla_atb_param own = *param;
    ATB_TRY(mla_atb_add_default_flags(&own.flags));
    ATB_TRY(mla_atb_check_param(&own));
    mla_atb_op *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_OUT_OF_HOST_MEMORY, "the op does not fit into memory");
    }
    fresh->param = own;
    *op = fresh;
    return MLA_ATB_NO_ERROR;
}

/* What a setup left behind. */
static void empty_op(mla_atb_op *op)
{
    for (int64_t i = 0; i < op->work.n_job; i++) {
        mla_plan_free(op->work.job[i].plan);
    }
    free(op->work.job);
    free(op->work.numbers);
    if (op->device.type == MLA_DEVICE_CPU) {
        free(op->scratch);
    } else {
        (void)mla_gpu_free(op->device.id, op->scratch);
    }
    *op = (mla_atb_op){.param = op->param};
}

void mla_atb_op_destroy(mla_atb_op *op)
{
    if (op != NULL) {
        empty_op(op);
        free(op);
    }
}

int32_t mla_atb_op_n_in(const mla_atb_op *op)
{
    return mla_atb_slots_of(&op->param).n_in;
}

int32_t mla_atb_op_n_out(const mla_atb_op *op)
{
    return mla_atb_slots_of(&op->param).n_out;
}

int mla_atb_op_in_is_host(const mla_atb_op *op, int32_t i)
{
    atb_slots slots = mla_atb_slots_of(&op->param);
    return i >= 0 && i < slots.n_in && mla_atb_slot_on_host(slots.in[i]);
}

/* ---- workspace --------------------------------------------------------------------------------------------------- */

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* On a GPU a plan depends on shapes, but the shapes of jobs can depend on lengths. As much as the kernels' parts take: up
 * to four waves of thread blocks with a slot of 64 rows of 514 floats each, and some more for kernels that share a
 * multiprocessor. */
static int32_t gpu_plan_budget(const mla_atb_op *op, int64_t *bytes)
{
    int32_t n_sm = 0;
    ATB_TRY(mla_atb_code(mla_cuda_multiprocessors(op->device.id, &n_sm)));
    *bytes = n_sm * ((int64_t)576 << 10);
    return MLA_ATB_NO_ERROR;
}

/*
 * Room for the plans of any lengths that these shapes allow, though no more than a cap: a client takes this size as
 * final and shares the memory among ops, so it must not depend on lengths. Shaped after the planner: where it cuts whole
 * tasks into chunks it cuts those that cost more than a quarter of a worker's share, fewer than 4 a worker, and each
 * leaves a slot per chunk and panel of 16 rows, of which a task has 8 at most. A chunk has 576 keys, of int8 512, and then
 * the slot keeps their scores too. A plan that needs more all the same gets memory of the op.
 */
static int64_t plan_budget(const mla_atb_op *op, int64_t n_row, int64_t n_key)
{
    const bool scores = op->param.cache_mode == MLA_ATB_INT8_NZCACHE;
    const int64_t worker_bytes = (int64_t)2 << 20, slot_bytes = (scores ? 66 : 34) << 10, cap = (int64_t)128 << 20;
    const mla_plan_options *options = &op->param.options;
    int64_t n_worker = options->executor != NULL ? options->executor->n_worker
                       : options->n_thread > 0   ? options->n_thread
                                                 : mla_default_threads();
    int64_t n_panel = smaller(32 * n_worker, (n_row + 15) / 16), n_chunk = n_key / 512 + 2;
    return smaller(cap, n_worker * worker_bytes + smaller(n_panel * slot_bytes, cap) * smaller(n_chunk, cap));
}

/* Keys of a sequence that the shapes leave room for. */
static int64_t key_capacity(const atb_call *call)
{
    if (mla_atb_is_prefill(call->param)) {
        return call->tensor[ATB_KV]->dim[0] * call->tensor[ATB_KV]->dim[1]; /* whichever of the two forms */
    }
    return smaller(call->tensor[ATB_BLOCK_TABLES]->dim[1], INT32_MAX) * ATB_BLOCK;
}

/* The start of the caller's workspace may lie anywhere; what is derived there needs alignment. */
enum { WORKSPACE_ALIGN = 64, WORKSPACE_UNIT = 512 };

/* The part of the workspace that is the plans'. */
static size_t plan_bytes(const mla_atb_op *op)
{
    const atb_work *work = &op->work;
    return (size_t)(op->workspace_size - (uint64_t)(work->derived_bytes + work->number_bytes) - WORKSPACE_ALIGN);
}

static int32_t size_workspace(mla_atb_op *op, const atb_call *call, uint64_t *workspace_size)
{
    size_t need = 0;
    for (int64_t i = 0; i < op->work.n_job; i++) {
        size_t bytes = mla_plan_workspace_bytes(op->work.job[i].plan);
        need = bytes > need ? bytes : need;
    }
    const bool on_gpu = op->device.type != MLA_DEVICE_CPU;
    atb_work *work = &op->work;
    int64_t budget;
    if (on_gpu) {
        ATB_TRY(gpu_plan_budget(op, &budget));
        work->number_bytes = round_up(work->n_number * (int64_t)sizeof *work->numbers, WORKSPACE_UNIT);
    } else {
        budget = plan_budget(op, call->n_token * call->n_head, key_capacity(call));
    }
    work->derived_bytes = round_up(work->derived_bytes, WORKSPACE_UNIT);
    op->workspace_size =
        (uint64_t)round_up(work->derived_bytes + work->number_bytes + budget + WORKSPACE_ALIGN, WORKSPACE_UNIT);
    if (need > plan_bytes(op)) {
        if (on_gpu) {
            ATB_TRY(mla_atb_code(mla_gpu_allocate(op->device.id, need, &op->scratch)));
        } else {
            op->scratch = malloc(need);
        }
        op->scratch_bytes = need;
        if (op->scratch == NULL) {
            return mla_atb_fail(MLA_ATB_ERROR_OUT_OF_HOST_MEMORY, "%zu bytes of scratch do not fit into memory", need);
        }
    }
    *workspace_size = op->workspace_size;
    return MLA_ATB_NO_ERROR;
}

/* ---- setup ------------------------------------------------------------------------------------------------------- */

/* The job's problem with the addresses of the slots. */
static void resolve_bindings(const atb_job *job, void *const address[ATB_N_SLOT], mla_problem *problem)
{
    *problem = job->problem;
    for (int32_t i = 0; i < job->n_binding; i++) {
        const atb_binding *binding = &job->binding[i];
        ((mla_tensor *)((char *)problem + binding->field))->data =
            (char *)address[binding->slot] + binding->byte_offset;
    }
}

/*
 * Plans depend on shapes and lengths alone, and what is on the device may not be looked at before the op is executed:
 * tables may still be on their way. So a plan is made for addresses that stand for the real ones, far enough apart for
 * tensors of 256 GiB, and for tables that name block 0 throughout. A plan for a GPU reads neither.
 */
static int32_t build_plan(const mla_atb_op *op, atb_job *job)
{
    void *address[ATB_N_SLOT];
    for (uintptr_t slot = 0; slot < ATB_N_SLOT; slot++) {
        address[slot] = (void *)((slot + 1) << 40);
    }
    mla_problem problem;
    const bool on_gpu = op->device.type != MLA_DEVICE_CPU;
    address[ATB_NUMBERS] = on_gpu ? address[ATB_NUMBERS] : op->work.numbers;
    resolve_bindings(job, address, &problem);
    int32_t *zeros = NULL;
    mla_status status = MLA_STATUS_OK;
    for (int32_t g = 0; g < problem.n_segment && !on_gpu; g++) {
        mla_tensor *table = &problem.segment[g].page_table;
        if (table->ndim == 0) {
            continue;
        }
        if (zeros == NULL) { /* the first segment's is the widest */
            zeros = calloc((size_t)table->dim[1] > 2 ? (size_t)table->dim[1] : 2, sizeof *zeros);
        }
        if (zeros == NULL) {
            return mla_atb_fail(MLA_ATB_ERROR_OUT_OF_HOST_MEMORY, "the op does not fit into memory");
        }
        table->data = zeros;
        table->stride[0] = 0;
    }
    status = mla_plan_build(&problem, &op->param.options, &job->plan);
    free(zeros);
    return mla_atb_code(status);
}

/* Tensors to their slots. */
static int32_t sort_pack(const mla_atb_op *op, const mla_atb_pack *pack, atb_call *call)
{
    atb_slots slots = mla_atb_slots_of(&op->param);
    if (pack->n_in != slots.n_in || pack->n_out != slots.n_out) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_IN_TENSOR_NUM,
                            "%d input and %d output tensors are given; maskType = %d, calcType = %d and cacheMode = %d "
                            "call for %d and %d",
                            pack->n_in, pack->n_out, op->param.mask_type, op->param.calc_type, op->param.cache_mode,
                            slots.n_in, slots.n_out);
    }
    *call = (atb_call){.param = &op->param};
    for (int32_t i = 0; i < slots.n_in; i++) {
        call->tensor[slots.in[i]] = pack->in[i];
    }
    for (int32_t i = 0; i < slots.n_out; i++) {
        call->tensor[slots.out[i]] = pack->out[i];
    }
    return MLA_ATB_NO_ERROR;
}

static int32_t set_up(mla_atb_op *op, const mla_atb_pack *pack, bool need_addresses, uint64_t *workspace_size)
{
    atb_call call;
    ATB_TRY(sort_pack(op, pack, &call));
    bool prefill = mla_atb_is_prefill(&op->param);
    ATB_TRY(prefill ? mla_atb_check_prefill(&call, need_addresses) : mla_atb_check_decode(&call, need_addresses));
    for (atb_slot slot = 0; slot < ATB_N_TENSOR; slot++) {
        op->tensor[slot] = call.tensor[slot] != NULL ? *call.tensor[slot] : (mla_atb_tensor){0};
    }
    op->device = call.tensor[ATB_Q]->device;
    op->n_seq = call.n_seq;
    op->n_used = call.n_used;
    ATB_TRY(prefill ? mla_atb_lower_prefill(op, &call) : mla_atb_lower_decode(op, &call));
    for (int64_t i = 0; i < op->work.n_job; i++) {
        ATB_TRY(build_plan(op, &op->work.job[i]));
    }
    return size_workspace(op, &call, workspace_size);
}

int32_t mla_atb_op_setup(mla_atb_op *op, const mla_atb_pack *pack, int need_addresses, uint64_t *workspace_size)
{
    if (op == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_OPERATION_ADDR, "op is NULL");
    }
    empty_op(op);
    if (pack == NULL || workspace_size == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "%s is NULL", pack == NULL ? "pack" : "workspaceSize");
    }
    *workspace_size = 0;
    int32_t code = set_up(op, pack, need_addresses != 0, workspace_size);
    if (code != MLA_ATB_NO_ERROR) {
        empty_op(op);
        return code;
    }
    op->ready = true;
    return MLA_ATB_NO_ERROR;
}

int32_t mla_atb_op_infer_shape(const mla_atb_op *op, const mla_atb_pack *pack, mla_atb_tensor out[MLA_ATB_MAX_OUT])
{
    if (op == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_OPERATION_ADDR, "op is NULL");
    }
    if (pack == NULL || out == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "%s is NULL", pack == NULL ? "pack" : "out");
    }
    atb_slots slots = mla_atb_slots_of(&op->param);
    if (pack->n_in != slots.n_in) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_IN_TENSOR_NUM, "%d input tensors are given, the op takes %d",
                            pack->n_in, slots.n_in);
    }
    const mla_atb_tensor *q = pack->in[0], *q_rope = pack->in[1];
    if (q == NULL || (q_rope == NULL && op->param.cache_mode != MLA_ATB_KVCACHE)) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM, "%s is missing",
                            mla_atb_slot_name(&op->param, q == NULL ? ATB_Q : ATB_Q_ROPE));
    }
    bool prefill = mla_atb_is_prefill(&op->param);
    if (q->ndim != 3 && !(prefill && q->ndim == 2)) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_DIM_NUM, "%s has %d dims and must have %s",
                            mla_atb_slot_name(&op->param, ATB_Q), q->ndim, prefill ? "2 or 3" : "3");
    }
    int32_t dtype = q_rope != NULL ? q_rope->dtype : q->dtype;
    int64_t dim[] = {q->dim[0], q->dim[1], prefill ? q->dim[2] : ATB_NOPE};
    out[0] = mla_atb_tensor_make(out[0].data, dtype, MLA_ATB_FORMAT_ND, q->ndim, dim);
    if (slots.n_out > 1) {
        dim[2] = 1;
        dtype = op->param.cache_mode == MLA_ATB_INT8_NZCACHE ? MLA_ATB_FLOAT : dtype;
        out[1] = mla_atb_tensor_make(out[1].data, dtype, MLA_ATB_FORMAT_ND, 3, dim);
    }
    return MLA_ATB_NO_ERROR;
}

/* ---- execution --------------------------------------------------------------------------------------------------- */

/* Addresses of this run: those of the pack, whose tensors must otherwise be the ones of the setup, or of the setup. */
static int32_t find_addresses(const mla_atb_op *op, const mla_atb_pack *pack, void *address[ATB_N_SLOT])
{
    atb_call call = {0};
    if (pack != NULL) {
        ATB_TRY(sort_pack(op, pack, &call));
    }
    for (atb_slot slot = 0; slot < ATB_N_TENSOR; slot++) {
        const mla_atb_tensor *was = &op->tensor[slot], *is = pack != NULL ? call.tensor[slot] : was;
        address[slot] = NULL;
        if (was->ndim == 0 || mla_atb_slot_on_host(slot)) {
            continue;
        }
        const char *name = mla_atb_slot_name(&op->param, slot);
        if (is == NULL || is->ndim != was->ndim || is->dtype != was->dtype ||
            memcmp(is->dim, was->dim, (size_t)was->ndim * sizeof *was->dim) != 0) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "%s has another dtype or shape than at setup", name);
        }
        if (is->data == NULL) {
            return mla_atb_fail(MLA_ATB_ERROR_INVALID_TENSOR_ADDR, "%s has no address in device memory", name);
        }
        address[slot] = is->data;
    }
    return MLA_ATB_NO_ERROR;
}

static mla_status run_jobs(const mla_atb_op *op, void *workspace, void *address[ATB_N_SLOT], void *stream)
{
    const atb_work *work = &op->work;
    char *base = (char *)((uintptr_t)round_up((int64_t)(uintptr_t)workspace, WORKSPACE_ALIGN));
    address[ATB_WORKSPACE] = base;
    address[ATB_NUMBERS] = work->numbers;
    if (work->number_bytes > 0) {
        address[ATB_NUMBERS] = base + work->derived_bytes;
        MLA_TRY(mla_cuda_ascend_send(op->device.id, address[ATB_NUMBERS], work->numbers, work->n_number, stream));
    }
    if (work->derive != NULL) {
        MLA_TRY(work->derive(op, address, stream));
    }
    char *scratch = op->scratch != NULL ? op->scratch : base + work->derived_bytes + work->number_bytes;
    size_t scratch_bytes = op->scratch != NULL ? op->scratch_bytes : plan_bytes(op);
    for (int64_t i = 0; i < work->n_job; i++) {
        mla_problem problem;
        resolve_bindings(&work->job[i], address, &problem);
        MLA_TRY(mla_run(work->job[i].plan, &problem, scratch, scratch_bytes, stream));
    }
    return MLA_STATUS_OK;
}

int32_t mla_atb_op_execute(mla_atb_op *op, const mla_atb_pack *pack, void *workspace, uint64_t workspace_size,
                           void *stream)
{
    if (op == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_OPERATION_ADDR, "op is NULL");
    }
    if (!op->ready) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM,
                            "the op has not been set up: its last GetWorkspaceSize failed or never ran");
    }
    if (workspace_size < op->workspace_size) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "workspaceSize = %" PRIu64 " must be at least %" PRIu64,
                            workspace_size, op->workspace_size);
    }
    if (workspace == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "workspace is NULL, but %" PRIu64 " bytes are needed",
                            op->workspace_size);
    }
    if (stream != NULL && op->device.type == MLA_DEVICE_CPU) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "stream must be NULL for tensors in host memory");
    }
    void *address[ATB_N_SLOT];
    ATB_TRY(find_addresses(op, pack, address));
    return mla_atb_code(run_jobs(op, workspace, address, stream));
}

/* ---- the two calls ----------------------------------------------------------------------------------------------- */

static int32_t set_up_call(mla_atb_op **op, const mla_atb_param *param, int32_t gather_code, const mla_atb_pack *pack,
                           uint64_t *workspace_size)
{
    if (gather_code != MLA_ATB_NO_ERROR) {
        if (op != NULL) {
            empty_op(*op);
        }
        return gather_code;
    }
    if (op == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_OPERATION_ADDR, "op is NULL");
    }
    int32_t code = mla_atb_op_check_reuse(*op, param);
    if (code != MLA_ATB_NO_ERROR) {
        empty_op(*op);
        return code;
    }
    return mla_atb_op_setup(*op, pack, 1, workspace_size);
}

int32_t mla_atb_decode_setup(mla_atb_op **op, const mla_atb_decode_args *args, uint64_t *workspace_size)
{
    if (args == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "args is NULL");
    }
    mla_atb_pack pack;
    if (op != NULL && *op == NULL) {
        mla_atb_param param = args->param;
        param.window_size = 0;
        param.mask_use_status_type = 0;
        ATB_TRY(mla_atb_op_create(&param, op));
    }
    int32_t code = mla_atb_decode_gather(args, &pack);
    return set_up_call(op, &args->param, code, &pack, workspace_size);
}

int32_t mla_atb_prefill_setup(mla_atb_op **op, const mla_atb_prefill_args *args, uint64_t *workspace_size)
{
    if (args == NULL) {
        return mla_atb_fail(MLA_ATB_ERROR_INVALID_PARAM, "args is NULL");
    }
    mla_atb_pack pack;
    mla_atb_param param = args->param;
    param.calc_type = MLA_ATB_CALC_PREFILL;
    if (op != NULL && *op == NULL) {
        ATB_TRY(mla_atb_op_create(&param, op));
    }
    int32_t code = mla_atb_prefill_gather(args, &pack);
    return set_up_call(op, &param, code, &pack, workspace_size);
}
