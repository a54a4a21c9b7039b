"""mla.attention: every kind of array, every way to lay out keys, and the options that flash_mla does not have."""

import math

import ml_dtypes
import mla
import numpy as np
import pytest
import reference
import torch
from reference import INF, assert_close, make_decode

RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def as_torch(array):
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.asarray(array, dtype=np.float64))


def assert_float32_close(answer, expected, d_k, n_key):
    """fp32 arithmetic on fp32 inputs of order 1: a dot product of d_k terms is off by at most about d_k * u * sum|q k|, a
    mean over n_key values by as much again; with a generous factor for exp. Far below what any dropped term would do."""
    bound = 2**-24 * (4 * d_k + n_key + 64)
    for got, wanted in zip(answer, expected):
        got = as_torch(got).double()
        assert_close("result", got, wanted.reshape(got.shape), absolute=bound, relative=bound)


# ---- kinds of arrays -------------------------------------------------------------------------------------------------


def paged_problem():
    call = make_decode([70, 0, 130], 2, 4, 2, d=96, dv=64, page=16)
    call.k_cache.nan_to_num_(nan=0.5)
    return call, call.reference(causal=True)


@pytest.mark.parametrize("kind", ["torch bf16", "torch f16", "torch f32", "numpy f32", "numpy f16", "numpy ml_dtypes",
                                  "numpy uint16", "dlpack only", "old dlpack"])
def test_kinds_of_arrays(kind):
    call, _ = paged_problem()
    q, k = call.q, call.k_cache
    extra = {}
    if "f16" in kind and "bf16" not in kind:
        q, k = q.half(), k.half()
    elif "f32" in kind or "dlpack" in kind:
        q, k = q.float(), k.float()
    out, lse = reference.decode(q, k, call.block_table, call.cache_seqlens, 64, causal=True)
    arrays = [q, k, call.block_table, call.cache_seqlens]
    if kind == "numpy ml_dtypes":
        arrays = [x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) for x in arrays[:2]] + [x.numpy() for x in arrays[2:]]
    elif kind == "numpy uint16":
        arrays = [x.view(torch.uint16).numpy() for x in arrays[:2]] + [x.numpy() for x in arrays[2:]]
        extra = {"dtype": "bf16"}
    elif kind.startswith("numpy"):
        arrays = [x.numpy() for x in arrays]
    elif "dlpack" in kind:
        arrays = [(Lender if kind == "dlpack only" else OldLender)(x.numpy()) for x in arrays]
    got, got_lse = mla.attention(arrays[0], arrays[1], page_table=arrays[2], lengths=arrays[3], d_v=64, causal=True, **extra)
    library = torch.Tensor if kind.startswith("torch") else np.ndarray
    assert isinstance(got, library) and isinstance(got_lse, library)
    if "dlpack" not in kind:
        assert got.dtype == arrays[0].dtype
    if kind == "numpy uint16":
        got = torch.from_numpy(got).view(torch.bfloat16)
    elif kind == "numpy ml_dtypes":
        got = torch.from_numpy(got.view(np.uint16)).view(torch.bfloat16)
    elif library is np.ndarray:
        got = torch.from_numpy(got)
    assert_close("out", got, out.to(q.dtype), 8e-4, 2.01 / 128, 5e-6)
    assert_close("lse", torch.as_tensor(got_lse), lse.mT.float(), 1e-6, 8.01 / 65536)


class Lender:
    """An array of some library that speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return self.array.__dlpack__(max_version=max_version)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldLender(Lender):
    """One from before DLPack 1.0, whose capsules carry no version."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


def test_numpy_and_torch_mix():
    call, (out, lse) = paged_problem()
    got, _ = mla.attention(call.q, call.k_cache, page_table=call.block_table.numpy(), lengths=call.cache_seqlens.numpy(),
                           d_v=64, causal=True)
    assert isinstance(got, torch.Tensor)
    assert_close("out", got, out.to(torch.bfloat16), 8e-4, 2.01 / 128, 5e-6)


