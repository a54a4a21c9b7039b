"""CUDA tensors: both packages on an NVIDIA GPU, on torch's streams, in torch's graphs. Skipped, each by name, without
one."""

import dataclasses

import mla
import pytest
import torch
from flash_mla import (
    flash_attn_varlen_func,
    flash_mla_with_kvcache,
    get_mla_metadata,
)
from mla import _core
from reference import assert_close, assert_decode_close, make_decode, tenth_normal, varlen

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU")

HEADS = [(h_q, h_kv) for h_q in (1, 3, 9, 63, 64, 126, 128) for h_kv in (1, 2, 3, 8) if h_q % h_kv == 0]


def on_gpu(call):
    fields = {f.name: getattr(call, f.name) for f in dataclasses.fields(call)}
    return type(call)(**{k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in fields.items()})


def back(answer):
    return tuple(x.cpu() for x in answer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", HEADS, ids=lambda x: "x".join(map(str, x)))
@pytest.mark.parametrize("s_q", [1, 2, 4])
def test_dense_matrix(heads, s_q, dtype):
    h_q, h_kv = heads
    for lengths in ([20], [140, 3, 0, 64, 65, 128], [1100, 300]):
        call = make_decode([max(n, s_q) if n else 0 for n in lengths], s_q, h_q, h_kv, dtype=dtype)
        gpu = on_gpu(call)
        metadata = get_mla_metadata(gpu.cache_seqlens, s_q * h_q // h_kv, h_kv)
        for causal in (False, True) if s_q > 1 else (False,):
            answer = flash_mla_with_kvcache(*gpu.arguments(), *metadata, causal=causal)
            assert answer[0].is_cuda and answer[1].is_cuda
            assert_decode_close(back(answer), call.reference(causal=causal), dtype)


@pytest.mark.parametrize("page", [1, 16, 61, 64, 128])
def test_page_sizes(page):
    call = make_decode([1, 63, 64, 65, 0, 700], 2, 16, page=page)
    answer = flash_mla_with_kvcache(*on_gpu(call).arguments(), *get_mla_metadata(), causal=True)
    assert_decode_close(back(answer), call.reference(causal=True), torch.bfloat16)


def test_long_context():
    call = make_decode([20000], 1, 128)
    answer = flash_mla_with_kvcache(*on_gpu(call).arguments(), *get_mla_metadata())
    assert_decode_close(back(answer), call.reference(), torch.bfloat16)


def test_sink():
    call = make_decode([100, 0, 33], 1, 16)
    sink = torch.randn(16)
    sink[3], sink[5] = float("inf"), float("-inf")
    answer = flash_mla_with_kvcache(*on_gpu(call).arguments(), *get_mla_metadata(), attn_sink=sink.cuda())
    assert_decode_close(back(answer), call.reference(sink=sink), torch.bfloat16)


def test_strided_inputs():
    call = make_decode([300, 65], 2, 64)
    gpu = on_gpu(call)
    q = torch.full((*gpu.q.shape[:2], 130, 640), float("nan"), dtype=gpu.q.dtype, device="cuda")
    q[:, :, 1:129:2, 3:579] = gpu.q
    pool = torch.full((*gpu.k_cache.shape[:1], 3, *gpu.k_cache.shape[1:]), float("nan"), dtype=gpu.q.dtype, device="cuda")
    pool[:, 1] = gpu.k_cache
    gpu.q, gpu.k_cache = q[:, :, 1:129:2, 3:579], pool[:, 1]
    answer = flash_mla_with_kvcache(*gpu.arguments(), None, None, causal=True)
    assert_decode_close(back(answer), call.reference(causal=True), torch.bfloat16)


def test_metadata_is_that_of_the_cpu():
    lengths = torch.randint(-1, 9000, (300,), dtype=torch.int32)
    parts, splits = get_mla_metadata(lengths.cuda(), 128, 1)
    assert parts.is_cuda and parts.shape == (_core.num_parts(128, 1, 0), 8)
    expected = torch.empty_like(parts, device="cpu"), torch.empty_like(splits, device="cpu")
    _core.get_metadata(lengths, 128, 1, *expected, None)
    assert torch.equal(parts.cpu(), expected[0]) and torch.equal(splits.cpu(), expected[1])


@pytest.mark.parametrize("fill", [-1, 0, 2147480000])
def test_metadata_is_a_hint(fill):
    call = make_decode([500, 64], 1, 16)
    gpu = on_gpu(call)
    parts, splits = get_mla_metadata(gpu.cache_seqlens, 16, 1)
    answer = flash_mla_with_kvcache(*gpu.arguments(), parts.fill_(fill), splits.fill_(fill))
    assert_decode_close(back(answer), call.reference(), torch.bfloat16)


def test_other_streams():
    """Work goes to the current stream: it waits for what is queued there and not for the default stream."""
    call = make_decode([3000], 1, 128)
    gpu = on_gpu(call)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(gpu.q)
        torch.cuda._sleep(50_000_000)
        late.copy_(gpu.q)
        gpu.q = late
        answer = flash_mla_with_kvcache(*gpu.arguments(), *get_mla_metadata())
        again = flash_mla_with_kvcache(*gpu.arguments(), *get_mla_metadata())
    stream.synchronize()
    assert_decode_close(back(answer), call.reference(), torch.bfloat16)
    assert torch.equal(answer[0], again[0]) and torch.equal(answer[1], again[1])


def test_outputs_are_torchs_own():
    """Made in C, they come from the caching allocator, and are no different from those that torch makes for Python."""
    assert _core.find_torch(True) or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    call = make_decode([500, 3], 2, 16)
    gpu = on_gpu(call)
    made = flash_mla_with_kvcache(*gpu.arguments(), None, None, causal=True)
    plain = torch.empty_like(made[0]), torch.empty_like(made[1])
    stream = torch.cuda.current_stream().cuda_stream
    options = (None, None, call.q.shape[-1] ** -0.5, True, None, *plain, stream, 0, False)
    _core.with_kvcache(*gpu.arguments(), *options)
    for mine, other in zip(made, plain):
        assert torch.equal(mine, other) and mine.device == other.device and mine.stride() == other.stride()
        mine.record_stream(torch.cuda.Stream())
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    for _ in range(20):
        flash_mla_with_kvcache(*gpu.arguments(), None, None, causal=True)
    assert torch.cuda.memory_allocated() == held
    out, _ = flash_mla_with_kvcache(*gpu.arguments(), None, None, causal=True)
    assert torch.cuda.memory_allocated() - held >= out.nbytes


def test_outputs_beyond_the_memory_of_a_gpu():
    gpu = on_gpu(make_decode([5], 1, 16))
    with pytest.raises(torch.OutOfMemoryError):
        flash_mla_with_kvcache(gpu.q.expand(2**26, -1, -1, -1), *gpu.arguments()[1:], None, None)


def test_memory_pools():
    """In a pool that torch was told to use, outputs and workspace come from it, in C as in Python."""
    call = make_decode([3000, 70], 1, 64)
    gpu = on_gpu(call)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        answer = flash_mla_with_kvcache(*gpu.arguments(), None, None)
    blocks = [(segment["address"], segment["total_size"]) for segment in pool.snapshot()]
    assert all(any(at <= x.data_ptr() < at + size for at, size in blocks) for x in answer)
    assert_decode_close(back(answer), call.reference(), torch.bfloat16)


@pytest.mark.parametrize("style", ["tensors", "object", "none"])
def test_graph_with_changing_lengths(style):
    call = make_decode([900, 64, 2000], 2, 64)
    gpu = on_gpu(call)
    metadata = {
        "tensors": lambda: get_mla_metadata(gpu.cache_seqlens, 128, 1),
        "object": get_mla_metadata,
        "none": lambda: (None, None),
    }[style]()
    flash_mla_with_kvcache(*gpu.arguments(), *metadata, causal=True)  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = flash_mla_with_kvcache(*gpu.arguments(), *metadata, causal=True)
    for lengths in ([900, 64, 2000], [2, 0, 1999], [899, 63, 3]):
        call.cache_seqlens = torch.tensor(lengths, dtype=torch.int32)
        gpu.cache_seqlens.copy_(call.cache_seqlens)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert_decode_close((out.cpu(), lse.cpu()), call.reference(causal=True), torch.bfloat16)


def test_enable_batch_invariant():
    """A request alone gives the bits it has in a batch, and tokens one at a time those that they have together."""
    call = make_decode([5000, 64, 2049], 2, 64)
    gpu = on_gpu(call)
    options = dict(causal=True, enable_batch_invariant=True)
    out, lse = flash_mla_with_kvcache(*gpu.arguments(), None, None, **options)
    assert_decode_close(back((out, lse)), call.reference(causal=True), torch.bfloat16)
    q, pool, table, lengths, d_v = gpu.arguments()
    for b in range(3):
        alone = (q[b : b + 1], pool, table[b : b + 1], lengths[b : b + 1], d_v)
        mine, my_lse = flash_mla_with_kvcache(*alone, None, None, **options)
        assert torch.equal(mine[0], out[b]) and torch.equal(my_lse[0], lse[b])
        for i in range(2):
            one = (q[b : b + 1, i : i + 1], pool, table[b : b + 1], lengths[b : b + 1] - 1 + i, d_v)
            mine, _ = flash_mla_with_kvcache(*one, None, None, **options)
            assert torch.equal(mine[0, 0], out[b, i])
    native, _ = mla.attention(q, k=pool, page_table=table, lengths=lengths, d_v=d_v, causal=True, batch_invariant=True,
                              softmax_scale=q.shape[-1] ** -0.5)
    assert torch.equal(native, out)


def test_bad_values_hide_their_keys():
    call = make_decode([256], 1, 16)
    gpu = on_gpu(call)
    gpu.block_table[0, 1] = -1
    gpu.block_table[0, 2] = 2**31 - 1
    answer = flash_mla_with_kvcache(*gpu.arguments(), None, None)
    call.block_table[0, 1] = call.block_table[0, 3]
    call.cache_seqlens[0] = 128
    assert_decode_close(back(answer), call.reference(), torch.bfloat16)


def test_devices_must_agree():
    gpu = on_gpu(make_decode([100], 1, 16))
    gpu.cache_seqlens = gpu.cache_seqlens.cpu()
    with pytest.raises(ValueError, match="cache_seqlens is on device"):
        flash_mla_with_kvcache(*gpu.arguments(), None, None)


@pytest.mark.parametrize("causal", [False, True])
def test_varlen(causal):
    cu_q, cu_k = torch.tensor([0, 5, 5, 70], dtype=torch.int32), torch.tensor([0, 9, 30, 130], dtype=torch.int32)
    q, k, v = tenth_normal(70, 8, 192), tenth_normal(130, 2, 192), tenth_normal(130, 2, 128)
    out, lse = flash_attn_varlen_func(q.cuda(), k.cuda(), v.cuda(), cu_q.cuda(), cu_k.cuda(), causal=causal)
    expected, expected_lse = varlen(q, k, v, cu_q, cu_k, causal=causal)
    assert_close("out", out.cpu(), expected.to(torch.bfloat16), 1e-3, 8.01 / 128, 7e-6)
    assert_close("lse", lse.cpu(), expected_lse.float(), 1e-6, 2.01 / 65536)


def test_native():
    """Two segments, one of them a list, a mask and a sink, against the oracle on the CPU."""
    torch.manual_seed(3)
    q = torch.randn(2, 3, 20, 96)
    arrays = dict(
        k=torch.randn(8, 16, 2, 96).half(),
        page_table=torch.tensor([[1, 7, 3], [0, 2, -9]], dtype=torch.int32),
        lengths=torch.tensor([48, 20], dtype=torch.int32),
        mask=torch.randn(2, 3, 48),
        sink=torch.randn(20),
    )
    other = dict(
        k=torch.randn(2, 40, 2, 96),
        lengths=torch.tensor([40, 30], dtype=torch.int32),
        key_list=torch.randint(-2, 45, (2, 3, 33), dtype=torch.int32),
    )
    options = dict(d_v=64, lse_base="2", causal=True, out_dtype="f32")
    expected, expected_lse = mla.attention(q, second=mla.Segment(**other), backend="ref", **arrays, **options)
    gpu = {name: array.cuda() for name, array in arrays.items()}
    second = mla.Segment(**{name: array.cuda() for name, array in other.items()})
    out, lse = mla.attention(q.cuda(), second=second, **gpu, **options)
    assert out.is_cuda
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.cpu(), expected_lse, rtol=1e-5, atol=1e-5)
    stream = torch.cuda.Stream()
    again, _ = mla.attention(q.cuda(), second=second, stream=stream.cuda_stream, **gpu, **options)
    torch.cuda.synchronize()
    assert torch.equal(again, out)


def test_many_calls_in_flight():
    """Workspace comes from torch's caching allocator: calls queued one behind the other do not disturb each other."""
    calls = [make_decode([2500 + 100 * i], 1, 128) for i in range(4)]
    gpus = [on_gpu(call) for call in calls]
    answers = []
    for _ in range(10):
        answers = [flash_mla_with_kvcache(*gpu.arguments(), None, None) for gpu in gpus]
    for call, answer in zip(calls, answers):
        assert_decode_close(back(answer), call.reference(), torch.bfloat16)
