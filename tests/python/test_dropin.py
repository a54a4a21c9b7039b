"""flash_mla as its callers know it: both conventions, their results, and what may and may not change between calls."""

import math

import flash_mla
import pytest
import torch
from flash_mla import FlashMLASchedMeta, flash_mla_with_kvcache, get_mla_metadata
from reference import INF, assert_decode_close, counting_cache, make_decode

CONVENTIONS = ("tensors", "object", "none")


def schedule(convention, call):
    """(tile_scheduler_metadata, num_splits) as a caller of that convention gets them."""
    if convention == "none":
        return None, None
    if convention == "object":
        return get_mla_metadata()
    _, s_q, h_q, _ = call.q.shape
    h_kv = call.k_cache.shape[2]
    return get_mla_metadata(call.cache_seqlens, s_q * h_q // h_kv, h_kv)


# ---- the calls -------------------------------------------------------------------------------------------------------


def test_call_of_february_2025():
    """Nine positional arguments, tuples unpacked, as in the README of the original."""
    call = make_decode([130, 7, 65], s_q=2, h_q=16)
    tile_scheduler_metadata, num_splits = get_mla_metadata(call.cache_seqlens, 2 * 16 // 1, 1)
    assert tile_scheduler_metadata.dtype == torch.int32 and tile_scheduler_metadata.shape[1] == 8
    assert num_splits.dtype == torch.int32 and num_splits.shape == (4,)
    out, lse = flash_mla_with_kvcache(
        call.q, call.k_cache, call.block_table, call.cache_seqlens, 512, tile_scheduler_metadata, num_splits, None, True
    )
    assert out.shape == (3, 2, 16, 512) and out.dtype == torch.bfloat16
    assert lse.shape == (3, 16, 2) and lse.dtype == torch.float32
    assert_decode_close((out, lse), call.reference(causal=True), torch.bfloat16)


def test_call_of_january_2026():
    call = make_decode([130, 7, 65], s_q=2, h_q=16)
    sched_meta, num_splits = get_mla_metadata()
    assert isinstance(sched_meta, FlashMLASchedMeta) and num_splits is None and not sched_meta.have_initialized
    out, lse = flash_mla_with_kvcache(
        q=call.q,
        k_cache=call.k_cache,
        block_table=call.block_table,
        cache_seqlens=call.cache_seqlens,
        head_dim_v=512,
        tile_scheduler_metadata=sched_meta,
        softmax_scale=0.05,
        causal=True,
    )
    assert_decode_close((out, lse), call.reference(scale=0.05, causal=True), torch.bfloat16)
    assert sched_meta.have_initialized
    assert sched_meta.config == (3, 2, 16, 64, 1, True, False, None, None, None)
    assert sched_meta.config._fields == (
        "b",
        "s_q",
        "h_q",
        "page_block_size",
        "h_k",
        "causal",
        "is_fp8_kvcache",
        "topk",
        "extra_page_block_size",
        "extra_topk",
    )
    assert sched_meta.tile_scheduler_metadata.shape[1] == 8 and sched_meta.num_splits.shape == (4,)


@pytest.mark.parametrize(
    "arguments, named",
    [
        (("lengths", 32, 1), {}),
        (("lengths",), {"num_heads_per_head_k": 32, "num_heads_k": 1}),
        (("lengths",), {"num_q_tokens_per_head_k": 32, "num_heads_k": 1}),
        ((), {"cache_seqlens": "lengths", "num_q_tokens_per_head_k": 32, "num_heads_k": 1, "num_heads_q": 16}),
        (("lengths", 32, 1, 16, False, None), {}),
    ],
)
def test_metadata_goes_by_three_argument_names(arguments, named):
    lengths = torch.tensor([100, 3000, 0], dtype=torch.int32)
    expected = get_mla_metadata(lengths, 32, 1)
    arguments = [lengths if x == "lengths" else x for x in arguments]
    named = {name: lengths if x == "lengths" else x for name, x in named.items()}
    for got, wanted in zip(get_mla_metadata(*arguments, **named), expected):
        assert torch.equal(got, wanted)


def test_metadata_style_can_be_forced():
    lengths = torch.tensor([100], dtype=torch.int32)
    try:
        flash_mla.set_metadata_style("object")
        meta, splits = get_mla_metadata(lengths, 16, 1)
        assert isinstance(meta, FlashMLASchedMeta) and splits is None
        flash_mla.set_metadata_style("tensor")
        assert isinstance(get_mla_metadata(lengths, 16, 1)[0], torch.Tensor)
        with pytest.raises(TypeError, match="cache_seqlens"):
            get_mla_metadata()
        with pytest.raises(ValueError, match="style"):
            flash_mla.set_metadata_style("tensors")
    finally:
        flash_mla.set_metadata_style("auto")
    assert isinstance(get_mla_metadata()[0], FlashMLASchedMeta)


def test_names_where_callers_import_them():
    from flash_mla import flash_mla_interface

    assert flash_mla_interface.FlashMLASchedMeta is FlashMLASchedMeta
    assert flash_mla_interface.flash_mla_with_kvcache is flash_mla_with_kvcache
    for name in (
        "flash_mla_sparse_fwd",
        "flash_attn_varlen_func",
        "flash_attn_varlen_qkvpacked_func",
        "flash_attn_varlen_kvpacked_func",
        "__version__",
    ):
        assert hasattr(flash_mla, name)


# ---- metadata --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lengths, parts, splits, rows",
    [
        ([1000], 4, [0, 3], [(0, 0, 0, 384, 0), (0, 384, 0, 768, 1), (0, 768, 0, 1000, 2), (1, 0, 0, 1000, 0)]),
        ([0, 64, 65, 4096], 3, [0, 1, 2, 3, 6], [(0, 0, 3, 704, 0), (3, 704, 3, 2560, 1), (3, 2560, 3, 4096, 2)]),
        ([0], 2, [0, 1], [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0)]),
    ],
)
def test_metadata_rows_worked_by_hand(lengths, parts, splits, rows):
    from mla import _core

    metadata = torch.full((parts, 8), -7, dtype=torch.int32)
    num_splits = torch.full((len(lengths) + 1,), -7, dtype=torch.int32)
    _core.get_metadata(torch.tensor(lengths, dtype=torch.int32), 128, 1, metadata, num_splits, None)
    assert num_splits.tolist() == splits
    assert [tuple(row[:5]) for row in metadata.tolist()] == rows
    assert torch.equal(metadata[:, 5:], torch.zeros(parts, 3, dtype=torch.int32))