def test_capsules_are_given_back():
    """What a call borrows it lets go, also when it fails."""
    import gc
    import weakref

    class Array(np.ndarray):
        pass

    for d_v in (8, 100):
        k = normal(1, 9, 1, 16).view(Array)
        gone = weakref.ref(k)
        try:
            mla.attention(normal(1, 1, 2, 16), Lender(k), d_v=d_v)
        except ValueError:
            assert d_v == 100
        del k
        gc.collect()
        assert gone() is None


def test_read_only_arrays_are_fine_as_inputs_and_refused_as_outputs():
    q, k, out, lse = normal(1, 1, 2, 16), normal(1, 9, 1, 16), np.zeros((1, 1, 2, 8), np.float32), np.zeros((1, 1, 2), np.float32)
    for array in (q, k):
        array.flags.writeable = False
    expected, _ = mla.attention(q, k, d_v=8, out=out, lse=lse)
    assert expected is out and out.any()
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        mla.attention(q, k, d_v=8, out=out, lse=lse)
    lse.flags.writeable = False
    with pytest.raises(ValueError, match="lse is read-only"):
        mla.attention(q, k, d_v=8, lse=lse)


def test_a_lazily_negated_view_is_refused():
    q = torch.zeros(1, 1, 2, 16, dtype=torch.complex64).conj().imag
    assert q.is_neg()
    with pytest.raises(ValueError, match="resolve_neg"):
        mla.attention(q, torch.zeros(1, 9, 1, 16), d_v=8)


# ---- layouts of keys -------------------------------------------------------------------------------------------------


def test_batched_keys():
    q, k = normal(3, 2, 4, 24), normal(3, 17, 2, 24)
    lengths = np.array([17, 0, 5], np.int32)
    answer = mla.attention(q, k, lengths=lengths, d_v=16, causal=True, softmax_scale=0.3)
    for i in range(3):
        n = lengths[i]
        rows = torch.from_numpy(k[i, :n])
        wanted = reference.attend(torch.from_numpy(q[i]), rows, rows[..., :16], 0.3, reference.causal_mask(2, n, True))
        assert_float32_close((answer[0][i], answer[1][i]), wanted, 24, 17)


@pytest.mark.parametrize("apart", [False, True])
def test_packed_keys_with_values_of_their_own(apart):
    """Ragged prefill; with the rope columns inside q and k, or in tensors of their own."""
    q, k, v = normal(9, 4, 24), normal(13, 2, 24), normal(13, 2, 10)
    q_begin, k_begin = np.array([0, 5, 5, 9], np.int32), np.array([0, 6, 9, 13], np.int32)
    pieces = {"q": q, "k": k}
    if apart:
        pieces = {"q": q[..., :16], "q_rope": q[..., 16:], "k": k[..., :16], "k_rope": k[..., 16:]}
    answer = mla.attention(**pieces, v=v, q_begin=q_begin, k_begin=k_begin, causal=True)
    wanted = reference.varlen(*(torch.from_numpy(x) for x in (q, k, v, q_begin, k_begin)), causal=True)
    assert answer[0].shape == (9, 4, 10) and answer[1].shape == (9, 4)
    assert_float32_close(answer, wanted, 24, 6)


def test_paged_keys_with_rope_apart():
    latent, rope = normal(5, 4, 1, 32), normal(5, 4, 1, 8)
    q = normal(2, 1, 3, 40)
    table, lengths = np.array([[4, 0], [2, 3]], np.int32), np.array([7, 4], np.int32)
    answer = mla.attention(q[..., :32], latent, q_rope=q[..., 32:], k_rope=rope, page_table=table, lengths=lengths, d_v=32)
    whole = np.concatenate((latent, rope), -1)
    together = mla.attention(q, whole, page_table=table, lengths=lengths, d_v=32)
    wanted = reference.decode(*(torch.from_numpy(x) for x in (q, whole, table, lengths)), 32)
    for got in (answer, together):
        assert_float32_close(got, (wanted[0], wanted[1].mT), 40, 7)


