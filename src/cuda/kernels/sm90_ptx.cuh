/*
 * sm90_ptx.cuh - the Hopper instructions that CUDA C++ has no words for: mbarrier, TMA, wgmma, setmaxnreg.
 */
#ifndef MLA_SM90_PTX_CUH
#define MLA_SM90_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

struct alignas(64) tensor_map {
    uint64_t opaque[16];
};

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* --- mbarrier --- */

__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* After the last barrier_init() of a thread, before others use the barriers. */
__device__ __forceinline__ void barrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t bar, uint32_t count = 1)
{
    asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.shared::cta.b64 t, [%0], %1;\n}" ::"r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ bool barrier_try(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}

/* Answers at once, where try_wait may sleep for a while. */
__device__ __forceinline__ bool barrier_done(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}

__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    while (!barrier_try(bar, parity)) {
    }
}

__device__ __forceinline__ void named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* The same; is it true for any of the threads? */
__device__ __forceinline__ bool named_barrier_or(int id, int threads, bool mine)
{
    uint32_t any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %3, 0;\nbar.red.or.pred q, %1, %2, p;\nselp.b32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"(id), "r"(threads), "r"((uint32_t)mine)
                 : "memory");
    return any != 0;
}

/* Ordinary stores to shared memory before it become visible to TMA and wgmma after it. */
__device__ __forceinline__ void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The same of global memory too, and for what other thread blocks have stored and this thread has learned of. */
__device__ __forceinline__ void fence_async_proxy_all()
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* --- words by which thread blocks tell each other what is in memory --- */

__device__ __forceinline__ void store_release(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.gpu.global.b64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t load_acquire(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

/* --- TMA --- */

constexpr uint64_t l2_evict_first = 0x12F0000000000000ull;
constexpr uint64_t l2_evict_normal = 0x1000000000000000ull;

__device__ __forceinline__ void tma_load(uint32_t dst, const tensor_map *map, uint32_t bar, int c0, int c1, int c2,
                                         int c3, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void tma_load(uint32_t dst, const tensor_map *map, uint32_t bar, int c0, int c1, int c2,
                                         int c3, int c4, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
                 : "memory");
}

/* `bytes` bytes side by side, a multiple of 16. */
__device__ __forceinline__ void bulk_load(uint32_t dst, const void *from, uint32_t bar, uint32_t bytes)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

/* From shared memory, in the bulk group of this thread. */
__device__ __forceinline__ void tma_store(const tensor_map *map, uint32_t from, int c0, int c1, int c2, int c3, int c4)
{
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
                 "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}
__device__ __forceinline__ void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until shared memory has been read by all of this thread's groups. */
__device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

__device__ __forceinline__ void tma_prefetch_map(const tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* --- small asynchronous copies, by one thread for itself --- */

template <int bytes> __device__ __forceinline__ void copy_async(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(bytes)
                 : "memory");
}
__device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* For all copies but those of the last n groups. */
template <int n> __device__ __forceinline__ void copy_async_wait_but()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

/* --- wgmma --- */

/* Operand in shared memory in boxes of 64 16-bit columns, 128-byte swizzle; rows are its M or N, columns its K. */
__device__ __forceinline__ uint64_t descriptor_k_major(uint32_t address)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | ((uint64_t)(1024 >> 4) << 32) | (1ull << 62);
}

/* Operand of 16 columns without a swizzle: 8 rows of 16 bytes are one block; blocks of the same rows are neighbours. */
__device__ __forceinline__ uint64_t descriptor_plain(uint32_t address)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | ((uint64_t)(128 >> 4) << 16) | ((uint64_t)(256 >> 4) << 32);
}

/* Operand of n 16-bit columns without a swizzle, its rows as K: 8 rows of 8 columns are one block of 128 bytes; blocks of
 * the same rows are neighbours, `row_bytes` lie from 8 rows to the next. */
__device__ __forceinline__ uint64_t descriptor_plain_n_major(uint32_t address, uint32_t row_bytes)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | ((uint64_t)(row_bytes >> 4) << 16) | ((uint64_t)(128 >> 4) << 32);
}

