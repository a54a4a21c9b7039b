/*
 * py_quant_sparse_flash_mla.c - the calls behind the package cann_ops_transformer. Outputs are given by the caller:
 * Python allocates them.
 */
#include "py_core.h"

#include <stddef.h>

#include "mla/quant_sparse_flash_mla.h"

/* One argument of a call: where it goes in the struct, and under which name errors speak of it. */
typedef struct argument {
    const char *name;
    size_t offset;
    const char *dtype; /* of tensors, for errors */
} argument;

/* uint8 memory holds HiFloat8 here: torch has no such type. */
static void as_hif8(mla_tensor *tensor)
{
    if (tensor->dtype == MLA_DTYPE_U8) {
        tensor->dtype = MLA_DTYPE_HIF8;
    }
}

/* Optional arrays into the struct; returns 0 or -1. */
static int borrow_tensors(py_borrow *borrow, PyObject *const *args, const argument *list, int n, void *to)
{
    for (int i = 0; i < n; i++) {
        mla_tensor *tensor = (mla_tensor *)((char *)to + list[i].offset);
        py_expect(borrow, list[i].dtype);
        if (py_borrow_optional(borrow, args[i], list[i].name, tensor) != 0) {
            return -1;
        }
    }
    return 0;
}

static int read_integers(PyObject *const *args, const argument *list, int n, void *to)
{
    for (int i = 0; i < n; i++) {
        if (py_integer(args[i], list[i].name, (int64_t *)((char *)to + list[i].offset)) != 0) {
            return -1;
        }
    }
    return 0;
}

/* A layout's name; the text lives as long as the argument. */
static int read_layout(PyObject *object, const char *name, const char **text)
{
    *text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, NULL) : NULL;
    if (*text == NULL && !PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError, "%s must be a string, not %R", name, object);
    }
    return *text != NULL ? 0 : -1;
}

#define COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]))
#define CALL_OF(field, dtype) {#field, offsetof(mla_quant_sparse_flash_mla_args, field), dtype}
#define CALL(field) CALL_OF(field, "int32")

/* In the order of the operator's signature. */
static const argument call_tensors[] = {
    CALL_OF(q, "uint8 (HiFloat8)"),
    CALL_OF(ori_kv, "uint8 (HiFloat8)"),
    CALL_OF(cmp_kv, "uint8 (HiFloat8)"),
    CALL_OF(q_descale, "float32"),
    CALL_OF(ori_kv_descale, "float32"),
    CALL_OF(cmp_kv_descale, "float32"),
    CALL(ori_sparse_indices),
    CALL(cmp_sparse_indices),
    CALL(ori_block_table),
    CALL(cmp_block_table),
    CALL(cu_seqlens_q),
    CALL(cu_seqlens_ori_kv),
    CALL(cu_seqlens_cmp_kv),
    CALL(seqused_q),
    CALL(seqused_ori_kv),
    CALL(seqused_cmp_kv),
    CALL(cmp_residual_kv),
    CALL(ori_topk_length),
    CALL(cmp_topk_length),
    CALL_OF(sinks, "float32"),
    CALL(metadata),
};
static const argument call_integers[] = {
    CALL(quant_mode),   CALL(cmp_ratio),     CALL(ori_mask_mode),   CALL(cmp_mask_mode),
    CALL(ori_win_left), CALL(ori_win_right), CALL(topk_value_mode),
};

const char py_quant_sparse_flash_mla_doc[] =
    "quant_sparse_flash_mla(<21 tensors>, quant_mode, cmp_ratio, ori_mask_mode, cmp_mask_mode, ori_win_left,\n"
    "                       ori_win_right, topk_value_mode, softmax_scale, layout_q, layout_kv, attn_out,\n"
    "                       softmax_lse, stream, allocator); softmax_lse may be None. The public form is in\n"
    "                       cann_ops_transformer.";