def test_one_token_per_sequence_without_q_begin():
    q, k = normal(3, 4, 16), normal(3, 6, 1, 16)
    packed, batched = mla.attention(q, k, d_v=16), mla.attention(q[:, None], k, d_v=16)
    assert np.array_equal(packed[0], batched[0][:, 0]) and np.array_equal(packed[1], batched[1][:, 0])


def test_a_sliding_window():
    k = np.arange(10, dtype=np.float32).repeat(16).reshape(1, 10, 1, 16)
    out, lse = mla.attention(np.zeros((1, 1, 1, 16), np.float32), k, d_v=1, visible=mla.window(4, 0))
    assert out.item() == 7 and lse.item() == pytest.approx(math.log(5))  # keys 5 to 9


def test_unused_query_slots():
    q, k = normal(2, 3, 2, 16), normal(2, 5, 1, 16)
    out, lse = mla.attention(q, k, d_v=16, causal=True, q_lengths=np.array([1, 3], np.int32))
    assert (out[0, 1:] == 0).all() and (lse[0, 1:] == INF).all() and np.isfinite(lse[1]).all()
    one, _ = mla.attention(q[:1, :1], k[:1], d_v=16, causal=True)
    assert np.array_equal(one[0, 0], out[0, 0])


# ---- scores and results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty, value", [("+inf", INF), ("-inf", -INF), ("0", 0.0)])
def test_lse_of_nothing(empty, value):
    out, lse = mla.attention(normal(2, 1, 2, 16), normal(2, 5, 1, 16), d_v=8, lengths=np.array([0, 3], np.int32),
                             lse_empty=empty)
    assert (out[0] == 0).all() and (lse[0] == value).all() and np.isfinite(lse[1]).all()


def test_lse_in_base_2():
    q, k = np.zeros((1, 1, 1, 16), np.float32), normal(1, 256, 1, 16)
    assert mla.attention(q, k, d_v=8)[1].item() == pytest.approx(math.log(256))
    assert mla.attention(q, k, d_v=8, lse_base="2")[1].item() == pytest.approx(8)


def test_sink_in_and_out_of_lse():
    q, k, sink = np.zeros((1, 1, 1, 16), np.float32), np.ones((1, 2, 1, 16), np.float32), np.zeros(1, np.float32)
    for counted, expected in ((False, 2), (True, 3)):
        out, lse = mla.attention(q, k, d_v=1, sink=sink, lse_with_sink=counted)
        assert out.item() == pytest.approx(2 / 3) and lse.item() == pytest.approx(math.log(expected))


