/*
 * cuda_driver.h - the CUDA driver, found at run time.
 *
 * libmla needs no CUDA to be built or loaded: the few functions of libcuda.so.1 that it calls are declared here, under
 * their own names and with types of the same size, and looked up on first use. A machine without the driver gets a
 * sentence instead.
 */
#ifndef MLA_CUDA_DRIVER_H
#define MLA_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Handles of the driver. All are opaque; device memory is an address. */
typedef int cuda_device_id;
typedef struct cuda_context *cuda_context;
typedef struct cuda_module *cuda_module;
typedef struct cuda_function *cuda_function;
typedef struct cuda_stream *cuda_stream;
typedef struct cuda_event *cuda_event;
typedef struct cuda_graph *cuda_graph;
typedef struct cuda_graph_exec *cuda_graph_exec;
typedef uint64_t cuda_address;

/* What every function returns, as far as libmla tells the values apart. */
typedef enum cuda_result {
    CUDA_RESULT_OK = 0,
    CUDA_RESULT_OUT_OF_MEMORY = 2,
    CUDA_RESULT_NO_DEVICE = 100,
    CUDA_RESULT_INVALID_DEVICE = 101,
    CUDA_RESULT_INVALID_IMAGE = 200,
    CUDA_RESULT_NO_BINARY_FOR_GPU = 209,
    CUDA_RESULT_INVALID_PTX = 218,
    CUDA_RESULT_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_RESULT_SYSTEM_DRIVER_MISMATCH = 803
} cuda_result;

/* Numbers of cuDeviceGetAttribute() and cuFuncSetAttribute(). */
enum {
    CUDA_DEVICE_MULTIPROCESSOR_COUNT = 16,
    CUDA_DEVICE_L2_CACHE_SIZE = 38,
    CUDA_DEVICE_COMPUTE_CAPABILITY_MAJOR = 75,
    CUDA_DEVICE_COMPUTE_CAPABILITY_MINOR = 76,
    CUDA_DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CUDA_DEVICE_MEMORY_POOLS_SUPPORTED = 115,
    CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES = 8,
    CUDA_FUNCTION_PREFERRED_SHARED_MEMORY_CARVEOUT = 9
};

/* A launch with attributes (clusters, programmatic dependent launch): cuLaunchKernelEx() of CUDA 12. */
typedef struct cuda_launch_attribute {
    int32_t id;
    char pad[4];
    union {
        char size[64];
        struct {
            uint32_t x, y, z;
        } cluster;                                 /* id 4 */
        int32_t programmatic_stream_serialization; /* id 6 */
    } value;
} cuda_launch_attribute;

