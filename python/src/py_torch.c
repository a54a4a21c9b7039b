/*
 * py_torch.c - memory and tensors of torch without its Python, which takes three times as long.
 *
 * Torch has a C interface for the models that it compiles ahead of time (functions aoti_torch_*), and one function that
 * its C++ extensions use to hand a tensor to Python. They are looked up in a torch that is already loaded; one that
 * lacks any of them is asked through Python.
 */
#define _POSIX_C_SOURCE 200809L
#include "py_core.h"

#include <dlfcn.h>
#include <string.h>

typedef struct torch_functions {
    /* All but the last return 0 or an error, which torch has written to its log. A tensor is an at::Tensor *. */
    int32_t (*empty_strided)(int64_t ndim, const int64_t *dim, const int64_t *stride, int32_t dtype,
                             int32_t device_type, int32_t device, void **tensor);
    int32_t (*get_data_ptr)(void *tensor, void **data);
    int32_t (*delete_tensor)(void *tensor);
    int32_t (*current_stream)(int32_t device, void **stream);
    PyObject *(*wrap)(const void *tensor); /* takes a const at::TensorBase & */
    int32_t f32, f16, bf16, u8, cpu, cuda; /* torch's numbers */
} torch_functions;

static torch_functions torch;
static bool looked, lends, makes, knows_streams; /* guarded by the GIL */

/* false if there is no such function; a function's address is read out of an object pointer, as POSIX has it */
static bool find(void *library, const char *name, void *function)
{
    void *address = library != NULL ? dlsym(library, name) : NULL;
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static bool find_number(void *library, const char *name, int32_t *number)
{
    int32_t (*ask)(void);
    if (!find(library, name, &ask)) {
        return false;
    }
    *number = ask();
    return true;
}

static void look(void)
{
    if (looked) {
        return;
    }
    looked = true;
    /* Nothing is loaded here, and what is found stays: torch cannot be unloaded. */
    void *cpu = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    void *cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    void *python = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    lends = find(cpu, "aoti_torch_empty_strided", &torch.empty_strided) &&
            find(cpu, "aoti_torch_get_data_ptr", &torch.get_data_ptr) &&
            find(cpu, "aoti_torch_delete_tensor_object", &torch.delete_tensor) &&
            find_number(cpu, "aoti_torch_dtype_uint8", &torch.u8) &&
            find_number(cpu, "aoti_torch_device_type_cpu", &torch.cpu) &&
            find_number(cpu, "aoti_torch_device_type_cuda", &torch.cuda);
    /* PyObject *THPVariable_Wrap(const at::TensorBase &): its name tells its parameters */
    makes = lends && find(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE", &torch.wrap) &&
            find_number(cpu, "aoti_torch_dtype_float32", &torch.f32) &&
            find_number(cpu, "aoti_torch_dtype_float16", &torch.f16) &&
            find_number(cpu, "aoti_torch_dtype_bfloat16", &torch.bf16);
    knows_streams = find(cuda, "aoti_torch_get_current_cuda_stream", &torch.current_stream);
}

bool py_torch_makes_tensors(const mla_tensor *like)
{
    look();
    return makes && (like->device.type == MLA_DEVICE_CPU || knows_streams);
}

/* An at::Tensor * where `device` says, or NULL. Dense, the last dimension innermost. */
static void *empty(mla_device device, int32_t dtype, int32_t ndim, const int64_t *dim, const int64_t *stride)
{
    void *tensor = NULL;
    bool on_gpu = device.type == MLA_DEVICE_CUDA;
    if (torch.empty_strided(ndim, dim, stride, dtype, on_gpu ? torch.cuda : torch.cpu, on_gpu ? device.id : 0,
                            &tensor) != 0) {
        return NULL;
    }
    return tensor;
}

PyObject *py_torch_empty(const char *name, const mla_tensor *like, mla_dtype dtype, int32_t ndim, const int64_t *dim,
                         mla_tensor *view)
{
    *view = mla_tensor_make(NULL, dtype, ndim, dim);
    view->name = name;
    view->device = like->device;
    int32_t code = dtype == MLA_DTYPE_F32 ? torch.f32 : dtype == MLA_DTYPE_F16 ? torch.f16 : torch.bf16;
    void *tensor = empty(like->device, code, ndim, view->dim, view->stride);
    if (tensor == NULL) {
        return NULL;
    }
    PyObject *object = torch.get_data_ptr(tensor, &view->data) == 0 ? torch.wrap(tensor) : NULL;
    torch.delete_tensor(tensor); /* the object has a reference of its own */
    if (object == NULL) {
        PyErr_Clear(); /* Python had no memory for it, which the caller says */
    }
    return object;
}

int py_torch_stream(const mla_tensor *like, void **stream)
{
    *stream = NULL;
    return like->device.type == MLA_DEVICE_CPU ? 0 : torch.current_stream(like->device.id, stream);
}

void *py_torch_lend(int64_t gpu, size_t bytes, void **lent)
{
    const mla_device device = {gpu < 0 ? MLA_DEVICE_CPU : MLA_DEVICE_CUDA, gpu < 0 ? 0 : (int32_t)gpu};
    void *data = NULL;
    int64_t dim = (int64_t)bytes, stride = 1;
    look();
    *lent = lends ? empty(device, torch.u8, 1, &dim, &stride) : NULL;
    if (*lent != NULL && torch.get_data_ptr(*lent, &data) != 0) {
        data = NULL;
    }
    return data;
}

void py_torch_take_back(void *lent)
{
    if (lent != NULL) {
        torch.delete_tensor(lent);
    }
}

const char py_find_torch_doc[] =
    "find_torch(gpu) -> bool: is there a torch that makes tensors for C, on the CPU or, gpu, on GPUs? Then\n"
    "with_kvcache() makes its outputs. To be asked once torch is imported.";

PyObject *py_find_torch(PyObject *self, PyObject *gpu)
{
    (void)self;
    mla_tensor like = {.device.type = gpu == Py_True ? MLA_DEVICE_CUDA : MLA_DEVICE_CPU};
    return PyBool_FromLong(py_torch_makes_tensors(&like));
}
