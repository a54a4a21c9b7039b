/*
 * libcuda.cpp - a libcuda.so.1 that runs the generic kernels on the CPU. With it on LD_LIBRARY_PATH the whole CUDA
 * backend, from looking for the driver to replaying graphs, is tested on machines without a GPU. It says nothing about
 * speed, memory order or PTX.
 *
 * Device memory is inaccessible but while the emulated GPU works or copies: a host that follows a device address faults.
 * It ends at a guard page, and starts as NaN. Work waits in its stream until somebody waits for it, as late as a real
 * driver may do it: whoever reads results too early, or lets go of pinned memory, gets wrong numbers. A stream that is
 * captured records.
 *
 *   EMULATED_GPUS           how many (1); 0: a driver without one
 *   EMULATED_CAPABILITY     80; images are searched for code that such a GPU runs
 *   EMULATED_DRIVER         the CUDA version that the driver speaks (99000); an older one refuses kernels
 *   EMULATED_SHARED_BYTES   shared memory of a thread block (227 KiB)
 */
#include "cuda_runtime_shim.h"

#include "../../src/cuda/kernels/ascend.cu"
#include "../../src/cuda/kernels/generic.cu"
#include "../../src/cuda/kernels/metadata.cu"
#include "../../src/cuda/kernels/rounded.cu"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "emulator.h"

typedef int result;
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500
};

