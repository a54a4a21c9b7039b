/*
 * test_validation.c - the checker: the rows of validation_table.h, and what a table cannot say.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/shape.h"
#include "problem_fixture.h"
#include "validation_table.h"

static void apply(fixture *f, const patch *patches)
{
    for (int i = 0; i < MAX_PATCH && patches[i].size != 0; i++) {
        char *at = (char *)f + patches[i].offset;
        if (patches[i].copy != 0) {
            memmove(at, (char *)f + patches[i].copy - 1, patches[i].size);
        } else if (patches[i].size == 1) {
            *at = (char)patches[i].value;
        } else if (patches[i].size == 4) {
            int32_t value = (int32_t)patches[i].value;
            memcpy(at, &value, sizeof value);
        } else if (patches[i].size == 8) {
            memcpy(at, &patches[i].value, 8);
        } else {
            memset(at, 0, patches[i].size);
        }
    }
}

/* First line of evidence for a failing row: which one, and what was said. */
static void expect(const row *r, const char *table, size_t at, mla_status status)
{
    const char *said = mla_last_error();
    bool words = r->status == MLA_STATUS_OK || strstr(said, r->words) != NULL;
    if (status != r->status || !words) {
        fail_msg("%s[%zu] (%s): %s \"%s\" instead of %s", table, at, r->words, mla_status_name(status), said,
                 mla_status_name(r->status));
    }
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        fixture f;
        fixture_init(&f, REFUSED[i].kind);
        assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OK);
        apply(&f, REFUSED[i].patches);
        expect(&REFUSED[i], "REFUSED", i, mla_problem_check(&f.p));
        const char *said = mla_last_error();
        assert_true(strlen(said) > 0 && said[strlen(said) - 1] != '.');
    }
}

static void test_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ACCEPTED / sizeof *ACCEPTED; i++) {
        fixture f;
        fixture_init(&f, ACCEPTED[i].kind);
        apply(&f, ACCEPTED[i].patches);
        mla_status status = mla_problem_check(&f.p);
        expect(&ACCEPTED[i], "ACCEPTED", i, status);
    }
}

/* ---- what a table cannot say ------------------------------------------------------------------------------------- */

/* A door's names take the place of the fields' own. */
static void test_names(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f, PAGED);
    f.p.q.name = "query";
    f.p.segment[0].k.name = "k_cache";
    f.p.segment[0].page_table.name = "block_table";
    f.p.segment[0].length.name = "cache_seqlens";
    f.segment[0].length[1] = 99;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OUT_OF_RANGE);
    assert_string_equal(mla_last_error(), "cache_seqlens[1] = 99 exceeds the page table's 3 pages * 4 tokens");
    f.segment[0].length[1] = 2;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OUT_OF_RANGE);
    assert_string_equal(mla_last_error(), "block_table[1][0] = -1 is not one of the 5 pages of k_cache");
    f.p.segment[0].k.dim[3] = 7;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_BAD_SHAPE);
    assert_string_equal(mla_last_error(),
                        "k_cache.dim[3] = 7 differs from query.dim[3] = 8: [n_page][page_size][n_kv_head][d]");
    char endless[2000];
    memset(endless, 'x', sizeof endless);
    endless[sizeof endless - 1] = '\0';
    f.p.q.name = f.p.segment[0].k.name = endless;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_BAD_SHAPE);
    assert_true(strlen(mla_last_error()) < 512);
}

/* An absent tensor may carry the name under which a door wants it missed. */
static void test_name_of_a_missing_tensor(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f, PAGED);
    f.p.segment[0].length = (mla_tensor){.name = "cache_seqlens"};
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_NULL_POINTER);
    assert_non_null(strstr(mla_last_error(), "cache_seqlens is missing"));
}

static void test_null_problem(void **state)
{
    (void)state;
    assert_int_equal(mla_problem_check(NULL), MLA_STATUS_NULL_POINTER);
    assert_string_equal(mla_last_error(), "problem is NULL");
    mla_problem_init_sized(NULL, sizeof(mla_problem));
}

