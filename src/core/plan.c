/*
 * plan.c - cuts a problem into items of work.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "range.h"

/* The second way of sharing out work cuts whole items that cost more than 1 / (workers * this) of everything into chunks. */
#define MLA_PLAN_BALANCE 4

/* A way that is within 1 / this of work shared out evenly for nothing is taken without looking at others. */
#define MLA_PLAN_GOOD_ENOUGH 50

/* Costs are counted in rows times keys. A key costs geometry.key_cost rows more for being converted, once in each pass that
 * an item takes over it; leaving a row of a chunk in a slot and folding it from there costs that many keys. */
#define MLA_PLAN_SLOT_COST 16

/* Numbers of chunks that are tried as a tail. */
#define MLA_PLAN_TAILS 2

/* Slots take this much at most. A way that needs more is not taken, though it may be the only one that has work for all
 * workers: from some millions of keys on, what is left is a worker for every 16 rows. */
#define MLA_PLAN_MAX_SLOT_BYTES ((size_t)4 << 30)

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
    int64_t n_item, n_combine, n_slot;
    int64_t most_rows;        /* of a task */
    int64_t cost, work;       /* of all tasks as whole items; of all items */
    int64_t n_chunk, n_split; /* chunks outside whole items, and the tasks that they are of */
} plan_count;

/* How tasks are cut: their most rows; the highest cost of a whole item; and the last chunks of a task that is cut into
 * chunks, which are cut by rows too, into tail_parts pieces, for all workers to be done at about the same time. */
typedef struct plan_cut {
    int64_t max_rows, limit, tail, tail_parts;
} plan_cut;

static int64_t cost_of_whole(const mla_plan *plan, int64_t n_key, int64_t n_row)
{
    return (n_key + 1) * (n_row + plan->geometry.key_cost);
}

static int64_t cost_of_chunk(const mla_plan *plan, int64_t n_key, int64_t n_row)
{
    int64_t passes = plan->geometry.from_first_key ? 2 : 1;
    return n_key * (n_row + passes * plan->geometry.key_cost) + n_row * MLA_PLAN_SLOT_COST;
}

/* Where a walk leaves what it finds; NULL: it only counts. */
typedef struct plan_lists {
    mla_work_item *item;
    mla_combine_item *combine;
    int64_t *cost; /* of item[] */
} plan_lists;

static void put_item(const plan_lists *to, const mla_work_item *item, plan_count *count)
{
    if (to->item) {
        to->item[count->n_item] = *item;
    }
    if (to->cost) {
        to->cost[count->n_item] = item->cost;
    }
    count->n_item++;
    count->work += item->cost;
}

/* A chunk, cut by rows into `parts` pieces or as many as there are panels. */
static void put_chunk(const mla_plan *plan, mla_work_item item, int64_t parts, const plan_lists *to, plan_count *count)
{
    int64_t panel = plan->geometry.row_panel, n_panel = (item.row_end - item.row_begin + panel - 1) / panel;
    int64_t step = (n_panel + parts - 1) / parts * panel, row_end = item.row_end;
    for (; item.row_begin < row_end; item.row_begin += step, item.slot += step / panel) {
        item.row_end = item.row_begin + step < row_end ? item.row_begin + step : row_end;
        item.cost = cost_of_chunk(plan, item.kv_end - item.kv_begin, item.row_end - item.row_begin);
        put_item(to, &item, count);
    }
}

/* One walk over all tasks serves counting and filling, so the two cannot disagree. An empty task still has its output to
 * write. */
