/*
 * ascend.h - what the Ascend doors derive from a caller's tensors before a problem can run: parameters of the kernels
 * that do it on a GPU, and the steps that those share with the CPU. Shared by C and CUDA.
 */
#ifndef MLA_CUDA_ASCEND_H
#define MLA_CUDA_ASCEND_H

#include <stdint.h>
#include <string.h>

#include "core/hash.h"

#ifdef __CUDACC__
#define MLA_ASCEND_CODE __host__ __device__ static inline
#else
#define MLA_ASCEND_CODE static inline
#endif

#define MLA_ASCEND_THREADS 256

/* ---- QuantSparseFlashMla: lengths that no tensor holds ----------------------------------------------------------- */

/* length[b]: tokens in the pages that row b of the table names before its first entry that names none; with ori_length
 * instead ori_length[b] / ratio, as far as the table has room. */
typedef struct mla_cuda_lengths {
    const int32_t *table; /* [n_seq][max_page], contiguous */
    int64_t n_seq, max_page, n_page, page_size, ratio;
    const int32_t *ori_length; /* [n_seq] or NULL */
    int32_t *length;           /* out [n_seq] */
} mla_cuda_lengths;

MLA_ASCEND_CODE int32_t mla_ascend_length(int64_t tokens)
{
    return (int32_t)(tokens < INT32_MAX ? tokens : INT32_MAX);
}

/* Tokens of `n` pages; a product that leaves int64 ends at its largest value. */
MLA_ASCEND_CODE int64_t mla_ascend_tokens(int64_t n, int64_t page_size)
{
    return page_size > 0 && n > INT64_MAX / page_size ? INT64_MAX : n * page_size;
}

/* Keys that were compressed out of ori_length ones, when no more than `capacity` have a place. */
MLA_ASCEND_CODE int32_t mla_ascend_compressed(int32_t ori_length, int64_t ratio, int64_t capacity)
{
    int64_t whole = (ori_length < 0 ? 0 : ori_length) / ratio;
    return mla_ascend_length(whole < capacity ? whole : capacity);
}

/* Rows of the outputs that belong to no sequence become 0: tokens before begin[0] and from begin[n_seq] on. */
typedef struct mla_cuda_unowned {
    const int32_t *begin;
    int64_t n_seq, n_token;
    void *out, *lse;              /* lse: NULL or [n_token] rows */
    int64_t out_bytes, lse_bytes; /* of a row, multiples of 2 */
} mla_cuda_unowned;

/* ---- the metadata operator --------------------------------------------------------------------------------------- */

enum {
    MLA_METADATA_MAGIC,
    MLA_METADATA_VERSION,
    MLA_METADATA_CHECKSUM, /* of all words after it */
    MLA_METADATA_FINGERPRINT_LOW,
    MLA_METADATA_FINGERPRINT_HIGH,
    MLA_METADATA_WORDS = 1024
};

enum { MLA_METADATA_TENSORS = 9 };

/* Everything that the fingerprint is made of, once `hash` has taken in the numbers. */
typedef struct mla_cuda_ascend_metadata {
    const int32_t *value[MLA_METADATA_TENSORS];
    int64_t count[MLA_METADATA_TENSORS]; /* -1: absent */
    uint64_t hash;
    uint32_t *word; /* out [1024] */
} mla_cuda_ascend_metadata;

MLA_ASCEND_CODE uint64_t mla_ascend_mix_count(uint64_t hash, int64_t count)
{
    return mla_hash_mix(hash, count < 0 ? 0 : (uint64_t)count + 1);
}

MLA_ASCEND_CODE uint32_t mla_ascend_checksum(const uint32_t *word, uint32_t version)
{
    uint64_t hash = version;
    for (int i = MLA_METADATA_CHECKSUM + 1; i < MLA_METADATA_WORDS; i++) {
        hash = mla_hash_mix(hash, word[i]);
    }
    return (uint32_t)(hash ^ (hash >> 32));
}

#define MLA_ASCEND_MAGIC 0x51414c4du /* "MLAQ" */
#define MLA_ASCEND_VERSION 1u

/* The words, but for the zeros behind them, which must be there already. */
MLA_ASCEND_CODE void mla_ascend_write_words(uint32_t *word, uint64_t fingerprint)
{
    word[MLA_METADATA_MAGIC] = MLA_ASCEND_MAGIC;
    word[MLA_METADATA_VERSION] = MLA_ASCEND_VERSION;
    word[MLA_METADATA_FINGERPRINT_LOW] = (uint32_t)fingerprint;
    word[MLA_METADATA_FINGERPRINT_HIGH] = (uint32_t)(fingerprint >> 32);
    word[MLA_METADATA_CHECKSUM] = mla_ascend_checksum(word, MLA_ASCEND_VERSION);
}