def test_metadata_covers_every_block_once():
    """The invariants of the original's schedule, on random lengths."""
    generator = torch.Generator().manual_seed(4)
    for b in (1, 2, 5, 40):
        lengths = (
            torch.randint(0, 9000, (b,), generator=generator).int()
            * torch.randint(0, 2, (b,), generator=generator).int()
        )
        metadata, num_splits = get_mla_metadata(lengths, 128, 1)
        parts, pieces = metadata.shape[0], [[] for _ in range(b)]
        assert num_splits[0] == 0 and (num_splits.diff() >= 1).all() and num_splits[b] <= b + parts - 1
        working = [row for row in metadata.tolist() if row[0] < b]
        assert all(row[0] == b for row in metadata.tolist()[len(working) :]), "an idle part between working ones"
        for begin, begin_token, end, end_token, split, *_ in working:
            for i in range(begin, end + 1):
                first = begin_token if i == begin else 0
                last = end_token if i == end else int(lengths[i])
                assert len(pieces[i]) == (split if i == begin else 0)
                pieces[i].append((first, last))
        for i, spans in enumerate(pieces):
            assert len(spans) == num_splits[i + 1] - num_splits[i]
            assert spans[0][0] == 0 and spans[-1][1] == lengths[i]
            assert all(left[1] == right[0] and left[1] % 64 == 0 for left, right in zip(spans, spans[1:]))


