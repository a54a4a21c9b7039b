"""mla.attention: every kind of array, every way to lay out keys, and the options that flash_mla does not have."""

import math
import pathlib

import ml_dtypes
import mla
import numpy as np
import pytest
import reference
import torch
from reference import INF, assert_close, make_decode
from safetensors import safe_open

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def as_torch(array):
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.asarray(array, dtype=np.float64))


def assert_float32_close(answer, expected, d_k, n_key):
    """Limits for fp32 arithmetic on normal data, u = 2^-24. A score d_k^-0.5 * <q, k> is off by at most
    u * d_k * d_k^-0.5 * sum|q k|, and sum|q k| < d_k; a weighted mean of values below 4 by 2 * 4 times that, and by
    u * n_key for its own sums. A single wrong key would show a hundred times larger."""
    bound = 2**-24 * (8 * d_k**1.5 + n_key)
    for got, wanted in zip(answer, expected):
        got = as_torch(got).double()
        assert_close("result", got, wanted.reshape(got.shape), absolute=bound, relative=bound)


def test_arithmetic():
    """Fixed point is near fp32, within what is promised of it, and not the same."""
    rng = np.random.default_rng(11)
    q, k = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 1, 32, 576), (1, 700, 1, 576)))
    answers = {}
    for arithmetic in ("f32", "auto", "int16", "ref"):
        backend = {"backend": "ref"} if arithmetic == "ref" else {"arithmetic": arithmetic}
        answers[arithmetic], _ = mla.attention(q, k, d_v=512, **backend)
    error = {
        name: np.linalg.norm(answer - answers["ref"]) / np.linalg.norm(answers["ref"])
        for name, answer in answers.items()
    }
    assert error["f32"] < 2e-6 and error["auto"] < 2e-6, error
    assert error["int16"] < 8e-4, error
    if [level.name for level in mla.isa() if level.selected][0] in ("scalar", "avx2", "avxvnni"):
        assert error["int16"] > 2e-6, error


@pytest.mark.parametrize("arithmetic", ["auto", "f32", "bf16x2", "bf16"])
def test_short_real_context(arithmetic):
    """FlashMLA's rule on the first 70 keys of a layer's recorded cache. Probabilities in one bf16 number miss it, for
    which they are never chosen by themselves."""
    with safe_open(DATA / "deepseek_decode.safetensors", "pt") as file:
        q, cache, table = (file.get_tensor(name) for name in ("q", "k_cache", "block_table"))
        scale = float(file.metadata()["softmax_scale"])
    lengths = torch.full((len(q),), 70, dtype=torch.int32)
    call = {"page_table": table, "lengths": lengths, "d_v": 512, "softmax_scale": scale}
    expected, _ = mla.attention(q, cache, backend="ref", **call)
    answer, _ = mla.attention(q, cache, arithmetic=arithmetic, **call)
    level = next(level.name for level in mla.isa() if level.selected)
    if arithmetic == "bf16" and level in ("avx512bf16", "amx", "neonbf16"):
        with pytest.raises(AssertionError, match="elements are off"):
            assert_close("out", answer, expected, 8e-4, 2.01 / 128, 5e-6)
    else:
        assert_close("out", answer, expected, 8e-4, 2.01 / 128, 5e-6)


# ---- kinds of arrays -------------------------------------------------------------------------------------------------


def paged_problem():
    call = make_decode([70, 0, 130], 2, 4, 2, d=96, dv=64, page=16)
    call.k_cache.nan_to_num_(nan=0.5)
    return call, call.reference(causal=True)


@pytest.mark.parametrize(
    "kind",
    [
        "torch bf16",
        "torch f16",
        "torch f32",
        "numpy f32",
        "numpy f16",
        "numpy ml_dtypes",
        "numpy uint16",
        "dlpack only",
        "old dlpack",
    ],
)
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
        arrays = [x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) for x in arrays[:2]] + [
            x.numpy() for x in arrays[2:]
        ]
    elif kind == "numpy uint16":
        arrays = [x.view(torch.uint16).numpy() for x in arrays[:2]] + [x.numpy() for x in arrays[2:]]
        extra = {"dtype": "bf16"}
    elif kind.startswith("numpy"):
        arrays = [x.numpy() for x in arrays]
    elif "dlpack" in kind:
        arrays = [(Lender if kind == "dlpack only" else OldLender)(x.numpy()) for x in arrays]
    got, got_lse = mla.attention(
        arrays[0], arrays[1], page_table=arrays[2], lengths=arrays[3], d_v=64, causal=True, **extra
    )
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


class BareLender:
    """DLPack to the letter: no shape, no dtype."""

    def __init__(self, array):
        self.lend, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    def __dlpack__(self, **how):
        return self.lend(**how)