static plan_count walk_tasks(const mla_problem *problem, const mla_shape *shape, const mla_plan *plan,
                             const plan_cut *cut, const plan_lists *to)
{
    plan_count count = {0};
    int64_t split = plan->geometry.split_keys, panel = plan->geometry.row_panel;
    for (int64_t seq = 0; seq < shape->n_seq; seq++) {
        int64_t n_row = mla_query_slots(problem, shape, seq) * shape->group;
        for (int64_t row = 0, rows; row < n_row; row += rows) {
            rows = rows_of_task(problem, shape, plan, seq, row, n_row, cut->max_rows);
            task_range range = range_of_task(problem, shape, plan, seq, row, row + rows);
            int64_t cost = cost_of_whole(plan, range.n_key, rows);
            bool whole = range.n_chunk <= 1 || cost <= cut->limit;
            int64_t n_panel = (rows + panel - 1) / panel;
            count.most_rows = rows > count.most_rows ? rows : count.most_rows;
            for (int32_t kv_head = 0; kv_head < shape->n_kv_head; kv_head++) {
                count.cost += cost;
                mla_work_item base = {.seq = seq, .row_begin = row, .row_end = row + rows, .kv_head = kv_head};
                if (whole) {
                    base.segment = -1;
                    base.slot = -1;
                    base.cost = cost;
                    put_item(to, &base, &count);
                    continue;
                }
                int64_t first_slot = count.n_slot, left = range.n_chunk;
                for (int32_t g = 0; g < shape->n_segment; g++) {
                    for (int64_t at = chunk_origin(plan, &range, g); at < range.end[g]; at += split) {
                        base.segment = g;
                        base.kv_begin = at;
                        base.kv_end = at + split < range.end[g] ? at + split : range.end[g];
                        base.slot = count.n_slot;
                        base.task_slot = first_slot;
                        int64_t parts = left <= cut->tail ? cut->tail_parts : 1;
                        put_chunk(plan, base, parts, to, &count);
                        count.n_slot += n_panel;
                        left--;
                    }
                }
                count.n_chunk += range.n_chunk;
                count.n_split++;
                for (int64_t i = 0; i < n_panel; i++) {
                    if (to->combine) {
                        int64_t begin = row + i * panel;
                        to->combine[count.n_combine] = (mla_combine_item){
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

/* One way of sharing out the work. */
typedef struct plan_draft {
    plan_cut cut;
    plan_count count;
    int64_t cost; /* of the worker that ends last */
} plan_draft;

/* What the busiest worker does when each, as soon as it is free, takes the next item. load [n_worker] is kept as a heap:
 * the worker that is free first is number 0, and none is free before its parent (i - 1) / 2. */
static int64_t busiest(const int64_t *cost, int64_t n_item, int64_t *load, int64_t n_worker)
{
    int64_t most = 0;
    memset(load, 0, (size_t)n_worker * sizeof *load);
    for (int64_t i = 0; i < n_item; i++) {
        int64_t now = load[0] + cost[i], at = 0;
        most = now > most ? now : most;
        for (int64_t child; (child = 2 * at + 1) < n_worker; at = child) {
            child += child + 1 < n_worker && load[child + 1] < load[child];
            if (load[child] >= now) {
                break;
            }
            load[at] = load[child];
        }
        load[at] = now;
    }
    return most;
}

static int downwards(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return *x < *y ? 1 : *x > *y ? -1 : 0;
}

static mla_status fail_for_memory(int64_t n_item)
{
    return mla_fail(MLA_STATUS_OUT_OF_MEMORY, "plan of %lld items does not fit into memory", (long long)n_item);
}

/* Cut in a way that makes `count`; load: room for a number per worker. */
static mla_status make_draft(const mla_problem *problem, const mla_shape *shape, const mla_plan *plan,
                             const plan_cut *cut, plan_count count, int64_t *load, plan_draft *draft)
{
    *draft = (plan_draft){.cut = *cut, .count = count, .cost = count.cost};
    if (plan->n_worker == 1) {
        return MLA_STATUS_OK;
    }
    int64_t *cost = calloc(count.n_item ? (size_t)count.n_item : 1, sizeof *cost);
    if (!cost) {
        return fail_for_memory(count.n_item);
    }
    walk_tasks(problem, shape, plan, cut, &(plan_lists){.cost = cost});
    qsort(cost, (size_t)count.n_item, sizeof *cost, downwards);
    draft->cost = busiest(cost, count.n_item, load, plan->n_worker);
    free(cost);
    return MLA_STATUS_OK;
}

/* Drafts one more way and keeps the better one. */
static mla_status try_draft(const mla_problem *problem, const mla_shape *shape, const mla_plan *plan,
                            const plan_cut *cut, int64_t *load, plan_draft *best)
{
    plan_count count = walk_tasks(problem, shape, plan, cut, &(plan_lists){0});
    if ((size_t)count.n_slot > MLA_PLAN_MAX_SLOT_BYTES / plan->geometry.slot_bytes) {
        return MLA_STATUS_OK;
    }
    plan_draft draft;
    MLA_TRY(make_draft(problem, shape, plan, cut, count, load, &draft));
    *best = draft.cost < best->cost ? draft : *best;
    return MLA_STATUS_OK;
}

static int64_t whole_panels(const mla_plan *plan, int64_t n_row)
{
    return (n_row + plan->geometry.row_panel - 1) / plan->geometry.row_panel * plan->geometry.row_panel;
}

/* Done at most a little later than if each worker had `share` to do? */
static bool good_enough(const plan_draft *draft, int64_t share)
{
    return draft->cost - share <= share / MLA_PLAN_GOOD_ENOUGH;
}

/* Chunks seldom come out even: those that are left after the last round of all workers, or these and half a round more, are
 * cut by rows into halves, quarters, ... */
static mla_status cut_tail(const mla_problem *problem, const mla_shape *shape, const mla_plan *plan, int64_t *load,
                           plan_draft *best)
{
    const int64_t n_chunk = best->count.n_chunk, n_split = best->count.n_split;
    if (n_chunk == 0 || plan->geometry.from_first_key) { /* rounded chunks look for each other's slots */
        return MLA_STATUS_OK;
    }
    plan_cut cut = best->cut;
    const int64_t rows = whole_panels(plan, best->count.most_rows);
    for (int64_t i = 0; i < MLA_PLAN_TAILS; i++) {
        int64_t n = n_chunk % plan->n_worker + i * plan->n_worker / 2;
        cut.tail = ((n < n_chunk ? n : n_chunk) + n_split - 1) / n_split;
        for (cut.tail_parts = 2; cut.tail_parts * plan->geometry.row_panel <= rows; cut.tail_parts *= 2) {
            if (good_enough(best, best->count.work / plan->n_worker)) {
                return MLA_STATUS_OK;
            }
            MLA_TRY(try_draft(problem, shape, plan, &cut, load, best));
        }
    }
    return MLA_STATUS_OK;
}

/* The next of max_rows, a half of it, a quarter, ... below `rows` that cuts tasks of most_rows; 0: none does. Not halves of
 * most_rows: 96 rows as 64 and 32 often come out even where 48 and 48 do not. */
static int64_t fewer_rows(const mla_plan *plan, int64_t rows, int64_t most_rows)
{
    const int64_t panel = plan->geometry.row_panel;
    while (rows > panel) {
        rows = (rows / panel + 1) / 2 * panel;
        if (rows < most_rows) {
            return rows;
        }
    }
    return 0;
}

/*
 * The ways: all rows that may share a task or half of them, a quarter, ..., which converts keys more than once; whole
 * items or chunks, which leave partial results to be folded; of the better one of these the last chunks in pieces. The one
 * that is done first is taken, of equals the one with the fewest pieces. first: what the first way counts, all rows and
 * whole items.
 */
static mla_status best_draft(const mla_problem *problem, const mla_shape *shape, const mla_plan *plan, plan_count first,
                             int64_t *load, plan_draft *best)
{
    int64_t share = first.cost / plan->n_worker, rows = plan->geometry.max_rows;
    plan_cut cut = {.max_rows = rows, .limit = INT64_MAX};
    MLA_TRY(make_draft(problem, shape, plan, &cut, first, load, best));
    for (bool chunks = true; !good_enough(best, share); chunks = !chunks) {
        if (!chunks && (rows = fewer_rows(plan, rows, first.most_rows)) == 0) {
            break;
        }
        cut.max_rows = rows;
        cut.limit = chunks ? share / MLA_PLAN_BALANCE : INT64_MAX;
        MLA_TRY(try_draft(problem, shape, plan, &cut, load, best));
    }
    return cut_tail(problem, shape, plan, load, best);
}

/* The items and combine items of a draft, longest first. */
static mla_status carry_out(const mla_problem *problem, const mla_shape *shape, const plan_draft *draft, mla_plan *plan)
{
    const plan_count *count = &draft->count;
    plan_lists lists = {.item = calloc(count->n_item ? (size_t)count->n_item : 1, sizeof *lists.item),
                        .combine = calloc(count->n_combine ? (size_t)count->n_combine : 1, sizeof *lists.combine)};
    if (!lists.item || !lists.combine) {
        free(lists.item);
        free(lists.combine);
        return fail_for_memory(count->n_item);
    }
    walk_tasks(problem, shape, plan, &draft->cut, &lists);
    if (plan->n_worker > 1) {
        qsort(lists.item, (size_t)count->n_item, sizeof *lists.item, by_cost);
    }
    plan->item = lists.item;
    plan->combine = lists.combine;
    plan->n_item = count->n_item;
    plan->n_combine = count->n_combine;
    plan->n_slot = count->n_slot;
    return MLA_STATUS_OK;
}

mla_status mla_plan_fill(const mla_problem *problem, const mla_shape *shape, mla_plan *plan)
{
    const plan_cut together = {.max_rows = plan->geometry.max_rows, .limit = INT64_MAX};
    plan_count all = walk_tasks(problem, shape, plan, &together, &(plan_lists){0});
    int64_t useful = all.cost / mla_plan_worker_cost + 1;
    plan->n_worker = useful < plan->n_worker ? (int32_t)useful : plan->n_worker;
    int64_t *load = malloc((size_t)plan->n_worker * sizeof *load);
    if (!load) {
        return mla_fail(MLA_STATUS_OUT_OF_MEMORY, "plan for %d workers does not fit into memory", (int)plan->n_worker);
    }
    plan_draft draft;
    mla_status status = best_draft(problem, shape, plan, all, load, &draft);
    free(load);
    return status == MLA_STATUS_OK ? carry_out(problem, shape, &draft, plan) : status;
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
                             problem->arithmetic, mla_tensor_present(&problem->qk_descale),
                             problem->o.dtype};
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