/* Swizzled boxes with rows as K and columns as N; `box_bytes` from one box of 64 columns to the next. */
__device__ __forceinline__ uint64_t descriptor_n_major(uint32_t address, uint32_t box_bytes)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | ((uint64_t)(box_bytes >> 4) << 16) | ((uint64_t)(1024 >> 4) << 32) |
           (1ull << 62);
}

/* The same operand `bytes` bytes on. Addresses end below the word's upper half, so that it is no sum of 64 bits. */
__device__ __forceinline__ uint64_t descriptor_ahead(uint64_t descriptor, uint32_t bytes)
{
    return (descriptor & 0xffffffff00000000ull) | ((uint32_t)descriptor + (bytes >> 4));
}

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int n> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}

/* Keeps the compiler from moving accumulators across an asynchronous use. */
template <int n> __device__ __forceinline__ void wgmma_pin(float (&d)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

#define MLA_ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MLA_ACC16(i) MLA_ACC4(i), MLA_ACC4(i + 4), MLA_ACC4(i + 8), MLA_ACC4(i + 12)
#define MLA_ACC32(i) MLA_ACC16(i), MLA_ACC16(i + 16)
#define MLA_D32                                                                                                       \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31}"
#define MLA_D64                                                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "  \
    "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

/* One product 256 columns wide would do for two of n128, but ptxas wants more registers for it than it has. */
template <typename T> struct wgmma;

#define MLA_WGMMA(type, name)                                                                                   \
    template <> struct wgmma<type> {                                                                            \
        /* d[64][64] (+)= A[64][16] B[64][16]^T; A in registers */                                              \
        static __device__ __forceinline__ void n64(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) \
        {                                                                                                       \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " " MLA_D32                \
                         ", {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"                                          \
                         : MLA_ACC32(0)                                                                         \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                       \
        }                                                                                                       \
        /* the same, A in shared memory */                                                                      \
        static __device__ __forceinline__ void n64(float (&d)[32], uint64_t a, uint64_t b, int add)             \
        {                                                                                                       \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " " MLA_D32                \
                         ", %32, %33, p, 1, 1, 0, 0;\n}"                                                        \
                         : MLA_ACC32(0)                                                                         \
                         : "l"(a), "l"(b), "r"(add));                                                           \
        }                                                                                                       \
        /* d[64][128] (+)= A[64][16] B[16][128]; both in shared memory, B's columns contiguous */               \
        static __device__ __forceinline__ void n128(float (&d)[64], uint64_t a, uint64_t b, int add)            \
        {                                                                                                       \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name " " MLA_D64               \
                         ", %64, %65, p, 1, 1, 0, 1;\n}"                                                        \
                         : MLA_ACC32(0), MLA_ACC32(32)                                                          \
                         : "l"(a), "l"(b), "r"(add));                                                           \
        }                                                                                                       \
    };

MLA_WGMMA(__nv_bfloat16, "bf16")
MLA_WGMMA(__half, "f16")

/* Narrow products: d[64][n] (+)= A[64][16] B[16][n], n twice the accumulators of a thread, both operands in shared memory.
 * `qk`: both have their 16 side by side; `pv`: A has its 64 and B its n side by side. */
template <typename T> struct wgmma_narrow;

#define MLA_D4 "{%0, %1, %2, %3}"
#define MLA_D8 "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define MLA_D16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define MLA_ACC8(i) MLA_ACC4(i), MLA_ACC4(i + 4)
#define MLA_NARROW_TEXT(n, name, d, a, b, add, by_column)                                                      \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                                                           \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." name "." name " " d ", " a ", " b ", p, 1, 1, " by_column \
    ", " by_column ";\n}"
