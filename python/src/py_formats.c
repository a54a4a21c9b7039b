/*
 * py_formats.c - the helpers of mla_formats.h, and the merging of partial results.
 */
#include <stdio.h>
#include <string.h>

#include "py_core.h"

/* ---- HiFloat8 ---------------------------------------------------------------------------------------------------- */

const char py_hif8_find_descale_doc[] =
    "hif8_find_descale(x, u16_is_bf16) -> float; the public form is mla.hif8_quantize().";

PyObject *py_hif8_find_descale(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    if (py_count("hif8_find_descale", n, 2) != 0) {
        return NULL;
    }
    py_borrow borrow;
    py_borrow_begin(&borrow, args[1] == Py_True);
    mla_tensor x;
    PyObject *result = NULL;
    py_expect(&borrow, "float32, float16 or bfloat16");
    if (py_borrow_input(&borrow, args[0], "x", &x) == 0) {
        float descale = 1;
        mla_status status;
        Py_BEGIN_ALLOW_THREADS
        status = mla_hif8_find_descale(&x, &descale);
        Py_END_ALLOW_THREADS
        result = status == MLA_STATUS_OK ? PyFloat_FromDouble((double)descale) : py_result(status);
    }
    py_borrow_end(&borrow);
    return result;
}

const char py_hif8_quantize_doc[] =
    "hif8_quantize(x, codes, descale, mode, u16_is_bf16) fills codes; the public form is mla.hif8_quantize().";

const char py_hif8_dequantize_doc[] =
    "hif8_dequantize(codes, x, descale, mode, u16_is_bf16) fills x; the public form is mla.hif8_dequantize().";

typedef mla_status convert_function(const mla_tensor *from, float descale, mla_hif8_mode mode, const mla_tensor *to);

static const char *dtypes_of(const char *name)
{
    return strcmp(name, "codes") == 0 ? "uint8" : "float32, float16 or bfloat16";
}

static PyObject *convert(PyObject *const *args, const char *from_name, const char *to_name, convert_function *function)
{
    py_borrow borrow;
    py_borrow_begin(&borrow, args[4] == Py_True);
    mla_tensor from, to;
    float descale;
    int64_t mode;
    PyObject *result = NULL;
    if (py_expect(&borrow, dtypes_of(from_name)) == 0 && py_borrow_input(&borrow, args[0], from_name, &from) == 0 &&
        py_expect(&borrow, dtypes_of(to_name)) == 0 && py_borrow_output(&borrow, args[1], to_name, &to) == 0 &&
        py_float(args[2], "descale", &descale) == 0 && py_integer(args[3], "mode", &mode) == 0) {
        mla_status status;
        Py_BEGIN_ALLOW_THREADS
        status = function(&from, descale, (mla_hif8_mode)mode, &to);
        Py_END_ALLOW_THREADS
        result = py_result(status);
    }
    py_borrow_end(&borrow);
    return result;
}

PyObject *py_hif8_quantize(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    return py_count("hif8_quantize", n, 5) == 0 ? convert(args, "x", "codes", mla_hif8_quantize) : NULL;
}

PyObject *py_hif8_dequantize(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    return py_count("hif8_dequantize", n, 5) == 0 ? convert(args, "codes", "out", mla_hif8_dequantize) : NULL;
}

/* ---- FRACTAL_NZ -------------------------------------------------------------------------------------------------- */

const char py_nd_to_nz_doc[] = "nd_to_nz(nd, nz) fills nz; the public form is mla.nd_to_nz().";
const char py_nz_to_nd_doc[] = "nz_to_nd(nz, nd) fills nd; the public form is mla.nz_to_nd().";

static PyObject *move(PyObject *const *args, mla_status (*function)(const mla_tensor *from, const mla_tensor *to))
{
    py_borrow borrow;
    py_borrow_begin(&borrow, true); /* two bytes are two bytes */
    mla_tensor from, to;
    PyObject *result = NULL;
    if (py_borrow_input(&borrow, args[0], "x", &from) == 0 && py_borrow_output(&borrow, args[1], "out", &to) == 0) {
        mla_status status;
        Py_BEGIN_ALLOW_THREADS
        status = function(&from, &to);
        Py_END_ALLOW_THREADS
        result = py_result(status);
    }
    py_borrow_end(&borrow);
    return result;
}

