/*
 * metadata.cu - the tile scheduler of the flash_mla door, where lengths live on the GPU: the same bytes as schedule()
 * in flash_mla_metadata.c, which explains it.
 */
#include <stdint.h>

#define THREADS 256
#define STAGE 1024 /* lengths in shared memory at a time */
#define OVERHEAD 5
#define KEYS 64
#define COLUMNS 8

__device__ __forceinline__ int64_t key_count(int32_t length)
{
    return length < 0 ? 0 : length;
}

__device__ __forceinline__ int64_t block_count(int32_t length)
{
    return (key_count(length) + KEYS - 1) / KEYS;
}

/* One thread block. part [n_part][8], num_splits [b + 1] */
extern "C" __global__ void __launch_bounds__(THREADS)
    mla_flash_mla_metadata(const int32_t *lengths, int64_t b, int64_t n_part, int32_t *part, int32_t *num_splits)
{
    __shared__ int64_t sums[THREADS];
    __shared__ int32_t stage[STAGE];
    int64_t total = 0;
    for (int64_t i = threadIdx.x; i < b; i += THREADS) {
        total += block_count(lengths[i]) + OVERHEAD;
    }
    sums[threadIdx.x] = total;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
    }
    __syncthreads();
    const int64_t payload = (sums[0] + n_part - 1) / n_part + OVERHEAD;

    /* thread 0 walks, from stage to stage; `open`: a part is begun and not yet ended */
    int64_t at = 0, request = 0, block = 0, split = 0, sum = 0, budget = 0;
    int32_t last = 0; /* the length of the request before */
    bool open = false;
    if (threadIdx.x == 0) {
        num_splits[0] = 0;
    }
    for (int64_t base = 0; base == 0 || base < b; base += STAGE) {
        __syncthreads();
        for (int64_t i = threadIdx.x; i < STAGE && base + i < b; i += THREADS) {
            stage[i] = lengths[base + i];
        }
        __syncthreads();
        while (threadIdx.x == 0 && at < n_part) {
            int32_t *row = part + at * COLUMNS;
            if (!open) {
                row[0] = (int32_t)request;
                row[1] = (int32_t)(block * KEYS);
                row[4] = (int32_t)split;
                row[5] = row[6] = row[7] = 0;
                budget = payload;
                open = true;
            }
            bool full = false;
            while (!full && request < b && request < base + STAGE) {
                const int32_t length = stage[request - base];
                const int64_t left = block_count(length) - block;
                if (budget >= left + OVERHEAD) {
                    budget -= left + OVERHEAD;
                    sum += split + 1;
                    num_splits[++request] = (int32_t)sum;
                    last = length;
                    block = split = 0;
                } else {
                    if (budget > OVERHEAD) {
                        block += budget - OVERHEAD;
                        split++;
                    }
                    full = true;
                }
            }
            if (!full && request < b) {
                break; /* the next stage */
            }
            row[2] = (int32_t)(block > 0 ? request : request - 1);
            row[3] = (int32_t)(block > 0 ? block * KEYS : request > 0 ? key_count(last) : 0);
            open = false;
            at++;
        }
    }
}
