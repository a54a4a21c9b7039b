"""Random shapes, strides and lengths against the reference."""

import torch
from flash_mla import flash_mla_with_kvcache, get_mla_metadata
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import assert_decode_close, make_decode

# Reproducible: the same examples every time, none remembered between runs.
SETTINGS = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def calls(draw):
    h_kv = draw(st.integers(1, 3))
    h_q = h_kv * draw(st.integers(1, 12))
    d = draw(st.integers(1, 80))
    lengths = draw(st.lists(st.integers(-2, 150), min_size=1, max_size=4))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    call = make_decode(
        lengths,
        draw(st.integers(1, 4)),
        h_q,
        h_kv,
        d,
        draw(st.integers(1, d)),
        draw(st.integers(1, 70)),
        draw(st.sampled_from([torch.bfloat16, torch.float16])),
        draw(st.integers(1, 3)),
    )
    if draw(st.booleans()):  # the same numbers behind other strides
        call.q = torch.cat((call.q, call.q), 3)[..., :d]
        call.k_cache = torch.stack((call.k_cache, call.k_cache), 1)[:, 1]
        call.block_table = torch.cat((call.block_table, call.block_table), 1)[:, : call.block_table.shape[1]]
    return call


@SETTINGS
@given(
    call=calls(),
    causal=st.booleans(),
    scale=st.none() | st.floats(-2, 2, width=32),
    convention=st.sampled_from(["none", "tensors", "object"]),
    with_sink=st.booleans(),
)
def test_any_call(call, causal, scale, convention, with_sink):
    _, s_q, h_q, _ = call.q.shape
    h_kv = call.k_cache.shape[2]
    schedule = {
        "none": lambda: (None, None),
        "object": get_mla_metadata,
        "tensors": lambda: get_mla_metadata(call.cache_seqlens, s_q * h_q // h_kv, h_kv),
    }[convention]()
    sink = torch.randn(h_q) if with_sink else None
    answer = flash_mla_with_kvcache(*call.arguments(), *schedule, scale, causal, attn_sink=sink)
    assert_decode_close(answer, call.reference(scale=scale, causal=causal, sink=sink), call.q.dtype)