/* Nothing to do is not an error: no sequences, or no query slots, in any addressing. */
static void test_nothing_to_do(void **state)
{
    (void)state;
    for (int kind = PAGED; kind < N_KIND; kind++) {
        fixture f;
        fixture_init(&f, (fixture_kind)kind);
        mla_problem *p = &f.p;
        bool batched = p->q.ndim == 4;
        if (batched) {
            mla_tensor *per_token[] =
                {&p->q, &p->q_rope, &p->o, &p->lse, &p->max, &p->segment[0].list, &p->segment[0].mask};
            for (size_t i = 0; i < sizeof per_token / sizeof *per_token; i++) {
                per_token[i]->dim[1] = 0;
                per_token[i]->data = NULL;
            }
            if (p->segment[0].list_length.ndim == 2) {
                p->segment[0].list_length.dim[1] = 0;
            }
            assert_int_equal(mla_problem_check(p), MLA_STATUS_OK);
        }
        fixture_init(&f, (fixture_kind)kind);
        mla_tensor *per_sequence[] = {&p->q,
                                      &p->q_rope,
                                      &p->o,
                                      &p->lse,
                                      &p->max,
                                      &p->segment[0].list,
                                      &p->segment[0].mask,
                                      &p->q_length,
                                      &p->segment[0].list_length,
                                      &p->segment[0].length,
                                      &p->segment[0].page_table,
                                      &p->segment[1].length,
                                      &p->segment[1].page_table,
                                      &p->segment[1].visible.residual};
        for (size_t i = 0; i < sizeof per_sequence / sizeof *per_sequence; i++) {
            per_sequence[i]->dim[0] = 0;
            per_sequence[i]->data = NULL;
        }
        p->q_begin.dim[0] = p->segment[0].k_begin.dim[0] = 1;
        if (kind == BATCHED) {
            p->segment[0].k.dim[0] = 0;
        }
        mla_status status = mla_problem_check(p);
        if (status != MLA_STATUS_OK) {
            fail_msg("kind %d without sequences: %s", kind, mla_last_error());
        }
    }
}

/* Values that the host cannot read are not read: these addresses would fault. */
static void test_device_tensors_are_not_read(void **state)
{
    (void)state;
    for (int kind = PAGED; kind < N_KIND; kind++) {
        fixture f;
        fixture_init(&f, (fixture_kind)kind);
        mla_problem *p = &f.p;
        char *at = (char *)p + offsetof(mla_problem, q);
        mla_tensor *t[] = {&p->q,          &p->q_rope, &p->q_begin, &p->q_length, &p->q_descale, &p->qk_descale,
                           &p->pv_descale, &p->sink,   &p->o,       &p->lse,      &p->max};
        assert_ptr_equal(at, t[0]);
        int n = 0;
        for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
            t[i]->device.type = MLA_DEVICE_CUDA;
            t[i]->data = t[i]->ndim != 0 ? (void *)(uintptr_t)(0x10000 * ++n) : NULL;
        }
        for (int g = 0; g < 2; g++) {
            mla_segment *s = &p->segment[g];
            mla_tensor *u[] = {&s->k,      &s->k_rope, &s->v,           &s->k_begin,          &s->page_table,
                               &s->length, &s->list,   &s->list_length, &s->visible.residual, &s->mask,
                               &s->descale};
            for (size_t i = 0; i < sizeof u / sizeof *u; i++) {
                u[i]->device.type = MLA_DEVICE_CUDA;
                u[i]->data = u[i]->ndim != 0 ? (void *)(uintptr_t)(0x10000 * ++n) : NULL;
            }
        }
        mla_status status = mla_problem_check(p);
        if (status != MLA_STATUS_OK) {
            fail_msg("kind %d on a device: %s", kind, mla_last_error());
        }
    }
}

/* One buffer [token][head][8] may hold q in columns 0..1 and o in 2..7: interleaved views are legal. So are pages in
 * reverse. */
static void test_unusual_views(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f, PAGED);
    f.p.segment[0].k.data = f.segment[0].k + (N_PAGE - 1) * f.p.segment[0].k.stride[0];
    f.p.segment[0].k.stride[0] *= -1;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OK);
    f.p.o.data = f.segment[0].k; /* the first byte of k, which is not where its view starts */
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_BAD_VALUE);
    assert_non_null(strstr(mla_last_error(), "overlaps segment[0].k"));
    fixture_init(&f, PACKED);
    f.p.q.dim[2] = f.p.segment[0].k.dim[2] = 2;
    f.p.segment[0].v = f.p.segment[0].k;
    f.p.segment[0].v.dim[2] = D_V;
    f.p.o = f.p.q;
    f.p.o.data = f.q + 2;
    f.p.o.dim[2] = D_V;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OK);
    /* the same o inside a dense q: refused, from whichever side the dense one is */
    fixture_init(&f, PACKED);
    f.p.o.data = f.q + 7;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_BAD_VALUE);
    assert_non_null(strstr(mla_last_error(), "overlaps q"));
    fixture_init(&f, PACKED);
    f.p.q.data = f.o + 3;
    f.p.q.stride[0] = 64; /* q has holes, o has none */
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_BAD_VALUE);
    assert_non_null(strstr(mla_last_error(), "overlaps q"));
}

