/*
 * cuda_device.c - contexts and loaded kernels, one set per GPU and process.
 */
#define _POSIX_C_SOURCE 200809L
#include "cuda_device.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "cuda_images.h"

#define MAX_DEVICE 64
#define MAX_MODULE 32
#define MAX_KERNEL 128

typedef struct loaded_module {
    const mla_cuda_image *image;
    cuda_module module;
} loaded_module;

typedef struct loaded_kernel {
    const char *image, *function;
    cuda_function kernel;
    int32_t shared_bytes;
    bool fills_shared;
} loaded_kernel;

typedef struct device_slot {
    bool ready;
    mla_cuda_device device;
    loaded_module module[MAX_MODULE];
    loaded_kernel kernel[MAX_KERNEL];
    int n_module, n_kernel;
} device_slot;

/* Guards all slots. Held while a module is loaded; a ready device never changes, so it is then read without. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static device_slot slots[MAX_DEVICE];

mla_status mla_cuda_device_count(int32_t *count)
{
    const mla_cuda_driver *driver;
    int n = 0;
    *count = 0;
    MLA_TRY(mla_cuda_driver_get(&driver));
    MLA_TRY(mla_cuda_check(driver, driver->cuDeviceGetCount(&n), "counting GPUs"));
    if (n == 0) {
        return mla_fail(MLA_STATUS_UNSUPPORTED, "CUDA needs an NVIDIA GPU, and the driver offers none");
    }
    *count = n;
    return MLA_STATUS_OK;
}

static int32_t attribute(const mla_cuda_device *device, int which)
{
    int value = 0;
    device->driver->cuDeviceGetAttribute(&value, which, device->id);
    return value;
}

mla_status mla_cuda_device_describe(int32_t ordinal, mla_cuda_device *d)
{
    int32_t count;
    memset(d, 0, sizeof *d);
    MLA_TRY(mla_cuda_device_count(&count));
    if (ordinal < 0 || ordinal >= count) {
        return mla_fail(MLA_STATUS_BAD_DEVICE, "there is no GPU %" PRId32 ": the driver offers %" PRId32, ordinal,
                        count);
    }
    MLA_TRY(mla_cuda_driver_get(&d->driver));
    d->ordinal = ordinal;
    MLA_TRY(mla_cuda_check(d->driver, d->driver->cuDeviceGet(&d->id, ordinal), "finding the GPU"));
    d->driver->cuDeviceGetName(d->name, sizeof d->name, d->id);
    d->driver->cuDeviceTotalMem_v2(&d->memory_bytes, d->id);
    d->compute_capability =
        10 * attribute(d, CUDA_DEVICE_COMPUTE_CAPABILITY_MAJOR) + attribute(d, CUDA_DEVICE_COMPUTE_CAPABILITY_MINOR);
    d->n_sm = attribute(d, CUDA_DEVICE_MULTIPROCESSOR_COUNT);
    d->l2_bytes = attribute(d, CUDA_DEVICE_L2_CACHE_SIZE);
    d->max_shared_bytes = attribute(d, CUDA_DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    d->memory_pools = attribute(d, CUDA_DEVICE_MEMORY_POOLS_SUPPORTED) != 0;
    return MLA_STATUS_OK;
}

static mla_status make_device(int32_t ordinal, device_slot *slot)
{
    mla_cuda_device *d = &slot->device;
    MLA_TRY(mla_cuda_device_describe(ordinal, d));
    MLA_TRY(mla_cuda_check(d->driver, d->driver->cuDevicePrimaryCtxRetain(&d->context, d->id),
                           "opening the GPU's primary context"));
    __atomic_store_n(&slot->ready, true, __ATOMIC_RELEASE);
    return MLA_STATUS_OK;
}

mla_status mla_cuda_device_get(int32_t ordinal, const mla_cuda_device **device)
{
    if (mla_cuda_images[0].name == NULL) {
        return mla_fail(MLA_STATUS_UNSUPPORTED, "this build of libmla has no CUDA kernels: %s",
                        mla_cuda_images_missing);
    }
    if (ordinal < 0 || ordinal >= MAX_DEVICE) {
        return mla_fail(MLA_STATUS_BAD_DEVICE, "GPU %" PRId32 " is not between 0 and %d", ordinal, MAX_DEVICE - 1);
    }
    device_slot *slot = &slots[ordinal];
    mla_status status = MLA_STATUS_OK;
    if (!__atomic_load_n(&slot->ready, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&lock);
        status = slot->ready ? MLA_STATUS_OK : make_device(ordinal, slot);
        pthread_mutex_unlock(&lock);
    }
    *device = &slot->device;
    return status;
}

mla_status mla_cuda_enter(const mla_cuda_device *device, bool *pushed)
{
    cuda_context current = NULL;
    *pushed = false;
    device->driver->cuCtxGetCurrent(&current);
    if (current == device->context) {
        return MLA_STATUS_OK;
    }
    MLA_TRY(mla_cuda_check(device->driver, device->driver->cuCtxPushCurrent_v2(device->context),
                           "making the GPU's context current"));
    *pushed = true;
    return MLA_STATUS_OK;
}

void mla_cuda_leave(const mla_cuda_device *device, bool pushed)
{
    cuda_context popped;
    if (pushed) {
        device->driver->cuCtxPopCurrent_v2(&popped);
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static mla_status explain_load(const mla_cuda_device *d, const char *image, cuda_result result)
{
    int built = mla_cuda_toolkit_version, have = d->driver->version;
    if (have < built && result != CUDA_RESULT_OUT_OF_MEMORY) {
        return mla_fail(MLA_STATUS_UNSUPPORTED,
                        "the NVIDIA driver is too old: it speaks CUDA %d.%d, and the kernels are built with CUDA %d.%d",
                        have / 1000, have % 1000 / 10, built / 1000, built % 1000 / 10);
    }
    switch (result) {
    case CUDA_RESULT_INVALID_IMAGE:
    case CUDA_RESULT_NO_BINARY_FOR_GPU:
    case CUDA_RESULT_INVALID_PTX:
    case CUDA_RESULT_UNSUPPORTED_PTX_VERSION:
        return mla_fail(MLA_STATUS_UNSUPPORTED,
                        "GPU %" PRId32 " (%s, compute capability %d.%d) cannot run the kernels '%s' of this build",
                        d->ordinal, d->name, d->compute_capability / 10, d->compute_capability % 10, image);
    default: return mla_cuda_check(d->driver, result, "loading CUDA kernels");
    }
}

static mla_status find_module(device_slot *slot, const char *image, cuda_module *module)
{
    for (int i = 0; i < slot->n_module; i++) {
        if (strcmp(slot->module[i].image->name, image) == 0) {
            *module = slot->module[i].module;
            return MLA_STATUS_OK;
        }
    }
    const mla_cuda_image *found = mla_cuda_images;
    while (found->name != NULL && strcmp(found->name, image) != 0) {
        found++;
    }
    if (found->name == NULL || slot->n_module == MAX_MODULE) {
        return mla_fail(MLA_STATUS_INTERNAL, "there is no room for, or no image of, the CUDA kernels '%s'", image);
    }
    cuda_result result = slot->device.driver->cuModuleLoadData(module, found->data);
    if (result != CUDA_RESULT_OK) {
        return explain_load(&slot->device, image, result);
    }
    slot->module[slot->n_module++] = (loaded_module){found, *module};
    return MLA_STATUS_OK;
}

static loaded_kernel *find_kernel(device_slot *slot, const char *image, const char *function)
{
    for (int i = 0; i < slot->n_kernel; i++) {
        loaded_kernel *k = &slot->kernel[i];
        if (k->function == function || (strcmp(k->function, function) == 0 && strcmp(k->image, image) == 0)) {
            return k;
        }
    }
    return NULL;
}

static mla_status load_kernel(device_slot *slot, const char *image, const char *function, loaded_kernel **loaded)
{
    const mla_cuda_driver *driver = slot->device.driver;
    cuda_module module;
    cuda_function kernel;
    *loaded = find_kernel(slot, image, function);
    if (*loaded != NULL) {
        return MLA_STATUS_OK;
    }
    if (slot->n_kernel == MAX_KERNEL) {
        return mla_fail(MLA_STATUS_INTERNAL, "there is no room for the CUDA kernel %s", function);
    }
    MLA_TRY(find_module(slot, image, &module));
    MLA_TRY(mla_cuda_check(driver, driver->cuModuleGetFunction(&kernel, module, function), "finding a CUDA kernel"));
    *loaded = &slot->kernel[slot->n_kernel++];
    **loaded = (loaded_kernel){.image = image, .function = function, .kernel = kernel};
    return MLA_STATUS_OK;
}

mla_status mla_cuda_kernel_get(const mla_cuda_device *device, const char *image, const char *function,
                               int32_t shared_bytes, cuda_function *kernel)
{
    device_slot *slot = &slots[device->ordinal];
    loaded_kernel *loaded;
    bool pushed;
    MLA_TRY(mla_cuda_enter(device, &pushed));
    pthread_mutex_lock(&lock);
    mla_status status = load_kernel(slot, image, function, &loaded);
    if (status == MLA_STATUS_OK && loaded->shared_bytes < shared_bytes) {
        status =
            mla_cuda_check(device->driver,
                           device->driver->cuFuncSetAttribute(loaded->kernel, CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES,
                                                              shared_bytes),
                           "reserving shared memory");
        loaded->shared_bytes = status == MLA_STATUS_OK ? shared_bytes : loaded->shared_bytes;
    }
    if (status == MLA_STATUS_OK) {
        *kernel = loaded->kernel;
    }
    pthread_mutex_unlock(&lock);
    mla_cuda_leave(device, pushed);
    return status;
}

mla_status mla_cuda_kernel_fill_shared(const mla_cuda_device *device, cuda_function kernel)
{
    device_slot *slot = &slots[device->ordinal];
    mla_status status = MLA_STATUS_OK;
    bool pushed;
    MLA_TRY(mla_cuda_enter(device, &pushed));
    pthread_mutex_lock(&lock);
    for (int i = 0; i < slot->n_kernel; i++) {
        loaded_kernel *k = &slot->kernel[i];
        if (k->kernel == kernel && !k->fills_shared) {
            status =
                mla_cuda_check(device->driver,
                               device->driver->cuFuncSetAttribute(kernel,
                                                                  CUDA_FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),
                               "asking for shared memory");
            k->fills_shared = status == MLA_STATUS_OK;
        }
    }
    pthread_mutex_unlock(&lock);
    mla_cuda_leave(device, pushed);
    return status;
}
