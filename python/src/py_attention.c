/*
 * py_attention.c - the native call: fields of an mla_problem, one by one.
 *
 * Defaults, names and enumerations live in mla/_attention.py; here every argument is present and in a fixed place.
 */
#include "py_core.h"

#include <stddef.h>
#include <string.h>

#define VALUES "float32, float16, bfloat16, uint8 (HiFloat8) or int8"
#define FLOATS "float32, float16 or bfloat16"

typedef struct slot {
    const char *name; /* the Python argument's */
    size_t offset;    /* of the mla_tensor */
    const char *dtypes;
} slot;

/* The argument's name in each segment: an argument of attention() itself, or one of its `second`. */
typedef struct segment_slot {
    const char *name[MLA_MAX_SEGMENT];
    size_t offset;
    const char *dtypes;
} segment_slot;

static const slot query_slots[] = {
    {"q", offsetof(mla_problem, q), VALUES},
    {"q_rope", offsetof(mla_problem, q_rope), VALUES},
    {"q_begin", offsetof(mla_problem, q_begin), "int32"},
    {"q_lengths", offsetof(mla_problem, q_length), "int32"},
    {"q_descale", offsetof(mla_problem, q_descale), "float32"},
    {"qk_descale", offsetof(mla_problem, qk_descale), "float32"},
    {"pv_descale", offsetof(mla_problem, pv_descale), "float32"},
    {"sink", offsetof(mla_problem, sink), "float32"},
};

static const slot output_slots[] = {
    {"out", offsetof(mla_problem, o), FLOATS},
    {"lse", offsetof(mla_problem, lse), FLOATS},
    {"max", offsetof(mla_problem, max), "float32"},
};

static const segment_slot segment_slots[] = {
    {{"k", "second.k"}, offsetof(mla_segment, k), VALUES},
    {{"k_rope", "second.k_rope"}, offsetof(mla_segment, k_rope), VALUES},
    {{"v", "second.v"}, offsetof(mla_segment, v), VALUES},
    {{"k_begin", "second.k_begin"}, offsetof(mla_segment, k_begin), "int32"},
    {{"page_table", "second.page_table"}, offsetof(mla_segment, page_table), "int32"},
    {{"lengths", "second.lengths"}, offsetof(mla_segment, length), "int32"},
    {{"key_list", "second.key_list"}, offsetof(mla_segment, list), "int32"},
    {{"key_list_lengths", "second.key_list_lengths"}, offsetof(mla_segment, list_length), "int32"},
    {{"mask", "second.mask"}, offsetof(mla_segment, mask), FLOATS},
    {{"descale", "second.descale"}, offsetof(mla_segment, descale), "float32"},
    {{"visible.residual", "second.visible.residual"}, offsetof(mla_segment, visible.residual), "int32"},
};

#define N_SLOT(slots) ((Py_ssize_t)(sizeof(slots) / sizeof((slots)[0])))

_Static_assert(sizeof query_slots / sizeof query_slots[0] + sizeof output_slots / sizeof output_slots[0] +
                       MLA_MAX_SEGMENT * sizeof segment_slots / sizeof segment_slots[0] <=
                   MLA_PY_MAX_BORROW,
               "py_borrow is too small for a call");

/* The numbers that follow the arrays of a segment. */
enum {
    SEGMENT_LAYOUT,
    SEGMENT_ADDRESS,
    SEGMENT_LIST_RULE,
    SEGMENT_VISIBLE,
    SEGMENT_LEFT,
    SEGMENT_RIGHT,
    SEGMENT_RATIO,
    N_SEGMENT_NUMBER
};

