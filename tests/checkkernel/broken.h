/*
 * broken.h - the bugs that the self-test plants.
 */
#ifndef CHECKKERNEL_BROKEN_H
#define CHECKKERNEL_BROKEN_H

#include "cpu/kernels.h"

typedef enum ck_bug {
    BUG_NONE,
    /* scores */
    BUG_LAST_COLUMN,
    BUG_NO_ROPE,
    BUG_NO_QK_DESCALE,
    BUG_LSE_WITHOUT_SCALE,
    BUG_READS_TOO_FAR,
    BUG_DENSE_Q,
    BUG_HALF_SCORES,
    BUG_MASK_SCALED,
    /* softmax */
    BUG_NO_RESCALE,
    BUG_STALE_MAX,
    BUG_NO_MAX,
    BUG_ROUNDED_P,
    BUG_ZERO_TIMES_NAN,
    BUG_MASKED_ROW_NAN,
    BUG_MASKED_KEY_NAN,
    BUG_NAN_LOST_IN_MAX,
    BUG_MASK_STRIDE,
    /* which keys */
    BUG_CAUSAL_OFF_BY_ONE,
    BUG_CAUSAL_TOP_LEFT,
    BUG_WINDOW_LEFT,
    BUG_COMPRESSED_TRUNCATES,
    BUG_TAIL_KEY,
    BUG_PAGE_UNITS,
    BUG_PAGE_64,
    BUG_TABLE_TOO_FAR,
    BUG_OFFSET_32,
    BUG_LIST_CLAMPED,
    BUG_LIST_UNIQUE,
    BUG_LIST_NO_STOP,
    BUG_LIST_LAST,
    BUG_HEADS_INTERLEAVED,
    BUG_Q_BEGIN,
    BUG_Q_LENGTH,
    /* splits and segments */
    BUG_SPLIT_UNWEIGHTED,
    BUG_SPLIT_BY_THREADS,
    BUG_SPLIT_BY_BATCH,
    BUG_SPLIT_BY_PLACE,
    BUG_SPLIT_BY_PAGE,
    BUG_SEGMENTS_APART,
    BUG_SECOND_SEGMENT,
    /* sinks */
    BUG_SINK_PER_SPLIT,
    BUG_SINK_INF_NAN,
    BUG_SINK_MINUS_INF,
    BUG_SINK_IN_MAX,
    BUG_SINK_IN_LSE,
    /* outputs */
    BUG_V_DESCALE,
    BUG_V_FROM_K,
    BUG_LSE_BASE,
    BUG_LSE_EMPTY,
    BUG_LONELY_ROW,
    BUG_ONE_ELEMENT,
    BUG_ONE_ROW,
    BUG_TRUNCATED,
    BUG_WRITES_TOO_FAR,
    BUG_GRID,
    /* single kernels: broken_kernels.c */
    BUG_KERNEL_LOAD_SHORT,
    BUG_KERNEL_LOAD_FAR,
    BUG_KERNEL_PACK_FACTOR,
    BUG_KERNEL_QK_ACCUMULATE,
    BUG_KERNEL_SOFTMAX_RANGES,
    BUG_KERNEL_SOFTMAX_SUM,
    BUG_KERNEL_SOFTMAX_REPORT,
    BUG_KERNEL_PV_KEY,
    BUG_KERNEL_MERGE_PART,
    BUG_KERNEL_STORE_TRUNCATED,
    BUG_KERNEL_STORE_FAR,
    BUG_KERNEL_STREAM_HIDDEN,
    BUG_KERNEL_STREAM_SUM,
    BUG_COUNT
} ck_bug;

/* The table with one kernel replaced by a broken one. */
const mla_cpu_kernels *ck_broken_kernels(const mla_cpu_kernels *sound, ck_bug bug);

#endif