@pytest.mark.parametrize("contents", ["random", "all -1", "another batch", "another library", "zero splits", "huge"])
def test_metadata_is_only_a_hint(contents):
    call = make_decode([300, 0, 65, 1], s_q=2, h_q=4)
    metadata, num_splits = schedule("tensors", call)
    expected = flash_mla_with_kvcache(*call.arguments(), metadata, num_splits, causal=True)
    if contents == "random":
        metadata, num_splits = torch.randint_like(metadata, -(2**31), 2**31 - 1), torch.randint_like(num_splits, -9, 9)
    elif contents == "all -1":
        metadata = torch.full_like(metadata, -1)
    elif contents == "another batch":
        metadata, num_splits = get_mla_metadata(torch.tensor([9000, 1, 1, 9000], dtype=torch.int32), 4, 1)
    elif contents == "another library":
        metadata = torch.zeros(132, 8, dtype=torch.int32)
        metadata[:, 0] = 4
    elif contents == "zero splits":
        num_splits = torch.tensor([0, 1, 1, 1, 1], dtype=torch.int32)
    else:
        metadata = torch.full_like(metadata, 2**31 - 1)
    before = metadata.clone(), num_splits.clone()
    out, lse = flash_mla_with_kvcache(*call.arguments(), metadata, num_splits, causal=True)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
    assert torch.equal(metadata, before[0]) and torch.equal(num_splits, before[1])


# ---- a schedule over several calls -----------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_reuse_with_changed_lengths_is_right(convention):
    """A decode loop that plans once: lengths grow under the schedule."""
    call = make_decode([60, 1, 200], h_q=16)
    call.k_cache.nan_to_num_(nan=0.25)
    call.block_table[:] = torch.arange(3 * call.block_table.shape[1]).view(3, -1) % call.k_cache.shape[0]
    metadata, num_splits = schedule(convention, call)
    for lengths in ([60, 1, 200], [256, 64, 0], [0, 0, 0], [1, 256, 255]):
        call.cache_seqlens.copy_(torch.tensor(lengths))
        answer = flash_mla_with_kvcache(*call.arguments(), metadata, num_splits)
        assert_decode_close(answer, call.reference(), torch.bfloat16)


def changed(call, what):
    q, k_cache, block_table, cache_seqlens, _ = call.arguments()
    causal = what == "causal"
    if what == "b":
        q, block_table, cache_seqlens = q[:1], block_table[:1], cache_seqlens[:1]
    elif what == "s_q":
        q = q[:, :1]
    elif what == "h_q":
        q = q[:, :, :2]
    elif what == "page_block_size":
        k_cache = k_cache.view(-1, 32, *k_cache.shape[2:])
    elif what == "h_k":
        k_cache = k_cache[:, :, :1]
    return q, k_cache, block_table, cache_seqlens, causal


@pytest.mark.parametrize("what", ["b", "s_q", "h_q", "page_block_size", "h_k", "causal"])
def test_an_object_of_another_configuration_is_refused(what):
    call = make_decode([40, 30], s_q=2, h_q=4, h_kv=2)
    sched_meta, _ = get_mla_metadata()
    flash_mla_with_kvcache(*call.arguments(), sched_meta, None)
    q, k_cache, block_table, cache_seqlens, causal = changed(call, what)
    with pytest.raises(AssertionError, match=f"made for {what} = "):
        flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, 512, sched_meta, None, causal=causal)


def test_a_failed_first_call_leaves_an_object_as_it_was():
    call = make_decode([40, 30])
    sched_meta, _ = get_mla_metadata()
    q, k_cache, block_table, cache_seqlens = call.arguments()[:4]
    with pytest.raises(ValueError):
        flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, 9999, sched_meta, None)
    assert not sched_meta.have_initialized
    out, _ = flash_mla_with_kvcache(q[:1], k_cache, block_table[:1], cache_seqlens[:1], 512, sched_meta, None)
    assert out.shape[0] == 1 and sched_meta.have_initialized