#define MLA_WGMMA_NARROW_1(what, name, by_column)                                               \
    static __device__ __forceinline__ void what(float(&d)[4], uint64_t a, uint64_t b, int add)  \
    {                                                                                           \
        asm volatile(MLA_NARROW_TEXT("8", name, MLA_D4, "%4", "%5", "%6", by_column)            \
                     : MLA_ACC4(0)                                                              \
                     : "l"(a), "l"(b), "r"(add));                                               \
    }                                                                                           \
    static __device__ __forceinline__ void what(float(&d)[8], uint64_t a, uint64_t b, int add)  \
    {                                                                                           \
        asm volatile(MLA_NARROW_TEXT("16", name, MLA_D8, "%8", "%9", "%10", by_column)          \
                     : MLA_ACC8(0)                                                              \
                     : "l"(a), "l"(b), "r"(add));                                               \
    }                                                                                           \
    static __device__ __forceinline__ void what(float(&d)[16], uint64_t a, uint64_t b, int add) \
    {                                                                                           \
        asm volatile(MLA_NARROW_TEXT("32", name, MLA_D16, "%16", "%17", "%18", by_column)       \
                     : MLA_ACC16(0)                                                             \
                     : "l"(a), "l"(b), "r"(add));                                               \
    }                                                                                           \
    static __device__ __forceinline__ void what(float(&d)[32], uint64_t a, uint64_t b, int add) \
    {                                                                                           \
        asm volatile(MLA_NARROW_TEXT("64", name, MLA_D32, "%32", "%33", "%34", by_column)       \
                     : MLA_ACC32(0)                                                             \
                     : "l"(a), "l"(b), "r"(add));                                               \
    }
#define MLA_WGMMA_NARROW(type, name)        \
    template <> struct wgmma_narrow<type> { \
        MLA_WGMMA_NARROW_1(qk, name, "0")   \
        MLA_WGMMA_NARROW_1(pv, name, "1")   \
    };

MLA_WGMMA_NARROW(__nv_bfloat16, "bf16")
MLA_WGMMA_NARROW(__half, "f16")

/* --- registers and small matrices --- */

template <int n> __device__ __forceinline__ void registers_up()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n> __device__ __forceinline__ void registers_down()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

/* Four 8x8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void load_matrix(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void store_matrix(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

/* Each matrix transposed: an address is that of a column. */
__device__ __forceinline__ void store_matrix_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                                        uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* The same as store_matrix() with two matrices; lanes 0-15 give the addresses. */
__device__ __forceinline__ void store_matrix(uint32_t address, uint32_t a, uint32_t b)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

/* An 8x8 matrix of 16-bit values, two of a row in each lane, transposed. */
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t a)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}

/* Lane c of a quad holds v[j] = m[c][j] and gets v[j] = m[j][c]. */
__device__ __forceinline__ void quad_transpose(uint32_t (&v)[4], int lane)
{
#pragma unroll
    for (int step = 1; step <= 2; step++) {
        const bool upper = lane & step;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int j = step == 1 ? 2 * i : i;
            const uint32_t got = __shfl_xor_sync(~0u, upper ? v[j] : v[j + step], step);
            v[j] = upper ? got : v[j];
            v[j + step] = upper ? v[j + step] : got;
        }
    }
}

__device__ __forceinline__ uint32_t pack(float low, float high, __nv_bfloat16)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ uint32_t pack(float low, float high, __half)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* One of the two numbers that pack() has made. */
__device__ __forceinline__ float low_half(uint32_t x, __nv_bfloat16)
{
    return __uint_as_float(x << 16);
}
__device__ __forceinline__ float high_half(uint32_t x, __nv_bfloat16)
{
    return __uint_as_float(x & 0xffff0000u);
}
__device__ __forceinline__ float low_half(uint32_t x, __half)
{
    return __half2float(__ushort_as_half((unsigned short)x));
}
__device__ __forceinline__ float high_half(uint32_t x, __half)
{
    return __half2float(__ushort_as_half((unsigned short)(x >> 16)));
}

/* The lower half of the word. */
__device__ __forceinline__ bool is_finite(uint32_t x, __nv_bfloat16)
{
    return (x & 0x7f80u) != 0x7f80u;
}
__device__ __forceinline__ bool is_finite(uint32_t x, __half)
{
    return (x & 0x7c00u) != 0x7c00u;
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* Lets the next kernel of the stream, launched programmatically, begin its preamble. */
__device__ __forceinline__ void launch_dependents()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/* Waits until the kernels before it have finished and their writes are visible. */
__device__ __forceinline__ void wait_for_prerequisites()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

#endif