class StrangeLender(Lender):
    """One whose dtype is an object of its own library."""

    def __init__(self, array):
        super().__init__(array)
        self.dtype = object()


@pytest.mark.parametrize("lender", [BareLender, StrangeLender])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "uint16"])
def test_outputs_of_arrays_that_numpy_does_not_know(lender, name):
    """Shape and dtype of the results come through DLPack; v and q_rope need no shape attribute either."""
    torch_dtype = {"f32": torch.float32, "f16": torch.float16}.get(name, torch.bfloat16)
    tensors = [torch.randn(shape).to(torch_dtype) for shape in [(2, 3, 4, 16), (2, 3, 4, 8), (2, 5, 1, 16)]]
    tensors += [torch.randn(shape).to(torch_dtype) for shape in [(2, 5, 1, 8), (2, 5, 1, 12)]]
    expected, expected_lse = mla.attention(tensors[0], tensors[2], q_rope=tensors[1], k_rope=tensors[3], v=tensors[4])
    extra = {"dtype": "bf16"} if name == "uint16" else {}
    if extra:
        tensors = [tensor.view(torch.uint16).numpy() for tensor in tensors]
    q, q_rope, k, k_rope, v = map(lender, tensors)
    out, lse = mla.attention(q, k, q_rope=q_rope, k_rope=k_rope, v=v, **extra)
    assert isinstance(out, np.ndarray) and isinstance(lse, np.ndarray) and lse.dtype == np.float32
    assert out.dtype == {"f32": "float32", "f16": "float16", "bf16": ml_dtypes.bfloat16, "uint16": "uint16"}[name]
    kind = np.float32 if name == "f32" else np.uint16
    bits = expected if name == "f32" else expected.view(torch.uint16)
    assert np.array_equal(out.view(kind), bits.numpy()) and np.array_equal(lse, expected_lse.numpy())


@pytest.mark.parametrize("lender", [BareLender, StrangeLender])
def test_a_bare_q_of_a_wrong_dtype_is_refused(lender):
    k = np.zeros((2, 5, 1, 16), np.float32)
    for dtype, words in ((np.int32, "q.dtype = i32 must be"), (np.float64, "q has dtype float64")):
        with pytest.raises(TypeError, match=words):
            mla.attention(lender(np.zeros((2, 3, 4, 16), dtype)), k, d_v=8)


def test_numpy_and_torch_mix():
    call, (out, lse) = paged_problem()
    got, _ = mla.attention(
        call.q,
        call.k_cache,
        page_table=call.block_table.numpy(),
        lengths=call.cache_seqlens.numpy(),
        d_v=64,
        causal=True,
    )
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
    q, k, out, lse = (
        normal(1, 1, 2, 16),
        normal(1, 9, 1, 16),
        np.zeros((1, 1, 2, 8), np.float32),
        np.zeros((1, 1, 2), np.float32),
    )
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


def test_an_unversioned_loan_is_written_only_if_the_array_says_so():
    """Such a capsule cannot say read-only: immutable arrays (JAX) come this way, and NumPy arrays before NumPy 2.1."""
    q, k, lse = normal(1, 1, 2, 16), normal(1, 9, 1, 16), np.zeros((1, 1, 2), np.float32)
    out = OldLender(np.zeros((1, 1, 2, 8), np.float32))
    with pytest.raises(ValueError, match="out is lent in a way that does not allow writing"):
        mla.attention(q, k, d_v=8, out=out, lse=lse)
    assert not out.array.any()
    out.flags = out.array.flags
    mla.attention(q, k, d_v=8, out=out, lse=lse)
    assert out.array.any()


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
    answer = mla.attention(
        q[..., :32], latent, q_rope=q[..., 32:], k_rope=rope, page_table=table, lengths=lengths, d_v=32
    )
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


def plain(q, k, keys, **options):
    """Attention of one token [h, d] to chosen rows of k [n, 1, d]."""
    return mla.attention(q[None, None], k[None, keys], d_v=8, **options)


@pytest.mark.parametrize("split", [0, 1, 12, 20])
def test_two_segments_are_one_softmax_over_both(split):
    q, k = normal(2, 1, 4, 16), normal(2, 20, 1, 16)
    whole = mla.attention(q, k, d_v=8)
    parts = mla.attention(q, k[:, :split], second=mla.Segment(k[:, split:]), d_v=8)
    assert_float32_close(parts, [as_torch(x).double() for x in whole], 16, 20)


