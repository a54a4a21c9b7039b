/*
 * py_array.c - a Python array becomes an mla_tensor, through DLPack and without a copy.
 */
#include "py_core.h"

#include <string.h>

#include "dlpack_abi.h"

/* Interned once: building these for every array would cost more than the exchange itself. */
static struct {
    PyObject *exchange_name;  /* "__dlpack_c_exchange_api__" */
    PyObject *dlpack_name;    /* "__dlpack__" */
    PyObject *is_neg_name;    /* "is_neg" */
    PyObject *no_args;        /* () */
    PyObject *version_kwargs; /* {"max_version": (1, 0)} */
} fixed;

/* The exchange table of the type seen last: calls nearly always pass arrays of one library. Guarded by the GIL. */
static struct {
    PyTypeObject *type;
    const dlpack_exchange *exchange; /* NULL: the type has none */
} seen;

int py_array_init(void)
{
    fixed.exchange_name = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
    fixed.dlpack_name = PyUnicode_InternFromString("__dlpack__");
    fixed.is_neg_name = PyUnicode_InternFromString("is_neg");
    fixed.no_args = PyTuple_New(0);
    fixed.version_kwargs = Py_BuildValue("{s:(ii)}", "max_version", DLPACK_MAJOR, 0);
    return fixed.exchange_name != NULL && fixed.dlpack_name != NULL && fixed.is_neg_name != NULL &&
                   fixed.no_args != NULL && fixed.version_kwargs != NULL
               ? 0
               : -1;
}

static const dlpack_exchange *find_exchange(PyTypeObject *type)
{
    if (type == seen.type) {
        return seen.exchange;
    }
    const dlpack_exchange *exchange = NULL;
    PyObject *capsule = PyObject_GetAttr((PyObject *)type, fixed.exchange_name);
    if (capsule != NULL) {
        /* The table lives as long as the process, whatever becomes of the capsule. */
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        Py_DECREF(capsule);
    }
    PyErr_Clear(); /* without the attribute, or with one that is no such capsule, there is still __dlpack__ */
    while (exchange != NULL && exchange->version.major != DLPACK_MAJOR) {
        exchange = exchange->older;
    }
    if (exchange != NULL && exchange->view == NULL) {
        exchange = NULL;
    }
    Py_XDECREF((PyObject *)seen.type);
    Py_INCREF((PyObject *)type);
    seen.type = type;
    seen.exchange = exchange;
    return exchange;
}

/* Turns the current error into a ValueError that starts with the name of the argument, its first line kept. */
static int fail_naming(const char *name)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *text = value != NULL ? PyObject_Str(value) : NULL;
    PyObject *lines = text != NULL ? PyUnicode_Splitlines(text, 0) : NULL;
    PyObject *line = lines != NULL && PyList_Size(lines) > 0 ? PyList_GetItem(lines, 0) : NULL;
    PyErr_Clear();
    if (line != NULL) {
        PyErr_Format(PyExc_ValueError, "%s cannot be read: %U", name, line);
    } else {
        PyErr_Format(PyExc_ValueError, "%s cannot be read", name);
    }
    Py_XDECREF(lines);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return -1;
}

