/*
 * rival_bf16.c - see rival_bf16.h. oneDNN 2 by hand, since the build does not need its headers.
 */
#include "rival_bf16.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* oneDNN's objects are pointers, but for these two, which callers provide and do not look into. */
typedef struct memory_desc {
    _Alignas(8) char bytes[1024]; /* 696 in oneDNN 2.6 */
} memory_desc;
typedef struct matmul_desc {
    _Alignas(8) char bytes[4096]; /* 2800 */
} matmul_desc;
typedef struct exec_arg {
    int argument;
    void *memory;
} exec_arg;
enum { DNNL_CPU = 1, DNNL_BF16 = 2, DNNL_F32 = 3, DNNL_STREAM_DEFAULT = 1 };
enum { DNNL_SRC = 1, DNNL_DST = 17, DNNL_WEIGHTS = 33 };
enum { DNNL_DIMS = 12 };

struct rival_bf16 {
    int (*gemm)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const uint16_t *a,
                int64_t lda, const uint16_t *b, int64_t ldb, float beta, float *c, int64_t ldc);
    bool has_primitives;
    int (*engine_create)(void **engine, int kind, size_t index);
    int (*stream_create)(void **stream, void *engine, unsigned flags);
    int (*desc_by_strides)(memory_desc *desc, int n_dim, const int64_t *dims, int type, const int64_t *strides);
    int (*attr_create)(void **attr);
    int (*attr_destroy)(void *attr);
    int (*attr_scales)(void *attr, int64_t count, int mask, const float *scales);
    int (*attr_post_ops)(void *attr, const void *ops);
    int (*ops_create)(void **ops);
    int (*ops_destroy)(void *ops);
    int (*ops_sum)(void *ops, float scale);
    int (*matmul_init)(matmul_desc *op, const memory_desc *a, const memory_desc *b, const memory_desc *bias,
                       const memory_desc *c);
    int (*primitive_desc_create)(void **desc, const void *op, const void *attr, void *engine, const void *hint);
    int (*primitive_desc_destroy)(void *desc);
    int (*primitive_create)(void **primitive, const void *desc);
    int (*primitive_destroy)(void *primitive);
    int (*memory_create)(void **memory, const memory_desc *desc, void *engine, void *data);
    int (*memory_destroy)(void *memory);
    int (*memory_set)(void *memory, void *data);
    int (*execute)(const void *primitive, void *stream, int n, const exec_arg *arguments);
    void *engine; /* kept until the process ends, as the library is */
};

struct rival_bf16_product {
    const rival_bf16 *dnnl;
    rival_bf16_shape shape;
    void *stream, *primitive; /* NULL: through the function */
    void *memory[3];          /* a, b, c */
};

/* dlsym() gives a data pointer; C wants it copied into a function pointer. */
static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

rival_bf16 *rival_bf16_open(void *library)
{
    rival_bf16 *d = calloc(1, sizeof *d);
    if (d == NULL || !find(library, "dnnl_gemm_bf16bf16f32", &d->gemm)) {
        free(d);
        return NULL;
    }
    d->has_primitives = find(library, "dnnl_engine_create", &d->engine_create) &&
                        find(library, "dnnl_stream_create", &d->stream_create) &&
                        find(library, "dnnl_memory_desc_init_by_strides", &d->desc_by_strides) &&
                        find(library, "dnnl_primitive_attr_create", &d->attr_create) &&
                        find(library, "dnnl_primitive_attr_destroy", &d->attr_destroy) &&
                        find(library, "dnnl_primitive_attr_set_output_scales", &d->attr_scales) &&
                        find(library, "dnnl_primitive_attr_set_post_ops", &d->attr_post_ops) &&
                        find(library, "dnnl_post_ops_create", &d->ops_create) &&
                        find(library, "dnnl_post_ops_destroy", &d->ops_destroy) &&
                        find(library, "dnnl_post_ops_append_sum", &d->ops_sum) &&
                        find(library, "dnnl_matmul_desc_init", &d->matmul_init) &&
                        find(library, "dnnl_primitive_desc_create", &d->primitive_desc_create) &&
                        find(library, "dnnl_primitive_desc_destroy", &d->primitive_desc_destroy) &&
                        find(library, "dnnl_primitive_create", &d->primitive_create) &&
                        find(library, "dnnl_primitive_destroy", &d->primitive_destroy) &&
                        find(library, "dnnl_memory_create", &d->memory_create) &&
                        find(library, "dnnl_memory_destroy", &d->memory_destroy) &&
                        find(library, "dnnl_memory_set_data_handle", &d->memory_set) &&
                        find(library, "dnnl_primitive_execute", &d->execute) &&
                        d->engine_create(&d->engine, DNNL_CPU, 0) == 0;
    return d;
}

