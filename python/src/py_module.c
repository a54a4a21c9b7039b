/*
 * py_module.c - the module mla._core: its list of functions, how statuses become exceptions, what this build can do.
 */
#include "py_core.h"

#include <math.h>
#include <string.h>

int py_integer(PyObject *object, const char *name, int64_t *value)
{
    PyObject *index = PyBool_Check(object) ? NULL : PyNumber_Index(object);
    if (index == NULL) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s must be an integer, not %R", name, object);
        return -1;
    }
    *value = PyLong_AsLongLong(index);
    Py_DECREF(index);
    if (*value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s = %S does not fit in 64 bits", name, object);
        return -1;
    }
    return 0;
}

int py_float(PyObject *object, const char *name, float *value)
{
    double exact = PyFloat_AsDouble(object);
    if (exact == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) { /* an integer with hundreds of digits */
            PyErr_Format(PyExc_ValueError, "%s does not fit in float32", name);
            return -1;
        }
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s must be a number, not %R", name, object);
        return -1;
    }
    *value = (float)exact;
    if (isinf(*value) && !isinf(exact)) {
        PyErr_Format(PyExc_ValueError, "%s = %S does not fit in float32", name, object);
        return -1;
    }
    return 0;
}

int py_count(const char *function, Py_ssize_t n_given, Py_ssize_t n_wanted)
{
    if (n_given != n_wanted) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", function, n_wanted, n_given);
        return -1;
    }
    return 0;
}

PyObject *py_result(mla_status status)
{
    PyObject *type;
    switch (status) {
    case MLA_STATUS_OK: Py_RETURN_NONE;
    case MLA_STATUS_NULL_POINTER:
    case MLA_STATUS_BAD_VALUE:
    case MLA_STATUS_BAD_SHAPE:
    case MLA_STATUS_BAD_STRIDE:
    case MLA_STATUS_BAD_DEVICE:
    case MLA_STATUS_OUT_OF_RANGE: type = PyExc_ValueError; break;
    case MLA_STATUS_BAD_DTYPE: type = PyExc_TypeError; break;
    case MLA_STATUS_UNSUPPORTED: type = PyExc_NotImplementedError; break;
    case MLA_STATUS_OUT_OF_MEMORY: type = PyExc_MemoryError; break;
    default: type = PyExc_RuntimeError; break;
    }
    /* what C calls options.backend is an argument here */
    static const char options[] = "options.";
    const char *sentence = mla_last_error();
    PyErr_SetString(type, sentence + (strncmp(sentence, options, strlen(options)) == 0 ? strlen(options) : 0));
    return NULL;
}

static PyObject *version(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyUnicode_FromString(mla_version());
}

static PyObject *set_isa(PyObject *self, PyObject *name)
{
    (void)self;
    if (name == Py_None) {
        return py_result(mla_set_isa(NULL));
    }
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL); /* TypeError for anything but a string */
    return text != NULL ? py_result(mla_set_isa(text)) : NULL;
}

static PyObject *threads(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyLong_FromLong(mla_default_threads());
}

static PyObject *isa(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    size_t n = mla_isa_list(NULL, 0);
    mla_isa_info *info = PyMem_Calloc(n != 0 ? n : 1, sizeof *info);
    PyObject *list = info != NULL ? PyList_New(0) : PyErr_NoMemory();
    if (list != NULL) {
        mla_isa_list(info, n);
        for (size_t i = 0; i < n; i++) {
            PyObject *row = Py_BuildValue("(sOO)", info[i].name, info[i].usable ? Py_True : Py_False,
                                          info[i].selected ? Py_True : Py_False);
            if (row == NULL || PyList_Append(list, row) != 0) {
                Py_CLEAR(list);
            }
            Py_XDECREF(row);
            if (list == NULL) {
                break;
            }
        }
    }
    PyMem_Free(info);
    return list;
}

static PyObject *kernels(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    size_t n = mla_kernel_list(NULL, 0);
    mla_kernel_info *info = PyMem_Calloc(n != 0 ? n : 1, sizeof *info);
    PyObject *list = info != NULL ? PyList_New(0) : PyErr_NoMemory();
    if (list != NULL) {
        mla_kernel_list(info, n);
        for (size_t i = 0; i < n; i++) {
            PyObject *row =
                Py_BuildValue("(sssO)", info[i].name, info[i].kind, info[i].isa, info[i].selected ? Py_True : Py_False);
            if (row == NULL || PyList_Append(list, row) != 0) {
                Py_CLEAR(list);
            }
            Py_XDECREF(row);
            if (list == NULL) {
                break;
            }
        }
    }
    PyMem_Free(info);
    return list;
}

/* Through void (*)(void), as the manual asks: PyMethodDef holds every calling convention in one pointer type. */
#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"attention", FAST(py_attention), METH_FASTCALL, py_attention_doc},
    {"describe", FAST(py_describe), METH_FASTCALL, py_describe_doc},
    {"with_kvcache", FAST(py_flash_mla), METH_FASTCALL, py_flash_mla_doc},
    {"get_metadata", FAST(py_get_metadata), METH_FASTCALL, py_get_metadata_doc},
    {"num_parts", FAST(py_num_parts), METH_FASTCALL, py_num_parts_doc},
    {"find_torch", py_find_torch, METH_O, py_find_torch_doc},
    {"attn_varlen", FAST(py_varlen), METH_FASTCALL, py_varlen_doc},
    {"atb_decode", FAST(py_atb_decode), METH_FASTCALL, py_atb_decode_doc},
    {"quant_sparse_flash_mla", FAST(py_quant_sparse_flash_mla), METH_FASTCALL, py_quant_sparse_flash_mla_doc},
    {"quant_sparse_flash_mla_metadata", FAST(py_quant_sparse_flash_mla_metadata), METH_FASTCALL,
     py_quant_sparse_flash_mla_metadata_doc},
    {"hif8_find_descale", FAST(py_hif8_find_descale), METH_FASTCALL, py_hif8_find_descale_doc},
    {"hif8_quantize", FAST(py_hif8_quantize), METH_FASTCALL, py_hif8_quantize_doc},
    {"hif8_dequantize", FAST(py_hif8_dequantize), METH_FASTCALL, py_hif8_dequantize_doc},
    {"nd_to_nz", FAST(py_nd_to_nz), METH_FASTCALL, py_nd_to_nz_doc},
    {"nz_to_nd", FAST(py_nz_to_nd), METH_FASTCALL, py_nz_to_nd_doc},
    {"merge_states", FAST(py_merge_states), METH_FASTCALL, py_merge_states_doc},
    {"version", version, METH_NOARGS, "version() -> str: the version of libmla."},
    {"set_isa", set_isa, METH_O, "set_isa(name): caps the instruction set; None lifts the cap."},
    {"threads", threads, METH_NOARGS, "threads() -> int: what a call takes at most when it does not say."},
    {"isa", isa, METH_NOARGS, "isa() -> list of (name, usable, selected), from low to high."},
    {"kernels", kernels, METH_NOARGS, "kernels() -> list of (name, kind, isa, selected)."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "mla._core",
    .m_doc = "libmla for Python: arrays in, statuses out. Use the packages mla and flash_mla.",
    .m_size = -1, /* the interned names and the type seen last are the process's, not an interpreter's */
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return py_array_init() == 0 ? PyModule_Create(&definition) : NULL;
}
