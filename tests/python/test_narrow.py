"""Caches of 8 bits and in FRACTAL_NZ through mla.attention: equal to the same numbers as fp32 rows."""

import mla
import numpy as np
import pytest
import torch

N_SEQ, N_Q, N_HEAD, D, D_ROPE, D_V, PAGE = 2, 2, 4, 64, 16, 48, 16
LENGTHS = torch.tensor([37, 20], dtype=torch.int32)
TABLE = torch.tensor([[3, 0, 5], [1, 4, 2]], dtype=torch.int32)
CALL = dict(page_table=TABLE, lengths=LENGTHS, d_v=D_V, softmax_scale=0.2, causal=True, out_dtype="f32")
BACKENDS = ("ref", "cpu")


def paged(d):
    return torch.randn(6, PAGE, 1, d)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hif8(backend):
    q, q_descale = mla.hif8_quantize(torch.randn(N_SEQ, N_Q, N_HEAD, D))
    k, descale = mla.hif8_quantize(3 * paged(D))
    descales = dict(q_descale=torch.tensor([q_descale]), descale=torch.tensor([descale]))
    numbers = mla.hif8_decode(q), mla.hif8_decode(k)
    expected, expected_lse = mla.attention(*numbers, **descales, **CALL, backend="ref")
    out, lse = mla.attention(q, k, **descales, **CALL, backend=backend)
    torch.testing.assert_close(out, expected, rtol=0, atol=2.0**-16)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=2.0**-16)
    # the numbers count: those that are not HiFloat8 give something else
    other, _ = mla.attention(numbers[0], numbers[1] * 1.01, **descales, **CALL, backend="ref")
    assert not torch.allclose(out, other, rtol=0, atol=2.0**-12)
    # queries of 16 bits over such a cache, and probabilities rounded as CANN's operator does
    half = (numbers[0] * q_descale).bfloat16()
    only_k = dict(descale=descales["descale"], p_rounding="hif8", p_tile=128)
    expected, _ = mla.attention(half, numbers[1], **only_k, **CALL, backend="ref")
    out, _ = mla.attention(half, k, **only_k, **CALL, backend=backend)
    torch.testing.assert_close(out, expected, rtol=0, atol=0.05)
    exact, _ = mla.attention(half, numbers[1], descale=only_k["descale"], **CALL, backend="ref")
    assert not torch.equal(expected, exact)


@pytest.mark.parametrize("backend", BACKENDS)
def test_int8_and_rope(backend):
    q = torch.randint(-5, 6, (N_SEQ, N_Q, N_HEAD, D), dtype=torch.int8)
    k = torch.randint(-5, 6, (6, PAGE, 1, D), dtype=torch.int8)
    rope = dict(q_rope=torch.randn(N_SEQ, N_Q, N_HEAD, D_ROPE).half(), k_rope=paged(D_ROPE).half())
    heads = dict(qk_descale=torch.rand(N_HEAD) / 50, pv_descale=torch.rand(N_HEAD) / 50)
    wide_rope = {name: part.float() for name, part in rope.items()}
    expected, _ = mla.attention(q.float(), k.float(), **wide_rope, **heads, **CALL, backend="ref")
    out, _ = mla.attention(q, k, **rope, **heads, **CALL, backend=backend)
    torch.testing.assert_close(out, expected, rtol=0, atol=2.0**-16)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.uint8])
def test_nz(backend, dtype):
    """The same cache in the other layout gives the same bits, with so many rows that both are converted in blocks."""
    n_head = 6
    k, k_rope = paged(D), paged(D_ROPE).bfloat16()
    k = mla.hif8_encode(k) if dtype == torch.uint8 else (k * 5).to(dtype)
    q, q_rope = torch.randn(N_SEQ, N_Q, n_head, D).bfloat16(), torch.randn(N_SEQ, N_Q, n_head, D_ROPE).bfloat16()
    rows, rows_lse = mla.attention(q, k, q_rope=q_rope, k_rope=k_rope, **CALL, backend=backend)
    nz, nz_lse = mla.attention(
        q, mla.nd_to_nz(k, 8), q_rope=q_rope, k_rope=mla.nd_to_nz(k_rope), layout="nz", **CALL, backend=backend
    )
    assert torch.equal(nz, rows) and torch.equal(nz_lse, rows_lse)


def test_refusals():
    q, k = np.zeros((2, 1, 4, 64), np.uint8), np.zeros((6, 16, 1, 64), np.uint8)
    call = dict(page_table=TABLE.numpy(), lengths=LENGTHS.numpy(), d_v=48)
    for options, kind, text in (
        ({}, ValueError, "out_dtype must be given when q has 8 bits"),
        ({"layout": "zn", "out_dtype": "f32"}, ValueError, "layout = 'zn' must be one of 'row', 'nz'"),
        ({"sink": np.zeros(4, np.uint8), "out_dtype": "f32"}, TypeError, "sink.dtype = u8 must be f32"),
        ({"mask": np.zeros((2, 1, 64), np.uint8), "out_dtype": "f32"}, TypeError, "mask.dtype = u8"),
    ):
        with pytest.raises(kind) as caught:
            mla.attention(q, k, **options, **call)
        assert text in str(caught.value)
