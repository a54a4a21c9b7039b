"""Faults that users of such kernels have met, each as the smallest call that shows it.

Two tricks give exact answers without a reference: with q = 0 every visible key has the same weight, so out is the mean
of the visible values and lse the logarithm of their number; and a cache whose row t holds t makes that mean a check on
which rows were read.
"""

import math

import mla
import pytest
import torch
from flash_mla import flash_mla_with_kvcache, get_mla_metadata
from reference import GARBAGE, INF, assert_decode_close, causal_mask, counting_cache, make_decode

NAN = float("nan")


def ints(values):
    return torch.tensor(values, dtype=torch.int32)


def table(rows, columns):
    return torch.arange(rows * columns, dtype=torch.int32).view(rows, columns)


def zero_q(b, s_q=1, h_q=16, d=576):
    return torch.zeros(b, s_q, h_q, d, dtype=torch.bfloat16)


def call(q, cache, pages, lengths, **options):
    return flash_mla_with_kvcache(q, cache, pages, ints(lengths), 512, None, None, **options)


# ---- lengths, paging, padding ----------------------------------------------------------------------------------------


def test_empty_requests():
    cache = counting_cache(1, 64)
    out, lse = call(zero_q(3), cache, torch.zeros(3, 1, dtype=torch.int32), [0, 5, 0])
    assert (out[[0, 2]] == 0).all() and (lse[[0, 2]] == INF).all()
    assert (out[1] == 2).all() and lse[1, 0, 0].item() == pytest.approx(math.log(5))


@pytest.mark.parametrize("filler", [-1, GARBAGE, -GARBAGE, 0])
def test_padded_slots_of_a_captured_batch(filler):
    cache = counting_cache(2, 64)
    pages = torch.full((4, 3), filler, dtype=torch.int32)
    pages[0, 0] = 1
    metadata, num_splits = get_mla_metadata(ints([7, 0, 0, 0]), 16, 1)
    metadata[metadata[:, 0] == 4, 0] = -1  # idle parts, as one fork marks them
    for splits in (num_splits, ints([0, 1, 1, 1, 1])):
        out, lse = flash_mla_with_kvcache(zero_q(4), cache, pages, ints([7, 0, 0, 0]), 512, metadata, splits)
        assert (out[0] == 67).all() and (out[1:] == 0).all() and (lse[1:] == INF).all()


@pytest.mark.parametrize("lengths", [[0, 0, 0, 0], [-1, -5, 0, -(2**31)]])
def test_nothing_anywhere_and_a_table_without_columns(lengths):
    out, lse = call(zero_q(4), counting_cache(1, 64), torch.zeros(4, 0, dtype=torch.int32), lengths)
    assert (out == 0).all() and (lse == INF).all()


def test_negative_lengths_count_as_zero():
    out, lse = call(zero_q(2), counting_cache(1, 64), torch.zeros(2, 1, dtype=torch.int32), [-7, 3])
    assert (out[0] == 0).all() and (lse[0] == INF).all() and (out[1] == 1).all()


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65])
def test_lengths_around_a_page(length):
    call_ = make_decode([length], h_q=4)
    assert_decode_close(flash_mla_with_kvcache(*call_.arguments(), None, None), call_.reference(), torch.bfloat16)


def test_the_causal_limit_is_each_rows_own():
    pages = torch.full((1, 8), GARBAGE, dtype=torch.int32)
    pages[0, :2] = ints([0, 1])
    out, lse = call(zero_q(1, 4), counting_cache(2, 16), pages, [17], causal=True)
    assert out[0, :, 0, 0].tolist() == [6.5, 7, 7.5, 8]
    assert torch.allclose(lse[0, 0], torch.tensor([14.0, 15, 16, 17]).log())


@pytest.mark.parametrize("page", [129, 192, 256])
def test_pages_longer_than_a_tile(page):
    out, lse = call(zero_q(1), counting_cache(2, page), ints([[0, 1]]), [200])
    assert (out.float() - 99.5).abs().max() <= 0.25 and lse[0, 0, 0].item() == pytest.approx(math.log(200))


def test_bits_do_not_depend_on_the_page_size():
    lengths = [1, 63, 64, 65, 130]
    keys = torch.randn(5, 200, 1, 576).bfloat16()
    q = torch.randn(5, 1, 16, 576).bfloat16()
    contiguous = mla.attention(q, keys, lengths=ints(lengths), d_v=512)
    for page in (1, 2, 3, 16, 61, 64, 100):
        columns = math.ceil(130 / page)
        cache = torch.full((5, columns * page, 1, 576), NAN, dtype=torch.bfloat16)
        cache[:, :130] = keys[:, :130]
        order = torch.randperm(5 * columns)
        shuffled = torch.empty_like(cache.view(-1, page, 1, 576))
        shuffled[order] = cache.view(-1, page, 1, 576)
        out, lse = call(q, shuffled, order.int().view(5, columns), lengths, softmax_scale=None)
        assert torch.equal(out, contiguous[0]) and torch.equal(lse.mT, contiguous[1])