void rival_bf16_close(rival_bf16 *dnnl)
{
    free(dnnl);
}

static bool describe(const rival_bf16 *d, memory_desc *desc, int type, int64_t rows, int64_t columns,
                     int64_t row_stride, int64_t column_stride)
{
    const int64_t dims[DNNL_DIMS] = {rows, columns}, strides[DNNL_DIMS] = {row_stride, column_stride};
    return d->desc_by_strides(desc, 2, dims, type, strides) == 0;
}

/* Nothing is given back where a step fails, which ends the comparison and soon the process. */
static bool make_primitive(rival_bf16_product *p)
{
    const rival_bf16 *d = p->dnnl;
    const rival_bf16_shape *s = &p->shape;
    memory_desc desc[3];
    matmul_desc op;
    void *attr, *ops, *primitive_desc;
    bool good = describe(d, &desc[0], DNNL_BF16, s->m, s->k, s->lda, 1) &&
                describe(d, &desc[1], DNNL_BF16, s->k, s->n, s->transposed ? 1 : s->ldb, s->transposed ? s->ldb : 1) &&
                describe(d, &desc[2], DNNL_F32, s->m, s->n, s->ldc, 1) && d->attr_create(&attr) == 0;
    good = good && (s->alpha == 1 || d->attr_scales(attr, 1, 0, &s->alpha) == 0);
    if (good && s->add) {
        good = d->ops_create(&ops) == 0 && d->ops_sum(ops, 1) == 0 && d->attr_post_ops(attr, ops) == 0 &&
               d->ops_destroy(ops) == 0;
    }
    good = good && d->matmul_init(&op, &desc[0], &desc[1], NULL, &desc[2]) == 0 &&
           d->primitive_desc_create(&primitive_desc, &op, attr, d->engine, NULL) == 0 && d->attr_destroy(attr) == 0 &&
           d->primitive_create(&p->primitive, primitive_desc) == 0 && d->primitive_desc_destroy(primitive_desc) == 0 &&
           d->stream_create(&p->stream, d->engine, DNNL_STREAM_DEFAULT) == 0;
    for (int i = 0; good && i < 3; i++) {
        good = d->memory_create(&p->memory[i], &desc[i], d->engine, NULL) == 0;
    }
    return good;
}

rival_bf16_product *rival_bf16_make(const rival_bf16 *dnnl, const rival_bf16_shape *shape, bool primitive)
{
    rival_bf16_product *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return NULL;
    }
    p->dnnl = dnnl;
    p->shape = *shape;
    if (primitive && dnnl->has_primitives && !make_primitive(p)) {
        p->primitive = NULL;
    }
    return p;
}

void rival_bf16_drop(rival_bf16_product *product)
{
    if (product != NULL && product->primitive != NULL) {
        for (int i = 0; i < 3; i++) {
            product->dnnl->memory_destroy(product->memory[i]);
        }
        product->dnnl->primitive_destroy(product->primitive);
    }
    free(product);
}

void rival_bf16_multiply(rival_bf16_product *product, int64_t n, int64_t k, uint16_t *a, uint16_t *b, float *c)
{
    const rival_bf16_shape *s = &product->shape;
    if (product->primitive != NULL && n == s->n && k == s->k) {
        const rival_bf16 *d = product->dnnl;
        d->memory_set(product->memory[0], a);
        d->memory_set(product->memory[1], b);
        d->memory_set(product->memory[2], c);
        const exec_arg arguments[] = {{DNNL_SRC, product->memory[0]},
                                      {DNNL_WEIGHTS, product->memory[1]},
                                      {DNNL_DST, product->memory[2]}};
        d->execute(product->primitive, product->stream, 3, arguments);
        return;
    }
    product->dnnl->gemm('N', s->transposed ? 'T' : 'N', s->m, n, k, s->alpha, a, s->lda, b, s->ldb, s->add ? 1 : 0, c,
                        s->ldc);
}
