/*
 * ascend.cu - what the Ascend doors derive from tensors in device memory, so that no host waits for them. The numbers in
 * them are nobody's promise: bad ones give other results, and lead to no address outside the tensors.
 */
#include "ascend.h"

/* One sequence per thread block. */
extern "C" __global__ void __launch_bounds__(MLA_ASCEND_THREADS) mla_ascend_lengths(const mla_cuda_lengths p)
{
    __shared__ unsigned long long first; /* entry that names no page */
    const int64_t b = blockIdx.x;
    if (p.ori_length) {
        if (threadIdx.x == 0) {
            p.length[b] = mla_ascend_compressed(p.ori_length[b], p.ratio, mla_ascend_tokens(p.max_page, p.page_size));
        }
        return;
    }
    if (threadIdx.x == 0) {
        first = (unsigned long long)p.max_page;
    }
    __syncthreads();
    const int32_t *row = p.table + b * p.max_page;
    for (int64_t i = threadIdx.x; i < p.max_page; i += MLA_ASCEND_THREADS) {
        if (row[i] < 0 || row[i] >= p.n_page) {
            atomicMin(&first, (unsigned long long)i);
            break;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        p.length[b] = mla_ascend_length(mla_ascend_tokens((int64_t)first, p.page_size));
    }
}

/* One token per thread block. */
extern "C" __global__ void __launch_bounds__(MLA_ASCEND_THREADS) mla_ascend_clear(const mla_cuda_unowned p)
{
    const int64_t token = blockIdx.x;
    if (token >= p.begin[0] && token < p.begin[p.n_seq]) {
        return;
    }
    uint16_t *out = (uint16_t *)((char *)p.out + token * p.out_bytes);
    for (int64_t i = threadIdx.x; i < p.out_bytes / 2; i += MLA_ASCEND_THREADS) {
        out[i] = 0;
    }
    uint16_t *lse = (uint16_t *)((char *)p.lse + token * p.lse_bytes);
    for (int64_t i = threadIdx.x; p.lse && i < p.lse_bytes / 2; i += MLA_ASCEND_THREADS) {
        lse[i] = 0;
    }
}

/* One thread block: all threads fetch, the first one mixes, for the order is part of the result. */
extern "C" __global__ void __launch_bounds__(MLA_ASCEND_THREADS) mla_ascend_metadata(const mla_cuda_ascend_metadata p)
{
    __shared__ int32_t value[MLA_ASCEND_THREADS];
    uint64_t hash = p.hash;
    for (int i = threadIdx.x; i < MLA_METADATA_WORDS; i += MLA_ASCEND_THREADS) {
        p.word[i] = 0;
    }
    for (int t = 0; t < MLA_METADATA_TENSORS; t++) {
        hash = mla_ascend_mix_count(hash, p.count[t]);
        for (int64_t at = 0; at < p.count[t]; at += MLA_ASCEND_THREADS) {
            const int n = (int)(p.count[t] - at < MLA_ASCEND_THREADS ? p.count[t] - at : MLA_ASCEND_THREADS);
            if ((int)threadIdx.x < n) {
                value[threadIdx.x] = p.value[t][at + threadIdx.x];
            }
            __syncthreads();
            for (int i = 0; threadIdx.x == 0 && i < n; i++) {
                hash = mla_hash_mix(hash, (uint32_t)value[i]);
            }
            __syncthreads();
        }
    }
    __syncthreads(); /* the zeros are there */
    if (threadIdx.x == 0) {
        mla_ascend_write_words(p.word, hash);
    }
}

extern "C" __global__ void __launch_bounds__(MLA_ASCEND_THREADS)
    mla_ascend_numbers(const __grid_constant__ mla_cuda_numbers p)
{
    for (int i = threadIdx.x; i < p.n; i += MLA_ASCEND_THREADS) {
        p.to[i] = p.value[i];
    }
}

/* One sequence per thread block. */
extern "C" __global__ void __launch_bounds__(MLA_ASCEND_THREADS) mla_atb_tail(const mla_cuda_atb_tail p)
{
    const int64_t b = blockIdx.x, n = mla_atb_tail_count(&p, b), first = p.begin[b], n_q = p.begin[b + 1] - first;
    if (threadIdx.x < MLA_ATB_TAIL_BLOCKS) {
        p.pages[b * MLA_ATB_TAIL_BLOCKS + threadIdx.x] = mla_atb_tail_page(&p, b, threadIdx.x);
    }
    for (int64_t x = threadIdx.x; x < n_q * n * MLA_ATB_BLOCK; x += MLA_ASCEND_THREADS) {
        const int64_t column = x % MLA_ATB_BLOCK, i = x / MLA_ATB_BLOCK % n, j = x / MLA_ATB_BLOCK / n;
        const uint16_t *row = mla_atb_template_row(&p, b, j, i);
        p.rows[((first + j) * MLA_ATB_TAIL_BLOCKS + i) * MLA_ATB_BLOCK + column] = row ? row[column] : 0;
    }
}

extern "C" __global__ void __launch_bounds__(MLA_ASCEND_THREADS) mla_atb_mask(const mla_cuda_atb_mask p)
{
    const int64_t i = (int64_t)blockIdx.x * MLA_ASCEND_THREADS + threadIdx.x;
    if (i < p.n) {
        p.to[i] = mla_atb_scale_mask(p.from[i]);
    }
}