def test_a_window_on_one_segment_and_compressed_rows_on_the_other():
    """The last token stands at position 9: 3 rows of the window, and the 2 rows whose 4 tokens lie at or before it."""
    q, k, rows = normal(1, 1, 4, 16), normal(1, 10, 1, 16), normal(1, 3, 1, 16)
    answer = mla.attention(
        q,
        k,
        visible=mla.window(2, 0),
        second=mla.Segment(
            rows, lengths=np.array([2], np.int32), visible=mla.compressed(4, residual=np.array([2], np.int32))
        ),
        d_v=8,
    )
    wanted = mla.attention(q, np.concatenate((k[:, 7:], rows[:, :2]), 1), d_v=8)
    assert_float32_close(answer, [as_torch(x).double() for x in wanted], 16, 5)


@pytest.mark.parametrize(
    "entries, options, keys",
    [
        ([3, 0, 9], {}, [3, 0, 9]),
        ([3, 3, 9], {}, [3, 3, 9]),
        ([-(2**31), -2, 3, 10, 2**31 - 1, 7], {}, [3, 7]),
        ([3, -1, 7], {"list_rule": "stop"}, [3]),
        ([3, 4, 7], {"key_list_lengths": [2]}, [3, 4]),
        ([3, 4, 7], {"key_list_lengths": [0]}, []),
    ],
)
def test_lists_of_keys(entries, options, keys):
    q, k = normal(4, 16), normal(10, 1, 16)
    options = {name: np.array(x, np.int32) if isinstance(x, list) else x for name, x in options.items()}
    answer = mla.attention(q[None, None], k[None], key_list=np.array([[entries]], np.int32), d_v=8, **options)
    assert_float32_close(answer, [as_torch(x).double() for x in plain(q, k, keys)], 16, 10)


def test_lists_of_rows_of_the_whole_cache():
    q, cache = normal(1, 1, 4, 16), normal(5, 4, 1, 16)
    rows = np.array([[[19, 0, 6, 20, -1]]], np.int32)
    answer = mla.attention(
        q,
        cache,
        key_list=rows,
        list_address="physical",
        page_table=np.zeros((1, 1), np.int32),
        lengths=np.array([4], np.int32),
        d_v=8,
    )
    wanted = plain(q[0, 0], cache.reshape(20, 1, 16), [19, 0, 6])
    assert_float32_close(answer, [as_torch(x).double() for x in wanted], 16, 3)


def test_a_mask_is_added():
    q, k = normal(1, 2, 4, 16), normal(1, 10, 1, 16)
    mask = np.zeros((1, 2, 10), np.float32)
    mask[0, 0, [1, 5]] = -INF
    out, lse = mla.attention(q, k, mask=mask, d_v=8)
    keep = [j for j in range(10) if j not in (1, 5)]
    for i, keys in ((0, keep), (1, slice(None))):
        wanted = plain(q[0, i], k[0], keys)
        assert_float32_close((out[:, i], lse[:, i]), [as_torch(x).double() for x in wanted], 16, 10)
    one_row = np.zeros((1, 1, 10), np.float32)
    broadcast = mla.attention(q, k, mask=np.broadcast_to(one_row, (1, 2, 10)), d_v=8)
    assert np.array_equal(broadcast[0][:, 1], out[:, 1])


def test_descales():
    q, k = normal(1, 1, 4, 16), normal(1, 10, 1, 16)
    number = lambda *x: np.array(x, np.float32)  # noqa: E731
    heads = number(1, 2, 0.5, 3)
    answer = mla.attention(
        q, k, d_v=8, q_descale=number(2), descale=number(0.5), qk_descale=heads, pv_descale=heads, softmax_scale=0.25
    )
    wanted = mla.attention(q * 2 * heads[:, None], k / 2, d_v=8, softmax_scale=0.25)
    assert_float32_close(
        answer, [as_torch(wanted[0] * heads[:, None]).double(), as_torch(wanted[1]).double()], 16 * 9, 10
    )


# ---- scores and results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty, value", [("+inf", INF), ("-inf", -INF), ("0", 0.0)])
def test_lse_of_nothing(empty, value):
    out, lse = mla.attention(
        normal(2, 1, 2, 16), normal(2, 5, 1, 16), d_v=8, lengths=np.array([0, 3], np.int32), lse_empty=empty
    )
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


@pytest.mark.parametrize(
    "name, torch_dtype", [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)]
)
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
    out, lse = mla.attention(
        call.q, call.k_cache, page_table=call.block_table, lengths=call.cache_seqlens, d_v=512, out_dtype="f32"
    )
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
    options = {
        "page_table": call.block_table,
        "lengths": call.cache_seqlens,
        "d_v": 64,
        "causal": True,
        "out_dtype": "f32",
    }
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
