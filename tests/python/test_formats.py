"""HiFloat8 and FRACTAL_NZ from Python, against rules written here."""

import math

import mla
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

SETTINGS = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def value_of(code):
    """A HiFloat8 code, read from its prefix on."""
    bits = f"{code:08b}"
    sign, rest = (-1.0 if bits[0] == "1" else 1.0), bits[1:]
    if code == 0x80:
        return math.nan
    if rest == "1101111":
        return sign * math.inf
    for prefix, exponent_bits in (("11", 4), ("10", 3), ("01", 2), ("001", 1), ("0001", 0)):
        if rest.startswith(prefix):
            rest = rest[len(prefix) :]
            exponent = 0
            if exponent_bits:
                exponent = int("1" + rest[1:exponent_bits], 2)
                exponent = -exponent if rest[0] == "1" else exponent
            fraction = rest[exponent_bits:]
            return sign * 2.0**exponent * (1 + int(fraction, 2) / 2 ** len(fraction))
    m = int(rest[4:], 2)
    return sign * 2.0 ** (m - 23) if m else 0.0


VALUES = [value_of(code) for code in range(256)]
MAGNITUDES = sorted((value, code) for code, value in enumerate(VALUES) if code < 128 and math.isfinite(value))


def code_of(x, saturate=False):
    """The nearest magnitude of all there are, the larger of two; the one after the last is infinity's place."""
    if math.isnan(x):
        return 0 if saturate else 0x80
    size = abs(x)
    sign = 0x80 if x < 0 else 0
    if size >= 40960:
        return sign | (0x6E if saturate else 0x6F)
    _, _, code = min((abs(value - size), -value, code) for value, code in MAGNITUDES)
    return sign | code if code else 0


def test_every_code():
    codes = np.arange(256, dtype=np.uint8)
    got = mla.hif8_decode(codes)
    assert got.dtype == np.float32 and np.array_equal(got, np.array(VALUES, np.float32), equal_nan=True)
    assert not np.signbit(got[0])
    assert np.array_equal(mla.hif8_encode(got), codes)
    saturated = mla.hif8_decode(codes, mode="saturate")
    assert saturated[0x80] == 0 and saturated[0x6F] == 32768 and saturated[0xEF] == -32768
    for out_dtype, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        half = mla.hif8_decode(torch.from_numpy(codes), out_dtype=out_dtype)
        assert half.dtype == dtype
        assert torch.equal(half.float().nan_to_num(7), torch.from_numpy(got).nan_to_num(7))  # every number is exact


FLOATS = st.floats(width=32) | st.floats(-50000, 50000, width=32) | st.sampled_from(VALUES)


@SETTINGS
@given(x=st.lists(FLOATS, max_size=40), saturate=st.booleans())
@example(x=[2.0**-23, 2.0**-22 * 0.75, -(2.0**-24), 15.5, 40959.996, 40960.0, math.inf, -math.inf], saturate=True)
def test_encode(x, saturate):
    x = np.array(x, np.float32)
    expected = np.array([code_of(float(value), saturate) for value in x], np.uint8)
    assert np.array_equal(mla.hif8_encode(x, mode="saturate" if saturate else "round"), expected)


