/*
 * check_relations.c - results that must be equal to each other, most of them bit for bit.
 *
 * What a row's bits may depend on is its own query and the keys it sees. Not on threads, on other sequences, on its
 * place in the batch, on pages and strides, nor on what memory holds that nobody may read.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "checkkernel.h"
#include "cpu/kernels.h"
#include "ref/number.h"
#include "ref/ref.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static void set_lengths(ck_segment *s, int64_t n, const int64_t *length)
{
    s->n_length = n;
    for (int64_t i = 0; i < n; i++) {
        s->length[i] = length[i];
    }
}

static void slice(mla_tensor *t, int64_t begin, int64_t n)
{
    if (mla_tensor_present(t)) {
        t->data = (char *)t->data + begin * t->stride[0] * (int64_t)mla_dtype_size(t->dtype);
        t->dim[0] = n;
    }
}

/* The outputs of sequence s alone. */
static mla_problem outputs_of(const mla_problem *problem, int64_t s)
{
    mla_problem view = *problem;
    int64_t begin = s, n = 1;
    if (problem->q.ndim == 3 && mla_tensor_present(&problem->q_begin)) {
        begin = mla_index_at(&problem->q_begin, s);
        n = mla_index_at(&problem->q_begin, s + 1) - begin;
    }
    slice(&view.o, begin, n);
    slice(&view.lse, begin, n);
    slice(&view.max, begin, n);
    return view;
}

/* Problems of very different shape: short and long, many and few rows, every kind of addressing. */
enum { N_VARIED = 10 };