enum { CUDA_LAUNCH_CLUSTER = 4, CUDA_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

typedef struct cuda_launch_config {
    uint32_t grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    cuda_stream stream;
    cuda_launch_attribute *attribute;
    uint32_t n_attribute;
} cuda_launch_config;

/* A TMA descriptor; 64-byte aligned wherever it lies. */
typedef struct cuda_tensor_map {
    _Alignas(64) uint64_t opaque[16];
} cuda_tensor_map;

/* The functions, under the names the driver exports them by. Those marked "newer" may be NULL. */
typedef struct mla_cuda_driver {
    cuda_result (*cuInit)(unsigned flags);
    cuda_result (*cuDriverGetVersion)(int *version);
    cuda_result (*cuDeviceGetCount)(int *count);
    cuda_result (*cuDeviceGet)(cuda_device_id *device, int ordinal);
    cuda_result (*cuDeviceGetName)(char *name, int capacity, cuda_device_id device);
    cuda_result (*cuDeviceTotalMem_v2)(size_t *bytes, cuda_device_id device);
    cuda_result (*cuDeviceGetAttribute)(int *value, int attribute, cuda_device_id device);
    cuda_result (*cuDevicePrimaryCtxRetain)(cuda_context *context, cuda_device_id device);
    cuda_result (*cuCtxGetCurrent)(cuda_context *context);
    cuda_result (*cuCtxPushCurrent_v2)(cuda_context context);
    cuda_result (*cuCtxPopCurrent_v2)(cuda_context *context);
    cuda_result (*cuModuleLoadData)(cuda_module *module, const void *image);
    cuda_result (*cuModuleGetFunction)(cuda_function *function, cuda_module module, const char *name);
    cuda_result (*cuFuncSetAttribute)(cuda_function function, int attribute, int value);
    cuda_result (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *blocks, cuda_function function, int threads,
                                                               size_t shared_bytes);
    cuda_result (*cuLaunchKernel)(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                  cuda_stream stream, void **parameters, void **extra);
    cuda_result (*cuMemAllocAsync)(cuda_address *address, size_t bytes, cuda_stream stream);
    cuda_result (*cuMemFreeAsync)(cuda_address address, cuda_stream stream);
    cuda_result (*cuMemAlloc_v2)(cuda_address *address, size_t bytes);
    cuda_result (*cuMemFree_v2)(cuda_address address);
    cuda_result (*cuMemcpyHtoDAsync_v2)(cuda_address to, const void *from, size_t bytes, cuda_stream stream);
    cuda_result (*cuMemcpyDtoHAsync_v2)(void *to, cuda_address from, size_t bytes, cuda_stream stream);
    cuda_result (*cuMemcpyAsync)(cuda_address to, cuda_address from, size_t bytes, cuda_stream stream); /* any to any */
    cuda_result (*cuMemHostAlloc)(void **memory, size_t bytes, unsigned flags);
    cuda_result (*cuMemFreeHost)(void *memory);
    cuda_result (*cuPointerGetAttributes)(unsigned n, int *attribute, void **value, cuda_address address);
    cuda_result (*cuMemsetD8Async)(cuda_address address, unsigned char value, size_t bytes, cuda_stream stream);
    cuda_result (*cuMemsetD32Async)(cuda_address address, unsigned value, size_t count, cuda_stream stream);
    cuda_result (*cuStreamCreate)(cuda_stream *stream, unsigned flags);
    cuda_result (*cuStreamDestroy_v2)(cuda_stream stream);
    cuda_result (*cuStreamSynchronize)(cuda_stream stream);
    cuda_result (*cuCtxSynchronize)(void);
    cuda_result (*cuStreamBeginCapture_v2)(cuda_stream stream, int mode);
    cuda_result (*cuStreamEndCapture)(cuda_stream stream, cuda_graph *graph);
    cuda_result (*cuGraphInstantiateWithFlags)(cuda_graph_exec *exec, cuda_graph graph, unsigned long long flags);
    cuda_result (*cuGraphLaunch)(cuda_graph_exec exec, cuda_stream stream);
    cuda_result (*cuGraphExecDestroy)(cuda_graph_exec exec);
    cuda_result (*cuGraphDestroy)(cuda_graph graph);
    cuda_result (*cuEventCreate)(cuda_event *event, unsigned flags);
    cuda_result (*cuEventRecord)(cuda_event event, cuda_stream stream);
    cuda_result (*cuEventSynchronize)(cuda_event event);
    cuda_result (*cuEventElapsedTime)(float *milliseconds, cuda_event start, cuda_event end);
    cuda_result (*cuEventDestroy_v2)(cuda_event event);
    cuda_result (*cuGetErrorString)(cuda_result result, const char **text);
    /* newer */
    cuda_result (*cuLaunchKernelEx)(const cuda_launch_config *config, cuda_function function, void **parameters,
                                    void **extra);
    cuda_result (*cuTensorMapEncodeTiled)(cuda_tensor_map *map, int dtype, uint32_t rank, void *address,
                                          const uint64_t *dim, const uint64_t *stride_bytes, const uint32_t *box,
                                          const uint32_t *element_stride, int interleave, int swizzle, int promotion,
                                          int fill);
    int version; /* of the driver: 13000 is CUDA 13.0 */
} mla_cuda_driver;

/* The driver, initialised; loaded by the first call. UNSUPPORTED with a sentence when there is none that works. */
mla_status mla_cuda_driver_get(const mla_cuda_driver **driver);

/* OK for CUDA_RESULT_OK; else the status that fits, with "`doing` failed: " and the driver's words. */
mla_status mla_cuda_check(const mla_cuda_driver *driver, cuda_result result, const char *doing);

#endif
