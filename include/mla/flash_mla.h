/*
 * flash_mla.h - DeepSeek's flash_mla interface in C.
 *
 * The two calls of flash_mla_interface.py (February 2025), argument by argument, with tensors as mla_tensor views and
 * outputs given by the caller. Same numbers, same layouts; where that interface is limited (page 64, 576/512, one GPU
 * generation) this one is not. Thread safety and error reporting as in mla.h.
 */
#ifndef FLASH_MLA_H
#define FLASH_MLA_H

#include <stdbool.h>

#include "mla.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FLASH_MLA_METADATA_COLUMNS 8
#define FLASH_MLA_KEYS_PER_BLOCK 64
#define FLASH_MLA_FIXED_OVERHEAD_BLOCKS 5

/*
 * Rows that flash_mla_get_metadata() should be given on this machine, at least 1. On the CPU: the threads that OpenMP
 * would use, whatever the arguments are.
 * num_heads_per_head_k = query tokens per request * query heads / kv heads; num_heads_k = kv heads.
 */
MLA_API int64_t flash_mla_num_parts(int64_t num_heads_per_head_k, int64_t num_heads_k);

/*
 * The same for tensors on `device`: on a GPU of n multiprocessors n / num_heads_k / ceil(num_heads_per_head_k / 64), at
 * least 1, in *n_part. Errors: UNSUPPORTED and BAD_DEVICE where there is no such GPU, BAD_VALUE, NULL_POINTER.
 */
MLA_API mla_status flash_mla_num_parts_on(mla_device device, int64_t num_heads_per_head_k, int64_t num_heads_k,
                                          int64_t *n_part);

/*
 * The tile scheduler of the original: shares the requests' 64-key blocks over n_part parts.
 *   cache_seqlens            i32 [b], contiguous; keys per request, negative counts as 0
 *   num_heads_per_head_k, num_heads_k   as above; >= 0 and >= 1
 *   tile_scheduler_metadata  out, i32 [n_part][8], contiguous, n_part >= 1 of the caller's choice: begin request, begin
 *                            token, end request (inclusive), end token (exclusive), begin split, 0, 0, 0. Parts without
 *                            work come last and have begin request b; their end is that of the last request (-1 and 0
 *                            when b is 0)
 *   num_splits               out, i32 [b + 1], contiguous: running sum of the parts that share a request
 * All of them are on one device, host memory or a GPU, and share no memory. On a GPU the work is queued on its default
 * stream; flash_mla_get_metadata_on() takes the stream. The contents are the same as on the CPU.
 * Errors: NULL_POINTER, BAD_SHAPE, BAD_DTYPE, BAD_STRIDE, BAD_VALUE, BAD_DEVICE, UNSUPPORTED.
 */
MLA_API mla_status flash_mla_get_metadata(const mla_tensor *cache_seqlens, int64_t num_heads_per_head_k,
                                          int64_t num_heads_k, const mla_tensor *tile_scheduler_metadata,
                                          const mla_tensor *num_splits);
MLA_API mla_status flash_mla_get_metadata_on(void *stream, const mla_tensor *cache_seqlens,
                                             int64_t num_heads_per_head_k, int64_t num_heads_k,
                                             const mla_tensor *tile_scheduler_metadata, const mla_tensor *num_splits);

/*
 * Decode attention over a paged cache whose row holds key and value at once (v = first head_dim_v columns).
 *   q              bf16 or f16 [b][s_q][h_q][d], innermost contiguous
 *   k_cache        dtype of q [n_page][page_size][h_kv][d], innermost contiguous; h_q % h_kv == 0
 *   block_table    i32 [b][max_page], innermost contiguous; only ceil(cache_seqlens[i] / page_size) entries of a row are
 *                  read
 *   cache_seqlens  i32 [b], contiguous; keys per request, the s_q new ones included
 *   head_dim_v     1 .. d
 *   tile_scheduler_metadata, num_splits   from flash_mla_get_metadata(); dtype and shape are checked, the contents are a
 *                  hint: whatever they hold, the result is right. Either may be NULL
 *   softmax_scale  NULL: 1 / sqrt(d); must be finite
 *   causal         bottom-right aligned; has no effect when s_q is 1
 *   out            out, dtype of q [b][s_q][h_q][head_dim_v]
 *   softmax_lse    out, f32 [b][h_q][s_q], natural log; NULL: not wanted
 * A query token that sees no key gives out = 0 and lse = +inf. b = 0 or s_q = 0 is fine.
 * On a GPU (all tensors in its memory) the work is queued on the default stream, keys behind bad page ids are
 * invisible, and lengths beyond the table count as far as the table reaches; flash_mla_with_kvcache_on() takes the
 * stream. Errors: those of mla_problem_check() in the words of these arguments, OUT_OF_MEMORY, UNSUPPORTED.
 */
MLA_API mla_status flash_mla_with_kvcache(const mla_tensor *q, const mla_tensor *k_cache, const mla_tensor *block_table,
                                          const mla_tensor *cache_seqlens, int64_t head_dim_v,
                                          const mla_tensor *tile_scheduler_metadata, const mla_tensor *num_splits,
                                          const float *softmax_scale, bool causal, const mla_tensor *out,
                                          const mla_tensor *softmax_lse);

/* The same with options: threads, or a GPU's stream and where the workspace comes from; NULL: the defaults. */
MLA_API mla_status flash_mla_with_kvcache_on(const mla_plan_options *options, const mla_tensor *q,
                                             const mla_tensor *k_cache, const mla_tensor *block_table,
                                             const mla_tensor *cache_seqlens, int64_t head_dim_v,
                                             const mla_tensor *tile_scheduler_metadata, const mla_tensor *num_splits,
                                             const float *softmax_scale, bool causal, const mla_tensor *out,
                                             const mla_tensor *softmax_lse);

#ifdef __cplusplus
}
#endif

#endif
