/*
 * backend_ref.c - the oracle as a backend: every row in turn, rounded once.
 */
#include "core/parallel.h"
#include "core/plan.h"
#include "number.h"
#include "ref.h"

/* Scratch of all workers, unless one needs more. */
#define REF_MOST_BYTES ((size_t)4 << 30)

static mla_status ref_accepts(const mla_problem *problem, const mla_shape *shape)
{
    (void)problem; /* it computes whatever passes the check */
    (void)shape;
    return MLA_STATUS_OK;
}

/* One share of the rows per worker, each with scratch of its own: o [d_v], then what mla_ref_row() needs. */
static size_t share_bytes(const mla_problem *problem, const mla_shape *shape)
{
    return sizeof(double) * (size_t)shape->d_v + mla_ref_scratch_bytes(problem, shape);
}

static mla_status ref_build(const mla_problem *problem, const mla_shape *shape, mla_plan *plan)
{
    plan->isa = "";
    if (shape->n_token == 0) {
        plan->n_worker = 1;
        return MLA_STATUS_OK; /* nothing to do, and sizes may be anything then */
    }
    /* no more workers than there are rows, or, since each has all scores of one, than memory should be asked for */
    plan->worker_bytes = share_bytes(problem, shape);
    int64_t n_row = shape->n_token * shape->n_head, most = (int64_t)(REF_MOST_BYTES / plan->worker_bytes);
    most = most < 1 ? 1 : n_row < most ? n_row : most;
    plan->n_worker = most < plan->n_worker ? (int32_t)most : plan->n_worker;
    plan->workspace_bytes = plan->worker_bytes * (size_t)plan->n_worker;
    plan->n_item = plan->n_worker;
    return MLA_STATUS_OK;
}

typedef struct ref_run_context {
    const mla_plan *plan;
    const mla_problem *problem;
    const mla_shape *shape;
    char *workspace;
} ref_run_context;

/* Writes what mla_ref_row() found for one row. */
static void write_row(const mla_problem *problem, const mla_shape *shape, int64_t s, int64_t token, int64_t h,
                      const double *o, const mla_ref_row_result *row)
{
    const int64_t *stride = shape->o_stride;
    int64_t at = s * stride[0] + token * stride[1] + h * stride[2];
    for (int64_t c = 0; c < shape->d_v; c++) {
        mla_ref_store(problem->o.data, problem->o.dtype, at + c, o[c]);
    }
    if (mla_tensor_present(&problem->lse)) {
        stride = shape->lse_stride;
        at = s * stride[0] + token * stride[1] + h * stride[2];
        mla_ref_store(problem->lse.data, problem->lse.dtype, at, row->lse);
    }
    if (mla_tensor_present(&problem->max)) {
        stride = shape->max_stride;
        at = s * stride[0] + token * stride[1] + h * stride[2];
        mla_ref_store(problem->max.data, problem->max.dtype, at, row->max);
    }
}

/* Every n_worker-th (token, head) of every sequence. */
static void ref_share(void *data, int64_t index)
{
    const ref_run_context *run = data;
    const mla_problem *problem = run->problem;
    const mla_shape *shape = run->shape;
    double *o = (double *)(run->workspace + run->plan->worker_bytes * (size_t)index);
    void *scratch = o + shape->d_v;
    int64_t count = 0;
    for (int64_t s = 0; s < shape->n_seq; s++) {
        int64_t first_token = mla_query_begin(problem, shape, s);
        for (int64_t i = 0; i < mla_query_slots(problem, shape, s); i++) {
            for (int64_t h = 0; h < shape->n_head; h++, count++) {
                if (count % run->plan->n_worker != index) {
                    continue;
                }
                mla_ref_row_result row;
                mla_ref_row_rounded(problem, shape, s, i, h, scratch, o, &row);
                write_row(problem, shape, s, first_token + i, h, o, &row);
            }
        }
    }
}

static mla_status ref_run(const mla_plan *plan, const mla_problem *problem, const mla_shape *shape, void *workspace,
                          void *stream)
{
    (void)stream;
    ref_run_context run = {plan, problem, shape, workspace};
    mla_parallel(plan, plan->n_item, ref_share, &run);
    return MLA_STATUS_OK;
}

const mla_backend_ops mla_backend_ref_ops = {
    .name = "ref",
    .device = MLA_DEVICE_CPU,
    .accepts = ref_accepts,
    .build = ref_build,
    .run = ref_run,
};
