/*
 * py_launch.c - how a call reaches a GPU: its stream, and workspace from the framework that owns the arrays.
 */
#include "py_core.h"

#include <string.h>

static void *allocate(void *context, size_t bytes, void *stream)
{
    py_launch *launch = context;
    mla_tensor memory;
    (void)stream; /* the framework's current one, as `launch` was told */
    if (launch->lent == NULL) {
        void *lent = py_array_allocate(launch->like, bytes, &launch->lent);
        if (lent != NULL) {
            return lent;
        }
    }
    PyObject *array = PyObject_CallFunction(launch->allocate, "n", (Py_ssize_t)bytes);
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

int py_launch_read(py_launch *launch, py_borrow *borrow, PyObject *stream, PyObject *allocator, PyObject *like)
{
    memset(launch, 0, sizeof *launch);
    launch->borrow = borrow;
    launch->like = like;
    if (stream != Py_None) {
        launch->options.stream = PyLong_AsVoidPtr(stream);
        if (launch->options.stream == NULL && PyErr_Occurred()) {
            return -1;
        }
    }
    if (allocator != Py_None) {
        launch->allocate = allocator;
        launch->allocator = (mla_allocator){.allocate = allocate, .context = launch};
        launch->options.allocator = &launch->allocator;
    }
    return 0;
}

PyObject *py_launch_end(py_launch *launch, mla_status status)
{
    /* Released to the framework while the kernels may still run: its next owner on this stream comes after them. */
    Py_XDECREF(launch->held);
    launch->held = NULL;
    py_array_release(launch->lent);
    launch->lent = NULL;
    return PyErr_Occurred() ? NULL : py_result(status);
}
