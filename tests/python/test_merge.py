"""mla.merge_states: parts of the keys against all of them, and the rules of empty parts."""

import math

import mla
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

SETTINGS = settings(max_examples=100, deadline=None, derandomize=True, database=None)
MARKER = {"+inf": math.inf, "-inf": -math.inf, "0": 0.0}


@SETTINGS
@given(
    data=st.data(), n_part=st.integers(1, 30), base=st.sampled_from("e2"), empty=st.sampled_from(["+inf", "-inf", "0"])
)
def test_formula(data, n_part, base, empty):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    d = data.draw(st.integers(1, 9))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    spread = data.draw(st.sampled_from([0.1, 10, 1000]))
    o = rng.standard_normal((n_part, *shape, d)).astype(np.float32)
    lse = (rng.standard_normal((n_part, *shape)) * spread).astype(np.float32)
    gone = rng.random(lse.shape) < 0.3
    lse[gone] = MARKER[empty]
    o[gone] = np.nan
    got, got_lse = mla.merge_states(list(o), list(lse), lse_base=base, lse_empty=empty)
    assert got.dtype == got_lse.dtype == np.float32

    exp, log = (np.exp2, np.log2) if base == "2" else (np.exp, np.log)
    wide = np.where(gone, -np.inf, lse.astype(np.float64))
    nothing = gone.all(0)
    top = np.where(nothing, 0, wide.max(0))
    weight = exp(wide - top)
    total = np.where(nothing, 1, weight.sum(0))
    terms = np.where(gone[..., None], 0, o) * (weight / total)[..., None]
    # one rounding to fp32 of something known far better
    np.testing.assert_allclose(got, terms.sum(0), rtol=2.0**-24, atol=1e-12 + np.abs(terms).sum(0).max() * 2.0**-40)
    expected_lse = np.where(nothing, MARKER[empty], top + log(total))
    np.testing.assert_allclose(got_lse, expected_lse, rtol=2.0**-23, atol=1e-12)
    assert not np.any(np.signbit(got[nothing]))


def test_shards_of_attention():
    """Ring attention: four shards of the keys, one query block; torch, bf16 keys, shapes as attention gives them."""
    q, k = torch.randn(2, 3, 4, 24).bfloat16(), torch.randn(2, 100, 1, 24).bfloat16()
    call = dict(d_v=16, softmax_scale=0.3, out_dtype="f32", backend="ref")
    whole, whole_lse = mla.attention(q, k, **call)
    lengths = torch.tensor([10, 30], dtype=torch.int32)
    parts = [mla.attention(q, k[:, at : at + 25], **call) for at in range(0, 100, 25)]
    out, lse = mla.merge_states(*zip(*parts))
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out, whole, rtol=0, atol=2.0**-20)
    torch.testing.assert_close(lse, whole_lse, rtol=0, atol=2.0**-20)
    # a sequence of 10 keys has none in the second shard, under either marker
    whole, _ = mla.attention(q, k, lengths=lengths, **call)
    for empty in ("+inf", "-inf"):
        parts = [
            mla.attention(q, k[:, at : at + 25], lengths=(lengths - at).clamp(0, 25), lse_empty=empty, **call)
            for at in range(0, 100, 25)
        ]
        out, _ = mla.merge_states(*zip(*parts), lse_empty=empty)
        torch.testing.assert_close(out, whole, rtol=0, atol=2.0**-20)


def test_outputs_and_dtypes():
    o = torch.randn(2, 5, 3, 8)
    lse = torch.randn(2, 3, 5)
    expected, expected_lse = mla.merge_states(list(o), [part.T for part in lse])
    out, merged = torch.empty(3, 5, 8).transpose(0, 1), torch.empty(5, 3)
    assert mla.merge_states(list(o), [part.T for part in lse], out=out, lse=merged)[0] is out
    assert torch.equal(out, expected) and torch.equal(merged, expected_lse)
    half, _ = mla.merge_states(list(o.half()), [part.T for part in lse])
    assert half.dtype == torch.float16
    wide, _ = mla.merge_states(list(o.half()), [part.T for part in lse], out_dtype="f32")
    assert torch.equal(wide.half(), half)
    bits = o.bfloat16().view(torch.int16).numpy().view(np.uint16)
    as_bits, _ = mla.merge_states(list(bits), [part.T for part in lse.numpy()], dtype="bf16")
    as_torch, _ = mla.merge_states(list(o.bfloat16()), [part.T for part in lse])
    assert np.array_equal(as_bits, as_torch.view(torch.int16).numpy().view(np.uint16))
    # in place of the first part
    mla.merge_states([o[0], o[1]], [part.T for part in lse], out=o[0], lse=lse[0].T)
    assert torch.equal(o[0], expected) and torch.equal(lse[0].T, expected_lse)


def test_refusals():
    memory, lse = np.zeros((3, 4), np.float32), np.zeros(2, np.float32)
    o = memory[:2]
    for call, kind, text in (
        (lambda: mla.merge_states([], []), ValueError, "o_parts is empty"),
        (lambda: mla.merge_states([o], [lse, lse]), ValueError, "o_parts has 1 parts, lse_parts has 2"),
        (lambda: mla.merge_states([o, o[:1]], [lse, lse]), ValueError, "o_parts[1].dim[0] = 1 differs from out.dim[0]"),
        (lambda: mla.merge_states([o, o], [lse, o]), ValueError, "lse_parts[1].ndim = 2 must be 1"),
        (lambda: mla.merge_states([o, 3], [lse, lse]), TypeError, "o_parts[1] must be an array"),
        (lambda: mla.merge_states([o], [lse.astype(np.int32)]), TypeError, "lse_parts[0].dtype = i32"),
        (
            lambda: mla.merge_states([o], [lse.astype(float)]),
            TypeError,
            "lse_parts[0] has dtype float64, must be float32, float16 or bfloat16",
        ),
        (lambda: mla.merge_states([o, o], [lse, lse], lse_base="10"), ValueError, "lse_base = '10'"),
        (lambda: mla.merge_states([o, o], [lse, lse], lse_empty="none"), ValueError, "lse_empty = 'none'"),
        (lambda: mla.merge_states([o], [lse], out=o[:, ::-1]), ValueError, "out.stride[1] = -1 must be positive"),
        (lambda: mla.merge_states([o], [lse], out=o, out_dtype="f16"), ValueError, "out_dtype is for a new out"),
        (lambda: mla.merge_states([o], [lse], out=memory[1:]), ValueError, "out.data"),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert text in str(caught.value)
