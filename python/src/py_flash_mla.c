/*
 * py_flash_mla.c - the calls behind the package flash_mla. The caller gives outputs; those of decode torch can make.
 */
#include "py_core.h"

#include "mla/flash_mla.h"

/* [b][h][s] seen as [b][s][h], or back */
static void swap_last_two(mla_tensor *tensor)
{
    if (tensor->ndim == 3) {
        int64_t dim = tensor->dim[1], stride = tensor->stride[1];
        tensor->dim[1] = tensor->dim[2];
        tensor->stride[1] = tensor->stride[2];
        tensor->dim[2] = dim;
        tensor->stride[2] = stride;
    }
}

typedef struct decode_call {
    mla_tensor q, k_cache, block_table, cache_seqlens, metadata, num_splits, sink, out, lse;
    int64_t head_dim_v;
    float softmax_scale;
    bool causal;
} decode_call;

/* What the outputs are made after. */
static int check_query(const decode_call *call)
{
    if (call->q.ndim != 4) {
        PyErr_Format(PyExc_ValueError, "q has %d dimensions, must have 4: [b][s_q][h_q][d]", (int)call->q.ndim);
        return -1;
    }
    if (call->q.dtype != MLA_DTYPE_BF16 && call->q.dtype != MLA_DTYPE_F16) {
        PyErr_Format(PyExc_TypeError, "q.dtype = %s must be f16 or bf16", mla_dtype_name(call->q.dtype));
        return -1;
    }
    if (call->head_dim_v < 1 || call->head_dim_v > call->q.dim[3]) {
        PyErr_Format(PyExc_ValueError, "head_dim_v = %lld must be between 1 and q.dim[3] = %lld",
                     (long long)call->head_dim_v, (long long)call->q.dim[3]);
        return -1;
    }
    return 0;
}

/* What flash_mla_with_kvcache() demands beyond the rules of the problem that decode_with_sink() lowers to. */
static int check_decode(const decode_call *call)
{
    if (call->k_cache.dtype != call->q.dtype) {
        PyErr_Format(PyExc_TypeError, "k_cache.dtype = %s differs from q.dtype = %s",
                     mla_dtype_name(call->k_cache.dtype), mla_dtype_name(call->q.dtype));
        return -1;
    }
    const mla_tensor *hints[] = {&call->metadata, &call->num_splits};
    for (int i = 0; i < 2; i++) {
        if (hints[i]->ndim != 0 && hints[i]->dtype != MLA_DTYPE_I32) {
            PyErr_Format(PyExc_TypeError, "%s.dtype = %s must be i32", hints[i]->name, mla_dtype_name(hints[i]->dtype));
            return -1;
        }
    }
    if (call->metadata.ndim != 0 && (call->metadata.ndim != 2 || call->metadata.dim[1] != FLASH_MLA_METADATA_COLUMNS)) {
        PyErr_Format(PyExc_ValueError, "%s must be [n_part][%d]", call->metadata.name, FLASH_MLA_METADATA_COLUMNS);
        return -1;
    }
    if (call->num_splits.ndim != 0 && (call->num_splits.ndim != 1 || call->num_splits.dim[0] != call->q.dim[0] + 1)) {
        PyErr_Format(PyExc_ValueError, "%s must be [b + 1], b being %lld", call->num_splits.name,
                     (long long)call->q.dim[0]);
        return -1;
    }
    return 0;
}

/* The interface of 2025 has no sink, the library's problem has: the rest is lowered as flash_mla_with_kvcache()
 * does. */
static mla_status decode_with_sink(const decode_call *call, const mla_plan_options *options)
{
    mla_problem problem;
    mla_problem_init(&problem);
    problem.q = call->q;
    problem.segment[0].k = call->k_cache;
    problem.segment[0].page_table = call->block_table;
    problem.segment[0].length = call->cache_seqlens;
    problem.segment[0].visible.rule = call->causal && call->q.dim[1] > 1 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
    problem.d_v = call->head_dim_v;
    problem.softmax_scale = call->softmax_scale;
    problem.sink = call->sink;
    problem.o = call->out;
    problem.lse = call->lse;
    swap_last_two(&problem.lse);
    return mla_attention(&problem, options);
}

static mla_status decode(const decode_call *call, const mla_plan_options *options)
{
    if (call->sink.ndim != 0) {
        return decode_with_sink(call, options);
    }
    return flash_mla_with_kvcache_on(options, &call->q, &call->k_cache, &call->block_table, &call->cache_seqlens,
                                     call->head_dim_v, call->metadata.ndim != 0 ? &call->metadata : NULL,
                                     call->num_splits.ndim != 0 ? &call->num_splits : NULL, &call->softmax_scale,
                                     call->causal, &call->out, &call->lse);
}

