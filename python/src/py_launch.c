/*
 * py_launch.c - how a call reaches a GPU: its stream, and workspace from the framework that owns the arrays.
 */
#include "py_core.h"

#include <string.h>

/* An array of torch, made by its Python: slower, but what it raises says what is wrong. New reference, or NULL. */
static PyObject *ask_python(const py_launch *launch, size_t bytes)
{
    PyObject *module = PyImport_ImportModule("mla._launch");
    PyObject *array = module != NULL
                          ? PyObject_CallMethod(module, "allocate", "nL", (Py_ssize_t)bytes, (long long)launch->gpu)
                          : NULL;
    Py_XDECREF(module);
    return array;
}

static void *allocate(void *context, size_t bytes, void *stream)
{
    py_launch *launch = context;
    mla_tensor memory;
    (void)stream; /* the framework's current one, as `launch` was told */
    if (launch->lent == NULL) {
        void *lent = py_torch_lend(launch->gpu, bytes, &launch->lent);
        if (lent != NULL) {
            return lent;
        }
    }
    PyObject *array = ask_python(launch, bytes);
    if (array == NULL) {
        return NULL;
    }
    if (launch->held == NULL) {
        launch->held = PyList_New(0);
    }
    int failed = launch->held == NULL || PyList_Append(launch->held, array) != 0;
    Py_DECREF(array);
    if (failed) {
        return NULL;
    }
    return py_borrow_input(launch->borrow, array, "workspace", &memory) == 0 ? memory.data : NULL;
}

static void begin(py_launch *launch, py_borrow *borrow)
{
    memset(launch, 0, sizeof *launch);
    launch->borrow = borrow;
}

static void take_from_torch(py_launch *launch)
{
    launch->allocator = (mla_allocator){.allocate = allocate, .context = launch};
    launch->options.allocator = &launch->allocator;
}

int py_launch_read(py_launch *launch, py_borrow *borrow, PyObject *stream, PyObject *gpu)
{
    begin(launch, borrow);
    if (stream != Py_None) {
        launch->options.stream = PyLong_AsVoidPtr(stream);
        if (launch->options.stream == NULL && PyErr_Occurred()) {
            return -1;
        }
    }
    if (gpu != Py_None) {
        if (py_integer(gpu, "gpu", &launch->gpu) != 0) {
            return -1;
        }
        take_from_torch(launch);
    }
    return 0;
}

int py_launch_on_torch(py_launch *launch, py_borrow *borrow, const mla_tensor *where)
{
    begin(launch, borrow);
    if (where->device.type == MLA_DEVICE_CPU) {
        return 0;
    }
    if (py_torch_stream(where, &launch->options.stream) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "torch does not tell its current stream");
        return -1;
    }
    launch->gpu = where->device.id;
    take_from_torch(launch);
    return 0;
}

PyObject *py_launch_end(py_launch *launch, mla_status status)
{
    /* Released to the framework while the kernels may still run: its next owner on this stream comes after them. */
    Py_XDECREF(launch->held);
    launch->held = NULL;
    py_torch_take_back(launch->lent);
    launch->lent = NULL;
    return PyErr_Occurred() ? NULL : py_result(status);
}
