"""flash_attn_varlen_func and its packed forms."""

import pytest
import reference
import torch
from flash_mla import flash_attn_varlen_func, flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func
from reference import INF, assert_close, tenth_normal


def offsets(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def problem(s_q, s_k, h_q, h_kv, d, dv, dtype=torch.bfloat16):
    cu_q, cu_k = offsets(s_q), offsets(s_k)
    q = tenth_normal(int(cu_q[-1]), h_q, d, dtype=dtype)
    k, v = (tenth_normal(int(cu_k[-1]), h_kv, n, dtype=dtype) for n in (d, dv))
    return q, k, v, cu_q, cu_k


def check(answer, expected, dtype):
    """The published limits for prefill."""
    assert_close("out", answer[0], expected[0].to(dtype), 1e-3, 8.01 / 128, 7e-6)
    assert_close("lse", answer[1], expected[1].float(), 1e-6, 2.01 / 65536)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d, dv", [(192, 128), (128, 128), (64, 64), (80, 96)])
@pytest.mark.parametrize("h_q, h_kv", [(16, 16), (8, 1), (6, 3)])
def test_prefill(h_q, h_kv, d, dv, causal):
    call = problem([40, 1, 100], [70, 9, 100], h_q, h_kv, d, dv)
    scale = (d + 100) ** -0.5
    answer = flash_attn_varlen_func(*call, 100, 100, softmax_scale=scale, causal=causal)
    check(answer, reference.varlen(*call, scale, causal), torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dtypes(dtype):
    call = problem([17, 5], [17, 30], 4, 2, 192, 128, dtype)
    check(flash_attn_varlen_func(*call, 17, 30, causal=True), reference.varlen(*call, causal=True), dtype)


def test_sequences_without_keys_or_queries():
    """More queries than keys: the first rows see nothing and get 0 and +inf, as everywhere in the module."""
    call = problem([3, 0, 2, 4], [1, 5, 0, 4], 4, 2, 64, 32)
    out, lse = flash_attn_varlen_func(*call, 4, 5, causal=True)
    check((out, lse), reference.varlen(*call, causal=True), torch.bfloat16)
    for lonely in (0, 1, 3, 4):
        assert (out[lonely] == 0).all() and (lse[lonely] == INF).all()


def test_padding_rows_belong_to_nobody():
    q, k, v, cu_q, cu_k = problem([2, 3, 4, 5], [4, 3, 4, 5], 4, 2, 64, 32)
    q[:2], q[9:], k[:4] = float("nan"), float("nan"), float("nan")
    out, lse = flash_attn_varlen_func(q, k, v, cu_q[1:4], cu_k[1:4], 4, 4)
    plain = flash_attn_varlen_func(q[2:9], k, v, cu_q[1:4] - 2, cu_k[1:4], 4, 4)
    assert torch.equal(out[2:9], plain[0]) and torch.equal(lse[2:9], plain[1])
    for padding in (slice(0, 2), slice(9, None)):
        assert (out[padding] == 0).all() and (lse[padding] == INF).all()


def test_packed_forms():
    q, k, v, cu, _ = problem([20, 7], [20, 7], 4, 4, 192, 128)
    expected = flash_attn_varlen_func(q, k, v, cu, cu, 20, 20, causal=True)
    together = flash_attn_varlen_qkvpacked_func(torch.cat((q, k, v), -1), cu, 20, 192, causal=True)
    half = flash_attn_varlen_kvpacked_func(q, torch.cat((k, v), -1), cu, cu, 20, 20, 192, causal=True)
    for answer in (together, half):
        assert torch.equal(answer[0], expected[0]) and torch.equal(answer[1], expected[1])


def test_repeats_are_equal_to_the_bit():
    call = problem([300, 40], [300, 90], 8, 2, 192, 128)
    first = flash_attn_varlen_func(*call, 300, 300, causal=True)
    for _ in range(4):
        again = flash_attn_varlen_func(*call, 300, 300, causal=True)
        assert torch.equal(again[0], first[0]) and torch.equal(again[1], first[1])


@pytest.mark.parametrize(
    "change, exception, words",
    [
        ({"dropout_p": 0.1}, AssertionError, "dropout_p"),
        ({"deterministic": True}, AssertionError, "deterministic"),
        ({"softmax_scale": True}, TypeError, "softmax_scale"),
        ({"causal": torch.tensor(True)}, TypeError, "causal"),
        ({"cu_seqlens_qo": torch.tensor([0, 5, 9])}, TypeError, "^cu_seqlens_qo"),
        ({"cu_seqlens_kv": torch.tensor([0, 9], dtype=torch.int32)}, ValueError, "^cu_seqlens_kv"),
        ({"cu_seqlens_kv": torch.tensor([0, 5, 900], dtype=torch.int32)}, ValueError, "^cu_seqlens_kv"),
        ({"cu_seqlens_qo": torch.tensor([0, 6, 5], dtype=torch.int32)}, ValueError, "^cu_seqlens_qo"),
        ({"q": torch.zeros(9, 4, 63)}, ValueError, "."),
        ({"q": torch.zeros(9, 64)}, ValueError, "^q"),
        ({"v": torch.zeros(8, 2, 32)}, ValueError, "^v"),
        ({"k": [1.0]}, TypeError, "^k"),
    ],
)
def test_refusals(change, exception, words):
    names = ("q", "k", "v", "cu_seqlens_qo", "cu_seqlens_kv")
    arguments = dict(zip(names, problem([5, 4], [5, 4], 4, 2, 64, 32, torch.float32)), max_seqlen_qo=5, max_seqlen_kv=5)
    flash_attn_varlen_func(**arguments)
    with pytest.raises(exception, match=words):
        flash_attn_varlen_func(**{**arguments, **change})
