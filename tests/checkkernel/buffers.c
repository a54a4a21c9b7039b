/*
 * buffers.c - memory that faults when it is misused.
 *
 *     | PROT_NONE page | slack, CK_UNTOUCHED | the buffer | PROT_NONE page |
 *                                                         ^ ends exactly here
 *
 * A buffer is therefore aligned to its elements only, which is all that the interface promises.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checkkernel.h"

#define PAGE 4096u

typedef struct buffer {
    char name[32];
    char *map; /* of map_bytes, both guard pages included */
    size_t map_bytes;
    char *data;
    size_t bytes;
} buffer;

#define MAX_BUFFER 4096
static buffer buffers[MAX_BUFFER];
static size_t n_buffer;

static buffer *new_buffer(const char *name, size_t bytes, int flags)
{
    if (n_buffer == MAX_BUFFER) {
        ck_fail("checkkernel itself: more than %d buffers", MAX_BUFFER);
    }
    buffer *b = &buffers[n_buffer];
    size_t body = (bytes + PAGE - 1) / PAGE * PAGE;
    snprintf(b->name, sizeof b->name, "%s", name);
    b->bytes = bytes;
    b->map_bytes = body + 2 * PAGE;
    b->map = mmap(NULL, b->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    if (b->map == MAP_FAILED) {
        ck_skip("%s: the system gives no %zu bytes of address space", name, bytes);
    }
    b->data = b->map + PAGE + body - bytes;
    if (body && mprotect(b->map + PAGE, body, PROT_READ | PROT_WRITE) != 0) {
        ck_skip("%s: the system gives no %zu bytes of memory", name, bytes);
    }
    n_buffer++;
    return b;
}

static void fill_untouched(void *data, size_t bytes)
{
    /* from the end backwards, so that elements at the end hold whole patterns however long the buffer is */
    static const unsigned char pattern[4] = {0xa5, 0xff, 0xa5, 0xff};
    unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) {
        p[bytes - 1 - i] = pattern[3 - i % 4];
    }
}

void *ck_buffer(const char *name, size_t bytes)
{
    buffer *b = new_buffer(name, bytes, 0);
    size_t body = b->map_bytes - 2 * PAGE;
    fill_untouched(b->map + PAGE, body);
    return b->data;
}

void *ck_sparse(const char *name, size_t bytes)
{
    return new_buffer(name, bytes, 0)->data;
}

static buffer *find(const void *address)
{
    const char *a = address;
    for (size_t i = n_buffer; i-- > 0;) {
        if (a >= buffers[i].map && a < buffers[i].map + buffers[i].map_bytes) {
            return &buffers[i];
        }
    }
    return NULL;
}

static void protect(const void *data, int how)
{
    buffer *b = find(data);
    CK_REQUIRE(b != NULL);
    size_t body = b->map_bytes - 2 * PAGE;
    CK_REQUIRE(body == 0 || mprotect(b->map + PAGE, body, how) == 0);
}

void ck_read_only(const void *data)
{
    protect(data, PROT_READ);
}

void ck_writable(const void *data)
{
    protect(data, PROT_READ | PROT_WRITE);
}

size_t ck_mark(void)
{
    return n_buffer;
}

void ck_release(size_t mark)
{
    while (n_buffer > mark) {
        n_buffer--;
        munmap(buffers[n_buffer].map, buffers[n_buffer].map_bytes);
    }
}

const char *ck_explain_address(const void *address)
{
    static char text[160];
    const char *a = address;
    buffer *b = find(address);
    if (!b) {
        return NULL;
    }
    if (a < b->map + PAGE) {
        snprintf(text, sizeof text, "before the start of %s", b->name);
    } else if (a >= b->data + b->bytes) {
        snprintf(text, sizeof text, "%td bytes behind the end of %s", a - (b->data + b->bytes), b->name);
    } else {
        snprintf(text, sizeof text, "byte %td of %s, which is read-only", a - b->data, b->name);
    }
    return text;
}

/* ---- tensors in buffers ------------------------------------------------------------------------------------------ */

mla_tensor ck_tensor(const char *name, mla_dtype dtype, int32_t ndim, const int64_t *dim, ck_layout layout)
{
    static const int64_t gaps[] = {1, 3, 5, 7, 11};
    mla_tensor t = {.dtype = dtype, .ndim = ndim};
    int64_t stride = 1, extent = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        t.dim[i] = dim[i];
        t.stride[i] = stride;
        extent = dim[i] == 0 || extent == 0 ? 0 : extent + (dim[i] - 1) * stride;
        stride *= dim[i] > 0 ? dim[i] : 1;
        if (layout != CK_DENSE) {
            stride += gaps[i % 5] * (layout == CK_SPACED ? 8 : 1);
        }
    }
    t.data = ck_buffer(name, (size_t)extent * mla_dtype_size(dtype));
    return t;
}

int64_t ck_offset(const mla_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    const int64_t index[4] = {i0, i1, i2, i3};
    int64_t at = 0;
    for (int32_t i = 0; i < t->ndim && i < 4; i++) {
        at += index[i] * t->stride[i];
    }
    return at;
}

void ck_reset(const mla_tensor *t)
{
    buffer *b = find(t->data);
    CK_REQUIRE(b != NULL);
    fill_untouched(b->data, b->bytes);
}

bool ck_is_untouched(const void *data, mla_dtype dtype, int64_t index)
{
    if (mla_dtype_size(dtype) == 4) {
        uint32_t bits;
        memcpy(&bits, (const char *)data + index * 4, sizeof bits);
        return bits == CK_UNTOUCHED;
    }
    uint16_t bits;
    memcpy(&bits, (const char *)data + index * 2, sizeof bits);
    return bits == (uint16_t)CK_UNTOUCHED;
}

/* Marks every element of the view. */
static void mark_elements(const mla_tensor *t, int32_t axis, int64_t at, unsigned char *is_element)
{
    if (axis == t->ndim) {
        is_element[at] = 1;
        return;
    }
    for (int64_t i = 0; i < t->dim[axis]; i++) {
        mark_elements(t, axis + 1, at + i * t->stride[axis], is_element);
    }
}

void ck_require_gaps_untouched(const mla_tensor *t)
{
    buffer *b = find(t->data);
    CK_REQUIRE(b != NULL);
    size_t size = mla_dtype_size(t->dtype), n = b->bytes / size;
    unsigned char *is_element = calloc(n ? n : 1, 1);
    CK_REQUIRE(is_element != NULL);
    mark_elements(t, 0, ((char *)t->data - b->data) / (ptrdiff_t)size, is_element);
    for (size_t i = 0; i < n; i++) {
        if (!is_element[i] && !ck_is_untouched(b->data, t->dtype, (int64_t)i)) {
            ck_fail("%s: element %zu of its memory lies between the rows and was written", b->name, i);
        }
    }
    free(is_element);
    /* the slack in front of the buffer, down to the page's start */
    for (const unsigned char *p = (unsigned char *)b->map + PAGE; p < (unsigned char *)b->data; p++) {
        size_t from_end = (size_t)((unsigned char *)b->data + b->bytes - 1 - p);
        if (*p != (from_end % 2 ? 0xa5 : 0xff)) {
            ck_fail("%s: memory just before it was written", b->name);
        }
    }
}
