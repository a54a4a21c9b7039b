/*
 * broken.c - the list of planted bugs, and which test has to notice each.
 */
#include "broken.h"

#include "checkkernel.h"

static const ck_bug_info bugs[BUG_COUNT] = {
    [BUG_LAST_COLUMN] = {"the last column of q and k is left out of the score", "attention/dims"},
    [BUG_NO_ROPE] = {"the rope part is left out of the score", "attention/rope_apart"},
    [BUG_NO_QK_DESCALE] = {"qk_descale is not applied", "attention/descales"},
    [BUG_LSE_WITHOUT_SCALE] = {"lse is made from scores before softmax_scale", "case/C9"},
    [BUG_READS_TOO_FAR] = {"keys are read eight columns too far", "attention/dims"},
    [BUG_NO_RESCALE] = {"accumulators are not rescaled when the maximum grows", "attention/inputs"},
    [BUG_STALE_MAX] = {"the maximum is that of the tile before", "attention/inputs"},
    [BUG_ROUNDED_P] = {"probabilities are rounded to 11 bits", "attention/accuracy"},
    [BUG_ZERO_TIMES_NAN] = {"a key behind the causal limit is multiplied by 0", "relations/nan_isolation"},
    [BUG_MASKED_ROW_NAN] = {"a row whose mask is all -inf gives NaN", "attention/masks"},
    [BUG_MASK_STRIDE] = {"a mask shared by all tokens is read as if it were not", "attention/masks"},
    [BUG_CAUSAL_OFF_BY_ONE] = {"causal tokens do not see themselves", "attention/causal"},
    [BUG_CAUSAL_TOP_LEFT] = {"the causal rule is aligned at the top left", "attention/causal"},
    [BUG_WINDOW_LEFT] = {"the window is one key too long to the left", "attention/window"},
    [BUG_COMPRESSED_TRUNCATES] = {"the compressed rule rounds up", "attention/compressed"},
    [BUG_TAIL_KEY] = {"the last key is dropped when it is not the last of a tile", "attention/lengths"},
    [BUG_PAGE_UNITS] = {"a page table entry is taken for the number of a row", "attention/pages"},
    [BUG_PAGE_64] = {"pages are taken to have 64 rows", "attention/pages"},
    [BUG_TABLE_TOO_FAR] = {"the page behind the last one is looked up and read", "attention/pages"},
    [BUG_OFFSET_32] = {"element offsets are computed in 32 bits", "case/B1"},
    [BUG_LIST_CLAMPED] = {"bad list entries count as entry 0", "attention/lists"},
    [BUG_LIST_UNIQUE] = {"duplicate list entries count once", "attention/lists"},
    [BUG_LIST_NO_STOP] = {"a negative list entry does not end the list", "attention/lists"},
    [BUG_HEADS_INTERLEAVED] = {"query heads are dealt out to kv heads in turn", "attention/kv_heads"},
    [BUG_Q_BEGIN] = {"packed queries are taken to start at row 0", "attention/ragged"},
    [BUG_Q_LENGTH] = {"q_length is ignored", "attention/q_length"},
    [BUG_SPLIT_UNWEIGHTED] = {"partial results of splits are averaged", "attention/long"},
    [BUG_SPLIT_BY_THREADS] = {"splits depend on the number of threads", "relations/threads"},
    [BUG_SPLIT_BY_BATCH] = {"splits depend on the size of the batch", "relations/alone"},
    [BUG_SEGMENTS_APART] = {"two segments are averaged instead of joined", "attention/two_segments"},
    [BUG_SINK_PER_SPLIT] = {"the sink counts once per split", "attention/sinks"},
    [BUG_SINK_INF_NAN] = {"an infinite sink gives inf - inf", "attention/sinks"},
    [BUG_SINK_IN_MAX] = {"the max output counts the sink", "attention/sinks"},
    [BUG_SINK_IN_LSE] = {"lse always counts the sink", "attention/sinks"},
    [BUG_V_DESCALE] = {"the descale is applied to keys but not to values", "attention/descales"},
    [BUG_V_FROM_K] = {"values are taken from the keys although they have a tensor", "attention/values_apart"},
    [BUG_LSE_BASE] = {"lse is in base 2 whatever was asked for", "attention/outputs"},
    [BUG_LSE_EMPTY] = {"empty rows have lse +inf whatever was asked for", "attention/outputs"},
    [BUG_LONELY_ROW] = {"rows without keys are not written", "attention/lengths"},
    [BUG_ONE_ELEMENT] = {"one element of one output row is not written", "attention/dims"},
    [BUG_ONE_ROW] = {"one row among thousands is off by a thousandth", "attention/many_rows"},
    [BUG_TRUNCATED] = {"16-bit outputs are truncated instead of rounded", "attention/dtypes"},
    [BUG_WRITES_TOO_FAR] = {"output rows are written one element too far", "attention/strides"},
};

const ck_bug_info *ck_bug_at(uint32_t bug)
{
    return bug > BUG_NONE && bug < BUG_COUNT ? &bugs[bug] : NULL;
}