/* ---- ATB: lengths from host memory ------------------------------------------------------------------------------- */

/* As many numbers as the parameters of a kernel have room for. They travel with the launch: no host memory has to live
 * on, also in a graph. */
enum { MLA_ASCEND_NUMBERS = 1000 };

typedef struct mla_cuda_numbers {
    int32_t *to;
    int32_t n;
    int32_t value[MLA_ASCEND_NUMBERS];
} mla_cuda_numbers;

/* ---- ATB decode: MASK_FREE --------------------------------------------------------------------------------------- */

/*
 * The template slides with the end of each sequence and covers its last two blocks. n = blocks of the sequence, tail =
 * keys in the last one; token j reads template row tail - 1 + j for keys of the last block, and row tail + 127 + j for
 * those of the block before it when that block is in reach of the first token.
 */
enum { MLA_ATB_BLOCK = 128, MLA_ATB_TAIL_BLOCKS = 2 };

typedef struct mla_cuda_atb_tail {
    const int32_t *begin;       /* [n_seq + 1]: first query token of each sequence */
    const int32_t *head, *tail; /* [n_seq]: keys before the last two blocks, and in them */
    const int32_t *table;       /* [n_seq][table_columns] */
    const uint16_t *mask;       /* template [mask_rows][128], or one per sequence */
    int64_t n_seq, table_columns, mask_rows;
    int32_t per_sequence; /* a template each */
    int32_t *pages;       /* out [n_seq][2]: the last two blocks of each sequence */
    uint16_t *rows;       /* out [token][2][128]: their mask */
} mla_cuda_atb_tail;

/* The page for tail block i (0 or 1) of sequence b. */
MLA_ASCEND_CODE int32_t mla_atb_tail_page(const mla_cuda_atb_tail *t, int64_t b, int64_t i)
{
    int64_t n_block = ((int64_t)t->head[b] + t->tail[b] + MLA_ATB_BLOCK - 1) / MLA_ATB_BLOCK;
    int64_t first = n_block > MLA_ATB_TAIL_BLOCKS ? n_block - MLA_ATB_TAIL_BLOCKS : 0;
    return first + i < n_block ? t->table[b * t->table_columns + first + i] : 0;
}

/* The template row that lies over tail block i for query token j of sequence b; NULL: zeros, which is what ATB's reading
 * behind the template amounts to. A sequence of one block has it as block 0. */
MLA_ASCEND_CODE const uint16_t *mla_atb_template_row(const mla_cuda_atb_tail *t, int64_t b, int64_t j, int64_t i)
{
    int64_t n_key = (int64_t)t->head[b] + t->tail[b], n_q = (int64_t)t->begin[b + 1] - t->begin[b];
    int64_t n_block = (n_key + MLA_ATB_BLOCK - 1) / MLA_ATB_BLOCK, last = n_key - MLA_ATB_BLOCK * (n_block - 1);
    int64_t row = last - 1 + j;
    if (n_block > 1 && i == 0) {
        row = last < n_q - 1 ? last + MLA_ATB_BLOCK - 1 + j : -1;
    }
    if (row < 0 || row >= t->mask_rows) {
        return NULL;
    }
    return t->mask + ((t->per_sequence ? b * t->mask_rows : 0) + row) * MLA_ATB_BLOCK;
}

/* Tail blocks that sequence b has. */
MLA_ASCEND_CODE int64_t mla_atb_tail_count(const mla_cuda_atb_tail *t, int64_t b)
{
    int64_t n_key = (int64_t)t->head[b] + t->tail[b];
    return n_key > MLA_ATB_BLOCK ? MLA_ATB_TAIL_BLOCKS : n_key > 0 ? 1 : 0;
}

/* ---- ATB prefill: bfloat16 masks --------------------------------------------------------------------------------- */

/*
 * A bfloat16 mask is multiplied by -3e38 before it is added; 1 then hides a key. The products stop at 2e38, the largest
 * score that the core promises to take: it hides as well. Rounded towards zero; exact for a mask of 0 and 1, up to the
 * limit's own bits.
 */
typedef struct mla_cuda_atb_mask {
    const uint16_t *from;
    uint16_t *to;
    int64_t n;
} mla_cuda_atb_mask;

MLA_ASCEND_CODE uint16_t mla_atb_scale_mask(uint16_t mask)
{
    const float factor = -3e38f, limit = 2e38f;
    uint32_t bits = (uint32_t)mask << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= factor;
    value = value < -limit ? -limit : value > limit ? limit : value; /* NaN stays */
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

#endif
