/*
 * py_atb.c - the call behind mla.atb. Outputs are given by the caller: Python allocates them.
 */
#include "py_core.h"

#include <stdlib.h>

#include "mla/atb_mla.h"

/* Lengths, which ATB takes from host memory: a sequence of integers becomes int32 [n]. */
typedef struct host_list {
    int32_t *value;
    mla_atb_tensor tensor;
} host_list;

/* Returns 0, or -1 with TypeError, ValueError or MemoryError set. */
static int read_list(PyObject *object, const char *name, host_list *list)
{
    PyObject *items = PySequence_List(object);
    if (items == NULL) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s must be a list of integers, not %R", name, object);
        return -1;
    }
    Py_ssize_t n = PyList_Size(items);
    int result = -1;
    list->value = PyMem_Malloc(n > 0 ? (size_t)n * sizeof *list->value : 1);
    if (list->value == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t value;
        if (py_integer(PyList_GetItem(items, i), name, &value) != 0) {
            goto end;
        }
        if (value < INT32_MIN || value > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "%s[%zd] = %lld does not fit in 32 bits", name, i, (long long)value);
            goto end;
        }
        list->value[i] = (int32_t)value;
    }
    list->tensor = mla_atb_tensor_make(list->value, MLA_ATB_INT32, MLA_ATB_FORMAT_ND, 1, (int64_t[]){n});
    result = 0;
end:
    Py_DECREF(items);
    return result;
}

/* Number of aclDataType, -1 where there is none. */
static int32_t acl_dtype(mla_dtype dtype)
{
    switch (dtype) {
    case MLA_DTYPE_F32: return MLA_ATB_FLOAT;
    case MLA_DTYPE_F16: return MLA_ATB_FLOAT16;
    case MLA_DTYPE_BF16: return MLA_ATB_BF16;
    case MLA_DTYPE_I8: return MLA_ATB_INT8;
    case MLA_DTYPE_I32: return MLA_ATB_INT32;
    case MLA_DTYPE_U8: return 4; /* known to ATB, though no tensor here may have it */
    case MLA_DTYPE_I64: return 9;
    default: return -1;
    }
}

/* NULL for a tensor that is absent. */
static const mla_atb_tensor *acl_view(const mla_tensor *from, int32_t format, mla_atb_tensor *to)
{
    if (from->ndim == 0 && from->data == NULL) {
        return NULL;
    }
    *to = (mla_atb_tensor){.data = from->data,
                           .dtype = acl_dtype(from->dtype),
                           .format = format,
                           .ndim = from->ndim,
                           .device = from->device};
    for (int32_t i = 0; i < from->ndim; i++) {
        to->dim[i] = from->dim[i];
        to->stride[i] = from->stride[i];
    }
    return to;
}

static int read_scalar(PyObject *object, const char *name, int32_t *scalar)
{
    int64_t value;
    if (py_integer(object, name, &value) != 0) {
        return -1;
    }
    if (value < INT32_MIN || value > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%s = %lld does not fit in 32 bits", name, (long long)value);
        return -1;
    }
    *scalar = (int32_t)value;
    return 0;
}

/* Workspace comes from the launch's allocator on a GPU, else from the heap. */
static int32_t decode(const mla_atb_decode_args *args, const py_launch *launch)
{
    const mla_allocator *allocator = launch->options.allocator;
    void *stream = launch->options.stream, *workspace = NULL;
    mla_atb_op *op = NULL;
    uint64_t bytes = 0;
    int32_t code = mla_atb_decode_setup(&op, args, &bytes);
    if (code == MLA_ATB_NO_ERROR && bytes > 0) {
        workspace = allocator != NULL ? allocator->allocate(allocator->context, bytes, stream) : malloc(bytes);
        code = workspace == NULL ? MLA_ATB_ERROR_OUT_OF_HOST_MEMORY : code;
    }
    if (code == MLA_ATB_NO_ERROR) {
        code = mla_atb_op_execute(op, NULL, workspace, bytes, stream);
    }
    if (allocator == NULL) {
        free(workspace);
    }
    mla_atb_op_destroy(op);
    return code;
}

const char py_atb_decode_doc[] =
    "atb_decode(q_nope, q_rope, ctkv, k_rope, block_tables, mask, qk_descale, pv_descale, output, lse, context_lens,\n"
    "           qseqlen, q_headnum, qk_scale, kv_headnum, mask_type, calc_type, cache_mode, stream, gpu); the\n"
    "public form is mla.atb.npu_multi_head_latent_attention().";