static int read_dtype(const dlpack_tensor *from, const py_borrow *borrow, bool u16_is_bf16, const char *name,
                      mla_dtype *dtype)
{
    const char *allowed = borrow->dtypes;
    static const struct {
        uint8_t code, bits;
        mla_dtype dtype;
    } known[] = {
        {DLPACK_BFLOAT, 16, MLA_DTYPE_BF16}, {DLPACK_FLOAT, 32, MLA_DTYPE_F32}, {DLPACK_FLOAT, 16, MLA_DTYPE_F16},
        {DLPACK_INT, 32, MLA_DTYPE_I32},     {DLPACK_INT, 64, MLA_DTYPE_I64},   {DLPACK_INT, 8, MLA_DTYPE_I8},
        {DLPACK_UINT, 8, MLA_DTYPE_U8},
    };
    if (from->dtype_lanes == 1) {
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
            if (known[i].code == from->dtype_code && known[i].bits == from->dtype_bits) {
                *dtype = known[i].dtype;
                return 0;
            }
        }
    }
    if (from->dtype_code == DLPACK_UINT && from->dtype_bits == 16 && from->dtype_lanes == 1) {
        if (u16_is_bf16) {
            *dtype = MLA_DTYPE_BF16;
            return 0;
        }
        if (borrow->takes_dtype && strstr(allowed, "bfloat16") != NULL) {
            PyErr_Format(PyExc_TypeError, "%s has dtype uint16; if these are the bits of bfloat16, say dtype=\"bf16\"",
                         name);
            return -1;
        }
    }
    if (from->dtype_code >= DLPACK_FLOAT8_FIRST && from->dtype_code <= DLPACK_FLOAT4_LAST) {
        PyErr_Format(PyExc_NotImplementedError, "%s has a float dtype of %d bits, which is not implemented; must be %s",
                     name, from->dtype_bits, allowed);
        return -1;
    }
    static const char *const kind[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
    if (from->dtype_code == DLPACK_BOOL) {
        PyErr_Format(PyExc_TypeError, "%s has dtype bool, must be %s", name, allowed);
    } else {
        PyErr_Format(PyExc_TypeError, "%s has dtype %s%d, must be %s", name,
                     from->dtype_code < sizeof kind / sizeof kind[0] ? kind[from->dtype_code] : "unknown",
                     from->dtype_bits, allowed);
    }
    return -1;
}

static int read_tensor(const dlpack_tensor *from, const py_borrow *borrow, bool u16_is_bf16, const char *name,
                       mla_tensor *to)
{
    if (from->ndim < 1 || from->ndim > MLA_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions, must have 1 to %d", name, from->ndim, MLA_MAX_NDIM);
        return -1;
    }
    memset(to, 0, sizeof *to);
    if (read_dtype(from, borrow, u16_is_bf16, name, &to->dtype) != 0) {
        return -1;
    }
    switch (from->device_type) {
    case DLPACK_CPU:
    case DLPACK_CUDA_HOST: /* pinned host memory is host memory */ to->device.type = MLA_DEVICE_CPU; break;
    case DLPACK_CUDA:
    case DLPACK_CUDA_MANAGED:
        to->device.type = MLA_DEVICE_CUDA;
        to->device.id = from->device_id;
        break;
    default:
        PyErr_Format(PyExc_ValueError, "%s is on a device that libmla does not know (DLPack device type %d)", name,
                     from->device_type);
        return -1;
    }
    to->name = name;
    to->ndim = from->ndim;
    bool empty = false;
    for (int32_t i = 0; i < from->ndim; i++) {
        empty = empty || from->shape[i] == 0;
    }
    /* Where a stride leads nowhere (one index or none), libraries put what they like: make it the dense one. */
    int64_t dense = 1;
    for (int32_t i = from->ndim - 1; i >= 0; i--) {
        bool meaningless = empty || from->shape[i] <= 1 || from->strides == NULL;
        to->dim[i] = from->shape[i];
        to->stride[i] = meaningless ? dense : from->strides[i];
        dense *= from->shape[i] > 1 ? from->shape[i] : 1;
    }
    if (from->data == NULL) {
        if (!empty) {
            PyErr_Format(PyExc_ValueError, "%s has no memory behind it (a fake or meta tensor?)", name);
            return -1;
        }
        return 0;
    }
    to->data = (char *)from->data + from->byte_offset;
    return 0;
}

/* 1: the array claims a lazy sign flip that its memory does not show; 0: it does not; -1: error set. Only libraries
 * with lazy views have the method, and only real parts of complex numbers (so f32 and f16) can be such views. */
