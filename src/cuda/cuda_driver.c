/*
 * cuda_driver.c - finds libcuda.so.1 and its functions.
 */
#define _POSIX_C_SOURCE 200809L
#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static struct {
    pthread_once_t once;
    mla_cuda_driver table;
    mla_status status;
    char sentence[256];
} loaded = {.once = PTHREAD_ONCE_INIT};

static const struct {
    const char *name;
    size_t offset;
    bool newer; /* may be missing */
} functions[] = {
    {"cuInit", offsetof(mla_cuda_driver, cuInit), false},
    {"cuDriverGetVersion", offsetof(mla_cuda_driver, cuDriverGetVersion), false},
    {"cuDeviceGetCount", offsetof(mla_cuda_driver, cuDeviceGetCount), false},
    {"cuDeviceGet", offsetof(mla_cuda_driver, cuDeviceGet), false},
    {"cuDeviceGetName", offsetof(mla_cuda_driver, cuDeviceGetName), false},
    {"cuDeviceTotalMem_v2", offsetof(mla_cuda_driver, cuDeviceTotalMem_v2), false},
    {"cuDeviceGetAttribute", offsetof(mla_cuda_driver, cuDeviceGetAttribute), false},
    {"cuDevicePrimaryCtxRetain", offsetof(mla_cuda_driver, cuDevicePrimaryCtxRetain), false},
    {"cuCtxGetCurrent", offsetof(mla_cuda_driver, cuCtxGetCurrent), false},
    {"cuCtxPushCurrent_v2", offsetof(mla_cuda_driver, cuCtxPushCurrent_v2), false},
    {"cuCtxPopCurrent_v2", offsetof(mla_cuda_driver, cuCtxPopCurrent_v2), false},
    {"cuModuleLoadData", offsetof(mla_cuda_driver, cuModuleLoadData), false},
    {"cuModuleGetFunction", offsetof(mla_cuda_driver, cuModuleGetFunction), false},
    {"cuFuncSetAttribute", offsetof(mla_cuda_driver, cuFuncSetAttribute), false},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor",
     offsetof(mla_cuda_driver, cuOccupancyMaxActiveBlocksPerMultiprocessor), false},
    {"cuLaunchKernel", offsetof(mla_cuda_driver, cuLaunchKernel), false},
    {"cuMemAllocAsync", offsetof(mla_cuda_driver, cuMemAllocAsync), false},
    {"cuMemFreeAsync", offsetof(mla_cuda_driver, cuMemFreeAsync), false},
    {"cuMemAlloc_v2", offsetof(mla_cuda_driver, cuMemAlloc_v2), false},
    {"cuMemFree_v2", offsetof(mla_cuda_driver, cuMemFree_v2), false},
    {"cuMemcpyHtoDAsync_v2", offsetof(mla_cuda_driver, cuMemcpyHtoDAsync_v2), false},
    {"cuMemcpyDtoHAsync_v2", offsetof(mla_cuda_driver, cuMemcpyDtoHAsync_v2), false},
    {"cuMemcpyAsync", offsetof(mla_cuda_driver, cuMemcpyAsync), false},
    {"cuMemHostAlloc", offsetof(mla_cuda_driver, cuMemHostAlloc), false},
    {"cuMemFreeHost", offsetof(mla_cuda_driver, cuMemFreeHost), false},
    {"cuPointerGetAttributes", offsetof(mla_cuda_driver, cuPointerGetAttributes), false},
    {"cuMemsetD8Async", offsetof(mla_cuda_driver, cuMemsetD8Async), false},
    {"cuMemsetD32Async", offsetof(mla_cuda_driver, cuMemsetD32Async), false},
    {"cuStreamCreate", offsetof(mla_cuda_driver, cuStreamCreate), false},
    {"cuStreamDestroy_v2", offsetof(mla_cuda_driver, cuStreamDestroy_v2), false},
    {"cuStreamSynchronize", offsetof(mla_cuda_driver, cuStreamSynchronize), false},
    {"cuCtxSynchronize", offsetof(mla_cuda_driver, cuCtxSynchronize), false},
    {"cuStreamBeginCapture_v2", offsetof(mla_cuda_driver, cuStreamBeginCapture_v2), false},
    {"cuStreamEndCapture", offsetof(mla_cuda_driver, cuStreamEndCapture), false},
    {"cuGraphInstantiateWithFlags", offsetof(mla_cuda_driver, cuGraphInstantiateWithFlags), false},
    {"cuGraphLaunch", offsetof(mla_cuda_driver, cuGraphLaunch), false},
    {"cuGraphExecDestroy", offsetof(mla_cuda_driver, cuGraphExecDestroy), false},
    {"cuGraphDestroy", offsetof(mla_cuda_driver, cuGraphDestroy), false},
    {"cuEventCreate", offsetof(mla_cuda_driver, cuEventCreate), false},
    {"cuEventRecord", offsetof(mla_cuda_driver, cuEventRecord), false},
    {"cuEventSynchronize", offsetof(mla_cuda_driver, cuEventSynchronize), false},
    {"cuEventElapsedTime", offsetof(mla_cuda_driver, cuEventElapsedTime), false},
    {"cuEventDestroy_v2", offsetof(mla_cuda_driver, cuEventDestroy_v2), false},
    {"cuGetErrorString", offsetof(mla_cuda_driver, cuGetErrorString), false},
    {"cuLaunchKernelEx", offsetof(mla_cuda_driver, cuLaunchKernelEx), true},
    {"cuTensorMapEncodeTiled", offsetof(mla_cuda_driver, cuTensorMapEncodeTiled), true},
};

