/*
 * atb_place.h - where the tensors of a test of the ATB door lie: in host memory, or, with MLA_DEVICE=cuda, on the first
 * GPU while the call runs.
 */
#ifndef ATB_PLACE_H
#define ATB_PLACE_H

#include "atb_numbers.h"
#include "mla/mla.h"
#include "mla/mla_gpu.h"

static inline bool on_gpu(void)
{
    const char *device = getenv("MLA_DEVICE");
    return device != NULL && strcmp(device, "cuda") == 0;
}

static inline void must_gpu(mla_status status)
{
    if (status != MLA_STATUS_OK) {
        fail_msg("%s", mla_last_error());
    }
}

static inline size_t bytes_of(const mla_atb_tensor *t)
{
    size_t bytes = t->dtype == MLA_ATB_INT8 ? 1 : t->dtype == MLA_ATB_FLOAT || t->dtype == MLA_ATB_INT32 ? 4 : 2;
    for (int32_t i = 0; i < t->ndim; i++) {
        bytes *= (size_t)t->dim[i];
    }
    return bytes;
}

enum { MAX_PLACED = 16 };

typedef struct placement {
    int64_t n;
    mla_atb_tensor *tensor[MAX_PLACED];
    void *host[MAX_PLACED];
} placement;

/* Moves tensors to the GPU in place. Those without memory stay. */
static inline placement place(mla_atb_tensor *const *tensor, int64_t n)
{
    placement p = {0};
    for (int64_t i = 0; i < n && on_gpu(); i++) {
        mla_atb_tensor *t = tensor[i];
        if (t->data == NULL) {
            continue;
        }
        p.tensor[p.n] = t;
        p.host[p.n] = t->data;
        must_gpu(mla_gpu_allocate(0, bytes_of(t), &t->data));
        must_gpu(mla_gpu_copy(0, t->data, p.host[p.n++], bytes_of(t), NULL));
        t->device = (mla_device){MLA_DEVICE_CUDA, 0};
    }
    if (p.n > 0) {
        must_gpu(mla_gpu_synchronize(0, NULL));
    }
    return p;
}

/* And back, with what was written there. */
static inline void take_back(placement *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        mla_atb_tensor *t = p->tensor[i];
        must_gpu(mla_gpu_copy(0, p->host[i], t->data, bytes_of(t), NULL));
        must_gpu(mla_gpu_synchronize(0, NULL));
        must_gpu(mla_gpu_free(0, t->data));
        t->data = p->host[i];
        t->device = (mla_device){MLA_DEVICE_CPU, 0};
    }
}

static inline void must(int32_t code, const char *what)
{
    if (code != MLA_ATB_NO_ERROR) {
        fail_msg("%s gives %d: %s", what, code, mla_last_error());
    }
}

/* Executes an op with a workspace of its own; it is not cleared, for its contents do not count. */
static inline void must_execute(mla_atb_op *op, uint64_t bytes)
{
    void *workspace, *stream;
    if (!on_gpu()) {
        workspace = malloc(bytes > 0 ? bytes : 1);
        must(mla_atb_op_execute(op, NULL, workspace, bytes, NULL), "execute");
        free(workspace);
        return;
    }
    must_gpu(mla_gpu_allocate(0, bytes, &workspace));
    must_gpu(mla_gpu_stream_create(0, &stream));
    must(mla_atb_op_execute(op, NULL, workspace, bytes, stream), "execute");
    must_gpu(mla_gpu_synchronize(0, stream));
    must_gpu(mla_gpu_stream_destroy(0, stream));
    must_gpu(mla_gpu_free(0, workspace));
}

#endif