PyObject *py_nd_to_nz(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    return py_count("nd_to_nz", n, 2) == 0 ? move(args, mla_nd_to_nz) : NULL;
}

PyObject *py_nz_to_nd(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    return py_count("nz_to_nd", n, 2) == 0 ? move(args, mla_nz_to_nd) : NULL;
}

/* ---- partial results --------------------------------------------------------------------------------------------- */

/* The parts of one call. Each array has a name of its own, since errors begin with it. */
typedef struct parts {
    Py_ssize_t n;
    mla_tensor *o, *lse;
    py_borrow *borrow;
    char (*name)[2][32];
} parts;

static void parts_end(parts *p)
{
    for (Py_ssize_t i = 0; p->borrow != NULL && i < p->n; i++) {
        py_borrow_end(&p->borrow[i]);
    }
    PyMem_Free(p->o);
    PyMem_Free(p->lse);
    PyMem_Free(p->borrow);
    PyMem_Free(p->name);
}

static int parts_begin(parts *p, PyObject *o_parts, PyObject *lse_parts, PyObject *u16_is_bf16)
{
    size_t n = (size_t)p->n;
    p->o = PyMem_Calloc(n, sizeof *p->o);
    p->lse = PyMem_Calloc(n, sizeof *p->lse);
    p->borrow = PyMem_Calloc(n, sizeof *p->borrow);
    p->name = PyMem_Calloc(n, sizeof *p->name);
    if (p->o == NULL || p->lse == NULL || p->borrow == NULL || p->name == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < p->n; i++) {
        py_borrow_begin(&p->borrow[i], u16_is_bf16 == Py_True);
        py_expect(&p->borrow[i], "float32, float16 or bfloat16");
        snprintf(p->name[i][0], sizeof p->name[i][0], "o_parts[%zd]", i);
        snprintf(p->name[i][1], sizeof p->name[i][1], "lse_parts[%zd]", i);
        if (py_borrow_input(&p->borrow[i], PyTuple_GetItem(o_parts, i), p->name[i][0], &p->o[i]) != 0 ||
            py_borrow_input(&p->borrow[i], PyTuple_GetItem(lse_parts, i), p->name[i][1], &p->lse[i]) != 0) {
            return -1;
        }
    }
    return 0;
}

const char py_merge_states_doc[] =
    "merge_states(o_parts, lse_parts, lse_base, lse_empty, out, lse, u16_is_bf16); the public form is\n"
    "mla.merge_states().";

PyObject *py_merge_states(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    if (py_count("merge_states", n, 7) != 0) {
        return NULL;
    }
    if (!PyTuple_Check(args[0]) || !PyTuple_Check(args[1]) || PyTuple_Size(args[0]) != PyTuple_Size(args[1])) {
        PyErr_SetString(PyExc_TypeError, "o_parts and lse_parts must be tuples of one length");
        return NULL;
    }
    py_borrow borrow;
    py_borrow_begin(&borrow, args[6] == Py_True);
    py_expect(&borrow, "float32, float16 or bfloat16");
    parts part = {.n = PyTuple_Size(args[0])};
    int64_t base, empty;
    mla_tensor o, lse;
    PyObject *result = NULL;
    if (parts_begin(&part, args[0], args[1], args[6]) == 0 && py_integer(args[2], "lse_base", &base) == 0 &&
        py_integer(args[3], "lse_empty", &empty) == 0 && py_borrow_output(&borrow, args[4], "out", &o) == 0 &&
        py_borrow_output(&borrow, args[5], "lse", &lse) == 0) {
        mla_status status;
        Py_BEGIN_ALLOW_THREADS
        status = mla_merge_states(part.o, part.lse, part.n, (mla_lse_base)base, (mla_lse_empty)empty, &o, &lse);
        Py_END_ALLOW_THREADS
        result = py_result(status);
    }
    py_borrow_end(&borrow);
    parts_end(&part);
    return result;
}