@pytest.mark.parametrize("name, torch_dtype", [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)])
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_dtype_of_the_output(name, torch_dtype, library):
    q, k = torch.randn(1, 1, 2, 64), torch.randn(1, 33, 1, 64)
    if library == "numpy":
        out, _ = mla.attention(q.numpy(), k.numpy(), d_v=32, out_dtype=name)
        assert out.dtype == {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[name]
        out = torch.from_numpy(out.view(np.uint16)).view(torch.bfloat16) if name == "bf16" else torch.from_numpy(out)
    else:
        out, _ = mla.attention(q, k, d_v=32, out_dtype=name)
    exact = mla.attention(q, k, d_v=32)[0]
    assert out.dtype == torch_dtype
    assert torch.equal(out, exact.to(torch_dtype))  # rounded once, to nearest even


def test_fp32_output_of_a_16_bit_cache_is_precise():
    call = make_decode([300], 1, 16)
    wanted, wanted_lse = call.reference()
    out, lse = mla.attention(call.q, call.k_cache, page_table=call.block_table, lengths=call.cache_seqlens, d_v=512,
                             out_dtype="f32")
    assert ((out.double() - wanted).norm() / wanted.norm()).item() <= 2e-6
    assert torch.allclose(lse[:, 0].double(), wanted_lse[:, :, 0], rtol=2e-6, atol=2e-6)


def test_given_outputs_are_filled_through_any_stride():
    q, k = normal(2, 3, 4, 16), normal(2, 5, 2, 16)
    expected, expected_lse = mla.attention(q, k, d_v=8)
    space = np.full((2, 3, 8, 12), 7, np.float32)
    turned = np.full((2, 4, 3), 7, np.float32)
    out, lse = mla.attention(q, k, d_v=8, out=space[:, :, ::2, 2:10], lse=turned.swapaxes(1, 2))
    assert np.array_equal(out, expected) and np.array_equal(turned.swapaxes(1, 2), expected_lse)
    assert (space[:, :, 1::2] == 7).all() and (space[..., :2] == 7).all() and (space[..., 10:] == 7).all()


def test_largest_score():
    q, k = normal(1, 1, 3, 16), normal(1, 20, 1, 16)
    largest = np.zeros((1, 1, 3), np.float32)
    mla.attention(q, k, d_v=8, softmax_scale=0.5, max=largest)
    assert np.allclose(largest[0, 0], 0.5 * (q[0, 0] @ k[0, :, 0].T).max(-1), rtol=1e-5)


def test_scores_far_from_zero():
    """1e4 apart from zero, one apart from each other: the weights are e/(e+1) and 1/(e+1)."""
    q = np.full((1, 1, 1, 1), 100, np.float32)
    for sign in (1, -1):
        k = np.array([100 * sign, 100 * sign - 0.01], np.float32).reshape(1, 2, 1, 1)
        v = np.array([1, 0], np.float32).reshape(1, 2, 1, 1)
        out, _ = mla.attention(q, k, v=v, softmax_scale=1.0)
        gap = float(k[0, 0, 0, 0] - k[0, 1, 0, 0]) * 100
        assert out.item() == pytest.approx(1 / (1 + math.exp(-gap)), abs=2e-3)


def test_the_oracle_agrees():
    call, _ = paged_problem()
    options = {"page_table": call.block_table, "lengths": call.cache_seqlens, "d_v": 64, "causal": True, "out_dtype": "f32"}
    fast, oracle = (mla.attention(call.q, call.k_cache, backend=backend, **options) for backend in ("cpu", "ref"))
    assert_float32_close(fast, [x.double() for x in oracle], 96, 130)


def test_bits_do_not_depend_on_threads():
    call = make_decode([3000, 5, 700], 2, 16)
    options = {"page_table": call.block_table, "lengths": call.cache_seqlens, "d_v": 512, "causal": True}
    one = mla.attention(call.q, call.k_cache, n_thread=1, **options)
    for n_thread in (2, 3, 5, 16):
        many = mla.attention(call.q, call.k_cache, n_thread=n_thread, **options)
        assert torch.equal(many[0], one[0]) and torch.equal(many[1], one[1])


# ---- what the machine says -------------------------------------------------------------------------------------------


def test_levels_and_kernels():
    levels = mla.isa()
    assert levels[0].name == "scalar" and levels[0].usable
    names = [level.name for level in levels]
    assert mla.kernels() and {kernel.isa for kernel in mla.kernels()} <= set(names)
    assert mla.version() == mla.__version__


def test_every_level_computes_the_same():
    call = make_decode([130, 7], 2, 16)
    options = {"page_table": call.block_table, "lengths": call.cache_seqlens, "d_v": 512, "causal": True}
    try:
        for level in mla.isa():
            if level.usable:
                mla.set_isa(level.name)
                out, lse = mla.attention(call.q, call.k_cache, **options)
                reference.assert_decode_close((out, lse.mT), call.reference(causal=True), torch.bfloat16)
    finally:
        mla.set_isa(None)
