/*
 * libcuda.cpp - a libcuda.so.1 that has one GPU and runs the generic kernels on the CPU. With it on LD_LIBRARY_PATH the
 * whole CUDA backend, from looking for the driver to replaying graphs, is tested on machines without a GPU. It says
 * nothing about speed, memory order or PTX.
 *
 * Device memory is host memory that ends at an inaccessible page. Streams run at once; a stream that is captured
 * records launches.
 */
#include "../../src/cuda/kernels/generic.cu"
#include "../../src/cuda/kernels/metadata.cu"
#include "../../src/cuda/kernels/rounded.cu"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <vector>

#include "emulator.h"

typedef int result;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_FOUND = 500 };

struct stream {
    std::vector<std::function<void()>> *recording;
};
struct graph {
    std::vector<std::function<void()>> node;
};
struct kernel {
    const char *name;
    size_t parameter_bytes, second_bytes;
    void (*body)(void *);
};
struct arguments {
    alignas(16) char first[4096];
    int32_t second;
};

static const kernel kernels[] = {
    {"mla_generic_4", sizeof(mla_cuda_problem), 0, [](void *a) { mla_generic_4(*(mla_cuda_problem *)a); }},
    {"mla_generic_16", sizeof(mla_cuda_problem), 0, [](void *a) { mla_generic_16(*(mla_cuda_problem *)a); }},
    {"mla_generic_64", sizeof(mla_cuda_problem), 0, [](void *a) { mla_generic_64(*(mla_cuda_problem *)a); }},
    {"mla_rounded_16", sizeof(mla_cuda_problem), 0, [](void *a) { mla_rounded_16(*(mla_cuda_problem *)a); }},
    {"mla_generic_combine", sizeof(mla_cuda_problem), 4,
     [](void *a) { mla_generic_combine(*(mla_cuda_problem *)a, ((arguments *)a)->second); }},
};
/* Parameters of kernels whose parameters are not one struct. */
struct metadata_arguments {
    const int32_t *lengths;
    int64_t b, n_part;
    int32_t *part, *num_splits;
};
static void metadata(void *a)
{
    metadata_arguments *m = (metadata_arguments *)a;
    mla_flash_mla_metadata(m->lengths, m->b, m->n_part, m->part, m->num_splits);
}
static_assert(sizeof(mla_cuda_problem) <= 4096, "a kernel's parameters fit");

static std::map<uintptr_t, std::pair<void *, size_t>> allocations; /* address -> its map */
static stream null_stream;

static thread_local void *current; /* context */

static result queue(stream *s, std::function<void()> work)
{
    if (!current) {
        return INVALID_CONTEXT;
    }
    s = s ? s : &null_stream;
    if (s->recording) {
        s->recording->push_back(work);
    } else {
        work();
    }
    return OK;
}