/* Outputs that torch makes: new references. Both NULL, without an error, if it has no memory for them. */
static void make_outputs(decode_call *call, PyObject **out, PyObject **lse)
{
    const int64_t *q = call->q.dim, out_dim[4] = {q[0], q[1], q[2], call->head_dim_v}, lse_dim[3] = {q[0], q[2], q[1]};
    *out = py_torch_empty("out", &call->q, call->q.dtype, 4, out_dim, &call->out);
    *lse = *out != NULL ? py_torch_empty("lse", &call->q, MLA_DTYPE_F32, 3, lse_dim, &call->lse) : NULL;
    if (*lse == NULL) {
        Py_CLEAR(*out);
    }
}

static PyObject *run_decode(const decode_call *call, py_launch *launch)
{
    mla_status status;
    if (py_launch_is_free(launch)) {
        Py_BEGIN_ALLOW_THREADS
        status = decode(call, &launch->options);
        Py_END_ALLOW_THREADS
    } else {
        status = decode(call, &launch->options);
    }
    return py_launch_end(launch, status);
}

const char py_flash_mla_doc[] =
    "with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits,\n"
    "             softmax_scale, causal, attn_sink, out, lse, stream, gpu, batch_invariant); the public form is\n"
    "flash_mla.flash_mla_with_kvcache(). out and lse None, where find_torch() says that it can: torch makes them and\n"
    "gives its stream; they are returned, or None if it has no memory for them.";

PyObject *py_flash_mla(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    if (py_count("with_kvcache", n, 15) != 0) {
        return NULL;
    }
    py_borrow borrow;
    py_borrow_begin_plain(&borrow);
    decode_call call;
    py_launch launch;
    PyObject *out = NULL, *lse = NULL, *result = NULL;
    if (py_expect(&borrow, "float16 or bfloat16") != 0 || py_borrow_input(&borrow, args[0], "q", &call.q) != 0 ||
        py_borrow_input(&borrow, args[1], "k_cache", &call.k_cache) != 0 || py_expect(&borrow, "int32") != 0 ||
        py_borrow_input(&borrow, args[2], "block_table", &call.block_table) != 0 ||
        py_borrow_input(&borrow, args[3], "cache_seqlens", &call.cache_seqlens) != 0 ||
        py_integer(args[4], "head_dim_v", &call.head_dim_v) != 0 ||
        py_borrow_optional(&borrow, args[5], "tile_scheduler_metadata", &call.metadata) != 0 ||
        py_borrow_optional(&borrow, args[6], "num_splits", &call.num_splits) != 0 ||
        py_expect(&borrow, "float32") != 0 || py_borrow_optional(&borrow, args[9], "attn_sink", &call.sink) != 0 ||
        py_float(args[7], "softmax_scale", &call.softmax_scale) != 0 || check_query(&call) != 0) {
        goto end;
    }
    const bool batch_invariant = PyObject_IsTrue(args[14]) == 1;
    call.causal = PyObject_IsTrue(args[8]) == 1;
    if (PyErr_Occurred() || (call.sink.ndim != 0 && check_decode(&call) != 0)) {
        goto end;
    }
    if (args[10] != Py_None) {
        if (py_borrow_output(&borrow, args[10], "out", &call.out) == 0 &&
            py_borrow_output(&borrow, args[11], "lse", &call.lse) == 0 &&
            py_launch_read(&launch, &borrow, args[12], args[13]) == 0) {
            launch.options.batch_invariant = batch_invariant;
            result = run_decode(&call, &launch);
        }
        goto end;
    }
    if (!py_torch_makes_tensors(&call.q)) {
        PyErr_SetString(PyExc_TypeError, "out and lse must be given: this torch does not make tensors for C");
        goto end;
    }
    if (py_launch_on_torch(&launch, &borrow, &call.q) != 0) {
        goto end;
    }
    launch.options.batch_invariant = batch_invariant;
    make_outputs(&call, &out, &lse);
    result = out != NULL ? run_decode(&call, &launch) : Py_BuildValue("");
    if (out != NULL && result != NULL) {
        Py_DECREF(result);
        result = PyTuple_Pack(2, out, lse);
    }
end:
    Py_XDECREF(out);
    Py_XDECREF(lse);
    py_borrow_end(&borrow);
    return result;
}

const char py_get_metadata_doc[] =
    "get_metadata(cache_seqlens, num_heads_per_head_k, num_heads_k, tile_scheduler_metadata, num_splits, stream) fills\n"
    "the last two tensors; the public form is flash_mla.get_mla_metadata().";

