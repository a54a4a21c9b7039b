/*
 * cpu_backend.c - plans and runs problems on the CPU: workers take items from a common counter until none is left, then,
 * where probabilities are rounded, chunk items once more, then the partial results are combined in the same way.
 */
#include <stdatomic.h>

#include "arithmetic.h"
#include "core/backend.h"
#include "core/parallel.h"
#include "tile_loop.h"

/* Of what is left of the items a worker takes at most 1 / (workers * this) at once: the others can still even out. */
#define MLA_FEWEST_TAKES 4

/* Combine items are cut by columns until every worker has about so many pieces: they mostly wait for other cores' caches. */
#define MLA_COMBINE_PIECES 2

/*
 * Chunk length. Short enough that one sequence of a few thousand keys feeds many cores, long enough that folding the
 * accumulators once per chunk costs little and that their slots stay small beside the keys. Results depend on it: changing
 * it changes bits.
 */
#define MLA_SPLIT_KEYS (6 * MLA_KEY_BLOCK)

/* Units that multiply bf16 are through with a block while another level has converted it: a chunk is longer by as much. */
#define MLA_SPLIT_KEYS_BF16 (6 * MLA_KEY_BLOCK_BF16)

/* Converting a key, or pairing its values, costs as much as so many rows' products with it. */
#define MLA_KEY_COST 4
#define MLA_KEY_COST_BF16 9

/* Chunks of rounded probabilities are whole tiles. */
static int64_t split_keys(const mla_problem *problem, mla_arithmetic arithmetic)
{
    int64_t tile = problem->p_tile; /* 0: nothing is rounded */
    return mla_arithmetic_is_bf16(arithmetic) ? MLA_SPLIT_KEYS_BF16
           : tile == 0                        ? MLA_SPLIT_KEYS
           : tile >= MLA_SPLIT_KEYS           ? tile
                                              : MLA_SPLIT_KEYS / tile * tile;
}

static mla_status cpu_accepts(const mla_problem *problem, const mla_shape *shape)
{
    (void)shape;
    mla_arithmetic wanted;
    return mla_arithmetic_wanted(problem, &wanted);
}

static mla_status cpu_build(const mla_problem *problem, const mla_shape *shape, mla_plan *plan)
{
    const mla_cpu_kernels *kernels = mla_cpu_kernels_selected();
    if (!kernels) {
        return MLA_STATUS_BAD_VALUE; /* the sentence is about MLA_ISA */
    }
    MLA_TRY(mla_arithmetic_choose(problem, shape, &kernels, &plan->arithmetic));
    plan->kernels = kernels;
    plan->isa = kernels->isa;
    if (shape->n_token == 0) {
        plan->n_worker = 1;
        return MLA_STATUS_OK; /* sizes may be anything then */
    }
    mla_layout layout =
        mla_layout_make(kernels, problem, shape, plan->arithmetic, split_keys(problem, plan->arithmetic));
    const bool bf16 = mla_arithmetic_is_bf16(plan->arithmetic);
    plan->geometry = (mla_plan_geometry){.split_keys = split_keys(problem, plan->arithmetic),
                                         .row_panel = MLA_ROW_PANEL,
                                         .slot_bytes = layout.slot_bytes,
                                         .max_rows = MLA_TASK_ROWS,
                                         .key_cost = bf16 ? MLA_KEY_COST_BF16 : MLA_KEY_COST,
                                         .from_first_key = problem->p_rounding != MLA_P_ROUND_NONE};
    MLA_TRY(mla_plan_fill(problem, shape, plan));
    plan->worker_bytes = layout.worker_bytes;
    /* no more scratch than there are items to work on */
    int64_t n_worker = plan->n_item < plan->n_worker ? plan->n_item : plan->n_worker;
    plan->n_worker = (int32_t)(n_worker > 1 ? n_worker : 1);
    plan->workspace_bytes =
        (size_t)n_worker * (plan->worker_bytes + sizeof(mla_share)) + (size_t)plan->n_slot * layout.slot_bytes;
    return MLA_STATUS_OK;
}

typedef struct cpu_run_state {
    mla_run_context run;
    int64_t n_part;                             /* of a combine item */
    _Alignas(64) atomic_int_fast64_t next_item; /* on a line of its own: every worker writes it */
    _Alignas(64) atomic_int_fast64_t next_second;
    _Alignas(64) atomic_int_fast64_t next_combine;
} cpu_run_state;