extern "C" {
result cuInit(unsigned)
{
    return OK;
}
result cuDriverGetVersion(int *version)
{
    *version = 99000;
    return OK;
}
result cuDeviceGetCount(int *count)
{
    *count = 1;
    return OK;
}
result cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? OK : INVALID_DEVICE;
}
result cuDeviceGetName(char *name, int capacity, int)
{
    snprintf(name, (size_t)capacity, "emulated GPU");
    return OK;
}
result cuDeviceTotalMem_v2(size_t *bytes, int)
{
    *bytes = (size_t)1 << 30;
    return OK;
}
result cuDeviceGetAttribute(int *value, int attribute, int)
{
    const char *small = getenv("EMULATED_SHARED_BYTES"); /* a GPU with less, so that queries are not resident */
    *value = attribute == 16   ? 4
             : attribute == 75 ? 8
             : attribute == 97 ? (small ? atoi(small) : 227 * 1024)
                               : attribute == 115;
    return OK;
}
result cuDevicePrimaryCtxRetain(void **context, int)
{
    *context = &null_stream;
    return OK;
}
result cuCtxGetCurrent(void **context)
{
    *context = current;
    return OK;
}
result cuCtxPushCurrent_v2(void *context)
{
    current = context;
    return OK;
}
result cuCtxPopCurrent_v2(void **context)
{
    *context = current;
    current = nullptr;
    return OK;
}
result cuModuleLoadData(void **module, const void *image)
{
    *module = const_cast<void *>(image);
    return OK;
}
static const kernel metadata_kernel = {"mla_flash_mla_metadata", 8, 0, metadata};
result cuModuleGetFunction(void **function, void *, const char *name)
{
    for (const kernel &k : kernels) {
        if (strcmp(k.name, name) == 0) {
            *function = const_cast<kernel *>(&k);
            return OK;
        }
    }
    *function = const_cast<kernel *>(&metadata_kernel);
    return strcmp(name, metadata_kernel.name) == 0 ? OK : NOT_FOUND;
}
result cuFuncSetAttribute(void *, int, int value)
{
    return value <= 227 * 1024 ? OK : INVALID_VALUE;
}
result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *, int, size_t)
{
    *blocks = 1;
    return OK;
}
result cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned,
                      unsigned, unsigned shared_bytes, stream *s, void **parameters, void **)
{
    const kernel *k = (const kernel *)function;
    arguments a;
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || shared_bytes > 227 * 1024) {
        return INVALID_VALUE;
    }
    for (int i = 0; k == &metadata_kernel && i < 5; i++) {
        memcpy(a.first + 8 * i, parameters[i], 8);
    }
    if (k != &metadata_kernel) {
        memcpy(a.first, parameters[0], k->parameter_bytes);
    }
    if (k->second_bytes) {
        memcpy(&a.second, parameters[1], k->second_bytes);
    }
    return queue(s, [=]() mutable { emulator_launch(k->body, &a, grid_x, (int)block_x, shared_bytes); });
}
result cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    if (!current) {
        return INVALID_CONTEXT;
    }
    size_t page = 4096, body = (bytes + page - 1) / page * page;
    char *map = (char *)mmap(nullptr, body + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        return OUT_OF_MEMORY;
    }
    mprotect(map + page, body, PROT_READ | PROT_WRITE);
    *address = (uint64_t)(map + page + body - (bytes + 15) / 16 * 16);
    allocations[*address] = {map, body + 2 * page};
    return OK;
}
result cuMemFree_v2(uint64_t address)
{
    auto found = allocations.find(address);
    if (found == allocations.end()) {
        return INVALID_VALUE;
    }
    munmap(found->second.first, found->second.second);
    allocations.erase(found);
    return OK;
}
result cuMemAllocAsync(uint64_t *address, size_t bytes, stream *)
{
    return cuMemAlloc_v2(address, bytes);
}
result cuMemFreeAsync(uint64_t address, stream *)
{
    return cuMemFree_v2(address);
}
result cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, stream *s)
{
    return queue(s, [=] { memcpy((void *)to, from, bytes); });
}
result cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, stream *s)
{
    return queue(s, [=] { memcpy(to, (void *)from, bytes); });
}
result cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, stream *s)
{
    return queue(s, [=] { memset((void *)address, value, bytes); });
}
result cuMemsetD32Async(uint64_t address, unsigned value, size_t count, stream *s)
{
    return queue(s, [=] {
        for (size_t i = 0; i < count; i++) {
            ((unsigned *)address)[i] = value;
        }
    });
}
result cuStreamCreate(stream **s, unsigned)
{
    *s = new stream();
    return OK;
}
result cuStreamDestroy_v2(stream *s)
{
    delete s;
    return OK;
}
result cuStreamSynchronize(stream *)
{
    return OK;
}
result cuStreamBeginCapture_v2(stream *s, int)
{
    s->recording = new std::vector<std::function<void()>>();
    return OK;
}
result cuStreamEndCapture(stream *s, graph **g)
{
    *g = new graph{*s->recording};
    delete s->recording;
    s->recording = nullptr;
    return OK;
}
result cuGraphInstantiateWithFlags(graph **exec, graph *g, unsigned long long)
{
    *exec = new graph(*g);
    return OK;
}
result cuGraphLaunch(graph *exec, stream *)
{
    for (auto &node : exec->node) {
        auto again = node; /* a launch keeps its parameters */
        again();
    }
    return OK;
}
result cuGraphExecDestroy(graph *g)
{
    delete g;
    return OK;
}
result cuGraphDestroy(graph *g)
{
    delete g;
    return OK;
}
result cuEventCreate(void **event, unsigned)
{
    *event = nullptr;
    return OK;
}
result cuEventRecord(void *, stream *)
{
    return OK;
}
result cuEventSynchronize(void *)
{
    return OK;
}
result cuEventElapsedTime(float *milliseconds, void *, void *)
{
    *milliseconds = 1; /* no clock: times of an emulation mean nothing */
    return OK;
}
result cuEventDestroy_v2(void *)
{
    return OK;
}
result cuGetErrorString(result r, const char **text)
{
    *text = r == OUT_OF_MEMORY ? "out of memory" : "an error of the emulated driver";
    return OK;
}
}
