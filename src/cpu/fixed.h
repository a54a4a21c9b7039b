/*
 * fixed.h - the way of fixed point: blocks that many rows share, in 16-bit integers, where an error bound allows it.
 */
#ifndef MLA_CPU_FIXED_H
#define MLA_CPU_FIXED_H

#include "kernels_fixed.h"
#include "task.h"

/* Fewer rows of a sequence per kv head than this, as one row panel holds, do not pay for turning keys into integers. */
#define MLA_FIXED_ROWS (MLA_ROW_PANEL + 1)
/* The first keys of a chunk, from which the sizes of columns are taken. A row that does not see all of these places
 * goes by fp32 in that chunk. */
#define MLA_FIXED_SAMPLE 16

/*
 * The bound, for a row and a block, of what rounding to integers does; all roundings taken as independent and uniform.
 *
 * Scores: integers of q are worth unit_q, those of the key unit_k, and norms are MLA_FIXED_NORM of them at most. Each
 * of the d products is off by up to half of q's integer and of k's, uniformly: the standard deviation of a score is
 *     sqrt((|q| unit_k)^2 / 12 + (|k| unit_q)^2 / 12) <= MLA_FIXED_NORM unit_q unit_k / sqrt(6),
 * times its scale. It must not exceed MLA_FIXED_DEVIATION, in natural units. The worst case is sqrt(6 d) times as much.
 *
 * Values: a value's d_v elements are off by unit_k / sqrt(12) each, which must not exceed MLA_FIXED_DEVIATION of its
 * norm, unless it is all zeros: its share of the key must not be too small.
 *
 * Where either does not hold for a key that the row sees, and where such a key or the row's query is not finite or out
 * of range, the row goes by fp32 in that block.
 */
#define MLA_FIXED_DEVIATION 0x1p-9

typedef struct mla_fixed_state {
    int16_t *q, *k, *v, *p; /* kernels_fixed.h */
    float *row;             /* keys in fp32, row_stride apart */
    float *fold, *unfold;   /* [column], 1 / fold */
    float *new_fold;        /* of the chunk at hand, before it is compared with fold */
    char *kept;             /* partial results of all row panels, while rows go both ways */
    int64_t k_stride, v_stride, row_stride;
    bool served;                      /* can and should the task go this way at all? */
    bool folded;                      /* is any factor not 1? */
    bool packed;                      /* q is what t->q and fold make */
    bool eligible[MLA_TASK_ROWS];     /* rows that see the sample of the chunk at hand */
    float query_unit[MLA_TASK_ROWS];  /* as the kernel leaves them */
    float scale[MLA_TASK_ROWS];       /* of integers: scale * unit */
    bool by_fixed[MLA_TASK_ROWS];     /* of the block at hand */
    float unit[MLA_KEY_BLOCK_MAX];    /* of each key */
    float largest[MLA_KEY_BLOCK_MAX]; /* its largest |element|, unfolded */
    bool sound[MLA_KEY_BLOCK_MAX];    /* its integers hold */
} mla_fixed_state;

/* Can problems of this kind use the way at this level? Rows decide the rest. */
bool mla_fixed_offered(const mla_cpu_kernels *kernels, const mla_problem *problem, const mla_shape *shape);

/* Bytes of a worker's state with all it points to, for blocks of key_block keys; what panels with o_bytes of o. */
size_t mla_fixed_bytes(const mla_cpu_kernels *kernels, const mla_shape *shape, int64_t key_block, size_t o_bytes);
void mla_fixed_place(const mla_cpu_kernels *kernels, const mla_shape *shape, int64_t key_block, size_t o_bytes,
                     char *memory);

/* Before the chunk of segment g that contains place `begin`, whose queries are packed: may any row go this way? */
bool mla_fixed_begin(mla_task_state *t, int32_t g, int64_t begin);

/* As mla_panel_attend(). */
void mla_fixed_attend(mla_task_state *t, int32_t g, const mla_key_rows *rows, const mla_key_rows *next,
                      const mla_panel_result *result);

#endif
