/*
 * py_core.h - what the files of the extension module mla._core share.
 *
 * The module is written against the limited API of CPython 3.10, so that one binary serves every later Python.
 */
#ifndef MLA_PYTHON_CORE_H
#define MLA_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "mla/mla.h"

/* ---- arrays: py_array.c ------------------------------------------------------------------------------------------ */

/* Most arrays one call can take: a problem's own and those of its two segments. */
#define MLA_PY_MAX_BORROW 48

/* Arrays lent for the length of one call. The caller of the Python function keeps the objects themselves alive; what is
 * held here are the capsules (and views) that had to be made on the way. */
typedef struct py_borrow {
    PyObject *held[2 * MLA_PY_MAX_BORROW];
    int n_held;
    bool u16_is_bf16; /* read uint16 arrays as the bits of bfloat16 */
} py_borrow;

static inline void py_borrow_begin(py_borrow *borrow, bool u16_is_bf16)
{
    borrow->n_held = 0;
    borrow->u16_is_bf16 = u16_is_bf16;
}

/* Prepares what py_array.c needs for the life of the process. */
int py_array_init(void);

/*
 * Fills *tensor with a view of `array`, which stays valid until py_borrow_end(). `name` must be static: errors start
 * with it, here and in the library. Returns 0, or -1 with TypeError (no array, or a dtype that libmla has no name for),
 * NotImplementedError (8-bit floats) or ValueError (memory that cannot be lent, read-only memory for an output) set.
 */
int py_borrow_input(py_borrow *borrow, PyObject *array, const char *name, mla_tensor *tensor);
int py_borrow_output(py_borrow *borrow, PyObject *array, const char *name, mla_tensor *tensor);
void py_borrow_end(py_borrow *borrow);

/*
 * Uninitialised memory where `like` is, on its library's current stream if that is a GPU; `lent` goes to
 * py_array_release(). NULL, without an error, where the library of `like` has no such function for C, or no memory.
 */
void *py_array_allocate(PyObject *like, size_t bytes, void **lent);
void py_array_release(void *lent);

/* As py_borrow_input(), but None leaves *tensor absent, with nothing but the name under which it would be missed. */
int py_borrow_optional(py_borrow *borrow, PyObject *array, const char *name, mla_tensor *tensor);

/* ---- GPUs: py_launch.c ------------------------------------------------------------------------------------------- */

/* The options of a call, with where a GPU's stream and workspace come from. Lives as long as the call. */
typedef struct py_launch {
    mla_plan_options options;
    mla_allocator allocator;
    py_borrow *borrow;
    PyObject *like, *allocate, *held; /* held: a list of what the allocator gave */
    void *lent;                       /* what the library of `like` gave */
} py_launch;

/* stream: an address as int, or None; allocator: a function from bytes to an array on the GPU, or None for the
 * library's own. It is asked where the library that the array `like` belongs to cannot be asked from C, which takes a
 * fraction of the time. Returns 0, or -1 with an error set. */
int py_launch_read(py_launch *launch, py_borrow *borrow, PyObject *stream, PyObject *allocator, PyObject *like);

/* The GIL may be let go during a call with these options: no Python function is called from it. */
static inline bool py_launch_is_free(const py_launch *launch)
{
    return launch->allocate == NULL;
}

/* As py_result(), once the call is over; an error that the allocator set goes first. */
PyObject *py_launch_end(py_launch *launch, mla_status status);

/* ---- values and errors: py_module.c ------------------------------------------------------------------------------ */

/* Integer argument; a bool or a float is refused with TypeError. Returns 0 or -1. */
int py_integer(PyObject *object, const char *name, int64_t *value);

/* Real number within float32, or an infinity or NaN for the library to refuse. Returns 0, or -1 with TypeError or
 * ValueError set. */
int py_float(PyObject *object, const char *name, float *value);

/* None for MLA_STATUS_OK; else NULL with the exception that fits the status and the library's sentence. */
PyObject *py_result(mla_status status);

/* Checks the argument count of a METH_FASTCALL function. Returns 0, or -1 with TypeError set. */
int py_count(const char *function, Py_ssize_t n_given, Py_ssize_t n_wanted);

/* ---- functions of the module ------------------------------------------------------------------------------------- */

extern const char py_attention_doc[], py_flash_mla_doc[], py_get_metadata_doc[], py_num_parts_doc[], py_varlen_doc[],
    py_describe_doc[], py_hif8_find_descale_doc[], py_hif8_quantize_doc[], py_hif8_dequantize_doc[], py_nd_to_nz_doc[],
    py_nz_to_nd_doc[], py_merge_states_doc[], py_quant_sparse_flash_mla_doc[], py_quant_sparse_flash_mla_metadata_doc[],
    py_atb_decode_doc[];
PyObject *py_atb_decode(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_attention(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_describe(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_flash_mla(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_get_metadata(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_hif8_dequantize(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_hif8_find_descale(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_hif8_quantize(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_merge_states(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_nd_to_nz(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_num_parts(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_nz_to_nd(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_varlen(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_quant_sparse_flash_mla(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_quant_sparse_flash_mla_metadata(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif
