/*
 * plan.c - cuts a problem into items of work.
 */
#include "plan.h"

#include <stdlib.h>

#include "hash.h"
#include "range.h"

/* A whole item may cost at most 1 / (workers * this) of everything, else it is cut into chunks: the last item to finish
 * then delays the others by little. */
#define MLA_PLAN_BALANCE 4

/* Pieces per worker below which rows are shared out: while that is cheap, and at last. */
#define MLA_PLAN_PIECES 8
#define MLA_PLAN_FEWEST_PIECES 2

/* A key costs its rows, and some more for being read. */
#define MLA_PLAN_KEY_COST 8

/* About a tenth of a millisecond: with less to do a worker costs more to wake than it brings. */
int64_t mla_plan_worker_cost = 8192;

void mla_index_range(const mla_problem *problem, const mla_shape *shape, int32_t g, int64_t seq, int64_t token,
                     int64_t *begin, int64_t *end)
{
    const mla_segment *segment = &problem->segment[g];
    if (token >= mla_query_used(problem, shape, seq)) {
        *begin = *end = 0;
        return;
    }
    int64_t lo = 0, hi = 0;
    mla_visible_range(problem, shape, g, seq, token, &lo, &hi);
    if (!shape->segment[g].has_list) {
        *begin = lo;
        *end = hi > lo ? hi : lo;
        return;
    }
    int64_t n = shape->segment[g].n_entry;
    const mla_tensor *length = &segment->list_length;
    if (mla_tensor_present(length)) {
        int64_t limit;
        if (length->ndim == 2) {
            limit = ((const int32_t *)length->data)[seq * length->stride[0] + token * length->stride[1]];
        } else if (shape->batched) {
            limit = mla_index_at(length, seq);
        } else {
            limit = mla_index_at(length,
                                 length->dim[0] == shape->n_token ? mla_query_begin(problem, shape, seq) + token : seq);
        }
        n = limit < n ? limit : n;
    }
    if (segment->list_rule == MLA_LIST_STOP && segment->list_address == MLA_LIST_LOGICAL &&
        segment->visible.rule != MLA_VISIBLE_ALL && hi - lo < n) {
        n = hi - lo;
    }
    *begin = 0;
    *end = n > 0 ? n : 0;
}

/* ---- tasks ------------------------------------------------------------------------------------------------------- */

typedef struct task_range {
    int64_t begin[MLA_MAX_SEGMENT], end[MLA_MAX_SEGMENT]; /* union over the task's tokens, index space */
    int64_t n_key, n_chunk;
} task_range;

/* Where the first chunk begins. */
static int64_t chunk_origin(const mla_plan *plan, const task_range *range, int32_t g)
{
    return plan->geometry.from_first_key ? range->begin[g]
                                         : range->begin[g] - range->begin[g] % plan->geometry.split_keys;
}

static task_range range_of_task(const mla_problem *problem, const mla_shape *shape, const mla_plan *plan, int64_t seq,
                                int64_t row_begin, int64_t row_end)
{
    task_range range = {0};
    int64_t split = plan->geometry.split_keys;
    for (int32_t g = 0; g < shape->n_segment; g++) {
        bool any = false;
        for (int64_t t = row_begin / shape->group; t <= (row_end - 1) / shape->group; t++) {
            int64_t begin, end;
            mla_index_range(problem, shape, g, seq, t, &begin, &end);
            if (begin >= end) {
                continue;
            }
            range.begin[g] = any && range.begin[g] < begin ? range.begin[g] : begin;
            range.end[g] = any && range.end[g] > end ? range.end[g] : end;
            any = true;
        }
        if (any) {
            int64_t origin = chunk_origin(plan, &range, g);
            range.n_key += range.end[g] - range.begin[g];
            range.n_chunk += (range.end[g] - origin + split - 1) / split;
        }
    }
    return range;
}

/* First token after `token` that may not share a task with it, because chunks would be counted from another key. */
static int64_t same_first_key(const mla_problem *problem, const mla_shape *shape, int64_t seq, int64_t token,
                              int64_t token_end)
{
    int64_t first[MLA_MAX_SEGMENT] = {-1, -1};
    for (; token < token_end; token++) {
        for (int32_t g = 0; g < shape->n_segment; g++) {
            int64_t begin, end;
            mla_index_range(problem, shape, g, seq, token, &begin, &end);
            if (begin < end && first[g] >= 0 && first[g] != begin) {
                return token;
            }
            first[g] = begin < end ? begin : first[g];
        }
    }
    return token_end;
}

/* Rows of one task: no more than max_rows; with a list, no more than one token, because each token has its own keys. */
static int64_t rows_of_task(const mla_problem *problem, const mla_shape *shape, const mla_plan *plan, int64_t seq,
                            int64_t row_begin, int64_t n_row, int64_t max_rows)
{
    int64_t end = row_begin + max_rows;
    bool list = false;
    for (int32_t g = 0; g < shape->n_segment; g++) {
        list = list || shape->segment[g].has_list;
    }
    if (list) {
        int64_t token_end = (row_begin / shape->group + 1) * shape->group;
        end = end < token_end ? end : token_end;
    }
    end = end < n_row ? end : n_row;
    int64_t token = row_begin / shape->group, token_end = (end - 1) / shape->group + 1;
    if (plan->geometry.from_first_key && token + 1 < token_end) {
        int64_t row_end = same_first_key(problem, shape, seq, token, token_end) * shape->group;
        end = end < row_end ? end : row_end;
    }
    return end - row_begin;
}

typedef struct plan_count {
    int64_t n_item, n_combine, n_slot, cost;
} plan_count;

/* One walk over all tasks serves counting and filling, so the two cannot disagree. An empty task still has its output to
 * write. limit: highest cost of a whole item. */
static plan_count walk_tasks(const mla_problem *problem, const mla_shape *shape, const mla_plan *plan, int64_t max_rows,
                             int64_t limit, mla_work_item *item, mla_combine_item *combine)
{
    plan_count count = {0};
    int64_t split = plan->geometry.split_keys, panel = plan->geometry.row_panel;
    for (int64_t seq = 0; seq < shape->n_seq; seq++) {
        int64_t n_row = mla_query_slots(problem, shape, seq) * shape->group;
        for (int64_t row = 0, rows; row < n_row; row += rows) {
            rows = rows_of_task(problem, shape, plan, seq, row, n_row, max_rows);
            task_range range = range_of_task(problem, shape, plan, seq, row, row + rows);
            int64_t cost = (range.n_key + 1) * (rows + MLA_PLAN_KEY_COST);
            bool whole = range.n_chunk <= 1 || cost <= limit;
            int64_t n_panel = (rows + panel - 1) / panel;
            for (int32_t kv_head = 0; kv_head < shape->n_kv_head; kv_head++) {
                count.cost += cost;
                mla_work_item base = {.seq = seq, .row_begin = row, .row_end = row + rows, .kv_head = kv_head};
                if (whole) {
                    if (item) {
                        base.segment = -1;
                        base.slot = -1;
                        base.cost = cost;
                        item[count.n_item] = base;
                    }
                    count.n_item++;
                    continue;
                }
                int64_t first_slot = count.n_slot;
                for (int32_t g = 0; g < shape->n_segment; g++) {
                    for (int64_t at = chunk_origin(plan, &range, g); at < range.end[g]; at += split) {
                        if (item) {
                            base.segment = g;
                            base.kv_begin = at;
                            base.kv_end = at + split < range.end[g] ? at + split : range.end[g];
                            base.slot = count.n_slot;
                            base.task_slot = first_slot;
                            base.cost = (base.kv_end - base.kv_begin) * (rows + MLA_PLAN_KEY_COST);
                            item[count.n_item] = base;
                        }
                        count.n_item++;
                        count.n_slot += n_panel;
                    }
                }
                for (int64_t i = 0; i < n_panel; i++) {
                    if (combine) {
                        int64_t begin = row + i * panel;
                        combine[count.n_combine] = (mla_combine_item){
                            .seq = seq,
                            .kv_head = kv_head,
                            .row_begin = begin,
                            .row_end = begin + panel < row + rows ? begin + panel : row + rows,
                            .slot_begin = first_slot + i,
                            .slot_stride = n_panel,
                            .slot_count = range.n_chunk,
                        };
                    }
                    count.n_combine++;
                }
            }
        }
    }
    return count;
}