def test_tables_hold_pages_not_tokens():
    cache = torch.zeros(4, 64, 1, 576, dtype=torch.bfloat16)
    cache[3] = counting_cache(1, 64)[0]
    assert (call(zero_q(1), cache, ints([[3]]), [5])[0] == 2).all()


def test_pages_repeat_and_are_shared():
    out, _ = call(zero_q(2), counting_cache(3, 4), ints([[1, 1, 2], [1, 0, 7]]), [12, 6])
    assert (out[0] == (4 + 5 + 6 + 7) * 2 / 12 + (8 + 9 + 10 + 11) / 12).all()
    assert out[1, 0, 0, 0].item() == pytest.approx((4 + 5 + 6 + 7 + 0 + 1) / 6, rel=2**-8)


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page, number", [(16, 233017), (64, 58255 * 2), (32, 262144 + 3)])
def test_offsets_past_31_and_32_bits(page, number):
    """A pool that is mostly address space: only the last page is ever touched."""
    cache = torch.from_numpy(sparse_pool((number + 1) * page * 576)).view(torch.bfloat16).view(number + 1, page, 1, 576)
    cache[number] = counting_cache(1, page)[0]
    out, _ = call(zero_q(1, h_q=8), cache, ints([[number]]), [page])
    assert (out == (page - 1) / 2).all()


def sparse_pool(n_element):
    import mmap

    import numpy as np

    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, n_element * 2, flags=flags), np.int16)


@pytest.mark.parametrize("b, s_q", [(65536, 1), (1, 70000)])
def test_more_rows_than_a_grid_axis_has(b, s_q):
    cache, q = counting_cache(1, 4, d=64), torch.zeros(b, s_q, 1, 64, dtype=torch.bfloat16)
    out, lse = flash_mla_with_kvcache(
        q, cache, torch.zeros(b, 1, dtype=torch.int32), ints([3]).expand(b).contiguous(), 64, None, None
    )
    assert (out == 1).all() and torch.allclose(lse, torch.tensor(3.0).log())


def test_heads_that_made_no_part():
    """b 1, s_q 1024, h_q 16, h_kv 8: one scheduler divided this down to no part at all."""
    q = torch.zeros(1, 1024, 16, 64, dtype=torch.bfloat16)
    cache, lengths = counting_cache(2, 64, 8, 64), ints([100])
    out, _ = flash_mla_with_kvcache(q, cache, ints([[0, 1]]), lengths, 64, *get_mla_metadata(lengths, 1024 * 2, 8))
    assert (out.float() - 49.5).abs().max() <= 0.125


# ---- masks -----------------------------------------------------------------------------------------------------------


def test_a_masked_tile_gives_no_nan():
    out, _ = call(zero_q(1, 2), counting_cache(2, 64), ints([[0, 1]]), [65], causal=True)
    assert out[0, :, 0, 0].tolist() == [31.5, 32]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_causal_is_not_ignored(dtype):
    call_ = make_decode([70], 2, 16, dtype=dtype)
    off, on = (flash_mla_with_kvcache(*call_.arguments(), None, None, None, causal) for causal in (False, True))
    assert not torch.equal(off[0][:, 0], on[0][:, 0]) and torch.equal(off[0][:, 1], on[0][:, 1])


def test_a_schedule_for_one_token_used_with_two():
    call_ = make_decode([70, 300], 2, 16)
    metadata = get_mla_metadata(call_.cache_seqlens, 16, 1)
    assert_decode_close(
        flash_mla_with_kvcache(*call_.arguments(), *metadata, causal=True), call_.reference(causal=True), torch.bfloat16
    )


# ---- NaN, Inf, range -------------------------------------------------------------------------------------------------


def filled(cache, call_, value):
    """The cache with `value` in every row that no request owns (they were NaN)."""
    return torch.where(call_.k_cache.isnan(), torch.tensor(value, dtype=cache.dtype), cache)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_rows_of_nobody_never_matter(value):
    call_ = make_decode([65, 0, 1, 130], 2, 16)
    expected = flash_mla_with_kvcache(call_.q, filled(call_.k_cache, call_, 0.0), *call_.arguments()[2:], None, None)
    out, lse = flash_mla_with_kvcache(call_.q, filled(call_.k_cache, call_, value), *call_.arguments()[2:], None, None)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1]) and out.isfinite().all()