static ck_config varied(int i)
{
    ck_config c = ck_config_plain(1, 1, 16, 64, 64, 5000);
    ck_segment *s = c.segment;
    switch (i) {
    case 0: break; /* one long sequence: split over keys */
    case 1:
        c = ck_config_plain(4, 2, 20, 64, 48, 0);
        set_lengths(s, 4, (int64_t[]){3000, 0, 65, 1100});
        s->visible.rule = MLA_VISIBLE_CAUSAL;
        break;
    case 2:
        c = ck_config_plain(7, 0, 3, 64, 64, 0); /* ragged */
        c.n_slots = 7;
        for (int x = 0; x < 7; x++) {
            c.slots[x] = (x * 5) % 8;
        }
        set_lengths(s, 7, (int64_t[]){40, 97, 3, 1500, 192, 5, 700});
        s->visible.rule = MLA_VISIBLE_CAUSAL;
        break;
    case 3:
        c = ck_config_plain(2, 33, 4, 64, 64, 600); /* a prefill */
        s->visible.rule = MLA_VISIBLE_CAUSAL;
        c.n_kv_head = 2;
        break;
    case 4:
        c = ck_config_plain(3, 1, 128, 64, 64, 0);
        set_lengths(s, 3, (int64_t[]){2000, 96, 513});
        c.sink = CK_SINK_RANDOM;
        c.lse_with_sink = true;
        break;
    case 5:
        c = ck_config_plain(2, 2, 5, 64, 64, 3000); /* a list */
        s->list = CK_LOGICAL;
        s->n_entry = 1200;
        s->list_length = CK_PER_TOKEN;
        break;
    case 6:
        c = ck_config_plain(2, 3, 9, 64, 64, 0); /* two segments */
        c.n_segment = 2;
        set_lengths(&c.segment[0], 2, (int64_t[]){900, 40});
        set_lengths(&c.segment[1], 2, (int64_t[]){10, 2500});
        c.segment[0].visible.rule = MLA_VISIBLE_WINDOW;
        c.segment[0].visible.left = 127;
        c.segment[0].visible.right = 0;
        c.segment[1].dtype = MLA_DTYPE_F16;
        break;
    case 7:
        c = ck_config_plain(1, 1, 1, 576, 512, 9000); /* one head */
        break;
    case 8:
        c = ck_config_plain(3, 2, 6, 64, 64, 0); /* a mask */
        s->mask = CK_MASK_HOLES;
        set_lengths(s, 3, (int64_t[]){1300, 70, 200});
        s->dtype = MLA_DTYPE_F32;
        break;
    default:
        c = ck_config_plain(5, 1, 2, 64, 40, 0); /* no kernel's favourite size */
        c.d_nope = 40;
        c.d_rope = 24;
        c.inputs = CK_RISING;
        set_lengths(s, 5, (int64_t[]){1, 4097, 64, 191, 1000});
        break;
    }
    return c;
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* A lent executor that runs tasks one by one, from the last to the first. */
static void run_backwards(void *context, int64_t n_task, mla_task task, void *data)
{
    ++*(int64_t *)context;
    while (n_task-- > 0) {
        task(data, n_task);
    }
}

/* ... and one that runs them in an order of its own. */
static void run_shuffled(void *context, int64_t n_task, mla_task task, void *data)
{
    ++*(int64_t *)context;
    int64_t step = n_task % 7 ? 7 : n_task % 5 ? 5 : 1;
    for (int64_t i = 0; i < n_task; i++) {
        task(data, (i * step + 3) % n_task);
    }
}

static void check_threads(void)
{
    static const int32_t threads[] = {2, 3, 5, 7, 16};
    for (int i = 0; i < N_VARIED; i++) {
        size_t mark = ck_mark();
        ck_config c = varied(i);
        mla_problem one;
        ck_context("problem %d", i);
        ck_make(&c, &one);
        ck_execute(&one, NULL);
        ck_compare(&one, ck_inputs_structured(c.inputs), CK_WORK);
        for (int t = 0; t < 5; t++) {
            mla_problem many = ck_with_new_outputs(&one, CK_DENSE);
            ck_execute(&many, &(ck_run){.n_thread = threads[t]});
            char what[64];
            snprintf(what, sizeof what, "1 and %d threads", threads[t]);
            ck_same_bits(&one, &many, what);
        }
        for (int t = 0; t < 5; t++) {
            int64_t n_call = 0;
            mla_executor executor = {t % 2 ? run_backwards : run_shuffled, &n_call, threads[t]};
            mla_problem lent = ck_with_new_outputs(&one, CK_DENSE);
            ck_execute(&lent, &(ck_run){.executor = &executor});
            ck_same_bits(&one, &lent, t % 2 ? "an executor that runs backwards" : "an executor that shuffles");
            CK_REQUIRE(n_call > 0 || i != 0 || ck_subject_now->broken); /* the long sequence has tasks to share */
        }
        ck_release(mark);
    }
}

/* ---- batch ------------------------------------------------------------------------------------------------------- */

static void check_alone(void)
{
    for (int i = 0; i < N_VARIED; i++) {
        size_t mark = ck_mark();
        ck_config c = varied(i);
        mla_problem batch;
        if (i == 0 || i == 7) { /* a batch of 20, as a server would have it */
            c.n_seq = 20;
            set_lengths(&c.segment[0], 5, (int64_t[]){2500, 1, 64, 0, 700});
        }
        ck_context("problem %d", i);
        ck_make(&c, &batch);
        ck_execute(&batch, &(ck_run){.n_thread = 2});
        for (int64_t s = 0; s < c.n_seq; s++) {
            size_t inner = ck_mark();
            ck_config single = c;
            single.n_seq = 1;
            single.has_id = true;
            single.id[0] = s;
            mla_problem alone;
            ck_make(&single, &alone);
            ck_execute(&alone, NULL);
            mla_problem in_batch = outputs_of(&batch, s), by_itself = outputs_of(&alone, 0);
            char what[64];
            snprintf(what, sizeof what, "sequence %lld alone and in the batch", (long long)s);
            ck_same_bits(&by_itself, &in_batch, what);
            ck_release(inner);
        }
        ck_release(mark);
    }
}

static void check_permuted(void)
{
    for (int i = 1; i < N_VARIED; i++) {
        size_t mark = ck_mark();
        ck_config c = varied(i);
        mla_problem straight, permuted;
        ck_context("problem %d", i);
        ck_make(&c, &straight);
        ck_execute(&straight, &(ck_run){.n_thread = 2});
        ck_random r = {ck_hash(ck_seed, (uint64_t)i)};
        for (int64_t s = 0; s < c.n_seq; s++) {
            int64_t at = ck_below(&r, s + 1);
            c.id[s] = c.id[at];
            c.id[at] = s;
        }
        c.has_id = true;
        c.layout_seed++;
        ck_make(&c, &permuted);
        ck_execute(&permuted, &(ck_run){.n_thread = 2});
        for (int64_t s = 0; s < c.n_seq; s++) {
            mla_problem a = outputs_of(&straight, c.id[s]), b = outputs_of(&permuted, s);
            ck_same_bits(&a, &b, "a sequence at another place of the batch");
        }
        ck_release(mark);
    }
}

/* Token i of t, a tensor of one sequence: [1][1]... */
static mla_tensor token_of(mla_tensor t, int64_t i)
{
    if (mla_tensor_present(&t)) {
        t.data = (char *)t.data + i * t.stride[1] * (int64_t)mla_dtype_size(t.dtype);
        t.dim[1] = 1;
    }
    return t;
}

/*
 * Tokens that are verified together, and each of them decoded when it was the newest: same bits, as long as both go the
 * same way through the library, which is chosen by rows per kv head: 2 to 8, or more than that; in fixed
 * point up to 16, or more.
 */
static void check_together(void)
{
    static const struct {
        int64_t group, n_kv_head, n_q;
    } shapes[] = {{2, 1, 2}, {2, 1, 4},  {3, 1, 2},  {4, 2, 2},  {2, 3, 3},
                  {9, 1, 2}, {16, 1, 3}, {20, 2, 5}, {128, 1, 4}};
    static const int64_t lengths[] = {5, 64, 131, 300, 1201};
    static const int64_t lefts[] = {-2, 0, 1, 6, 31, 64, 201}; /* -2: causal */
    static const mla_dtype dtypes[] = {MLA_DTYPE_BF16, MLA_DTYPE_F16, MLA_DTYPE_F32};
    for (int i = 0; i < 9 * 5 * 7; i++) {
        size_t mark = ck_mark();
        int64_t n_q = shapes[i % 9].n_q, length = lengths[i / 9 % 5], left = lefts[i / 45];
        bool few = shapes[i % 9].group <= MLA_ROW_PANEL, many = shapes[i % 9].group * n_q > MLA_ROW_PANEL;
        if (ck_subject_now->arithmetic == MLA_ARITHMETIC_INT16 && few && many) {
            continue; /* one token goes by fp32, several by fixed point */
        }
        ck_config c = ck_config_plain(1, n_q, shapes[i % 9].group * shapes[i % 9].n_kv_head, 64, 40, length);
        c.n_kv_head = shapes[i % 9].n_kv_head;
        c.segment[0].addressing = MLA_ADDRESS_BATCHED;
        c.segment[0].dtype = dtypes[i % 5 % 3];
        c.segment[0].visible.rule = left == -2 ? MLA_VISIBLE_CAUSAL : MLA_VISIBLE_WINDOW;
        c.segment[0].visible.left = left;
        c.segment[0].visible.right = 0;
        mla_problem together;
        ck_make(&c, &together);
        ck_execute(&together, NULL);
        for (int64_t t = 0; t < n_q; t++) {
            mla_problem view = together, alone;
            view.q = token_of(view.q, t);
            view.o = token_of(view.o, t);
            view.lse = token_of(view.lse, t);
            view.max = token_of(view.max, t);
            alone = ck_with_new_outputs(&view, CK_DENSE);
            mla_tensor *len = &alone.segment[0].length;
            *len = ck_tensor("length", MLA_DTYPE_I32, 1, (int64_t[]){1}, CK_DENSE);
            *(int32_t *)len->data = (int32_t)(length - n_q + t + 1);
            ck_execute(&alone, NULL);
            ck_context("token %lld of %lld, %lld heads for %lld, %lld keys of %s, left %lld", (long long)t,
                       (long long)n_q, (long long)c.n_head, (long long)c.n_kv_head, (long long)length,
                       mla_dtype_name(c.segment[0].dtype), (long long)left);
            ck_same_bits(&view, &alone, "verified together and decoded alone");
        }
        ck_release(mark);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Runs another description of a problem that was run, and compares bits. */
static void same_as(const mla_problem *done, const ck_config *other, const char *what)
{
    size_t mark = ck_mark();
    mla_problem p;
    ck_make(other, &p);
    ck_execute(&p, NULL);
    ck_same_bits(done, &p, what);
    ck_release(mark);
}

/* Runs two descriptions of the same problem and compares bits. */
static void same_result(const ck_config *a, const ck_config *b, const char *what)
{
    size_t mark = ck_mark();
    mla_problem p;
    ck_make(a, &p);
    ck_execute(&p, NULL);
    same_as(&p, b, what);
    ck_release(mark);
}

static void check_pages(void)
{
    static const int64_t pages[] = {1, 2, 3, 16, 61, 64, 100, 128, 192, 256, 576};
    for (int i = 0; i < N_VARIED; i++) {
        size_t mark = ck_mark();
        ck_config contiguous = varied(i), c = varied(i);
        mla_problem p;
        for (int32_t g = 0; g < c.n_segment; g++) {
            contiguous.segment[g].addressing = MLA_ADDRESS_PACKED;
        }
        ck_context("problem %d", i);
        ck_make(&contiguous, &p);
        ck_execute(&p, NULL);
        for (int64_t x = i % 2; x < COUNT(pages); x += 2) {
            c.segment[0].page_size = pages[x];
            c.segment[1].page_size = pages[(x + 3) % COUNT(pages)];
            c.layout_seed += (uint64_t)x;
            same_as(&p, &c, "contiguous and paged keys");
        }
        for (int32_t g = 0; g < c.n_segment; g++) {
            c.segment[g].addressing = MLA_ADDRESS_BATCHED;
        }
        same_as(&p, &c, "packed and batched keys");
        ck_release(mark);
    }
}

static void check_strides(void)
{
    for (int i = 0; i < N_VARIED; i++) {
        ck_config dense = varied(i), padded = varied(i);
        padded.layout = CK_PADDED;
        padded.lse_transposed = true;
        ck_context("problem %d", i);
        same_result(&dense, &padded, "dense and padded tensors");
    }
}

static void check_poison(void)
{
    for (int i = 0; i < N_VARIED; i++) {
        ck_config nan = varied(i), zero = varied(i), inf = varied(i);
        nan.poison = CK_POISON_NAN;
        zero.poison = CK_POISON_ZERO;
        inf.poison = CK_POISON_INF;
        ck_context("problem %d", i);
        same_result(&zero, &nan, "NaN and 0 where nobody may read");
        same_result(&zero, &inf, "inf and 0 where nobody may read");
    }
}

/* Turns the row of a key, or its value, into NaN: key `position` of sequence 0 in a problem with contiguous keys. */
static void plant_nan(const mla_problem *p, int64_t position, bool value_only)
{
    const mla_tensor *t = value_only ? &p->segment[0].v : &p->segment[0].k;
    ck_writable(t->data);
    int64_t at = ck_offset(t, 0, position, 0, 0);
    for (int64_t d = 0; d < t->dim[3]; d++) {
        mla_ref_store(t->data, t->dtype, at + d, NAN);
    }
    ck_read_only(t->data);
}

static double value_at(const mla_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return mla_ref_load(t->data, t->dtype, ck_offset(t, i0, i1, i2, i3));
}

/* Values of +-2^-149: multiplied by a weight below one half they become +-0, and a sum of them may be -0, which adding
 * a hidden +0 would turn into +0. */
static void make_values_vanish(const mla_problem *p)
{
    const mla_tensor *v = &p->segment[0].v;
    ck_random r = {ck_seed};
    ck_writable(v->data);
    for (int64_t i = 0; i < v->dim[0] * v->stride[0]; i++) {
        mla_ref_store(v->data, v->dtype, i, v->dtype == MLA_DTYPE_F32 ? ck_chance(&r, 0.2) ? 0x1p-149 : -0x1p-149 : 0);
    }
    ck_read_only(v->data);
}

/*
 * The newest key is NaN and only the newest token sees it: that token becomes NaN, and no bit of the others changes. It
 * is in the same block of keys, the same panel of rows and the same split as what the others see.
 */
static void check_nan_isolation(void)
{
    static const int64_t lengths[] = {2, 17, 64, 97, 130, 600};
    static const int64_t heads[] = {1, 3, 16, 20, 128};
    for (int i = 0; i < 120; i++) {
        size_t mark = ck_mark();
        int64_t n_q = 2 + i % 3 * 3;
        ck_config c = ck_config_plain(1, n_q, heads[i % 5], 64, 40, lengths[i / 5 % 6]);
        bool value_only = i % 60 >= 30;
        c.segment[0].addressing = MLA_ADDRESS_BATCHED;
        c.segment[0].v_apart = value_only;
        c.segment[0].dtype = i % 2 ? MLA_DTYPE_BF16 : MLA_DTYPE_F32;
        c.segment[0].visible.rule = i % 4 == 3 ? MLA_VISIBLE_WINDOW : MLA_VISIBLE_CAUSAL;
        c.segment[0].visible.left = 20;
        c.segment[0].visible.right = 0;
        mla_problem clean;
        ck_make(&c, &clean);
        if (i >= 90) {
            make_values_vanish(&clean);
        }
        ck_execute(&clean, NULL);
        mla_problem dirty = ck_with_new_outputs(&clean, CK_DENSE);
        plant_nan(&dirty, c.segment[0].length[0] - 1, value_only);
        ck_execute(&dirty, NULL);
        mla_problem old = clean, older = dirty; /* all tokens but the last */
        mla_tensor *const outputs[] = {&old.o, &old.lse, &old.max, &older.o, &older.lse, &older.max};
        for (int x = 0; x < 6; x++) {
            outputs[x]->dim[1] = n_q - 1;
        }
        ck_context("%lld tokens, %lld heads, %lld keys, the last one's %s is NaN", (long long)n_q, (long long)c.n_head,
                   (long long)c.segment[0].length[0], value_only ? "value" : "row");
        ck_same_bits(&old, &older, "rows that do not see the NaN");
        for (int64_t h = 0; h < c.n_head; h++) {
            for (int64_t d = 0; d < c.d_v; d++) {
                if (!isnan(value_at(&dirty.o, 0, n_q - 1, h, d))) {
                    ck_fail("o[0][%lld][%lld][%lld] of the row that sees the NaN is a number", (long long)(n_q - 1),
                            (long long)h, (long long)d);
                }
            }
            double lse = value_at(&dirty.lse, 0, n_q - 1, h, 0);
            if (isnan(lse) == value_only) {
                ck_fail("lse of the row that sees the NaN is %g", lse);
            }
        }
        ck_release(mark);
    }
}

/* One column of one value is NaN: it is noticed in every column, those of a last, narrower panel too. */
static void check_nan_column(void)
{
    static const int64_t widths[] = {65, 512, 576};
    static const int64_t heads[] = {3, 20}; /* two tokens of them: few rows and many */
    for (int i = 0; i < 6; i++) {
        int64_t d_v = widths[i / 2];
        size_t mark = ck_mark();
        ck_config c = ck_config_plain(1, 2, heads[i % 2], 64, d_v, 70);
        c.segment[0].addressing = MLA_ADDRESS_BATCHED;
        c.segment[0].v_apart = true;
        c.segment[0].visible.rule = MLA_VISIBLE_CAUSAL;
        mla_problem clean;
        ck_make(&c, &clean);
        ck_execute(&clean, NULL);
        const mla_tensor *v = &clean.segment[0].v;
        for (int64_t column = d_v - 1; column >= 0; column -= d_v == 65 ? 1 : 73) {
            size_t inner = ck_mark();
            mla_problem dirty = ck_with_new_outputs(&clean, CK_DENSE);
            int64_t at = ck_offset(v, 0, c.segment[0].length[0] - 1, 0, column);
            double value = mla_ref_load(v->data, v->dtype, at);
            ck_writable(v->data);
            mla_ref_store(v->data, v->dtype, at, NAN);
            ck_execute(&dirty, NULL);
            mla_ref_store(v->data, v->dtype, at, value);
            ck_context("%lld heads, column %lld of %lld of the newest value is NaN", (long long)c.n_head,
                       (long long)column, (long long)d_v);
            for (int64_t h = 0; h < c.n_head; h++) {
                CK_REQUIRE(isnan(value_at(&dirty.o, 0, 1, h, column)));
            }
            mla_problem old = clean, older = dirty; /* the token that does not see it */
            mla_tensor *const outputs[] = {&old.o, &old.lse, &old.max, &older.o, &older.lse, &older.max};
            for (int x = 0; x < 6; x++) {
                outputs[x]->dim[1] = 1;
            }
            ck_same_bits(&old, &older, "the token that does not see the NaN");
            ck_release(inner);
        }
        ck_release(mark);
    }
}

/* The same with a list: the newest token's list names a row of NaN that no other list names. */
static void check_nan_in_list(void)
{
    for (int i = 0; i < 20; i++) {
        size_t mark = ck_mark();
        int64_t n_q = 2 + i % 4, n_entry = 20 + 30 * (i % 5), length = 300;
        ck_config c = ck_config_plain(1, n_q, i % 2 ? 3 : 20, 64, 40, length);
        c.segment[0].addressing = MLA_ADDRESS_BATCHED;
        mla_problem clean;
        ck_make(&c, &clean);
        mla_tensor *list = &clean.segment[0].list;
        *list = ck_tensor("list", MLA_DTYPE_I32, 3, (int64_t[]){1, n_q, n_entry}, CK_DENSE);
        clean.segment[0].list_address = i % 3 ? MLA_LIST_LOGICAL : MLA_LIST_PHYSICAL;
        for (int64_t t = 0; t < n_q; t++) {
            for (int64_t j = 0; j < n_entry; j++) {
                bool newest = t == n_q - 1 && j == n_entry / 2;
                ((int32_t *)list->data)[t * n_entry + j] = newest ? 299 : (int32_t)((t * 7 + j * 11) % 299);
            }
        }
        ck_context("%lld tokens, %lld heads, %lld entries", (long long)n_q, (long long)c.n_head, (long long)n_entry);
        ck_execute(&clean, NULL);
        ck_compare(&clean, false, CK_WORK);
        mla_problem dirty = ck_with_new_outputs(&clean, CK_DENSE);
        plant_nan(&dirty, length - 1, false);
        ck_execute(&dirty, NULL);
        for (int64_t h = 0; h < c.n_head; h++) {
            CK_REQUIRE(isnan(value_at(&dirty.o, 0, n_q - 1, h, 0)) && isnan(value_at(&dirty.lse, 0, n_q - 1, h, 0)));
        }
        mla_tensor *const outputs[] = {&clean.o, &clean.lse, &clean.max, &dirty.o, &dirty.lse, &dirty.max};
        for (int x = 0; x < 6; x++) {
            outputs[x]->dim[1] = n_q - 1;
        }
        ck_same_bits(&clean, &dirty, "rows whose list does not name the NaN");
        ck_release(mark);
    }
}

/* The largest of scores of which one is NaN is NaN: -inf would say that the row is empty, a number that all is well. */
static void check_nan_max(void)
{
    for (int64_t length = 1; length <= 200; length += 33) {
        size_t mark = ck_mark();
        ck_config c = ck_config_plain(1, 1, 3, 64, 40, length);
        c.segment[0].addressing = MLA_ADDRESS_BATCHED;
        mla_problem p;
        ck_context("%lld keys, one of them NaN", (long long)length);
        ck_make(&c, &p);
        plant_nan(&p, length / 2, false);
        ck_execute(&p, NULL);
        for (int64_t h = 0; h < c.n_head; h++) {
            double max = value_at(&p.max, 0, 0, h, 0);
            if (!isnan(max)) {
                ck_fail("max[0][0][%lld] = %g", (long long)h, max);
            }
        }
        ck_release(mark);
    }
}

/* Keys hidden from everybody by a mask of -inf are as invisible as any. */
static void check_mask_isolation(void)
{
    for (int kind = CK_MASK_HOLES; kind <= CK_MASK_BLANK_ROWS; kind++) {
        for (int i = 0; i < 12; i++) { /* few rows and many, which may be different ways through the library */
            ck_config c = ck_config_plain(3, 1, i < 6 ? 5 : 20, 64, 64, 0);
            c.segment[0].mask = (ck_mask)kind;
            c.segment[0].mask_dtype = i % 2 ? MLA_DTYPE_BF16 : MLA_DTYPE_F32;
            c.segment[0].addressing = (mla_addressing)(i % 3);
            set_lengths(&c.segment[0], 3, (int64_t[]){150, 20, 97});
            c.poison_masked = true;
            ck_check_config(&c);
        }
    }
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

/* One softmax over the union: two segments are the concatenation of their keys. */
static void check_segments(void)
{
    static const int64_t cuts[][2] = {{0, 50}, {50, 0}, {1, 63}, {64, 64}, {100, 500}, {513, 1}, {1000, 2000}};
    for (int64_t i = 0; i < COUNT(cuts); i++) {
        size_t mark = ck_mark();
        ck_config c = ck_config_plain(1, 3, 5, 64, 64, cuts[i][0] + cuts[i][1]);
        c.segment[0].addressing = MLA_ADDRESS_PACKED;
        c.segment[0].no_length = true;
        c.sink = i % 2 ? CK_SINK_RANDOM : CK_NO_SINK;
        mla_problem joined;
        ck_make(&c, &joined);
        mla_problem apart = joined;
        apart.n_segment = 2;
        apart.segment[1] = apart.segment[0];
        for (int g = 0; g < 2; g++) {
            int32_t *begin = ck_buffer("k_begin", 2 * sizeof *begin);
            begin[0] = g ? (int32_t)cuts[i][0] : 0;
            begin[1] = begin[0] + (int32_t)cuts[i][g];
            apart.segment[g].k_begin.data = begin;
        }
        ck_context("%lld and %lld keys", (long long)cuts[i][0], (long long)cuts[i][1]);
        ck_execute(&apart, NULL);
        ck_compare(&joined, false, CK_WORK); /* what the two segments wrote, against the one segment's exact values */
        ck_release(mark);
    }
}

static void check_no_sink(void)
{
    for (int i = 0; i < N_VARIED; i++) {
        ck_config without = varied(i), with = varied(i);
        without.sink = CK_NO_SINK;
        with.sink = CK_SINK_MINUS_INF;
        for (int count = 0; count < 2; count++) {
            without.lse_with_sink = with.lse_with_sink = count;
            ck_context("problem %d", i);
            same_result(&without, &with, "no sink and sinks of -inf");
        }
    }
}

/* Adding the same number to all scores of a row moves lse and max by it, and o not at all. */
static void check_shift(void)
{
    static const float shifts[] = {0.5f, -3, 100, -1000, 10000};
    for (int64_t i = 0; i < COUNT(shifts); i++) {
        size_t mark = ck_mark();
        ck_config c = ck_config_plain(2, 2, 3, 64, 64, 0);
        c.segment[0].mask = CK_MASK_SHARED;
        set_lengths(&c.segment[0], 2, (int64_t[]){700, 33});
        mla_problem p;
        mla_shape shape;
        ck_context("shift %g", (double)shifts[i]);
        ck_make(&c, &p);
        mla_tensor *mask = &p.segment[0].mask;
        ck_writable(mask->data);
        for (int64_t j = 0; j < mask->dim[2]; j++) {
            ((float *)mask->data)[j] = shifts[i];
        }
        ck_execute(&p, NULL);
        ck_compare(&p, false, CK_WORK);
        /* and that the oracle, which has just judged this, knows about shifts itself */
        CK_REQUIRE(mla_problem_resolve(&p, &shape) == MLA_STATUS_OK);
        mla_problem plain = p;
        plain.segment[0].mask = (mla_tensor){0};
        void *scratch = ck_buffer("scratch", mla_ref_scratch_bytes(&p, &shape));
        double o[64], o_plain[64];
        mla_ref_row_result row, row_plain;
        mla_ref_row(&p, &shape, 0, 1, 2, scratch, o, &row);
        mla_ref_row(&plain, &shape, 0, 1, 2, scratch, o_plain, &row_plain);
        for (int d = 0; d < 64; d++) {
            CK_REQUIRE(fabs(o[d] - o_plain[d]) <= 1e-12 * (1 + fabs((double)shifts[i])));
        }
        CK_REQUIRE(fabs(row.lse - row_plain.lse - (double)shifts[i]) <= 1e-12 * (1 + fabs((double)shifts[i])));
        ck_release(mark);
    }
}

/* A list in another order names the same keys. */
static void check_list_order(void)
{
    for (int i = 0; i < 6; i++) {
        size_t mark = ck_mark();
        ck_config c = ck_config_plain(2, 2, 5, 64, 64, 900);
        c.segment[0].list = i % 2 ? CK_PHYSICAL : CK_LOGICAL;
        c.segment[0].n_entry = 97 * (i + 1);
        mla_problem p;
        ck_context("%lld entries", (long long)c.segment[0].n_entry);
        ck_make(&c, &p);
        mla_problem turned = p; /* the same list, read from the last entry to the first */
        mla_tensor *list = &turned.segment[0].list;
        int32_t *copy = ck_buffer("list", sizeof *copy * (size_t)(list->dim[0] * list->dim[1] * list->dim[2]));
        int64_t n = list->dim[2];
        for (int64_t row = 0; row < list->dim[0] * list->dim[1]; row++) {
            for (int64_t j = 0; j < n; j++) {
                copy[row * n + j] = ((int32_t *)list->data)[row * n + n - 1 - j];
            }
        }
        list->data = copy;
        ck_execute(&turned, NULL);
        ck_compare(&p, false, CK_WORK);
        ck_release(mark);
    }
}

/* Everything at once on random problems: threads, poison, page order, strides, and every sequence by itself. */
static void check_random(void)
{
    double start = ck_clock();
    for (uint64_t i = 0; i < 10 || ck_clock() - start < ck_seconds; i++) {
        size_t mark = ck_mark();
        ck_config c = ck_config_random(ck_hash(ck_seed, 5000 + i), 20000), twin = c;
        mla_problem first, second;
        char text[200];
        ck_describe(&c, text, sizeof text);
        ck_context("%s", text);
        c.poison = CK_POISON_ZERO;
        twin.poison = CK_POISON_NAN;
        twin.layout_seed++;
        twin.layout = c.layout == CK_DENSE ? CK_PADDED : CK_DENSE;
        /* lists of physical rows follow the page order, and bad entries among them the size of the pool */
        for (int32_t g = 0; g < c.n_segment; g++) {
            if (c.segment[g].list == CK_PHYSICAL) {
                twin.layout_seed = c.layout_seed;
            } else if (twin.segment[g].addressing == MLA_ADDRESS_PAGED) {
                twin.segment[g].page_size = 1 + (int64_t)(ck_hash(c.seed, 3) % 200);
            }
        }
        ck_make(&c, &first);
        ck_execute(&first, NULL);
        ck_make(&twin, &second);
        ck_execute(&second, &(ck_run){.n_thread = (int32_t)(2 + i % 6)});
        /* rows that belong to no sequence hold what was there before, in both */
        ck_same_bits(&first, &second, "the same problem in other memory and by other threads");
        ck_release(mark);
    }
}

const ck_test ck_relation_tests[] = {
    {.name = "relations/threads", .run = check_threads, .host = true},
    {.name = "relations/alone", .run = check_alone, .host = true},
    {.name = "relations/together", .run = check_together, .host = true},
    {.name = "relations/permuted", .run = check_permuted, .host = true},
    {.name = "relations/pages", .run = check_pages, .host = true},
    {.name = "relations/strides", .run = check_strides},
    {.name = "relations/poison", .run = check_poison},
    {.name = "relations/nan_isolation", .run = check_nan_isolation},
    {.name = "relations/nan_column", .run = check_nan_column},
    {.name = "relations/nan_in_list", .run = check_nan_in_list},
    {.name = "relations/nan_max", .run = check_nan_max},
    {.name = "relations/mask_isolation", .run = check_mask_isolation},
    {.name = "relations/segments", .run = check_segments},
    {.name = "relations/no_sink", .run = check_no_sink},
    {.name = "relations/shift", .run = check_shift},
    {.name = "relations/list_order", .run = check_list_order},
    {.name = "relations/random", .run = check_random},
    {0},
};
