/*
 * test_dense_line.cpp - who computes what in dense decode on Hopper (kernels/dense_line_sm90.cuh): the code of the kernels,
 * compiled for the CPU, against its definition in exact integers.
 */
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstdint>
#include <vector>

extern "C" {
#include <cmocka.h>
}

namespace {

uint64_t state = 1;

int64_t random_below(int64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state >> 33) % (uint64_t)n);
}

/* What CUDA C++ has. The division is off by up to two units in the last place, as the GPU's may be. */
#define __device__
#define __forceinline__ inline
using std::max;
using std::min;
struct {
    int x;
} threadIdx;

int __ldcg(const int32_t *from)
{
    return *from;
}

int64_t __shfl_up_sync(unsigned, int64_t x, int)
{
    return x;
}

void __syncthreads()
{
}

float __fdividef(float x, float y)
{
    float quotient = x / y;
    for (int64_t i = random_below(5) - 2; i != 0; i += i < 0 ? 1 : -1) {
        quotient = std::nextafter(quotient, i < 0 ? -INFINITY : INFINITY);
    }
    return quotient;
}

#include "../src/cuda/kernels/dense_line_sm90.cuh"

/* The items of a line, and where they lie. */
struct place {
    int request, copy, tiles;
    int64_t at, weight;
};

struct line {
    std::vector<int32_t> length;
    line_input in;
    std::vector<place> items;
    int64_t all = 0;
    line_share share = {};
};

void make(line &l)
{
    const int64_t longest = (int64_t)1 << random_below(31);
    l.length.resize((size_t)(1 + random_below(40)));
    for (int32_t &x : l.length) {
        x = (int32_t)(random_below(longest) - (random_below(9) == 0));
    }
    l.in = {l.length.data(),
            (int32_t)l.length.size(),
            INT32_MAX - 64,
            random_below(3) ? 1 : 1 + (int)random_below(9),
            1 + (int)random_below(256),
            (int)random_below(20),
            1 + (int)random_below(2)};
    for (int i = 0; i < l.in.n_seq; i++) {
        for (int copy = 0; copy < l.in.n_copy; copy++) {
            const int tiles = line_tiles(line_length(l.in, i));
            l.items.push_back({i, copy, tiles, l.all, l.in.item_cost + 4 * (int64_t)tiles});
            l.all += l.items.back().weight;
        }
    }
    /* as of a thread that has all requests */
    l.share.begin = 0, l.share.end = l.in.n_seq;
    l.share.mine = l.all / l.in.n_copy;
    l.share.length = line_length(l.in, l.in.n_seq - 1);
    l.share.parts = (int)min(max(l.all / line_least_part, (int64_t)1), (int64_t)l.in.n_part);
    l.share.step = line_divide(l.all, l.share.parts);
    l.share.rest = (int)(l.all - l.share.step * l.share.parts);
}

void test_one_thread_weighs_all(void **)
{
    for (int i = 0; i < 1000; i++) {
        line l;
        make(l);
        l.in.n_seq = 1; /* the others of the warp have none then */
        int64_t scratch[1] = {0};
        threadIdx.x = 31;
        const line_share none = line_weigh<32>(l.in, scratch);
        assert_int_equal(none.begin, none.end);
        threadIdx.x = 0;
        scratch[0] = line_weight(l.in, line_length(l.in, 0));
        const line_share one = line_weigh<32>(l.in, scratch);
        const int64_t all = scratch[0] * l.in.n_copy;
        assert_int_equal(one.mine, scratch[0]);
        assert_int_equal(one.length, line_length(l.in, 0));
        assert_int_equal(one.step * one.parts + one.rest, all);
        assert_true(one.rest >= 0 && one.rest < one.parts && one.parts <= max(all / line_least_part, (int64_t)1));
    }
}

void test_boundaries_cut_as_defined(void **)
{
    for (int round = 0; round < 20000; round++) {
        line l;
        make(l);
        std::vector<std::vector<int>> cuts(l.items.size()); /* boundaries that cut the item, in order */
        std::vector<int> folders(l.items.size());           /* boundaries that find themselves the first of them */
        size_t of = 0;
        for (int p = 0; p <= l.share.parts; p++) {
            const int64_t x = l.all * p / l.share.parts;
            assert_int_equal(line_boundary(l.in, l.share, p), x);
            if (p == l.share.parts) {
                break;
            }
            while (x >= l.items[of].at + l.items[of].weight) {
                of++;
            }
            line_item item = {};
            assert_true(line_find(l.in, l.share, x, item));
            assert_int_equal(item.request, l.items[of].request);
            assert_int_equal(item.copy, l.items[of].copy);
            assert_int_equal(item.length, line_length(l.in, item.request));
            assert_int_equal(item.tiles, l.items[of].tiles);
            assert_int_equal(item.at, l.items[of].at);
            const int tile = line_cut_tile(l.in, item, x);
            if (tile > 0 && tile < item.tiles) {
                assert_true(tile >= l.in.least_piece && tile <= item.tiles - l.in.least_piece);
                cuts[of].push_back(p);
            }
            const line_cuts found = line_cuts_of(l.in, l.share, item);
            folders[of] += p > 0 && found.n > 0 && found.first == p;
        }
        for (size_t i = 0; i < l.items.size(); i++) {
            const place &at = l.items[i];
            const line_cuts found = line_cuts_of(l.in, l.share, {at.request, at.copy, 0, at.tiles, at.at});
            assert_int_equal(found.n, (int)cuts[i].size());
            assert_int_equal(folders[i], found.n > 0); /* whoever goes by cuts folds an item once */
            for (int j = 0; j < found.n; j++) {
                assert_int_equal(found.first + j,
                                 cuts[i][(size_t)j]); /* no boundary between two cuts misses the item */
            }
            /* the place of a piece is that of the part which leaves it */
            for (int j = 0; j < found.n && found.n > 0; j++) {
                assert_int_equal(line_piece(found.first, j + 1), 2 * (found.first + j));
            }
            if (found.n > 0) {
                assert_int_equal(line_piece(found.first, 0), 2 * (found.first - 1) + 1);
            }
        }
    }
}

} // namespace

int main()
{
    const CMUnitTest tests[] = {cmocka_unit_test(test_one_thread_weighs_all),
                                cmocka_unit_test(test_boundaries_cut_as_defined)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