__attribute__((format(printf, 1, 2))) static void refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(loaded.sentence, sizeof loaded.sentence, format, arguments);
    va_end(arguments);
    loaded.status = MLA_STATUS_UNSUPPORTED;
}

static void load(void)
{
    /* never closed: the driver lives as long as the process */
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        refuse("CUDA needs the NVIDIA driver, and there is no libcuda.so.1 on this machine");
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *address = dlsym(library, functions[i].name);
        if (address == NULL && !functions[i].newer) {
            refuse("the NVIDIA driver of this machine is too old: it has no %s", functions[i].name);
            return;
        }
        /* as POSIX has it: an object pointer that dlsym() returns may be read as a function pointer */
        memcpy((char *)&loaded.table + functions[i].offset, &address, sizeof address);
    }
    cuda_result result = loaded.table.cuInit(0);
    if (result == CUDA_RESULT_NO_DEVICE) {
        refuse("CUDA needs an NVIDIA GPU, and the driver finds none");
        return;
    }
    if (result != CUDA_RESULT_OK) {
        const char *text = NULL;
        loaded.table.cuGetErrorString(result, &text);
        refuse("the NVIDIA driver does not start: %s (error %d)", text != NULL ? text : "unknown", (int)result);
        return;
    }
    loaded.table.cuDriverGetVersion(&loaded.table.version);
}

mla_status mla_cuda_driver_get(const mla_cuda_driver **driver)
{
    pthread_once(&loaded.once, load);
    if (loaded.status != MLA_STATUS_OK) {
        return mla_fail(loaded.status, "%s", loaded.sentence);
    }
    *driver = &loaded.table;
    return MLA_STATUS_OK;
}

mla_status mla_cuda_check(const mla_cuda_driver *driver, cuda_result result, const char *doing)
{
    if (result == CUDA_RESULT_OK) {
        return MLA_STATUS_OK;
    }
    const char *text = NULL;
    driver->cuGetErrorString(result, &text);
    return mla_fail(result == CUDA_RESULT_OUT_OF_MEMORY ? MLA_STATUS_OUT_OF_MEMORY : MLA_STATUS_INTERNAL,
                    "%s failed: %s (CUDA error %d)", doing, text != NULL ? text : "unknown", (int)result);
}