@SETTINGS
@given(
    x=arrays.arrays(np.float32, arrays.array_shapes(max_dims=4, max_side=6), elements=st.floats(-1e6, 1e6, width=32)),
    factor=st.floats(2.0**-60, 2.0**60, width=32),
    given_descale=st.none() | st.floats(2.0**-100, 2.0**100, width=32),
)
def test_quantize(x, factor, given_descale):
    x = (x * np.float32(factor)).astype(np.float32)
    codes, descale = mla.hif8_quantize(x, given_descale)
    assert codes.shape == x.shape and codes.dtype == np.uint8
    largest = float(np.abs(x).max())
    if given_descale is not None:
        assert descale == given_descale
    elif largest == 0:
        assert descale == 1
    else:
        assert math.log2(descale).is_integer()
        assert 7.75 <= largest / descale < 15.5 or (descale == 2.0**-126 and largest / descale < 15.5)
    with np.errstate(over="ignore"):
        expected = [code_of(float(value)) for value in (x / np.float32(descale)).ravel()]
    assert codes.ravel().tolist() == expected
    back = mla.hif8_dequantize(codes, descale)
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.array_equal(back, (np.array(VALUES)[codes] * descale).astype(np.float32), equal_nan=True)
    if given_descale is None:
        # half a step of 3 bits near the top, of less further down, and of 2^-22 at the bottom
        size = np.abs(x.astype(np.float64))
        assert np.all(np.abs(back - x) <= np.where(size >= largest / 60, 2.0**-4, 2.0**-1) * size + 2.0**-23 * descale)


def test_strided_torch_and_bf16():
    x = torch.randn(6, 5, 7)
    transposed = x.permute(2, 0, 1)[::2]
    codes = mla.hif8_encode(transposed)
    assert isinstance(codes, torch.Tensor) and codes.dtype == torch.uint8 and codes.shape == transposed.shape
    assert torch.equal(codes, torch.from_numpy(mla.hif8_encode(transposed.contiguous().numpy())))
    out = torch.zeros(6, 5, 4, dtype=torch.uint8).permute(2, 0, 1)
    assert mla.hif8_encode(transposed, out=out) is out and torch.equal(out, codes)
    half = x.bfloat16()
    assert torch.equal(mla.hif8_encode(half), mla.hif8_encode(half.float()))
    bits = half.view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(mla.hif8_encode(bits, dtype="bf16"), mla.hif8_encode(half).numpy())
    back = np.empty(bits.shape, np.uint16)
    mla.hif8_decode(mla.hif8_encode(bits, dtype="bf16"), out=back)
    same = mla.hif8_decode(mla.hif8_encode(half), out_dtype="bf16")
    assert np.array_equal(back, same.view(torch.int16).numpy().view(np.uint16))


