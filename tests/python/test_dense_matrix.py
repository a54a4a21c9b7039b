"""The dense-decode matrix of the published tests, against fp64, by their rule.

The whole matrix takes an hour; by default every (b, s_q, s_k, heads) that costs little is run and of the others a fixed
few. MLA_TEST_FULL=1 runs all of it.
"""

import itertools
import os

import pytest
import torch
from flash_mla import flash_mla_with_kvcache, get_mla_metadata
from reference import assert_decode_close, make_decode

HEADS = [(h_q, h_kv) for h_q in (1, 3, 9, 63, 64, 126, 128) for h_kv in (1, 2, 3, 8) if h_q % h_kv == 0]
SHAPES = list(itertools.product((1, 2, 6, 64), (1, 2, 4), (20, 140, 4096), HEADS))


def scores(shape):
    b, s_q, s_k, (h_q, _) = shape
    return b * s_q * s_k * h_q


def rows(shape):
    b, _, s_k, (_, h_kv) = shape
    return b * s_k * h_kv


FULL = bool(os.environ.get("MLA_TEST_FULL"))
CHEAP = [shape for shape in SHAPES if scores(shape) <= 2**15 and rows(shape) <= 2**12]
DEAR = [shape for shape in SHAPES if shape not in CHEAP and scores(shape) <= 2**21 and rows(shape) <= 2**15]
CHOSEN = SHAPES if FULL else CHEAP + DEAR[::13]


def lengths_of(b, s_q, s_k, varlen):
    if not varlen:
        return [s_k] * b
    return torch.normal(float(s_k), s_k / 2, (b,)).int().clamp(min=s_q).tolist()


@pytest.mark.parametrize(
    "b, s_q, s_k, heads", CHOSEN, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else x
)
def test_dense_decode(b, s_q, s_k, heads):
    h_q, h_kv = heads
    for varlen in (False, True):
        call = make_decode(lengths_of(b, s_q, s_k, varlen), s_q, h_q, h_kv)
        metadata = get_mla_metadata(call.cache_seqlens, s_q * h_q // h_kv, h_kv)
        for causal in (False, True) if s_q > 1 else (False,):
            answer = flash_mla_with_kvcache(*call.arguments(), *metadata, causal=causal)
            assert_decode_close(answer, call.reference(causal=causal), torch.bfloat16)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("h_q, h_kv", HEADS if FULL else [(9, 3), (64, 8), (128, 1)])
def test_half_of_the_requests_empty(h_q, h_kv, causal):
    b, s_k = (128, 4096) if FULL else (24, 700)
    lengths = [n if keep else 0 for n, keep in zip(lengths_of(b, 2, s_k, True), torch.rand(b) < 0.5)]
    call = make_decode(lengths, 2, h_q, h_kv)
    answer = flash_mla_with_kvcache(*call.arguments(), *get_mla_metadata(), causal=causal)
    assert_decode_close(answer, call.reference(causal=causal), torch.bfloat16)


@pytest.mark.parametrize("d, dv", [(576, 512), (512, 512), (320, 256), (288, 256), (192, 128), (64, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dims_and_dtypes(d, dv, dtype):
    call = make_decode([140, 0, 33, 64], 2, 20, d=d, dv=dv, dtype=dtype)
    answer = flash_mla_with_kvcache(*call.arguments(), *get_mla_metadata(), causal=True)
    assert_decode_close(answer, call.reference(causal=True), dtype)


@pytest.mark.parametrize("h_q", [1, 2, 3, 5, 8, 9, 16, 20, 24, 32, 40, 63, 64, 65, 126, 127, 128])
def test_any_number_of_heads(h_q):
    """Each agrees with the reference, and with the first heads of a call that has more."""
    call = make_decode([100, 65], 1, 128)
    many, many_lse = flash_mla_with_kvcache(*call.arguments(), None, None)
    call.q = call.q[:, :, :h_q]
    out, lse = flash_mla_with_kvcache(*call.arguments(), None, None)
    assert_decode_close((out, lse), call.reference(), torch.bfloat16)
    assert_decode_close((many[:, :, :h_q], many_lse[:, :h_q]), (out, lse), torch.bfloat16)