def test_no_query_tokens():
    call = make_decode([40, 30])
    q, k_cache, block_table, cache_seqlens = call.arguments()[:4]
    metadata = get_mla_metadata(cache_seqlens, 0, 1)
    out, lse = flash_mla_with_kvcache(q[:, :0], k_cache, block_table, cache_seqlens, 512, *metadata)
    assert out.shape == (2, 0, q.shape[2], 512) and lse.shape == (2, q.shape[2], 0)


def test_num_splits_next_to_an_object_is_refused():
    call = make_decode([40])
    _, num_splits = schedule("tensors", call)
    with pytest.raises(AssertionError, match="num_splits"):
        flash_mla_with_kvcache(*call.arguments(), get_mla_metadata()[0], num_splits)


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_conventions_agree_to_the_bit(convention):
    call = make_decode([1000, 0, 65], s_q=2, h_q=8, h_kv=2)
    plain = flash_mla_with_kvcache(*call.arguments(), None, None, causal=True)
    out, lse = flash_mla_with_kvcache(*call.arguments(), *schedule(convention, call), causal=True)
    assert torch.equal(out, plain[0]) and torch.equal(lse, plain[1])


def test_outputs_are_fresh():
    call = make_decode([40])
    first, second = (flash_mla_with_kvcache(*call.arguments(), None, None) for _ in range(2))
    assert first[0].data_ptr() != second[0].data_ptr() and first[1].data_ptr() != second[1].data_ptr()
    assert first[0].is_contiguous() and not first[0].requires_grad
    first[0].resize_(0)  # an ordinary tensor that owns its memory


@pytest.mark.parametrize("b, s_q", [(0, 1), (2, 0), (0, 0)])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_nothing_to_do(b, s_q, convention):
    call = make_decode([5] * b, s_q=s_q)
    out, lse = flash_mla_with_kvcache(*call.arguments(), *schedule(convention, call) if s_q else (None, None))
    assert out.shape == (b, s_q, 16, 512) and lse.shape == (b, 16, s_q)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32


@pytest.mark.parametrize("b, num_splits", [(0, [0]), (1, [0, 1])])
def test_metadata_of_small_batches(b, num_splits):
    metadata, splits = get_mla_metadata(torch.full((b,), 5, dtype=torch.int32), 16, 1)
    assert metadata.shape[0] >= 1 and splits.tolist() == num_splits


@pytest.mark.parametrize("heads_per_k, heads_k", [(2048, 8), (1, 1), (1, 128), (10**6, 64)])
def test_there_is_always_a_part(heads_per_k, heads_k):
    metadata, _ = get_mla_metadata(torch.tensor([5], dtype=torch.int32), heads_per_k, heads_k)
    assert metadata.shape[0] >= 1


def test_one_key_shows_scale_and_base():
    """With one key, lse is the scaled score itself: natural units, scale included."""
    call = make_decode([1], h_q=2)
    row = call.k_cache[call.block_table[0, 0].long(), 0, 0].double()
    for scale in (None, 0.5, 1.0, -2.0, 0.0):
        out, lse = flash_mla_with_kvcache(*call.arguments(), None, None, scale)
        expected = (576**-0.5 if scale is None else scale) * (call.q[0, 0].double() @ row)
        assert torch.allclose(lse[0, :, 0].double(), expected, rtol=1e-6, atol=1e-7)
        assert torch.equal(out[0, 0, 0].float(), row[:512].float())


def test_causal_is_aligned_at_the_bottom_right():
    cache = counting_cache(1, 64)
    q, table = torch.zeros(1, 4, 2, 576, dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.int32)
    out, lse = flash_mla_with_kvcache(
        q, cache, table, torch.tensor([2], dtype=torch.int32), 512, None, None, None, True
    )
    assert out[0, :, 0, 0].tolist() == [0, 0, 0, 0.5]
    assert lse[0, 0].tolist() == [INF, INF, 0, pytest.approx(math.log(2))]