def test_a_spoilt_newest_key_reaches_only_rows_that_see_it():
    """In range, but masked for the earlier tokens: neither its key nor its value may touch them."""
    call_ = make_decode([70], 3, 16)
    clean = flash_mla_with_kvcache(*call_.arguments(), None, None, causal=True)
    for columns in (slice(0, 512), slice(512, None), slice(None)):
        spoilt = call_.k_cache.clone()
        spoilt[call_.block_table[0, 1].long(), 5, :, columns] = NAN
        out, lse = flash_mla_with_kvcache(call_.q, spoilt, *call_.arguments()[2:], None, None, causal=True)
        assert torch.equal(out[:, :2], clean[0][:, :2]) and torch.equal(lse[:, :, :2], clean[1][:, :, :2])
        assert out[:, 2].isnan().any()


def test_a_spoilt_request_stays_alone():
    call_ = make_decode([70, 70, 70], 1, 16)
    clean = flash_mla_with_kvcache(*call_.arguments(), None, None)
    call_.k_cache[call_.block_table[1, 0].long(), 3] = NAN
    out, lse = flash_mla_with_kvcache(*call_.arguments(), None, None)
    for i in (0, 2):
        assert torch.equal(out[i], clean[0][i]) and torch.equal(lse[i], clean[1][i])


def test_a_spoilt_head_stays_alone():
    call_ = make_decode([70], 2, 16)
    clean = flash_mla_with_kvcache(*call_.arguments(), None, None)
    call_.q[0, 1, 5] = NAN
    out, lse = flash_mla_with_kvcache(*call_.arguments(), None, None)
    keep = torch.ones(2, 16, dtype=torch.bool)
    keep[1, 5] = False
    assert torch.equal(out[0][keep], clean[0][0][keep]) and torch.equal(lse[0].T[keep], clean[1][0].T[keep])
    assert out[0, 1, 5].isnan().all()


def test_fp16_scores_do_not_overflow():
    q = torch.full((1, 1, 1, 576), 16.0, dtype=torch.float16)
    _, lse = flash_mla_with_kvcache(
        q, q.expand(1, 64, 1, 576).contiguous(), ints([[0]]), ints([1]), 512, None, None, 1e-5
    )
    assert lse.item() == pytest.approx(1.47456, rel=1e-6)


def test_large_queries():
    """A softmax that is nearly one-hot: small data would hide a lost maximum."""
    call_ = make_decode([300, 20], 1, 16)
    call_.q = (torch.randn(call_.q.shape) * 100).bfloat16()
    out, lse = flash_mla_with_kvcache(*call_.arguments(), None, None)
    expected, expected_lse = call_.reference()
    # A score of size |s| is known to about 576 * 2^-24 * sum|q k| / 24; its exponential is off by as much, relatively.
    slack = 576 * 2**-24 * (call_.q.double().abs().amax() * call_.k_cache.double().nan_to_num().abs().amax()) * 24
    assert (lse.double() - expected_lse).abs().max() <= slack
    assert (out.double() - expected).abs().max() <= 2 * slack + 2**-8


# ---- strides ---------------------------------------------------------------------------------------------------------


def test_views_are_read_as_they_are():
    """Every second head of q, one layer of a pool, columns of a wider table: same bits as their copies."""
    call_ = make_decode([70, 130], 2, 16)
    q = torch.randn(2, 3, 32, 640).bfloat16()[:, 1:, ::2, :576]
    pool = torch.full((call_.k_cache.shape[0], 4, 64, 1, 584), NAN).bfloat16()
    pool[:, 2, :, :, :576] = call_.k_cache
    cache = pool[:, 2, :, :, :576]
    pages = torch.cat((call_.block_table, torch.full((2, 5), GARBAGE, dtype=torch.int32)), 1)[:, :-5]
    assert not (q.is_contiguous() or cache.is_contiguous() or pages.is_contiguous())
    views = call(q, cache, pages, [70, 130], causal=True)
    copies = call(q.contiguous(), cache.contiguous(), pages.contiguous(), [70, 130], causal=True)
    assert torch.equal(views[0], copies[0]) and torch.equal(views[1], copies[1])


def test_broadcast_queries_and_pages():
    """Strides of 0 are strides too."""
    one = torch.randn(1, 1, 1, 576).bfloat16()
    page = torch.randn(1, 64, 1, 576).bfloat16()
    out, lse = call(one.expand(2, 3, 4, 576), page.expand(5, 64, 1, 576), table(2, 2) + 1, [70, 70])
    whole = call(one.repeat(2, 3, 4, 1), page.repeat(5, 1, 1, 1), table(2, 2) + 1, [70, 70])
    assert torch.equal(out, whole[0]) and torch.equal(lse, whole[1])
    assert torch.equal(out, out[:1, :1, :1].expand_as(out)) and torch.equal(lse, lse[:1, :1, :1].expand_as(lse))


def test_the_mask_of_the_reference():
    """Rows of the referee's own mask, so that tests above cannot share a mistake with it."""
    assert causal_mask(4, 2, True).tolist() == [[0, 0], [0, 0], [1, 0], [1, 1]]
    assert causal_mask(2, 3, True).tolist() == [[1, 1, 0], [1, 1, 1]]
