/*
 * cuda_ascend.c - launches kernels/ascend.cu.
 */
#include "cuda_ascend.h"

#include "cuda_device.h"

/* n_block thread blocks; every kernel takes one struct. */
static mla_status launch(int32_t ordinal, const char *function, int64_t n_block, const void *parameters, void *stream)
{
    const mla_cuda_device *device;
    cuda_function kernel;
    bool pushed;
    if (n_block == 0) {
        return MLA_STATUS_OK;
    }
    if (n_block > INT32_MAX) {
        return mla_fail(MLA_STATUS_UNSUPPORTED, "more numbers are to be derived than one launch can take");
    }
    MLA_TRY(mla_cuda_device_get(ordinal, &device));
    MLA_TRY(mla_cuda_kernel_get(device, "ascend", function, 0, &kernel));
    void *arguments[] = {(void *)(uintptr_t)parameters};
    MLA_TRY(mla_cuda_enter(device, &pushed));
    mla_status status =
        mla_cuda_check(device->driver,
                       device->driver->cuLaunchKernel(kernel, (unsigned)n_block, 1, 1, MLA_ASCEND_THREADS, 1, 1, 0,
                                                      (cuda_stream)stream, arguments, NULL),
                       "launching a kernel of the Ascend doors");
    mla_cuda_leave(device, pushed);
    return status;
}

mla_status mla_cuda_ascend_lengths(int32_t ordinal, const mla_cuda_lengths *parameters, void *stream)
{
    return launch(ordinal, "mla_ascend_lengths", parameters->n_seq, parameters, stream);
}

mla_status mla_cuda_ascend_clear(int32_t ordinal, const mla_cuda_unowned *parameters, void *stream)
{
    return launch(ordinal, "mla_ascend_clear", parameters->n_token, parameters, stream);
}

mla_status mla_cuda_ascend_metadata_words(int32_t ordinal, const mla_cuda_ascend_metadata *parameters, void *stream)
{
    return launch(ordinal, "mla_ascend_metadata", 1, parameters, stream);
}

mla_status mla_cuda_ascend_send(int32_t ordinal, int32_t *to, const int32_t *value, int64_t n, void *stream)
{
    mla_cuda_numbers numbers = {0};
    for (int64_t at = 0; at < n; at += numbers.n) {
        numbers.to = to + at;
        numbers.n = (int32_t)(n - at < MLA_ASCEND_NUMBERS ? n - at : MLA_ASCEND_NUMBERS);
        memcpy(numbers.value, value + at, (size_t)numbers.n * sizeof *value);
        MLA_TRY(launch(ordinal, "mla_ascend_numbers", 1, &numbers, stream));
    }
    return MLA_STATUS_OK;
}

mla_status mla_cuda_atb_tail_mask(int32_t ordinal, const mla_cuda_atb_tail *parameters, void *stream)
{
    return launch(ordinal, "mla_atb_tail", parameters->n_seq, parameters, stream);
}

mla_status mla_cuda_atb_scaled_mask(int32_t ordinal, const mla_cuda_atb_mask *parameters, void *stream)
{
    int64_t n_block = parameters->n / MLA_ASCEND_THREADS + (parameters->n % MLA_ASCEND_THREADS != 0);
    return launch(ordinal, "mla_atb_mask", n_block, parameters, stream);
}