static int by_cost(const void *a, const void *b)
{
    const mla_work_item *x = a, *y = b;
    if (x->cost != y->cost) {
        return x->cost < y->cost ? 1 : -1;
    }
    /* neighbours in memory stay neighbours in time */
    if (x->seq != y->seq) {
        return x->seq < y->seq ? -1 : 1;
    }
    if (x->kv_head != y->kv_head) {
        return x->kv_head < y->kv_head ? -1 : 1;
    }
    if (x->row_begin != y->row_begin) {
        return x->row_begin < y->row_begin ? -1 : 1;
    }
    return x->slot < y->slot ? -1 : x->slot > y->slot;
}

/*
 * Can whole items alone keep the workers busy, if rows are shared out? Where chunks take two passes (plan.h) that is
 * cheaper: values are not converted twice, and nobody waits between the passes. Counts whole items of fewer rows, and
 * hands back their number of rows if they come out even or are many.
 */
static bool share_rows_alone(const mla_problem *problem, const mla_shape *shape, const mla_plan *plan,
                             int64_t *max_rows, plan_count *count)
{
    int64_t panel = plan->geometry.row_panel, rows = *max_rows, many = MLA_PLAN_BALANCE * (int64_t)plan->n_worker;
    plan_count whole = walk_tasks(problem, shape, plan, rows, INT64_MAX, NULL, NULL);
    while (rows > panel && whole.n_item < (rows > 2 * panel ? many : plan->n_worker)) {
        rows = (rows / panel + 1) / 2 * panel;
        whole = walk_tasks(problem, shape, plan, rows, INT64_MAX, NULL, NULL);
    }
    if (whole.n_item < many && (whole.n_item < plan->n_worker || whole.n_item % plan->n_worker != 0)) {
        return false;
    }
    *max_rows = rows;
    *count = whole;
    return true;
}

mla_status mla_plan_fill(const mla_problem *problem, const mla_shape *shape, mla_plan *plan)
{
    if (shape->n_token == 0) {
        return MLA_STATUS_OK; /* nothing to do, for however many sequences */
    }
    int64_t max_rows = plan->geometry.max_rows;
    int64_t limit = INT64_MAX;
    plan_count count = walk_tasks(problem, shape, plan, max_rows, limit, NULL, NULL);
    int64_t useful = count.cost / mla_plan_worker_cost + 1;
    plan->n_worker = useful < plan->n_worker ? (int32_t)useful : plan->n_worker;
    if (plan->n_worker > 1 && plan->geometry.from_first_key &&
        share_rows_alone(problem, shape, plan, &max_rows, &count)) {
        limit = count.cost / plan->n_worker; /* longer than a share: cut after all */
        count = walk_tasks(problem, shape, plan, max_rows, limit, NULL, NULL);
    } else if (plan->n_worker > 1) {
        limit = count.cost / ((int64_t)plan->n_worker * MLA_PLAN_BALANCE);
        count = walk_tasks(problem, shape, plan, max_rows, limit, NULL, NULL);
        /* Too few pieces still: share the rows out too, at the price of loading keys more than once. That price is small
         * while several panels share a key, so the pieces may then be many, and end at about the same time. */
        int64_t panel = plan->geometry.row_panel;
        while (max_rows > panel && count.n_item < (max_rows > 2 * panel ? MLA_PLAN_PIECES : MLA_PLAN_FEWEST_PIECES) *
                                                      (int64_t)plan->n_worker) {
            max_rows = (max_rows / panel + 1) / 2 * panel;
            count = walk_tasks(problem, shape, plan, max_rows, limit, NULL, NULL);
        }
    }
    plan->n_item = count.n_item;
    plan->n_combine = count.n_combine;
    plan->n_slot = count.n_slot;
    plan->item = calloc(count.n_item ? (size_t)count.n_item : 1, sizeof *plan->item);
    plan->combine = calloc(count.n_combine ? (size_t)count.n_combine : 1, sizeof *plan->combine);
    if (!plan->item || !plan->combine) {
        return mla_fail(MLA_STATUS_OUT_OF_MEMORY, "plan of %lld items does not fit into memory",
                        (long long)count.n_item);
    }
    walk_tasks(problem, shape, plan, max_rows, limit, plan->item, plan->combine);
    if (plan->n_worker > 1) {
        qsort(plan->item, (size_t)plan->n_item, sizeof *plan->item, by_cost); /* longest first */
    }
    return MLA_STATUS_OK;
}