static int is_negated(PyObject *array, mla_dtype dtype)
{
    if (dtype != MLA_DTYPE_F32 && dtype != MLA_DTYPE_F16) {
        return 0;
    }
    PyObject *method = PyObject_GetAttr(array, fixed.is_neg_name);
    if (method == NULL) {
        PyErr_Clear();
        return 0;
    }
    PyObject *answer = PyObject_Call(method, fixed.no_args, NULL);
    Py_DECREF(method);
    if (answer == NULL) {
        return -1;
    }
    int negated = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return negated;
}

/* NumPy arrays of ml_dtypes.bfloat16 cannot be exported: a uint16 view of the same memory can. New reference, or NULL
 * without an error if the array is no such thing. */
static PyObject *bfloat16_bits(PyObject *array)
{
    PyObject *bits = NULL;
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    PyObject *dtype_name = dtype != NULL ? PyObject_GetAttrString(dtype, "name") : NULL;
    if (dtype_name != NULL && PyUnicode_Check(dtype_name) &&
        PyUnicode_CompareWithASCIIString(dtype_name, "bfloat16") == 0) {
        bits = PyObject_CallMethod(array, "view", "s", "uint16");
    }
    Py_XDECREF(dtype);
    Py_XDECREF(dtype_name);
    PyErr_Clear();
    return bits;
}

static PyObject *find_dlpack(PyObject *array, const char *name)
{
    PyObject *method = PyObject_GetAttr(array, fixed.dlpack_name);
    if (method == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        PyObject *type_name = PyObject_GetAttrString((PyObject *)Py_TYPE(array), "__name__");
        if (type_name != NULL) {
            PyErr_Format(PyExc_TypeError, "%s must be an array (NumPy, torch or any other with __dlpack__), not %U",
                         name, type_name);
            Py_DECREF(type_name);
        }
    }
    return method;
}

/* Calls an array's __dlpack__, the versioned form first, and drops it. New reference or NULL with an error. */
static PyObject *make_capsule(PyObject *method)
{
    PyObject *capsule = PyObject_Call(method, fixed.no_args, fixed.version_kwargs);
    if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear(); /* a library from before DLPack 1.0 does not know max_version */
        capsule = PyObject_Call(method, fixed.no_args, NULL);
    }
    Py_DECREF(method);
    return capsule;
}

static void hold(py_borrow *borrow, PyObject *object)
{
    borrow->held[borrow->n_held++] = object;
}

/* May memory lent by an unversioned capsule be written? The capsule cannot say, and immutable arrays are lent this
 * way; a NumPy array (before NumPy 2.1) can be asked. */
static bool is_writeable(PyObject *array)
{
    PyObject *flags = PyObject_GetAttrString(array, "flags");
    PyObject *writeable = flags != NULL ? PyObject_GetAttrString(flags, "writeable") : NULL;
    bool yes = writeable == Py_True;
    Py_XDECREF(writeable);
    Py_XDECREF(flags);
    PyErr_Clear();
    return yes;
}

static int borrow_capsule(py_borrow *borrow, PyObject *array, const char *name, bool output, mla_tensor *tensor)
{
    bool u16_is_bf16 = borrow->u16_is_bf16;
    PyObject *method = find_dlpack(array, name);
    if (method == NULL) {
        return -1;
    }
    PyObject *capsule = make_capsule(method);
    if (capsule == NULL) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *bits = bfloat16_bits(array);
        if (bits == NULL) {
            PyErr_Restore(type, value, traceback);
            return fail_naming(name);
        }
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        hold(borrow, bits);
        u16_is_bf16 = true;
        method = find_dlpack(bits, name);
        capsule = method != NULL ? make_capsule(method) : NULL;
        if (capsule == NULL) {
            return fail_naming(name);
        }
    }
    /* The capsule is never renamed to "used": dropping it at the end of the call frees what it lends. */
    hold(borrow, capsule);
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const dlpack_versioned *lent = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (lent->version.major != DLPACK_MAJOR) {
            PyErr_Format(PyExc_ValueError, "%s is lent through DLPack %u, which libmla does not know", name,
                         lent->version.major);
            return -1;
        }
        if (output && (lent->flags & DLPACK_FLAG_READ_ONLY) != 0) {
            PyErr_Format(PyExc_ValueError, "%s is read-only", name);
            return -1;
        }
        return read_tensor(&lent->tensor, borrow, u16_is_bf16, name, tensor);
    }
    const dlpack_managed *lent = PyCapsule_GetPointer(capsule, "dltensor");
    if (lent == NULL) {
        return fail_naming(name);
    }
    if (output && !is_writeable(array)) {
        PyErr_Format(PyExc_ValueError, "%s is lent in a way that does not allow writing", name);
        return -1;
    }
    return read_tensor(&lent->tensor, borrow, u16_is_bf16, name, tensor);
}