def test_causal_has_no_effect_on_one_token():
    call = make_decode([70, 3], h_q=4)
    off, on = (flash_mla_with_kvcache(*call.arguments(), None, None, None, causal) for causal in (False, True))
    assert torch.equal(off[0], on[0]) and torch.equal(off[1], on[1])


def test_heads_are_grouped_consecutively():
    cache = torch.arange(3.0).view(1, 1, 3, 1).expand(1, 64, 3, 576).bfloat16()
    q, table = torch.zeros(1, 1, 6, 576, dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.int32)
    out, _ = flash_mla_with_kvcache(q, cache, table, torch.tensor([9], dtype=torch.int32), 512, None, None)
    assert out[0, 0, :, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_folded_heads_and_tokens():
    """h_q 126 over h_kv 3 with 4 tokens: finds most mistakes in folding."""
    call = make_decode([200, 3, 64], s_q=4, h_q=126, h_kv=3)
    for causal in (False, True):
        answer = flash_mla_with_kvcache(*call.arguments(), None, None, causal=causal)
        assert_decode_close(answer, call.reference(causal=causal), torch.bfloat16)


def test_sink():
    """A dense call takes attn_sink too: it scales out and leaves lse alone."""
    call = make_decode([100, 0, 7], s_q=2, h_q=4)
    sink = torch.tensor([0.3, -INF, INF, -2.0])
    out, lse = flash_mla_with_kvcache(*call.arguments(), None, None, causal=True, attn_sink=sink)
    assert_decode_close((out, lse), call.reference(causal=True, sink=sink), torch.bfloat16)
    plain, plain_lse = flash_mla_with_kvcache(*call.arguments(), None, None, causal=True)
    assert torch.equal(lse, plain_lse) and torch.equal(out[:, :, 1], plain[:, :, 1])
    assert (out[:, :, 2] == 0).all()


def test_two_equal_keys_and_a_sink():
    """Applied once, after everything: 2 keys and a sink of 0 leave 2/3. Once per split would leave 1/2."""
    q, cache = torch.zeros(1, 1, 1, 576, dtype=torch.float16), torch.ones(1, 64, 1, 576, dtype=torch.float16)
    table, lengths = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    out, lse = flash_mla_with_kvcache(q, cache, table, lengths, 512, None, None, attn_sink=torch.zeros(1))
    assert torch.equal(out, torch.full_like(out, 2 / 3)) and lse.item() == pytest.approx(math.log(2))


def test_inputs_that_require_grad_give_plain_outputs():
    call = make_decode([40])
    call.q.requires_grad_()
    for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
        with mode:
            out, lse = flash_mla_with_kvcache(*call.arguments(), *schedule("tensors", call))
        assert not out.requires_grad and not lse.requires_grad


def test_enable_batch_invariant_is_accepted():
    call = make_decode([40, 900], h_q=2)
    out, _ = flash_mla_with_kvcache(*call.arguments(), None, None, enable_batch_invariant=True)
    assert torch.equal(out, flash_mla_with_kvcache(*call.arguments(), None, None)[0])


@pytest.mark.parametrize("h_q", [1, 16, 128])
def test_batch_mates_do_not_touch_a_request(h_q):
    """The bits of a request are its own: alone, first or last of many, and for any page size."""
    call = make_decode([700, 1, 0, 64, 2500], h_q=h_q)
    out, lse = flash_mla_with_kvcache(*call.arguments(), None, None)
    for i in range(5):
        one = flash_mla_with_kvcache(
            call.q[i : i + 1], call.k_cache, call.block_table[i : i + 1], call.cache_seqlens[i : i + 1], 512, None, None
        )
        assert torch.equal(one[0][0], out[i]) and torch.equal(one[1][0], lse[i])
    order = [3, 4, 0, 2, 1]
    moved = flash_mla_with_kvcache(
        call.q[order], call.k_cache, call.block_table[order], call.cache_seqlens[order], 512, None, None
    )
    assert torch.equal(moved[0], out[order]) and torch.equal(moved[1], lse[order])