PyObject *py_atb_decode(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    if (py_count("atb_decode", n, 20) != 0) {
        return NULL;
    }
    enum { Q_NOPE, Q_ROPE, CTKV, K_ROPE, BLOCK_TABLES, MASK, QK_DESCALE, PV_DESCALE, OUTPUT, LSE, COUNT };
    static const char *const name[COUNT] = {"q_nope", "q_rope",     "ctkv",       "k_rope", "block_tables",
                                            "mask",   "qk_descale", "pv_descale", "output", "lse"};
#define VALUES "float16, bfloat16 or int8"
#define RESULTS "float16, bfloat16 or float32"
    static const char *const dtypes[COUNT] = {VALUES,    VALUES,    VALUES,  VALUES, "int32", "float16 or bfloat16",
                                              "float32", "float32", RESULTS, RESULTS};
    py_borrow borrow;
    py_borrow_begin_plain(&borrow);
    mla_tensor tensor[COUNT];
    mla_atb_tensor view[COUNT];
    host_list context_lens = {0}, q_seq_len = {0};
    PyObject *result = NULL;
    py_launch launch;
    if (py_launch_read(&launch, &borrow, args[18], args[19]) != 0) {
        goto end;
    }
    for (int i = 0; i < COUNT; i++) {
        py_expect(&borrow, dtypes[i]);
        int failed = i == OUTPUT || (i == LSE && args[i] != Py_None)
                         ? py_borrow_output(&borrow, args[i], name[i], &tensor[i])
                         : py_borrow_optional(&borrow, args[i], name[i], &tensor[i]);
        if (failed) {
            goto end;
        }
    }
    mla_atb_decode_args call = {.struct_size = sizeof call};
    mla_atb_param_init(&call.param);
    if (read_list(args[10], "context_lens", &context_lens) != 0 ||
        (args[11] != Py_None && read_list(args[11], "qseqlen", &q_seq_len) != 0) ||
        read_scalar(args[12], "q_headnum", &call.param.head_num) != 0 ||
        py_float(args[13], "qk_scale", &call.param.qk_scale) != 0 ||
        read_scalar(args[14], "kv_headnum", &call.param.kv_head_num) != 0 ||
        read_scalar(args[15], "mask_type", &call.param.mask_type) != 0 ||
        read_scalar(args[16], "calc_type", &call.param.calc_type) != 0 ||
        read_scalar(args[17], "cache_mode", &call.param.cache_mode) != 0) {
        goto end;
    }
    bool nz = call.param.cache_mode == MLA_ATB_INT8_NZCACHE || call.param.cache_mode == MLA_ATB_NZCACHE;
    int32_t cache_format = nz ? MLA_ATB_FORMAT_FRACTAL_NZ : MLA_ATB_FORMAT_ND;
    const mla_atb_tensor *given[COUNT];
    for (int i = 0; i < COUNT; i++) {
        given[i] = acl_view(&tensor[i], i == CTKV || i == K_ROPE ? cache_format : MLA_ATB_FORMAT_ND, &view[i]);
    }
    call.q_nope = given[Q_NOPE];
    call.q_rope = given[Q_ROPE];
    call.ct_kv = given[CTKV];
    call.k_rope = given[K_ROPE];
    call.block_tables = given[BLOCK_TABLES];
    call.context_lens = &context_lens.tensor;
    call.mask = given[MASK];
    call.q_seq_len = args[11] != Py_None ? &q_seq_len.tensor : NULL;
    call.qk_descale = given[QK_DESCALE];
    call.pv_descale = given[PV_DESCALE];
    call.atten_out = given[OUTPUT];
    call.lse = given[LSE];
    int32_t code;
    if (py_launch_is_free(&launch)) {
        Py_BEGIN_ALLOW_THREADS
        code = decode(&call, &launch);
        Py_END_ALLOW_THREADS
    } else {
        code = decode(&call, &launch);
    }
    PyObject *ended = py_launch_end(&launch, MLA_STATUS_OK); /* for what the allocator held, and raised */
    if (ended == NULL) {
        goto end;
    }
    Py_DECREF(ended);
    if (code == MLA_ATB_NO_ERROR) {
        Py_INCREF(Py_None);
        result = Py_None;
    } else if (code == MLA_ATB_ERROR_OUT_OF_HOST_MEMORY) {
        PyErr_NoMemory();
    } else {
        PyErr_Format(PyExc_RuntimeError, "%s (ATB error %d)", mla_last_error(), (int)code);
    }
end:
    PyMem_Free(context_lens.value);
    PyMem_Free(q_seq_len.value);
    py_borrow_end(&borrow);
    return result;
}
