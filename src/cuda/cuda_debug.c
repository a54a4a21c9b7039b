/*
 * cuda_debug.c - the checker's pass over host copies of index tensors.
 */
#define _POSIX_C_SOURCE 200809L
#include "cuda_debug.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"
#include "core/problem_check.h"
#include "mla/mla_gpu.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char word[MLA_WORD_BYTES]; /* MLA_DEBUG when it was first looked at */

static void read_environment(void)
{
    mla_environment_word("MLA_DEBUG", word);
}

/* Index tensors of a problem and its two segments. */
enum { MAX_COPIES = 2 + 6 * MLA_MAX_SEGMENT };

typedef struct copies {
    int32_t gpu;
    void *stream;
    int32_t n;
    void *memory[MAX_COPIES];
} copies;

/* Makes *t a view of a copy in host memory, with its strides. */
static mla_status to_host(copies *c, mla_tensor *t)
{
    int64_t low = 0, high = 0;
    if (!mla_tensor_present(t) || mla_tensor_empty(t)) {
        return MLA_STATUS_OK;
    }
    for (int32_t i = 0; i < t->ndim; i++) {
        int64_t reach = (t->dim[i] - 1) * t->stride[i];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    size_t bytes = (size_t)(high - low + 1) * sizeof(int32_t);
    void *memory = malloc(bytes);
    if (memory == NULL) {
        return mla_fail(MLA_STATUS_OUT_OF_MEMORY, "MLA_DEBUG: a copy of %zu bytes does not fit into memory", bytes);
    }
    c->memory[c->n++] = memory;
    MLA_TRY(mla_gpu_copy(c->gpu, memory, (const int32_t *)t->data + low, bytes, c->stream));
    t->data = (int32_t *)memory - low;
    t->device = (mla_device){MLA_DEVICE_CPU, 0};
    return MLA_STATUS_OK;
}

static mla_status copy_indices(copies *c, mla_problem *p)
{
    MLA_TRY(to_host(c, &p->q_begin));
    MLA_TRY(to_host(c, &p->q_length));
    for (int32_t g = 0; g < p->n_segment; g++) {
        mla_segment *segment = &p->segment[g];
        mla_tensor *const index[] = {&segment->length, &segment->k_begin,     &segment->page_table,
                                     &segment->list,   &segment->list_length, &segment->visible.residual};
        for (size_t i = 0; i < sizeof index / sizeof index[0]; i++) {
            MLA_TRY(to_host(c, index[i]));
        }
    }
    return mla_gpu_synchronize(c->gpu, c->stream);
}

/* Rows of keys that an entry of segment g's lists can name at all. */
static int64_t addressable(const mla_problem *p, const mla_shape *shape, int32_t g)
{
    const mla_segment_shape *s = &shape->segment[g];
    int64_t pages = p->segment[g].list_address == MLA_LIST_PHYSICAL ? s->n_page : s->max_page, rows;
    if (s->addressing != MLA_ADDRESS_PAGED && p->segment[g].list_address != MLA_LIST_PHYSICAL) {
        return s->page_size;
    }
    return __builtin_mul_overflow(pages, s->page_size, &rows) ? INT64_MAX : rows;
}

/* One list of n entries, up to a negative one under the rule STOP. */
static mla_status check_list(const mla_segment *segment, int32_t g, const int32_t *row, int64_t n, int64_t limit,
                             int64_t seq, int64_t i)
{
    const mla_tensor *list = &segment->list;
    for (int64_t x = 0; x < n; x++) {
        const int64_t entry = row[x * list->stride[list->ndim - 1]];
        if (entry < 0 && segment->list_rule == MLA_LIST_STOP) {
            break;
        }
        if (entry >= limit) {
            mla_field field = mla_segment_field(list, "list", g);
            return mla_fail(MLA_STATUS_OUT_OF_RANGE,
                            "%s entry %" PRId64 " of query token %" PRId64 " of sequence %" PRId64 " = %" PRId64
                            " is not one of the %" PRId64 " keys that there is room for",
                            mla_field_label(&field).text, x, i, seq, entry, limit);
        }
    }
    return MLA_STATUS_OK;
}

/* Lists [n_seq][n_q][n_entry] or [n_token][n_entry], and how many entries of them count. */
static mla_status check_lists(const mla_problem *p, const mla_shape *shape, int32_t g)
{
    const mla_segment *segment = &p->segment[g];
    const mla_tensor *list = &segment->list, *length = &segment->list_length;
    const int64_t limit = addressable(p, shape, g);
    const bool by_token = length->ndim == 2 || (!shape->batched && length->dim[0] == shape->n_token);
    for (int64_t s = 0; s < shape->n_seq; s++) {
        for (int64_t i = 0; i < mla_query_used(p, shape, s); i++) {
            const int64_t token = mla_query_begin(p, shape, s) + i, at = shape->batched ? s : token;
            const int32_t *row = (const int32_t *)list->data + at * list->stride[0];
            int64_t n = shape->segment[g].n_entry;
            row += shape->batched ? i * list->stride[1] : 0;
            if (mla_tensor_present(length)) {
                const int64_t given = ((const int32_t *)length->data)[(by_token ? at : s) * length->stride[0] +
                                                                      (length->ndim == 2 ? i * length->stride[1] : 0)];
                n = given < n ? given : n;
            }
            MLA_TRY(check_list(segment, g, row, n, limit, s, i));
        }
    }
    return MLA_STATUS_OK;
}

/* The kernels take a list's length beyond its entries for all of them, and a door relies on it. */
static void clip_list_length(const mla_shape *shape, int32_t g, const mla_tensor *length)
{
    const int64_t columns = length->ndim == 2 ? length->dim[1] : 1, most = shape->segment[g].n_entry;
    for (int64_t i = 0; mla_tensor_present(length) && i < length->dim[0] * columns; i++) {
        int32_t *value = (int32_t *)length->data + i / columns * length->stride[0] +
                         (length->ndim == 2 ? i % columns * length->stride[1] : 0);
        *value = *value < most ? *value : (int32_t)most;
    }
}

static mla_status check(const mla_problem *p, const mla_shape *shape)
{
    for (int32_t g = 0; g < p->n_segment; g++) {
        clip_list_length(shape, g, &p->segment[g].list_length);
    }
    MLA_TRY(mla_check_index_values(p, shape));
    for (int32_t g = 0; g < p->n_segment; g++) {
        if (shape->segment[g].has_list) {
            MLA_TRY(check_lists(p, shape, g));
        }
    }
    return MLA_STATUS_OK;
}

mla_status mla_cuda_inspect(const mla_problem *problem, const mla_shape *shape, void *stream)
{
    pthread_once(&once, read_environment);
    if (word[0] == '\0' || strcmp(word, "0") == 0) {
        return MLA_STATUS_OK;
    }
    if (strcmp(word, "1") != 0) {
        return mla_fail(MLA_STATUS_BAD_VALUE, "MLA_DEBUG = \"%s\" must be 0 or 1", word);
    }
    mla_problem host = *problem;
    copies c = {.gpu = problem->q.device.id, .stream = stream};
    mla_status status = copy_indices(&c, &host);
    if (status == MLA_STATUS_OK) {
        status = check(&host, shape);
    }
    for (int32_t i = 0; i < c.n; i++) {
        free(c.memory[i]);
    }
    return status;
}
