/*
 * cpu_backend.c - plans and runs problems on the CPU: workers take items from a common counter until none is left, then
 * the partial results are combined in the same way.
 */
#include <stdatomic.h>

#include "core/backend.h"
#include "core/parallel.h"
#include "tile_loop.h"

/*
 * Chunk length. Short enough that one sequence of a few thousand keys feeds many cores, long enough that folding the
 * accumulators once per chunk costs little and that their slots stay small beside the keys. Results depend on it: changing
 * it changes bits.
 */
#define MLA_SPLIT_KEYS (6 * MLA_KEY_BLOCK)

static bool is_8bit(const mla_tensor *t)
{
    return t->dtype == MLA_DTYPE_HIF8 || t->dtype == MLA_DTYPE_I8;
}

static mla_status refuse_8bit(const char *name, const mla_tensor *t)
{
    return mla_fail(MLA_STATUS_UNSUPPORTED, "%s.dtype = %s is not available on the CPU backend yet", name,
                    mla_dtype_name(t->dtype));
}

/* Storage that has no kernels. */
static mla_status accepts_storage(const mla_problem *problem, const mla_shape *shape)
{
    if (is_8bit(&problem->q)) {
        return refuse_8bit("q", &problem->q);
    }
    for (int32_t g = 0; g < shape->n_segment; g++) {
        const mla_segment *segment = &problem->segment[g];
        if (is_8bit(&segment->k)) {
            return refuse_8bit("k", &segment->k);
        }
        if (is_8bit(&segment->v)) {
            return refuse_8bit("v", &segment->v);
        }
        if (segment->layout != MLA_KEY_LAYOUT_ROW) {
            return mla_fail(MLA_STATUS_UNSUPPORTED,
                            "segment[%d].layout = %d (NZ) is not available on the CPU backend yet", (int)g,
                            (int)segment->layout);
        }
    }
    /* one scale per row is multiplied into q, nope and rope part alike */
    if (mla_tensor_present(&problem->qk_descale) && shape->d_rope > 0) {
        return mla_fail(MLA_STATUS_UNSUPPORTED,
                        "qk_descale beside a q_rope that it does not apply to is not available on the CPU backend yet");
    }
    if (mla_tensor_present(&problem->lse) && problem->lse.dtype != MLA_DTYPE_F32) {
        return mla_fail(MLA_STATUS_UNSUPPORTED, "lse.dtype = %s is not available on the CPU backend yet, only f32",
                        mla_dtype_name(problem->lse.dtype));
    }
    return MLA_STATUS_OK;
}

static mla_status cpu_accepts(const mla_problem *problem, const mla_shape *shape)
{
    MLA_TRY(accepts_storage(problem, shape));
    if (problem->p_rounding != MLA_P_ROUND_NONE) {
        return mla_fail(MLA_STATUS_UNSUPPORTED,
                        "p_rounding = %d (%s) is not available on the CPU backend yet, only 0 (none)",
                        (int)problem->p_rounding, mla_p_rounding_word(problem->p_rounding));
    }
    if (problem->arithmetic != MLA_ARITHMETIC_F32) {
        return mla_fail(MLA_STATUS_UNSUPPORTED,
                        "arithmetic = %d (int16) is not available on the CPU backend yet, only 0 (f32)",
                        (int)problem->arithmetic);
    }
    return MLA_STATUS_OK;
}

static mla_status cpu_build(const mla_problem *problem, const mla_shape *shape, mla_plan *plan)
{
    const mla_cpu_kernels *kernels = mla_cpu_kernels_selected();
    if (!kernels) {
        return MLA_STATUS_BAD_VALUE; /* the sentence is about MLA_ISA */
    }
    plan->kernels = kernels;
    plan->isa = kernels->isa;
    plan->geometry =
        (mla_plan_geometry){.split_keys = MLA_SPLIT_KEYS, .row_panel = MLA_ROW_PANEL, .max_rows = MLA_TASK_ROWS};
    MLA_TRY(mla_plan_fill(problem, shape, plan));
    if (plan->n_item == 0) {
        plan->n_worker = 1;
        return MLA_STATUS_OK; /* sizes may be anything then */
    }
    mla_layout layout = mla_layout_make(kernels, problem, shape);
    plan->worker_bytes = layout.worker_bytes;
    plan->slot_bytes = layout.slot_bytes;
    /* no more scratch than there are items to work on */
    int64_t n_worker = plan->n_item < plan->n_worker ? plan->n_item : plan->n_worker;
    plan->n_worker = (int32_t)n_worker;
    plan->workspace_bytes = (size_t)plan->n_worker * plan->worker_bytes + (size_t)plan->n_slot * plan->slot_bytes;
    return MLA_STATUS_OK;
}

typedef struct cpu_run_state {
    mla_run_context run;
    char *scratch;
    _Alignas(64) atomic_int_fast64_t next_item; /* on a line of its own: every worker writes it */
    _Alignas(64) atomic_int_fast64_t next_combine;
} cpu_run_state;

static void work_items(void *data, int64_t worker)
{
    cpu_run_state *state = data;
    const mla_plan *plan = state->run.plan;
    char *scratch = state->scratch + (size_t)worker * plan->worker_bytes;
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&state->next_item, 1, memory_order_relaxed);
        if (i >= plan->n_item) {
            return;
        }
        mla_tile_item(&state->run, &plan->item[i], scratch);
    }
}

static void combine_items(void *data, int64_t worker)
{
    (void)worker;
    cpu_run_state *state = data;
    const mla_plan *plan = state->run.plan;
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&state->next_combine, 1, memory_order_relaxed);
        if (i >= plan->n_combine) {
            return;
        }
        mla_tile_combine(&state->run, &plan->combine[i]);
    }
}

static mla_status cpu_run(const mla_plan *plan, const mla_problem *problem, const mla_shape *shape, void *workspace,
                          void *stream)
{
    (void)stream;
    if (plan->n_item == 0) {
        return MLA_STATUS_OK;
    }
    cpu_run_state state = {.run = {.plan = plan, .problem = problem, .shape = shape, .kernels = plan->kernels}};
    state.run.layout = mla_layout_make(plan->kernels, problem, shape);
    state.scratch = workspace;
    state.run.slots = state.scratch + (size_t)plan->n_worker * plan->worker_bytes;
    int64_t n_combine_worker = plan->n_combine < plan->n_worker ? plan->n_combine : plan->n_worker;
    mla_parallel(plan, plan->n_worker, work_items, &state);
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
