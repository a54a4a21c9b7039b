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
    bool u16_is_bf16;   /* read uint16 arrays as the bits of bfloat16 */
    bool takes_dtype;   /* may the caller say so? For the error if he did not */
    const char *dtypes; /* what the next arrays may be, for errors about dtypes that libmla has no name for */
} py_borrow;

#define PY_ALL_DTYPES "float32, float16, bfloat16, uint8, int8 or int32"

/* Of the arrays that are borrowed from here on. Returns 0, to stand among calls that may fail. */
static inline int py_expect(py_borrow *borrow, const char *dtypes)
{
    borrow->dtypes = dtypes;
    return 0;
}

static inline void py_borrow_begin(py_borrow *borrow, bool u16_is_bf16)
{
    borrow->n_held = 0;
    borrow->u16_is_bf16 = u16_is_bf16;
    borrow->takes_dtype = true;
    borrow->dtypes = PY_ALL_DTYPES;
}

/* For functions without an argument dtype. */
static inline void py_borrow_begin_plain(py_borrow *borrow)
{
    py_borrow_begin(borrow, false);
    borrow->takes_dtype = false;
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

/* As py_borrow_input(), but None leaves *tensor absent, with nothing but the name under which it would be missed. */
int py_borrow_optional(py_borrow *borrow, PyObject *array, const char *name, mla_tensor *tensor);

/* ---- torch from C: py_torch.c ------------------------------------------------------------------------------------ */

/* Can torch, which must be loaded, be asked from C for tensors where `like` is? Else do not call the next two. */
bool py_torch_makes_tensors(const mla_tensor *like);

/*
 * A new torch.Tensor where `like` is, dense and uninitialised, and libmla's view of it, valid while it lives. dtype:
 * f32, f16 or bf16. NULL, without a Python error, if torch has no memory: its Python says what is wrong.
 */
PyObject *py_torch_empty(const char *name, const mla_tensor *like, mla_dtype dtype, int32_t ndim, const int64_t *dim,
                         mla_tensor *view);

/* Torch's current stream on the GPU of `like`; NULL on the CPU. Returns 0, or anything else, without a Python error. */
int py_torch_stream(const mla_tensor *like, void **stream);

/* Uninitialised memory on that GPU, for torch's current stream there; -1: on the CPU. `lent` goes to
 * py_torch_take_back(). NULL, without an error, where torch cannot be asked from C, or has no memory. */
void *py_torch_lend(int64_t gpu, size_t bytes, void **lent);
void py_torch_take_back(void *lent);

/* ---- GPUs: py_launch.c ------------------------------------------------------------------------------------------- */

/* The options of a call, with where a GPU's stream and workspace come from. Lives as long as the call. */
typedef struct py_launch {
    mla_plan_options options;
    mla_allocator allocator;
    py_borrow *borrow;
    int64_t gpu;    /* where torch is asked for workspace; -1: on the CPU, as tests do */
    void *lent;     /* what it gave, asked from C */
    PyObject *held; /* a list of what it gave, asked through Python */
} py_launch;

/* stream: an address as int, or None. gpu: the number of the GPU where torch gives workspace, for its current stream,
 * which `stream` must be then; None: the library allocates. Returns 0, or -1 with an error set. */
int py_launch_read(py_launch *launch, py_borrow *borrow, PyObject *stream, PyObject *gpu);

/* The same in C, for a call whose tensors are torch's, on its current stream where `where` is; py_torch_makes_tensors()
 * must have said yes. */
int py_launch_on_torch(py_launch *launch, py_borrow *borrow, const mla_tensor *where);

/* The GIL may be let go during a call with these options: no Python function is called from it. */
static inline bool py_launch_is_free(const py_launch *launch)
{
    return launch->options.allocator == NULL;
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
    py_describe_doc[], py_find_torch_doc[], py_hif8_find_descale_doc[], py_hif8_quantize_doc[],
    py_hif8_dequantize_doc[], py_nd_to_nz_doc[], py_nz_to_nd_doc[], py_merge_states_doc[],
    py_quant_sparse_flash_mla_doc[], py_quant_sparse_flash_mla_metadata_doc[], py_atb_decode_doc[];
PyObject *py_atb_decode(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_attention(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_describe(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *py_find_torch(PyObject *self, PyObject *gpu);
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
