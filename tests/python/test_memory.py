"""What a call may do with memory and threads: read inputs in place, write outputs alone, let other threads run."""

import gc
import os
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref

import ml_dtypes
import mla
import numpy as np
import pytest
import torch
from flash_mla import _ops, flash_mla_with_kvcache, get_mla_metadata
from mla import _core, _launch
from reference import assert_decode_close, make_decode


def resident():
    """The most memory this process has held, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def forget_peak():
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")


def test_inputs_are_never_written():
    call = make_decode([70, 0, 300], 2, 8, 2)
    metadata = get_mla_metadata(call.cache_seqlens, 8, 2)
    inputs = (*call.arguments()[:4], *metadata, torch.randn(8))
    # Seen as bytes: NaN equals NaN, and -0 differs from 0.
    before = [x.view(torch.uint8).clone() for x in inputs]
    flash_mla_with_kvcache(*call.arguments(), *metadata, causal=True, attn_sink=inputs[-1])
    flash_mla_with_kvcache(*call.arguments(), get_mla_metadata()[0], causal=True)
    for tensor, bits in zip(inputs, before):
        assert torch.equal(tensor.view(torch.uint8), bits)


def test_a_read_only_cache_will_do():
    """Pages mapped without write permission: a single stray write would end the process."""
    import mmap
    import tempfile


    call = make_decode([70, 300], 2, 8)
    with tempfile.TemporaryFile() as file:
        file.write(call.k_cache.view(torch.int16).numpy().tobytes())
        file.flush()
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint16).reshape(call.k_cache.shape)
        q = call.q.view(torch.uint16).numpy()
        out, _ = mla.attention(
            q,
            mapped,
            page_table=call.block_table.numpy(),
            lengths=call.cache_seqlens.numpy(),
            d_v=512,
            causal=True,
            dtype="bf16",
        )
    expected, _ = flash_mla_with_kvcache(*call.arguments(), None, None, causal=True)
    assert np.array_equal(out, expected.view(torch.uint16).numpy())


def test_nothing_of_the_size_of_the_cache_is_allocated():
    """64 MiB of cache, all of it attended to: the process may grow by scratch and outputs, not by a copy."""
    call = make_decode([58000], 1, 16, spare_pages=0)
    size = call.k_cache.numel() * 2
    assert size > 60 * 2**20
    flash_mla_with_kvcache(*call.arguments(), None, None)  # threads and buffers of a first call
    forget_peak()
    base = resident()
    flash_mla_with_kvcache(*call.arguments(), None, None)
    strided = torch.as_strided(call.k_cache, call.k_cache.shape, call.k_cache.stride())
    mla.attention(call.q, strided, page_table=call.block_table, lengths=call.cache_seqlens, d_v=512)
    assert resident() - base < size // 4


def test_calls_leak_nothing():
    call = make_decode([5])
    arrays = [x.float().numpy() for x in (call.q, call.k_cache)] + [
        call.block_table.numpy(),
        call.cache_seqlens.numpy(),
    ]
    options = {"page_table": arrays[2], "lengths": arrays[3]}
    sixteen_bit = [x.astype(ml_dtypes.bfloat16) for x in arrays[:2]]

    def rounds(n):
        for _ in range(n):
            flash_mla_with_kvcache(*call.arguments(), *get_mla_metadata(call.cache_seqlens, 16, 1))
            mla.attention(arrays[0], arrays[1], d_v=512, **options)
            mla.attention(*sixteen_bit, d_v=512, **options)
            for broken in ({"d_v": 577}, {"d_v": 512, "sink": [0.0]}, {"d_v": 512, "mask": call}):
                try:
                    mla.attention(arrays[0], arrays[1], **broken, **options)
                except (ValueError, TypeError):
                    pass
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        held = [rounds(500)] + [rounds(1000) for _ in range(3)]
    finally:
        tracemalloc.stop()
    # Not one object per round. A leak shows every time; the interpreter's own lists of spare tuples fill only once.
    assert min(after - before for before, after in zip(held, held[1:])) < 1000 * 16


def test_the_gil_is_released():
    """While one thread computes, another runs Python: were the lock held, it would see one long gap."""
    call = make_decode([4096] * 8, 4, 128)
    start = time.perf_counter()
    flash_mla_with_kvcache(*call.arguments(), None, None)
    alone = time.perf_counter() - start
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        start = time.perf_counter()
        flash_mla_with_kvcache(*call.arguments(), None, None)
        end = time.perf_counter()
    finally:
        done.set()
        thread.join()
    inside = [t for t in ticks if start < t < end]
    assert len(inside) > 20, f"{len(inside)} ticks in {end - start:.3f} s (alone: {alone:.3f} s)"


def test_two_threads_at_once():
    """Each with calls of its own and one cache between them."""
    call = make_decode([700, 3, 64], 2, 16)
    expected = flash_mla_with_kvcache(*call.arguments(), None, None, causal=True)
    wrong = []

    def work():
        for _ in range(20):
            out, lse = flash_mla_with_kvcache(
                *call.arguments(), *get_mla_metadata(call.cache_seqlens, 32, 1), causal=True
            )
            if not (torch.equal(out, expected[0]) and torch.equal(lse, expected[1])):
                wrong.append(1)
            try:
                flash_mla_with_kvcache(*call.arguments()[:4], 577, None, None)
            except ValueError as error:
                if "head_dim_v = 577" not in str(error):
                    wrong.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _decode_call(dtype):
    call = make_decode([500, 3], 1, 16, dtype=dtype)
    return call, torch.empty(2, 1, 16, 512, dtype=dtype), torch.empty(2, 16, 1)


def _count_workspace(monkeypatch):
    """The sizes that Python is asked for from now on."""
    asked, allocate = [], _launch.allocate
    monkeypatch.setattr(_launch, "allocate", lambda n, gpu: (asked.append(n), allocate(n, gpu))[1])
    return asked


needs_torch_in_c = pytest.mark.skipif(not _core.find_torch(False), reason="this torch makes no tensors for C")


@needs_torch_in_c
def test_workspace_comes_from_torch(monkeypatch):
    """Where torch can be asked from C, Python is not."""
    call, out, lse = _decode_call(torch.bfloat16)
    asked = _count_workspace(monkeypatch)
    _core.with_kvcache(*call.arguments(), None, None, 576**-0.5, False, None, out, lse, None, -1, False)
    assert not asked
    assert_decode_close((out, lse), call.reference(), torch.bfloat16)


@needs_torch_in_c
def test_outputs_made_in_c_are_like_any_other(monkeypatch):
    call = make_decode([70, 0, 300], 2, 6, 2, dtype=torch.float16)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            made = flash_mla_with_kvcache(*call.arguments(), None, None, causal=True)
            monkeypatch.setattr(_ops, "_made_in_c", (False, False))
            plain = flash_mla_with_kvcache(*call.arguments(), None, None, causal=True)
            monkeypatch.undo()
        for mine, other in zip(made, plain):
            assert torch.equal(mine, other)
            for what in ("shape", "stride", "dtype", "device", "requires_grad", "is_inference", "is_leaf", "_base"):
                ours, theirs = getattr(mine, what), getattr(other, what)
                assert ours() == theirs() if callable(ours) else ours == theirs, what
            assert type(mine) is torch.Tensor and mine.untyped_storage().nbytes() == other.untyped_storage().nbytes()
            with mode:
                mine.resize_(0)  # of its own memory, no view of somebody's
            weak = weakref.ref(mine)
        del made, mine
        assert weak() is None


def test_outputs_made_in_c_are_freed():
    call = make_decode([5], h_q=128)  # 128 KiB of out
    for _ in range(50):
        flash_mla_with_kvcache(*call.arguments(), None, None)
    forget_peak()
    base = resident()
    for _ in range(500):
        flash_mla_with_kvcache(*call.arguments(), None, None)
    assert resident() - base < 16 * 2**20


@pytest.mark.parametrize("in_c", [False, True])
def test_outputs_beyond_memory(in_c, monkeypatch):
    """What torch raises, and nothing else, also where it was asked from C first."""
    call = make_decode([5])
    monkeypatch.setattr(_ops, "_made_in_c", (in_c and _core.find_torch(False), False))
    with pytest.raises(RuntimeError, match="memory"):
        flash_mla_with_kvcache(call.q.expand(2**40, -1, -1, -1), *call.arguments()[1:], None, None)
    flash_mla_with_kvcache(*call.arguments(), None, None)


def test_torch_that_cannot_be_asked_from_c():
    """Functions that are missing, played by asking before torch is there: outputs and workspace come by Python."""
    program = """
from mla import _core, _launch
assert not _core.find_torch(False) and not _core.find_torch(True)
import torch
from flash_mla import _ops, flash_mla_with_kvcache
from reference import assert_decode_close, make_decode
assert _ops._made_in_c == (False, False)
call = make_decode([500, 3])
out, lse = flash_mla_with_kvcache(*call.arguments(), None, None)
assert_decode_close((out, lse), call.reference(), torch.bfloat16)
asked, allocate = [], _launch.allocate
_launch.allocate = lambda n, gpu: (asked.append(n), allocate(n, gpu))[1]
again = torch.empty_like(out), torch.empty_like(lse)
_core.with_kvcache(*call.arguments(), None, None, 576**-0.5, False, None, *again, None, -1, False)
assert len(asked) == 1 and asked[0] > 0
assert torch.equal(out, again[0]) and torch.equal(lse, again[1])
try:
    _core.with_kvcache(*call.arguments(), None, None, 576**-0.5, False, None, None, None, None, None, False)
except TypeError as error:
    assert "out and lse must be given" in str(error)
else:
    raise SystemExit("made without torch")
"""
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path})