static int borrow_array(py_borrow *borrow, PyObject *array, const char *name, bool output, mla_tensor *tensor)
{
    const dlpack_exchange *exchange = find_exchange(Py_TYPE(array));
    if (exchange != NULL) {
        dlpack_tensor lent;
        memset(&lent, 0, sizeof lent);
        if (exchange->view(array, &lent) != 0) {
            return fail_naming(name);
        }
        if (read_tensor(&lent, borrow, borrow->u16_is_bf16, name, tensor) != 0) {
            return -1;
        }
        int negated = is_negated(array, tensor->dtype);
        if (negated > 0) {
            PyErr_Format(PyExc_ValueError, "%s is a negated view; pass %s.resolve_neg()", name, name);
        }
        return negated != 0 ? -1 : 0;
    }
    return borrow_capsule(borrow, array, name, output, tensor);
}

int py_borrow_input(py_borrow *borrow, PyObject *array, const char *name, mla_tensor *tensor)
{
    return borrow_array(borrow, array, name, false, tensor);
}

int py_borrow_output(py_borrow *borrow, PyObject *array, const char *name, mla_tensor *tensor)
{
    return borrow_array(borrow, array, name, true, tensor);
}

int py_borrow_optional(py_borrow *borrow, PyObject *array, const char *name, mla_tensor *tensor)
{
    if (array == Py_None) {
        memset(tensor, 0, sizeof *tensor);
        tensor->name = name;
        return 0;
    }
    return borrow_array(borrow, array, name, false, tensor);
}

void py_borrow_end(py_borrow *borrow)
{
    /* An error already set must survive the destructors. */
    PyObject *type, *value, *traceback;
    if (borrow->n_held == 0) {
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    while (borrow->n_held > 0) {
        Py_DECREF(borrow->held[--borrow->n_held]);
    }
    PyErr_Restore(type, value, traceback);
}

const char py_describe_doc[] =
    "describe(array, name, u16_is_bf16) -> (shape, dtype): what DLPack says of an array, for those that say no more.";

PyObject *py_describe(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    if (py_count("describe", n, 3) != 0) {
        return NULL;
    }
    const char *name = PyUnicode_AsUTF8AndSize(args[1], NULL);
    if (name == NULL) {
        return NULL;
    }
    py_borrow borrow;
    py_borrow_begin(&borrow, args[2] == Py_True);
    mla_tensor tensor;
    PyObject *result = NULL;
    if (py_borrow_input(&borrow, args[0], name, &tensor) == 0) {
        PyObject *shape = PyTuple_New(tensor.ndim);
        for (int32_t i = 0; shape != NULL && i < tensor.ndim; i++) {
            PyObject *extent = PyLong_FromLongLong(tensor.dim[i]);
            if (extent == NULL || PyTuple_SetItem(shape, i, extent) != 0) { /* it takes the reference */
                Py_CLEAR(shape);
            }
        }
        result = shape != NULL ? Py_BuildValue("(Ns)", shape, mla_dtype_name(tensor.dtype)) : NULL;
    }
    py_borrow_end(&borrow);
    return result;
}