/* The arguments of _core.attention(): the arrays of query_slots, those of output_slots, then these. */
enum {
    ARG_SEGMENTS = sizeof query_slots / sizeof query_slots[0] + sizeof output_slots / sizeof output_slots[0],
    ARG_D_V,
    ARG_SOFTMAX_SCALE,
    ARG_LSE_BASE,
    ARG_LSE_EMPTY,
    ARG_LSE_WITH_SINK,
    ARG_P_ROUNDING,
    ARG_P_TILE,
    ARG_ARITHMETIC,
    ARG_BACKEND,
    ARG_N_THREAD,
    ARG_BATCH_INVARIANT,
    ARG_U16_IS_BF16,
    ARG_STREAM,
    ARG_GPU,
    N_ARG
};

const char py_attention_doc[] = "Every field of an mla_problem in a fixed order; the public form is mla.attention().";

/* Arrays know no HiFloat8, and attention no plain bytes: uint8 stands for it. */
static void bytes_are_hif8(mla_tensor *tensor)
{
    if (tensor->dtype == MLA_DTYPE_U8) {
        tensor->dtype = MLA_DTYPE_HIF8;
    }
}

static int read_segment(py_borrow *borrow, PyObject *from, int32_t g, mla_segment *segment)
{
    int64_t number[N_SEGMENT_NUMBER];
    static const char *const number_names[N_SEGMENT_NUMBER] = {"layout",       "list_address", "list_rule",
                                                               "visible.rule", "visible.left", "visible.right",
                                                               "visible.ratio"};
    if (!PyTuple_Check(from) || PyTuple_Size(from) != N_SLOT(segment_slots) + N_SEGMENT_NUMBER) {
        PyErr_SetString(PyExc_TypeError, "a segment must be a tuple of all its fields");
        return -1;
    }
    for (Py_ssize_t i = 0; i < N_SLOT(segment_slots); i++) {
        PyObject *array = PyTuple_GetItem(from, i);
        mla_tensor *tensor = (mla_tensor *)(void *)((char *)segment + segment_slots[i].offset);
        const char *name = segment_slots[i].name[g];
        py_expect(borrow, segment_slots[i].dtypes);
        int failed =
            i == 0 ? py_borrow_input(borrow, array, name, tensor) : py_borrow_optional(borrow, array, name, tensor);
        if (failed != 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < N_SEGMENT_NUMBER; i++) {
        if (py_integer(PyTuple_GetItem(from, N_SLOT(segment_slots) + i), number_names[i], &number[i]) != 0) {
            return -1;
        }
    }
    bytes_are_hif8(&segment->k);
    bytes_are_hif8(&segment->v);
    segment->layout = (mla_key_layout)number[SEGMENT_LAYOUT];
    segment->list_address = (mla_list_address)number[SEGMENT_ADDRESS];
    segment->list_rule = (mla_list_rule)number[SEGMENT_LIST_RULE];
    segment->visible.rule = (mla_visible_rule)number[SEGMENT_VISIBLE];
    segment->visible.left = number[SEGMENT_LEFT];
    segment->visible.right = number[SEGMENT_RIGHT];
    segment->visible.ratio = number[SEGMENT_RATIO];
    return 0;
}

static int read_arrays(py_borrow *borrow, PyObject *const *args, mla_problem *problem)
{
    for (Py_ssize_t i = 0; i < N_SLOT(query_slots); i++) {
        mla_tensor *tensor = (mla_tensor *)(void *)((char *)problem + query_slots[i].offset);
        py_expect(borrow, query_slots[i].dtypes);
        int failed = i == 0 ? py_borrow_input(borrow, args[i], query_slots[i].name, tensor)
                            : py_borrow_optional(borrow, args[i], query_slots[i].name, tensor);
        if (failed != 0) {
            return -1;
        }
    }
    bytes_are_hif8(&problem->q);
    args += N_SLOT(query_slots);
    for (Py_ssize_t i = 0; i < N_SLOT(output_slots); i++) {
        mla_tensor *tensor = (mla_tensor *)(void *)((char *)problem + output_slots[i].offset);
        py_expect(borrow, output_slots[i].dtypes);
        if (args[i] != Py_None && py_borrow_output(borrow, args[i], output_slots[i].name, tensor) != 0) {
            return -1;
        }
    }
    return 0;
}

/* All of them count something. */
static int check_int32(const char *name, int64_t value)
{
    if (value < 0 || value > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%s = %lld must be between 0 and %d", name, (long long)value, INT32_MAX);
        return -1;
    }
    return 0;
}

static int read_numbers(PyObject *const *args, mla_problem *problem, mla_plan_options *options)
{
    int64_t lse_base, lse_empty, p_rounding, p_tile, arithmetic, backend, n_thread;
    if (py_integer(args[ARG_D_V], "d_v", &problem->d_v) != 0 ||
        py_integer(args[ARG_LSE_BASE], "lse_base", &lse_base) != 0 ||
        py_integer(args[ARG_LSE_EMPTY], "lse_empty", &lse_empty) != 0 ||
        py_integer(args[ARG_P_ROUNDING], "p_rounding", &p_rounding) != 0 ||
        py_integer(args[ARG_P_TILE], "p_tile", &p_tile) != 0 ||
        py_integer(args[ARG_ARITHMETIC], "arithmetic", &arithmetic) != 0 ||
        py_integer(args[ARG_BACKEND], "backend", &backend) != 0 ||
        py_integer(args[ARG_N_THREAD], "n_thread", &n_thread) != 0) {
        return -1;
    }
    if (check_int32("p_tile", p_tile) != 0 || check_int32("n_thread", n_thread) != 0 ||
        py_float(args[ARG_SOFTMAX_SCALE], "softmax_scale", &problem->softmax_scale) != 0) {
        return -1;
    }
    problem->lse_base = (mla_lse_base)lse_base;
    problem->lse_empty = (mla_lse_empty)lse_empty;
    problem->lse_with_sink = PyObject_IsTrue(args[ARG_LSE_WITH_SINK]) == 1;
    problem->p_rounding = (mla_p_rounding)p_rounding;
    problem->p_tile = (int32_t)p_tile;
    problem->arithmetic = (mla_arithmetic)arithmetic;
    options->backend = (mla_backend)backend;
    options->n_thread = (int32_t)n_thread;
    options->batch_invariant = PyObject_IsTrue(args[ARG_BATCH_INVARIANT]) == 1;
    return PyErr_Occurred() ? -1 : 0;
}

static int read_segments(py_borrow *borrow, PyObject *from, mla_problem *problem)
{
    Py_ssize_t n = PyTuple_Check(from) ? PyTuple_Size(from) : 0;
    if (n < 1 || n > MLA_MAX_SEGMENT) {
        PyErr_Format(PyExc_ValueError, "there must be 1 to %d segments, not %zd", MLA_MAX_SEGMENT, n);
        return -1;
    }
    problem->n_segment = (int32_t)n;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (read_segment(borrow, PyTuple_GetItem(from, i), (int32_t)i, &problem->segment[i]) != 0) {
            return -1;
        }
    }
    return 0;
}

PyObject *py_attention(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    (void)self;
    if (py_count("attention", n, N_ARG) != 0) {
        return NULL;
    }
    py_borrow borrow;
    py_borrow_begin(&borrow, args[ARG_U16_IS_BF16] == Py_True);
    mla_problem problem;
    mla_problem_init(&problem);
    py_launch launch;
    PyObject *result = NULL;
    if (read_arrays(&borrow, args, &problem) == 0 && read_segments(&borrow, args[ARG_SEGMENTS], &problem) == 0 &&
        py_launch_read(&launch, &borrow, args[ARG_STREAM], args[ARG_GPU]) == 0 &&
        read_numbers(args, &problem, &launch.options) == 0) {
        mla_status status;
        if (py_launch_is_free(&launch)) {
            Py_BEGIN_ALLOW_THREADS
            status = mla_attention(&problem, &launch.options);
            Py_END_ALLOW_THREADS
        } else {
            status = mla_attention(&problem, &launch.options);
        }
        result = py_launch_end(&launch, status);
    }
    py_borrow_end(&borrow);
    return result;
}
