/*
 * cuda_metadata.c - launches kernels/metadata.cu.
 */
#include "cuda_metadata.h"

#include "cuda_device.h"

#define THREADS 256

mla_status mla_cuda_flash_mla_metadata(int32_t ordinal, const int32_t *lengths, int64_t b, int64_t n_part,
                                       int32_t *parts, int32_t *num_splits, void *stream)
{
    const mla_cuda_device *device;
    cuda_function kernel;
    bool pushed;
    MLA_TRY(mla_cuda_device_get(ordinal, &device));
    MLA_TRY(mla_cuda_kernel_get(device, "metadata", "mla_flash_mla_metadata", 0, &kernel));
    void *parameters[] = {&lengths, &b, &n_part, &parts, &num_splits};
    MLA_TRY(mla_cuda_enter(device, &pushed));
    mla_status status = mla_cuda_check(device->driver,
                                       device->driver->cuLaunchKernel(kernel, 1, 1, 1, THREADS, 1, 1, 0,
                                                                      (cuda_stream)stream, parameters, NULL),
                                       "launching the scheduler");
    mla_cuda_leave(device, pushed);
    return status;
}

mla_status mla_cuda_multiprocessors(int32_t ordinal, int32_t *n_sm)
{
    const mla_cuda_device *device;
    MLA_TRY(mla_cuda_device_get(ordinal, &device));
    *n_sm = device->n_sm;
    return MLA_STATUS_OK;
}