/* The page ids of a huge table are read only where keys are: the rest of this one is not there. */
static void test_sparse_page_table(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f, PAGED);
    f.p.segment[0].page_table.dim[1] = (int64_t)1 << 58;
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OK);
    f.p.segment[0].page_table.dim[0] = f.p.segment[0].length.dim[0] = f.p.q.dim[0] = f.p.o.dim[0] = f.p.lse.dim[0] = 1;
    f.p.segment[0].k.dim[1] = 1;
    f.p.segment[0].k.stride[0] = 0;
    f.p.segment[0].k.dim[0] = (int64_t)1 << 40;                         /* more pages than an i32 can name */
    assert_int_equal(mla_problem_check(&f.p), MLA_STATUS_OUT_OF_RANGE); /* page ids 3, 1, 2147480000, -1, ... */
    assert_non_null(strstr(mla_last_error(), "page_table[0][3] = -1"));
}

/* Uncountably many empty sequences, no memory at all: decided without walking over them. */
static void test_quick_verdict(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f, BATCHED);
    mla_problem *p = &f.p;
    int64_t many = (int64_t)1 << 40;
    p->q.dim[0] = p->o.dim[0] = p->lse.dim[0] = p->segment[0].mask.dim[0] = p->segment[0].k.dim[0] = many;
    p->q.dim[1] = p->o.dim[1] = p->lse.dim[1] = p->segment[0].mask.dim[1] = 0;
    p->segment[0].length = (mla_tensor){0};
    p->segment[0].k.stride[0] = 0;
    assert_int_equal(mla_problem_check(p), MLA_STATUS_OK);
}

/* What a checked problem implies. */
static void test_shapes(void **state)
{
    (void)state;
    fixture f;
    mla_shape s;
    fixture_init(&f, SPLIT);
    f.p.lse.stride[1] = 1;
    f.p.lse.stride[2] = N_Q;
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_OK);
    assert_true(s.batched && s.n_segment == 1 && !s.segment[0].has_list);
    assert_int_equal(s.n_seq, N_SEQ);
    assert_int_equal(s.n_q, N_Q);
    assert_int_equal(s.n_token, N_TOKEN);
    assert_int_equal(s.n_head, N_HEAD);
    assert_int_equal(s.n_kv_head, N_KV_HEAD);
    assert_int_equal(s.group, 2);
    assert_int_equal(s.d_nope, D);
    assert_int_equal(s.d_rope, D_ROPE);
    assert_int_equal(s.d_k, D + D_ROPE);
    assert_int_equal(s.d_v, D_V);
    assert_int_equal(s.segment[0].addressing, MLA_ADDRESS_PAGED);
    assert_int_equal(s.segment[0].n_page, N_PAGE);
    assert_int_equal(s.segment[0].page_size, PAGE_SIZE);
    assert_int_equal(s.segment[0].max_page, MAX_PAGE);
    assert_memory_equal(s.q_stride, ((int64_t[]){64, 32, 8}), sizeof s.q_stride);
    assert_memory_equal(s.q_rope_stride, ((int64_t[]){32, 16, 4}), sizeof s.q_rope_stride);
    assert_memory_equal(s.o_stride, ((int64_t[]){48, 24, 6}), sizeof s.o_stride);
    assert_memory_equal(s.lse_stride, ((int64_t[]){8, 1, 2}), sizeof s.lse_stride);
    assert_memory_equal(s.max_stride, ((int64_t[]){8, 4, 1}), sizeof s.max_stride);
    assert_memory_equal(s.segment[0].k_stride, ((int64_t[]){64, 16, 8}), sizeof s.segment[0].k_stride);
    assert_memory_equal(s.segment[0].k_rope_stride, ((int64_t[]){32, 8, 4}), sizeof s.segment[0].k_rope_stride);
    assert_memory_equal(s.segment[0].v_stride, ((int64_t[]){48, 12, 6}), sizeof s.segment[0].v_stride);
    assert_int_equal(s.segment[0].k_pieces.columns, D);
    assert_int_equal(s.segment[0].k_rope_pieces.columns, D_ROPE);
    for (int64_t d = 0; d < D; d++) {
        assert_int_equal(mla_column_offset(&s.segment[0].k_pieces, d), d);
    }

    fixture_init(&f, NZ);
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_OK);
    assert_int_equal(s.segment[0].addressing, MLA_ADDRESS_PAGED);
    assert_int_equal(s.n_kv_head, 1);
    assert_int_equal(s.group, N_HEAD);
    assert_int_equal(s.segment[0].n_page, N_PAGE);
    assert_int_equal(s.segment[0].page_size, PAGE_SIZE);
    assert_memory_equal(s.segment[0].k_stride, ((int64_t[]){32, 4, 0}), sizeof s.segment[0].k_stride);
    assert_memory_equal(s.segment[0].k_rope_stride, ((int64_t[]){16, 2, 0}), sizeof s.segment[0].k_rope_stride);
    for (int64_t d = 0; d < D; d++) {
        assert_int_equal(mla_column_offset(&s.segment[0].k_pieces, d), d / 4 * 16 + d % 4);
    }
    for (int64_t d = 0; d < D_ROPE; d++) {
        assert_int_equal(mla_column_offset(&s.segment[0].k_rope_pieces, d), d / 2 * 8 + d % 2);
    }

    fixture_init(&f, PACKED);
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_OK);
    assert_false(s.batched);
    assert_int_equal(s.n_seq, N_SEQ);
    assert_int_equal(s.n_q, 0);
    assert_int_equal(s.n_token, N_TOKEN);
    assert_int_equal(s.d_rope, 0);
    assert_int_equal(s.segment[0].addressing, MLA_ADDRESS_PACKED);
    assert_int_equal(s.segment[0].n_page, 1);
    assert_int_equal(s.segment[0].page_size, N_ROW);
    assert_memory_equal(s.q_stride, ((int64_t[]){0, 32, 8}), sizeof s.q_stride);
    assert_memory_equal(s.segment[0].k_stride, ((int64_t[]){0, 16, 8}), sizeof s.segment[0].k_stride);
    assert_memory_equal(s.max_stride, ((int64_t[]){0, 0, 0}), sizeof s.max_stride);

    fixture_init(&f, BATCHED);
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_OK);
    assert_int_equal(s.segment[0].addressing, MLA_ADDRESS_BATCHED);
    assert_int_equal(s.segment[0].n_page, N_SEQ);
    assert_int_equal(s.segment[0].page_size, MAX_LEN);

    fixture_init(&f, PHYSICAL);
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_OK);
    assert_int_equal(s.segment[0].addressing, MLA_ADDRESS_PAGED);
    assert_int_equal(s.segment[0].max_page, 0);
    assert_int_equal(s.segment[0].n_entry, N_ENTRY);
    assert_true(s.segment[0].has_list);

    /* one query token per sequence when nobody says otherwise */
    fixture_init(&f, PACKED);
    f.p.q_begin = f.p.q_length = f.p.lse = (mla_tensor){0};
    f.p.q.dim[0] = f.p.o.dim[0] = N_SEQ;
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_OK);
    assert_int_equal(s.n_seq, N_SEQ);
    assert_int_equal(s.n_token, N_SEQ);

    /* a failure leaves the caller's shape alone */
    mla_shape before = s;
    f.p.d_v = 0;
    assert_int_equal(mla_problem_resolve(&f.p, &s), MLA_STATUS_BAD_VALUE);
    assert_memory_equal(&s, &before, sizeof s);
}