/* ---- fingerprint ------------------------------------------------------------------------------------------------- */

static uint64_t mix_index(uint64_t hash, const mla_tensor *t)
{
    hash = mla_hash_mix(hash, (uint64_t)t->ndim);
    if (!mla_tensor_present(t) || t->device.type != MLA_DEVICE_CPU) {
        return hash; /* values on a device are the kernels' to read: plans do not depend on them */
    }
    int64_t columns = t->ndim == 2 ? t->dim[1] : 1, column_stride = t->ndim == 2 ? t->stride[1] : 0;
    for (int64_t i = 0; i < t->dim[0]; i++) {
        for (int64_t j = 0; j < columns; j++) {
            hash = mla_hash_mix(hash, (uint32_t)((const int32_t *)t->data)[i * t->stride[0] + j * column_stride]);
        }
    }
    return hash;
}

/* On a device the choice of kernels is part of the plan, and they differ by every dtype. */
static uint64_t mix_device(uint64_t hash, const mla_problem *problem, const mla_shape *shape)
{
    if (problem->q.device.type == MLA_DEVICE_CPU) {
        return hash;
    }
    hash = mla_hash_mix(hash, (uint64_t)problem->q.device.type << 32 | (uint32_t)problem->q.device.id);
    hash = mla_hash_mix(hash, (uint64_t)problem->o.dtype);
    for (int32_t g = 0; g < shape->n_segment; g++) {
        hash = mla_hash_mix(hash, (uint64_t)problem->segment[g].mask.dtype);
    }
    return hash;
}

uint64_t mla_plan_fingerprint(const mla_problem *problem, const mla_shape *shape)
{
    const int64_t sizes[] = {shape->n_seq,        shape->n_head,
                             shape->n_kv_head,    shape->n_q,
                             shape->n_token,      shape->d_nope,
                             shape->d_rope,       shape->d_v,
                             shape->batched,      shape->n_segment,
                             problem->q.dtype,    problem->q_rope.dtype,
                             problem->p_rounding, problem->p_tile,
                             problem->arithmetic, mla_tensor_present(&problem->qk_descale)};
    uint64_t hash = 0x6d6c61u;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        hash = mla_hash_mix(hash, (uint64_t)sizes[i]);
    }
    hash = mix_device(hash, problem, shape);
    if (shape->n_token == 0) {
        return hash; /* without queries index tensors need no memory behind them */
    }
    hash = mix_index(hash, &problem->q_begin);
    hash = mix_index(hash, &problem->q_length);
    for (int32_t g = 0; g < shape->n_segment; g++) {
        const mla_segment *segment = &problem->segment[g];
        const mla_segment_shape *s = &shape->segment[g];
        const int64_t rules[] = {s->addressing,
                                 segment->layout,
                                 segment->k.dtype,
                                 segment->k_rope.dtype,
                                 segment->v.dtype,
                                 s->page_size,
                                 s->n_entry,
                                 segment->list_rule,
                                 segment->list_address,
                                 segment->visible.rule,
                                 segment->visible.left,
                                 segment->visible.right,
                                 segment->visible.ratio,
                                 mla_tensor_present(&segment->v),
                                 mla_tensor_present(&segment->mask)};
        for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
            hash = mla_hash_mix(hash, (uint64_t)rules[i]);
        }
        hash = mix_index(hash, &segment->length);
        hash = mix_index(hash, &segment->k_begin);
        hash = mix_index(hash, &segment->list_length);
        hash = mix_index(hash, &segment->visible.residual);
    }
    return hash;
}