PyObject *py_get_metadata(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    if (py_count("get_metadata", n, 6) != 0) {
        return NULL;
    }
    py_borrow borrow;
    py_borrow_begin_plain(&borrow);
    mla_tensor cache_seqlens, metadata, num_splits;
    int64_t num_heads_per_head_k, num_heads_k;
    py_launch launch;
    PyObject *result = NULL;
    if (py_launch_read(&launch, &borrow, args[5], Py_None) == 0 && py_expect(&borrow, "int32") == 0 &&
        py_borrow_input(&borrow, args[0], "cache_seqlens", &cache_seqlens) == 0 &&
        py_integer(args[1], "num_heads_per_head_k", &num_heads_per_head_k) == 0 &&
        py_integer(args[2], "num_heads_k", &num_heads_k) == 0 &&
        py_borrow_output(&borrow, args[3], "tile_scheduler_metadata", &metadata) == 0 &&
        py_borrow_output(&borrow, args[4], "num_splits", &num_splits) == 0) {
        result = py_result(flash_mla_get_metadata_on(launch.options.stream, &cache_seqlens, num_heads_per_head_k,
                                                     num_heads_k, &metadata, &num_splits));
    }
    py_borrow_end(&borrow);
    return result;
}

const char py_num_parts_doc[] =
    "num_parts(num_heads_per_head_k, num_heads_k, gpu) -> int: rows of a tile_scheduler_metadata tensor on the GPU of that\n"
    "number, -1: on the CPU.";

PyObject *py_num_parts(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    int64_t num_heads_per_head_k, num_heads_k, gpu, n_part;
    if (py_count("num_parts", n, 3) != 0 || py_integer(args[0], "num_heads_per_head_k", &num_heads_per_head_k) != 0 ||
        py_integer(args[1], "num_heads_k", &num_heads_k) != 0 || py_integer(args[2], "gpu", &gpu) != 0) {
        return NULL;
    }
    mla_device device = {gpu < 0 ? MLA_DEVICE_CPU : MLA_DEVICE_CUDA, gpu < 0 ? 0 : (int32_t)gpu};
    mla_status status = flash_mla_num_parts_on(device, num_heads_per_head_k, num_heads_k, &n_part);
    return status == MLA_STATUS_OK ? PyLong_FromLongLong(n_part) : py_result(status);
}

const char py_varlen_doc[] =
    "attn_varlen(q, k, v, cu_seqlens_qo, cu_seqlens_kv, softmax_scale, causal, out, lse, stream, gpu); the public\n"
    "form is flash_mla.flash_attn_varlen_func().";

PyObject *py_varlen(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    if (py_count("attn_varlen", n, 11) != 0) {
        return NULL;
    }
    py_borrow borrow;
    py_borrow_begin_plain(&borrow);
    mla_problem problem;
    mla_problem_init(&problem);
    py_launch launch;
    PyObject *result = NULL;
    if (py_launch_read(&launch, &borrow, args[9], args[10]) != 0 ||
        py_expect(&borrow, "float32, float16 or bfloat16") != 0 ||
        py_borrow_input(&borrow, args[0], "q", &problem.q) != 0 ||
        py_borrow_input(&borrow, args[1], "k", &problem.segment[0].k) != 0 ||
        py_borrow_input(&borrow, args[2], "v", &problem.segment[0].v) != 0 || py_expect(&borrow, "int32") != 0 ||
        py_borrow_input(&borrow, args[3], "cu_seqlens_qo", &problem.q_begin) != 0 ||
        py_borrow_input(&borrow, args[4], "cu_seqlens_kv", &problem.segment[0].k_begin) != 0 ||
        py_borrow_output(&borrow, args[7], "out", &problem.o) != 0 ||
        py_borrow_output(&borrow, args[8], "lse", &problem.lse) != 0) {
        goto end;
    }
    if (py_float(args[5], "softmax_scale", &problem.softmax_scale) != 0) {
        goto end;
    }
    problem.segment[0].visible.rule = PyObject_IsTrue(args[6]) == 1 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_ALL;
    if (PyErr_Occurred()) {
        goto end;
    }
    problem.d_v = problem.segment[0].v.dim[problem.segment[0].v.ndim - 1];
    mla_status status;
    if (py_launch_is_free(&launch)) {
        Py_BEGIN_ALLOW_THREADS
        status = mla_attention(&problem, &launch.options);
        Py_END_ALLOW_THREADS
    } else {
        status = mla_attention(&problem, &launch.options);
    }
    result = py_launch_end(&launch, status);
end:
    py_borrow_end(&borrow);
    return result;
}