typedef std::function<void()> work;
struct stream {
    std::vector<work> *recording;
    std::deque<work> waiting;
    int device;
};
struct graph {
    std::vector<work> node;
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
    {"mla_ascend_lengths", sizeof(mla_cuda_lengths), 0, [](void *a) { mla_ascend_lengths(*(mla_cuda_lengths *)a); }},
    {"mla_ascend_clear", sizeof(mla_cuda_unowned), 0, [](void *a) { mla_ascend_clear(*(mla_cuda_unowned *)a); }},
    {"mla_ascend_metadata", sizeof(mla_cuda_ascend_metadata), 0,
     [](void *a) { mla_ascend_metadata(*(mla_cuda_ascend_metadata *)a); }},
    {"mla_ascend_numbers", sizeof(mla_cuda_numbers), 0, [](void *a) { mla_ascend_numbers(*(mla_cuda_numbers *)a); }},
    {"mla_atb_tail", sizeof(mla_cuda_atb_tail), 0, [](void *a) { mla_atb_tail(*(mla_cuda_atb_tail *)a); }},
    {"mla_atb_mask", sizeof(mla_cuda_atb_mask), 0, [](void *a) { mla_atb_mask(*(mla_cuda_atb_mask *)a); }},
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

static int knob(const char *name, int usual)
{
    const char *value = getenv(name);
    return value ? atoi(value) : usual;
}

/* ---- state: one lock around every call --------------------------------------------------------------------------- */

static std::recursive_mutex lock;
#define LOCKED std::lock_guard<std::recursive_mutex> guard(lock)

enum { MAX_GPU = 4 };
static stream null_stream[MAX_GPU]; /* also the GPUs' contexts, which need nothing but an address */
static std::set<stream *> streams;

static thread_local void *current; /* context */

static int current_device()
{
    return (int)((stream *)current - null_stream);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

struct allocation {
    char *map;
    size_t map_bytes;
    char *body;
    size_t body_bytes, bytes;
};
static std::map<uintptr_t, allocation> allocations, pinned; /* by address; pinned: host memory */
static const size_t PAGE = 4096, POISONED_BYTES = (size_t)64 << 20;

static void protect(int protection)
{
    for (auto &each : allocations) {
        mprotect(each.second.body, each.second.body_bytes, protection);
    }
}

/* Device memory is open while one of these lives. */
struct opened {
    opened()
    {
        protect(PROT_READ | PROT_WRITE);
    }
    ~opened()
    {
        protect(PROT_NONE);
    }
};

static bool inside(const std::map<uintptr_t, allocation> &memory, uintptr_t address)
{
    auto next = memory.upper_bound(address);
    if (next == memory.begin()) {
        return false;
    }
    auto at = std::prev(next);
    return address < at->first + at->second.bytes;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static void drain(stream *s)
{
    if (s->waiting.empty()) {
        return;
    }
    opened memory;
    while (!s->waiting.empty()) {
        work next = s->waiting.front();
        s->waiting.pop_front();
        next();
    }
}

static void drain_all()
{
    for (stream &s : null_stream) {
        drain(&s);
    }
    for (stream *s : streams) {
        drain(s);
    }
}

static stream *find(stream *s)
{
    return s ? s : &null_stream[current_device()];
}

static result queue(stream *s, work next)
{
    if (!current) {
        return INVALID_CONTEXT;
    }
    s = find(s);
    if (s->device != current_device()) {
        return INVALID_HANDLE;
    }
    if (s->recording) {
        s->recording->push_back(next);
    } else {
        s->waiting.push_back(next);
    }
    return OK;
}

/* A copy, with what real drivers promise: host memory that is not pinned is read, or written, before the call ends. */
static result queue_copy(void *to, const void *from, size_t bytes, stream *s)
{
    const bool host_from = !inside(allocations, (uintptr_t)from), host_to = !inside(allocations, (uintptr_t)to);
    const bool pageable =
        (host_from && !inside(pinned, (uintptr_t)from)) || (host_to && !inside(pinned, (uintptr_t)to));
    if (!current) {
        return INVALID_CONTEXT;
    }
    if (host_from && pageable && !host_to && !find(s)->recording) {
        std::vector<char> staged((const char *)from, (const char *)from + bytes);
        return queue(s, [=] { memcpy(to, staged.data(), bytes); });
    }
    result r = queue(s, [=] { memmove(to, from, bytes); });
    if (r == OK && pageable && !find(s)->recording) {
        drain(find(s));
    }
    return r;
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

/* Has a fat binary machine code for a GPU of this capability, or PTX that a driver can translate for it? */
static bool runs_on(const void *image, int capability)
{
    struct {
        uint32_t magic;
        uint16_t version, header_bytes;
        uint64_t bytes;
    } file;
    struct {
        uint16_t kind, version;
        uint32_t header_bytes;
        uint64_t bytes;
        uint32_t compressed_bytes, options;
        uint16_t minor, major;
        uint32_t architecture;
    } entry;
    memcpy(&file, image, sizeof file);
    if (file.magic != 0xba55ed50u) {
        return false;
    }
    const char *at = (const char *)image + file.header_bytes, *end = at + file.bytes;
    for (; at < end; at += entry.header_bytes + entry.bytes) {
        memcpy(&entry, at, sizeof entry);
        const bool ptx = entry.kind == 1;
        if (ptx ? (int)entry.architecture <= capability : (int)entry.architecture == capability) {
            return true;
        }
    }
    return false;
}

extern "C" {
result cuInit(unsigned)
{
    for (int i = 0; i < MAX_GPU; i++) {
        null_stream[i].device = i;
    }
    return knob("EMULATED_GPUS", 1) > 0 ? OK : NO_DEVICE;
}
result cuDriverGetVersion(int *version)
{
    *version = knob("EMULATED_DRIVER", 99000);
    return OK;
}
result cuDeviceGetCount(int *count)
{
    *count = knob("EMULATED_GPUS", 1);
    return OK;
}
result cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < knob("EMULATED_GPUS", 1) && ordinal < MAX_GPU ? OK : INVALID_DEVICE;
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
    const int capability = knob("EMULATED_CAPABILITY", 80);
    *value = attribute == 16   ? 4
             : attribute == 75 ? capability / 10
             : attribute == 76 ? capability % 10
             : attribute == 97 ? knob("EMULATED_SHARED_BYTES", 227 * 1024)
                               : attribute == 115;
    return OK;
}
result cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &null_stream[device];
    return OK;
}
result cuCtxGetCurrent(void **context)
{
    *context = current;
    return OK;
}
static thread_local std::vector<void *> below; /* the current context */
result cuCtxPushCurrent_v2(void *context)
{
    below.push_back(current);
    current = context;
    return OK;
}
result cuCtxPopCurrent_v2(void **context)
{
    *context = current;
    current = below.empty() ? nullptr : below.back();
    if (!below.empty()) {
        below.pop_back();
    }
    return OK;
}
result cuModuleLoadData(void **module, const void *image)
{
    *module = const_cast<void *>(image);
    if (knob("EMULATED_DRIVER", 99000) < 13000) {
        return UNSUPPORTED_PTX_VERSION;
    }
    return runs_on(image, knob("EMULATED_CAPABILITY", 80)) ? OK : NO_BINARY_FOR_GPU;
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
    LOCKED;
    return queue(s, [=]() mutable { emulator_launch(k->body, &a, grid_x, (int)block_x, shared_bytes); });
}
result cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    LOCKED;
    if (!current) {
        return INVALID_CONTEXT;
    }
    if (bytes == 0) {
        return INVALID_VALUE;
    }
    const size_t body = (bytes + PAGE - 1) / PAGE * PAGE, all = body + 2 * PAGE;
    if (bytes > (size_t)1 << 40) {
        return OUT_OF_MEMORY;
    }
    char *map = (char *)mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        return OUT_OF_MEMORY;
    }
    *address = (uint64_t)(map + PAGE + body - (bytes + 15) / 16 * 16);
    allocations[*address] = {map, all, map + PAGE, body, bytes};
    if (bytes <= POISONED_BYTES) { /* NaN: whoever reads before writing shows */
        mprotect(map + PAGE, body, PROT_READ | PROT_WRITE);
        memset(map + PAGE, 0xff, body);
        mprotect(map + PAGE, body, PROT_NONE);
    }
    return OK;
}
static result release(uint64_t address)
{
    auto found = allocations.find(address);
    if (found == allocations.end()) {
        return INVALID_VALUE;
    }
    munmap(found->second.map, found->second.map_bytes);
    allocations.erase(found);
    return OK;
}
result cuMemFree_v2(uint64_t address)
{
    LOCKED;
    drain_all();
    return current ? release(address) : INVALID_CONTEXT;
}
result cuMemAllocAsync(uint64_t *address, size_t bytes, stream *)
{
    return cuMemAlloc_v2(address, bytes);
}
result cuMemFreeAsync(uint64_t address, stream *s)
{
    LOCKED;
    return queue(s, [=] { release(address); });
}
result cuMemHostAlloc(void **memory, size_t bytes, unsigned)
{
    LOCKED;
    *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!*memory) {
        return OUT_OF_MEMORY;
    }
    memset(*memory, 0xff, bytes);
    pinned[(uintptr_t)*memory] = {nullptr, 0, nullptr, 0, bytes};
    return OK;
}
result cuMemFreeHost(void *memory)
{
    LOCKED;
    drain_all();
    if (!pinned.erase((uintptr_t)memory)) {
        return INVALID_VALUE;
    }
    free(memory);
    return OK;
}
result cuPointerGetAttributes(unsigned n, int *attribute, void **value, uint64_t address)
{
    LOCKED;
    if (n != 1 || attribute[0] != 2) {
        return INVALID_VALUE;
    }
    *(unsigned *)value[0] = inside(allocations, address) ? 2 : inside(pinned, address) ? 1 : 0;
    return OK;
}
result cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, stream *s)
{
    LOCKED;
    return queue_copy((void *)to, (const void *)from, bytes, s);
}
result cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, stream *s)
{
    LOCKED;
    return queue_copy((void *)to, from, bytes, s);
}
result cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, stream *s)
{
    LOCKED;
    return queue_copy(to, (const void *)from, bytes, s);
}
result cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, stream *s)
{
    LOCKED;
    return queue(s, [=] { memset((void *)address, value, bytes); });
}
result cuMemsetD32Async(uint64_t address, unsigned value, size_t count, stream *s)
{
    LOCKED;
    return queue(s, [=] {
        for (size_t i = 0; i < count; i++) {
            ((unsigned *)address)[i] = value;
        }
    });
}
result cuStreamCreate(stream **s, unsigned)
{
    LOCKED;
    if (!current) {
        return INVALID_CONTEXT;
    }
    *s = new stream();
    (*s)->device = current_device();
    streams.insert(*s);
    return OK;
}
result cuStreamDestroy_v2(stream *s)
{
    LOCKED;
    drain(s);
    streams.erase(s);
    delete s;
    return OK;
}
result cuStreamSynchronize(stream *s)
{
    LOCKED;
    if (!current) {
        return INVALID_CONTEXT;
    }
    drain(find(s));
    return OK;
}
result cuCtxSynchronize()
{
    LOCKED;
    drain_all();
    return OK;
}
result cuStreamBeginCapture_v2(stream *s, int)
{
    LOCKED;
    s->recording = new std::vector<work>();
    return OK;
}
result cuStreamEndCapture(stream *s, graph **g)
{
    LOCKED;
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
result cuGraphLaunch(graph *exec, stream *s)
{
    LOCKED;
    for (auto &node : exec->node) { /* copied: a launch keeps its parameters */
        result r = queue(s, node);
        if (r != OK) {
            return r;
        }
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
    LOCKED;
    drain_all();
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
    *text = r == OUT_OF_MEMORY    ? "out of memory"
            : r == INVALID_HANDLE ? "invalid resource handle"
                                  : "an error of the emulated driver";
    return OK;
}
}