def test_hif8_refusals():
    x = np.zeros((2, 3), np.float32)
    codes = np.zeros((2, 3), np.uint8)
    for call, kind, text in (
        (lambda: mla.hif8_encode(x, mode="nearest"), ValueError, "mode = 'nearest' must be one of 'round', 'saturate'"),
        (lambda: mla.hif8_encode(codes), TypeError, "x.dtype = u8"),
        (lambda: mla.hif8_encode(x.astype(float)), TypeError, "x has dtype float64, must be float32, float16 or bfloat16"),
        (lambda: mla.hif8_quantize(x > 0), TypeError, "x has dtype bool, must be float32, float16 or bfloat16"),
        (lambda: mla.hif8_encode([1.0]), TypeError, "x must be an array"),
        (lambda: mla.hif8_encode(x, out=x.copy()), TypeError, "codes.dtype = f32"),
        (lambda: mla.hif8_encode(x, out=codes[:1]), ValueError, "codes.dim[0] = 1 differs from x.dim[0] = 2"),
        (lambda: mla.hif8_decode(x), TypeError, "codes.dtype = f32"),
        (lambda: mla.hif8_decode(x.astype(float)), TypeError, "codes has dtype float64, must be uint8"),
        (lambda: mla.hif8_decode(codes.astype(np.uint16)), TypeError, "codes has dtype uint16, must be uint8"),
        (lambda: mla.hif8_decode(codes, out=x.astype(float)), TypeError, "out has dtype float64, must be float32, float16 or"),
        (lambda: mla.hif8_decode(codes, out_dtype="f64"), ValueError, "out_dtype = 'f64'"),
        (lambda: mla.hif8_quantize(x, 0.0), ValueError, "descale = 0 must be finite and positive"),
        (lambda: mla.hif8_quantize(x, 1e39), ValueError, "descale = 1e+39 does not fit in float32"),
        (lambda: mla.hif8_dequantize(codes, math.nan), ValueError, "descale = nan"),
        (lambda: mla.hif8_encode(np.zeros(2, np.uint16)), TypeError, 'dtype="bf16"'),
        (lambda: mla.hif8_encode(x, dtype="f16"), ValueError, "dtype = 'f16' must be None or 'bf16'"),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert text in str(caught.value)


# ---- FRACTAL_NZ ------------------------------------------------------------------------------------------------------


def nz_by_definition(x, columns):
    """[n_page, page_size, row] to [n_page, row / columns, page_size, columns]."""
    n_page, page_size = x.shape[:2]
    return x.reshape(n_page, page_size, math.prod(x.shape[2:]) // columns, columns).transpose(0, 2, 1, 3)


@SETTINGS
@given(
    n_page=st.integers(0, 3),
    page_size=st.integers(1, 9),
    n_kv_head=st.integers(1, 3),
    n_piece=st.integers(1, 4),
    columns=st.integers(1, 12),
    dtype=st.sampled_from([np.float32, np.float16, np.uint16, np.int8, np.uint8, np.int32, np.int64]),
)
def test_nz(n_page, page_size, n_kv_head, n_piece, columns, dtype):
    row = n_kv_head * n_piece * columns
    shape = (n_page, page_size, n_kv_head, n_piece * columns)
    x = np.arange(n_page * page_size * row).astype(dtype).reshape(shape)
    nz = mla.nd_to_nz(x, columns)
    assert nz.dtype == x.dtype and np.array_equal(nz, nz_by_definition(x, columns))
    assert np.array_equal(mla.nz_to_nd(nz, n_kv_head), x)
    flat = x.reshape(n_page, page_size, row)
    assert np.array_equal(mla.nd_to_nz(flat, columns), nz)
    out = np.zeros_like(flat)
    assert mla.nz_to_nd(nz, out=out) is out and np.array_equal(out, flat)


def test_nz_of_ascend():
    """The caches of the MLA operators: 128 tokens a page, pieces of 32 bytes."""
    latent = torch.randint(-128, 128, (2, 128, 1, 512), dtype=torch.int8)
    rope = torch.randn(2, 128, 1, 64).bfloat16()
    assert mla.nd_to_nz(latent).shape == (2, 16, 128, 32)
    nz = mla.nd_to_nz(rope)
    assert nz.shape == (2, 4, 128, 16) and nz.dtype == torch.bfloat16
    assert nz[1, 2, 77, 5] == rope[1, 77, 0, 2 * 16 + 5]
    assert torch.equal(mla.nz_to_nd(nz), rope)
    assert torch.equal(mla.nd_to_nz(rope[:, :, 0]), nz)


def test_nz_refusals():
    x = np.zeros((2, 3, 8), np.float16)
    for call, kind, text in (
        (lambda: mla.nd_to_nz(x[0]), ValueError, "x.ndim = 2 must be 3 or 4"),
        (lambda: mla.nz_to_nd(x), ValueError, "x.ndim = 3 must be 4"),
        (lambda: mla.nd_to_nz(x), ValueError, "columns = 16 must divide the 8 columns"),
        (lambda: mla.nd_to_nz(x, 0), ValueError, "columns = 0 must be at least 1"),
        (lambda: mla.nd_to_nz(x[:, :, ::2], 2), ValueError, "x.stride[2] = 2 must be 1"),
        (lambda: mla.nd_to_nz(x, 4, out=np.zeros((2, 2, 3, 4), np.float32)), TypeError, "out.dtype = f32 differs"),
        (lambda: mla.nz_to_nd(x[None], 3), ValueError, "n_kv_head = 3 must divide the 16 columns"),
        (lambda: mla.nd_to_nz([1]), TypeError, "x must be an array"),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert text in str(caught.value)