/* A whole item, or several chunks while many are left: those that follow each other in memory then do so in time, and
 * the next one's first keys are on their way when it begins. False: none is left. */
static bool take_items(cpu_run_state *state, int64_t *begin, int64_t *end)
{
    const mla_plan *plan = state->run.plan;
    *begin = atomic_load_explicit(&state->next_item, memory_order_relaxed);
    do {
        if (*begin >= plan->n_item) {
            return false;
        }
        int64_t n = (plan->n_item - *begin) / (MLA_FEWEST_TAKES * (int64_t)plan->n_worker);
        *end = *begin + (n > 1 && plan->item[*begin].slot >= 0 ? n : 1);
    } while (!atomic_compare_exchange_weak_explicit(&state->next_item, begin, *end, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static void work_items(void *data, int64_t worker)
{
    cpu_run_state *state = data;
    const mla_plan *plan = state->run.plan;
    mla_tile_begin(&state->run, worker);
    for (int64_t i, end; take_items(state, &i, &end);) {
        for (; i < end; i++) {
            mla_tile_item(&state->run, &plan->item[i], i + 1 < end ? &plan->item[i + 1] : NULL, worker);
        }
    }
    while (mla_tile_help(&state->run, worker)) {
    }
}

static void second_pass(void *data, int64_t worker)
{
    cpu_run_state *state = data;
    const mla_plan *plan = state->run.plan;
    mla_tile_begin(&state->run, worker);
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&state->next_second, 1, memory_order_relaxed);
        if (i >= plan->n_item) {
            return;
        }
        if (plan->item[i].slot >= 0) {
            mla_tile_second_pass(&state->run, &plan->item[i], worker);
        }
    }
}

static void combine_items(void *data, int64_t worker)
{
    (void)worker;
    cpu_run_state *state = data;
    const mla_plan *plan = state->run.plan;
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&state->next_combine, 1, memory_order_relaxed);
        if (i >= plan->n_combine * state->n_part) {
            return;
        }
        mla_tile_combine(&state->run, &plan->combine[i / state->n_part], i % state->n_part, state->n_part);
    }
}

static int64_t parts_of_combine(const mla_plan *plan, int64_t n_v_panel)
{
    int64_t n = plan->n_combine;
    int64_t wanted = n > 0 ? (MLA_COMBINE_PIECES * plan->n_worker + n - 1) / n : 1;
    return wanted < n_v_panel ? wanted : n_v_panel;
}

static mla_status cpu_run(const mla_plan *plan, const mla_problem *problem, const mla_shape *shape, void *workspace,
                          void *stream)
{
    (void)stream;
    if (plan->n_item == 0) {
        return MLA_STATUS_OK;
    }
    cpu_run_state state = {.run = {.plan = plan, .problem = problem, .shape = shape, .kernels = plan->kernels}};
    state.run.layout = mla_layout_make(plan->kernels, problem, shape, plan->arithmetic, plan->geometry.split_keys);
    state.run.scratch = workspace;
    state.run.slots = state.run.scratch + (size_t)plan->n_worker * plan->worker_bytes;
    state.run.share = (mla_share *)(state.run.slots + (size_t)plan->n_slot * state.run.layout.slot_bytes);
    mla_share_init(state.run.share, plan->n_worker);
    state.n_part = parts_of_combine(plan, state.run.layout.n_v_panel);
    int64_t n_piece = plan->n_combine * state.n_part;
    int64_t n_combine_worker = n_piece < plan->n_worker ? n_piece : plan->n_worker;
    mla_parallel(plan, plan->n_worker, work_items, &state);
    if (problem->p_rounding != MLA_P_ROUND_NONE && plan->n_slot > 0) {
        mla_parallel(plan, plan->n_worker, second_pass, &state);
    }
    mla_parallel(plan, n_combine_worker, combine_items, &state);
    return MLA_STATUS_OK;
}

const mla_backend_ops mla_backend_cpu_ops = {
    .name = "cpu",
    .device = MLA_DEVICE_CPU,
    .accepts = cpu_accepts,
    .build = cpu_build,
    .run = cpu_run,
};