/* A caller built with a smaller struct: nothing is written past its end, and the check says why it refuses. */
static void test_init_of_another_size(void **state)
{
    (void)state;
    union {
        mla_problem p;
        unsigned char bytes[sizeof(mla_problem) + 64];
    } u;
    memset(&u, 0xa5, sizeof u);
    mla_problem_init_sized(&u.p, 100);
    for (size_t i = sizeof u.p.struct_size; i < sizeof u.bytes; i++) {
        assert_int_equal(u.bytes[i], i < 100 ? 0 : 0xa5);
    }
    assert_int_equal(mla_problem_check(&u.p), MLA_STATUS_BAD_VALUE);
    assert_non_null(strstr(mla_last_error(), "struct_size = 100"));
    mla_problem_init_sized(&u.p, sizeof u.p.struct_size);
    assert_int_equal(u.p.struct_size, sizeof u.p.struct_size);
    memset(&u, 0xa5, sizeof u);
    mla_problem_init_sized(&u.p, 3);
    assert_int_equal(u.bytes[3], 0xa5);
    mla_problem_init(&u.p);
    assert_int_equal(u.p.struct_size, sizeof(mla_problem));
    assert_int_equal(u.p.n_segment, 1);
    assert_int_equal(u.p.segment[1].visible.left, -1);
    assert_int_equal(u.p.segment[1].visible.right, -1);
    assert_int_equal(u.p.segment[0].visible.ratio, 1);
    assert_int_equal(u.bytes[sizeof(mla_problem)], 0xa5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_name_of_a_missing_tensor),
        cmocka_unit_test(test_null_problem),
        cmocka_unit_test(test_nothing_to_do),
        cmocka_unit_test(test_device_tensors_are_not_read),
        cmocka_unit_test(test_unusual_views),
        cmocka_unit_test(test_sparse_page_table),
        cmocka_unit_test(test_quick_verdict),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_init_of_another_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