PyObject *py_quant_sparse_flash_mla(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    enum { N_TENSOR = COUNT(call_tensors), N_INTEGER = COUNT(call_integers), REST = N_TENSOR + N_INTEGER };
    if (py_count("quant_sparse_flash_mla", n, REST + 7) != 0) {
        return NULL;
    }
    py_borrow borrow;
    py_borrow_begin_plain(&borrow);
    mla_quant_sparse_flash_mla_args call;
    mla_quant_sparse_flash_mla_init(&call);
    PyObject *const *rest = args + REST, *result = NULL;
    py_launch launch;
    float scale;
    if (py_launch_read(&launch, &borrow, rest[5], rest[6]) != 0 ||
        borrow_tensors(&borrow, args, call_tensors, N_TENSOR, &call) != 0 ||
        read_integers(args + N_TENSOR, call_integers, N_INTEGER, &call) != 0 ||
        py_float(rest[0], "softmax_scale", &scale) != 0 || read_layout(rest[1], "layout_q", &call.layout_q) != 0 ||
        read_layout(rest[2], "layout_kv", &call.layout_kv) != 0 ||
        py_borrow_output(&borrow, rest[3], "attn_out", &call.attn_out) != 0 ||
        (rest[4] != Py_None && py_borrow_output(&borrow, rest[4], "softmax_lse", &call.softmax_lse) != 0)) {
        goto end;
    }
    call.softmax_scale = (double)scale;
    call.return_softmax_lse = rest[4] != Py_None;
    as_hif8(&call.q);
    as_hif8(&call.ori_kv);
    as_hif8(&call.cmp_kv);
    mla_status status;
    if (py_launch_is_free(&launch)) {
        Py_BEGIN_ALLOW_THREADS
        status = mla_quant_sparse_flash_mla(&call, &launch.options);
        Py_END_ALLOW_THREADS
    } else {
        status = mla_quant_sparse_flash_mla(&call, &launch.options);
    }
    result = py_launch_end(&launch, status);
end:
    py_borrow_end(&borrow);
    return result;
}

#define PLAN(field) {#field, offsetof(mla_quant_sparse_flash_mla_metadata_args, field), "int32"}

static const argument plan_tensors[] = {
    PLAN(cu_seqlens_q),   PLAN(cu_seqlens_ori_kv), PLAN(cu_seqlens_cmp_kv), PLAN(seqused_q),       PLAN(seqused_ori_kv),
    PLAN(seqused_cmp_kv), PLAN(cmp_residual_kv),   PLAN(ori_topk_length),   PLAN(cmp_topk_length),
};
static const argument plan_integers[] = {
    PLAN(num_heads_q),  PLAN(num_heads_kv),      PLAN(head_dim),          PLAN(quant_mode),   PLAN(batch_size),
    PLAN(max_seqlen_q), PLAN(max_seqlen_ori_kv), PLAN(max_seqlen_cmp_kv), PLAN(ori_topk),     PLAN(cmp_topk),
    PLAN(cmp_ratio),    PLAN(ori_mask_mode),     PLAN(cmp_mask_mode),     PLAN(ori_win_left), PLAN(ori_win_right),
};

const char py_quant_sparse_flash_mla_metadata_doc[] =
    "quant_sparse_flash_mla_metadata(<9 tensors>, <15 integers>, layout_q, layout_kv, has_ori_kv, has_cmp_kv,\n"
    "                                metadata, stream); the public form is in cann_ops_transformer.";

PyObject *py_quant_sparse_flash_mla_metadata(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    enum { N_TENSOR = COUNT(plan_tensors), N_INTEGER = COUNT(plan_integers), REST = N_TENSOR + N_INTEGER };
    if (py_count("quant_sparse_flash_mla_metadata", n, REST + 6) != 0) {
        return NULL;
    }
    py_borrow borrow;
    py_borrow_begin_plain(&borrow);
    mla_quant_sparse_flash_mla_metadata_args call;
    mla_quant_sparse_flash_mla_metadata_init(&call);
    PyObject *const *rest = args + REST, *result = NULL;
    py_launch launch;
    if (py_launch_read(&launch, &borrow, rest[5], Py_None) == 0 &&
        borrow_tensors(&borrow, args, plan_tensors, N_TENSOR, &call) == 0 &&
        read_integers(args + N_TENSOR, plan_integers, N_INTEGER, &call) == 0 &&
        read_layout(rest[0], "layout_q", &call.layout_q) == 0 &&
        read_layout(rest[1], "layout_kv", &call.layout_kv) == 0 &&
        py_borrow_output(&borrow, rest[4], "metadata", &call.metadata) == 0) {
        call.has_ori_kv = PyObject_IsTrue(rest[2]) == 1;
        call.has_cmp_kv = PyObject_IsTrue(rest[3]) == 1;
        result =
            PyErr_Occurred() ? NULL : py_result(mla_quant_sparse_flash_mla_metadata_on(launch.options.stream, &call));
    }
    py_borrow_end(&borrow);
    return result;
}
