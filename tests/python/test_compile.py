"""torch.compile traces through, opcheck is content, and the ways in that need the dispatcher get it."""

import warnings

import pytest
import torch
from flash_mla import flash_attn_varlen_func, flash_mla_with_kvcache, get_mla_metadata
from mla import _core
from reference import assert_decode_close, make_decode


def attend_with_tensors(q, k_cache, block_table, cache_seqlens, causal):
    h_kv = k_cache.shape[2]
    metadata, num_splits = get_mla_metadata(cache_seqlens, q.shape[1] * q.shape[2] // h_kv, h_kv)
    out, lse = flash_mla_with_kvcache(
        q * 2, k_cache, block_table, cache_seqlens, 512, metadata, num_splits, 0.03, causal
    )
    return out + 1, lse


def attend_with_object(q, k_cache, block_table, cache_seqlens, causal):
    sched_meta, num_splits = get_mla_metadata()
    out, lse = flash_mla_with_kvcache(
        q * 2, k_cache, block_table, cache_seqlens, 512, sched_meta, num_splits, 0.03, causal
    )
    # The second layer of a model reuses the object.
    again, _ = flash_mla_with_kvcache(
        q * 2, k_cache, block_table, cache_seqlens, 512, sched_meta, num_splits, 0.03, causal
    )
    return (out + again) / 2 + 1, lse


def attend_without_metadata(q, k_cache, block_table, cache_seqlens, causal):
    out, lse = flash_mla_with_kvcache(q * 2, k_cache, block_table, cache_seqlens, 512, None, None, 0.03, causal)
    return out + 1, lse


CALLERS = [attend_with_tensors, attend_with_object, attend_without_metadata]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("attend", CALLERS)
def test_compiled_without_a_graph_break(attend, dynamic):
    compiled = torch.compile(attend, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for lengths, s_q in (([70, 0, 130], 2), ([70, 0, 130], 2), ([5, 64], 2), ([5, 64, 300, 1], 3)):
        call = make_decode(lengths, s_q, 8, 2)
        for causal in (False, True):
            arguments = (*call.arguments()[:4], causal)
            for got, wanted in zip(compiled(*arguments), attend(*arguments)):
                assert torch.equal(got, wanted)


def test_compiled_with_the_object_made_outside():
    """A decode loop: the object lives outside the compiled step and is filled by its first run."""
    sched_meta, _ = get_mla_metadata()
    step = torch.compile(
        lambda *arguments: flash_mla_with_kvcache(*arguments, 512, sched_meta), fullgraph=True, backend="aot_eager"
    )
    call = make_decode([70, 3], 1, 4)
    for _ in range(3):
        answer = step(*call.arguments()[:4])
        assert_decode_close(answer, call.reference(), torch.bfloat16)
        call.cache_seqlens -= 1
    assert sched_meta.have_initialized and sched_meta.config.b == 2
    assert_decode_close(flash_mla_with_kvcache(*call.arguments(), sched_meta), call.reference(), torch.bfloat16)


def test_compiled_by_the_default_backend(monkeypatch):
    """Metadata keeps the number of parts it was traced with, whatever the machine says later."""
    call = make_decode([70, 0, 130], 2, 8, 2)
    arguments = (*call.arguments()[:4], True)
    expected = attend_with_tensors(*arguments)
    compiled = torch.compile(attend_with_tensors, fullgraph=True)
    for n_part in (3, 5):
        monkeypatch.setattr(_core, "num_parts", lambda *heads: n_part)  # noqa: B023
        for got, wanted in zip(compiled(*arguments), expected):
            assert torch.equal(got, wanted)


def test_threads_of_torch_are_those_of_the_library():
    """One OpenMP runtime serves both, so torch.set_num_threads() holds here too."""
    n_thread = torch.get_num_threads()
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            assert get_mla_metadata(torch.tensor([5], dtype=torch.int32), 16, 1)[0].shape[0] == n
    finally:
        torch.set_num_threads(n_thread)


def test_exported():
    class Layer(torch.nn.Module):
        def forward(self, q, k_cache, block_table, cache_seqlens):
            return attend_with_tensors(q, k_cache, block_table, cache_seqlens, True)

    call = make_decode([70, 0, 130], 2, 8, 2)
    program = torch.export.export(Layer(), call.arguments()[:4])
    assert "flash_mla.with_kvcache" in str(program.graph)
    for got, wanted in zip(program.module()(*call.arguments()[:4]), Layer()(*call.arguments()[:4])):
        assert torch.equal(got, wanted)


def test_traced_by_torch_jit():
    """Results follow the inputs: they are no constants of the call that was traced."""

    def layer(q, k_cache, block_table, cache_seqlens, offsets):
        out, lse = attend_with_tensors(q, k_cache, block_table, cache_seqlens, True)
        metadata, _ = get_mla_metadata(cache_seqlens, 16, 2)
        return out, lse, metadata, flash_attn_varlen_func(lse, lse, lse, offsets, offsets, 3, 3, causal=True)[0]

    call = make_decode([70, 0, 130], 2, 8, 2)
    offsets = torch.tensor([0, 1, 3], dtype=torch.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.trace() is deprecated
        traced = torch.jit.trace(layer, (*call.arguments()[:4], offsets), check_trace=False)
    others = (call.q * 2, *call.arguments()[1:3], call.cache_seqlens // 2, offsets - (offsets > 0).int())
    for got, wanted in zip(traced(*others), layer(*others)):
        assert torch.equal(got, wanted)


def samples():
    call = make_decode([70, 0, 130], 2, 8, 2)
    metadata = get_mla_metadata(call.cache_seqlens, 8, 2)
    ops = torch.ops.flash_mla
    yield ops.with_kvcache.default, (*call.arguments(), *metadata, 0.05, True, None)
    yield ops.with_kvcache.default, (*call.arguments(), None, None, 0.05, False, torch.zeros(8))
    strided = call.q.repeat(1, 1, 2, 1)[:, :, ::2]
    yield ops.with_kvcache.default, (strided, *call.arguments()[1:], None, None, 0.05, False, None)
    yield (
        ops.with_kvcache.default,
        (call.q.clone().requires_grad_(), *call.arguments()[1:], None, None, 0.05, False, None),
    )
    yield ops.get_metadata.default, (call.cache_seqlens, 8, 2, 5)
    offsets = torch.tensor([0, 5, 9], dtype=torch.int32)
    yield (
        ops.attn_varlen.default,
        (torch.randn(9, 4, 32), torch.randn(9, 2, 32), torch.randn(9, 2, 16), offsets, offsets, 0.2, True),
    )


@pytest.mark.parametrize("sample", range(6))
def test_opcheck(sample):
    operator, arguments = list(samples())[sample]
    torch.library.opcheck(operator, arguments)


def test_the_direct_path_and_the_dispatcher_agree():
    call = make_decode([70, 0, 130], 2, 8, 2)
    through = torch.ops.flash_mla.with_kvcache(*call.arguments(), None, None, 0.05, True, None)
    direct = flash_mla_with_kvcache(*call.arguments(), None, None, 0.05, True)
    assert torch.equal(through[0], direct[0]) and torch.equal(through[1], direct[1])


def test_meta_and_fake_tensors_give_shapes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    call = make_decode([70, 0], 2, 8, 2)
    out, lse = flash_mla_with_kvcache(*(x.to("meta") for x in call.arguments()[:4]), 512, None, None)
    assert out.is_meta and out.shape == (2, 2, 8, 512) and lse.shape == (2, 8, 2)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in call.arguments()[:4]]
        out, lse = flash_mla_with_kvcache(*fake, 512, *get_mla_metadata(fake[3], 8, 2))
    assert out.shape == (2, 2, 8, 512) and out.dtype == torch.bfloat16 and lse.dtype == torch.float32


def test_dispatch_modes_see_the_operator():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    call = make_decode([70])
    with Log() as log:
        flash_mla_with_kvcache(*call.arguments(), None, None)
    assert "flash_mla.with_kvcache.default" in log.seen


def test_the_profiler_sees_the_operator():
    call = make_decode([70])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        flash_mla_with_kvcache(*call.arguments(), None, None)
    assert "flash_mla::with_kvcache" in {event.key for event in profile.key_averages()}


def test_parameters_are_tensors_too():
    call = make_decode([70])
    expected, _ = flash_mla_with_kvcache(*call.arguments(), None, None)
    call.q = torch.nn.Parameter(call.q)
    out, _ = flash_mla_with_kvcache(*call.arguments(), None, None)
    assert torch.equal(out, expected) and not out.requires_grad


def test_compiled_prefill():
    offsets = torch.tensor([0, 5, 9], dtype=torch.int32)
    q, k, v = torch.randn(9, 4, 32), torch.randn(9, 2, 32), torch.randn(9, 2, 16)

    def prefill(q, k, v):
        out, lse = flash_attn_varlen_func(q * 1, k, v, offsets, offsets, 5, 5, causal=True)
        return out * 2, lse

    for got, wanted in zip(torch.compile(prefill, fullgraph=True, backend="aot_eager")(q, k, v), prefill(q, k, v)):
        assert torch.equal(got, wanted)


def test_refusals_survive_compilation():
    compiled = torch.compile(attend_without_metadata, fullgraph=True, backend="aot_eager")
    call = make_decode([70])
    with pytest.raises(TypeError, match="^cache_seqlens.dtype = i64"):
        compiled(*call.arguments()[:3], call.cache_seqlens.long(), False)
