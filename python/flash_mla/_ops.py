"""The three operators that compute, and their registration with torch.library.

Each has one implementation (`*_run`, for the CPU and for NVIDIA GPUs) and one rule for its outputs (`*_outputs`). A
plain eager call runs the implementation directly; whatever has to see the operator (torch.compile, a dispatch mode, a
functorch transform, the profiler) gets it through `torch.ops.flash_mla`.
"""

import torch
from mla import _core
from mla._launch import launch_of
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

# Every other way of tracing has a mode or tensors of its own.
_compiling = torch.compiler.is_dynamo_compiling
_jit_tracing = torch._C._is_tracing  # what is not the dispatcher's becomes a constant there
_functorch_active = torch._C._are_functorch_transforms_active
_profiling = torch.autograd._profiler_enabled
_empty = torch.empty_strided
_METADATA_COLUMNS = 8


def _direct(tensor):
    """May the implementation be called without the dispatcher?"""
    return (
        not _compiling()
        and not _jit_tracing()
        and type(tensor) is Tensor
        and (tensor.is_cuda or tensor.is_cpu)
        and not is_in_torch_dispatch_mode()
        and not _functorch_active()
        and not _profiling()
    )


def _require_device(name, value):
    if value.device.type not in ("cpu", "cuda", "meta"):
        raise NotImplementedError(f"{name} is on {value.device}; libmla computes on the CPU and on NVIDIA GPUs")


# ---- decode ----------------------------------------------------------------------------------------------------------


def decoder(q):
    """The function of (q, k_cache, block_table, cache_seqlens, head_dim_v, metadata, num_splits, softmax_scale, causal,
    attn_sink, batch_invariant) that gives (out [b, s_q, h_q, head_dim_v], lse [b, h_q, s_q])."""
    if _direct(q):
        return _decode_run
    _require_device("q", q)
    return torch.ops.flash_mla.with_kvcache.default


# Does torch make the outputs for C, on the CPU and on GPUs? That takes a third of the time.
_made_in_c = (_core.find_torch(False), _core.find_torch(True))


def _decode_outputs(q, head_dim_v):
    if q.dim() != 4:
        raise ValueError(f"q has {q.dim()} dimensions, must have 4: [b][s_q][h_q][d]")
    if head_dim_v < 1:
        raise ValueError(f"head_dim_v = {head_dim_v} must be at least 1")
    b, s_q, h_q, _ = q.shape
    row = h_q * head_dim_v
    out = _empty((b, s_q, h_q, head_dim_v), (s_q * row, row, head_dim_v, 1), dtype=q.dtype, device=q.device)
    return out, _empty((b, h_q, s_q), (h_q * s_q, s_q, 1), dtype=torch.float32, device=q.device)


def _decode_run(
    q,
    k_cache,
    block_table,
    cache_seqlens,
    head_dim_v,
    metadata,
    num_splits,
    softmax_scale,
    causal,
    attn_sink,
    batch_invariant=False,
):
    if _made_in_c[q.is_cuda]:
        made = _core.with_kvcache(
            q,
            k_cache,
            block_table,
            cache_seqlens,
            head_dim_v,
            metadata,
            num_splits,
            softmax_scale,
            causal,
            attn_sink,
            None,
            None,
            None,
            None,
            batch_invariant,
        )
        if made is not None:
            return made
    out, lse = _decode_outputs(q, head_dim_v)  # where there is no memory, torch now raises what it raises
    _core.with_kvcache(
        q,
        k_cache,
        block_table,
        cache_seqlens,
        head_dim_v,
        metadata,
        num_splits,
        softmax_scale,
        causal,
        attn_sink,
        out,
        lse,
        *launch_of(q),
        batch_invariant,
    )
    return out, lse


def _decode_fake(
    q,
    k_cache,
    block_table,
    cache_seqlens,
    head_dim_v,
    metadata,
    num_splits,
    softmax_scale,
    causal,
    attn_sink,
    batch_invariant=False,
):
    return _decode_outputs(q, head_dim_v)


# ---- metadata --------------------------------------------------------------------------------------------------------


@torch.compiler.assume_constant_result
def _parts_of_this_machine(num_heads_per_head_k, num_heads_k, gpu):
    # On the CPU the number depends on the threads, not on the heads. A traced program keeps the number it was traced
    # with, in plain sight as an argument of the operator, so that its outputs keep the shapes it expects.
    return _core.num_parts(num_heads_per_head_k, num_heads_k, gpu)


def metadata(cache_seqlens, num_heads_per_head_k, num_heads_k):
    """(tile_scheduler_metadata [n_part, 8], num_splits [b + 1])"""
    if cache_seqlens.is_cuda:
        gpu = cache_seqlens.device.index
        n_part = _parts_of_this_machine(num_heads_per_head_k, num_heads_k, 0 if gpu is None else gpu)
    else:
        n_part = _parts_of_this_machine(1, 1, -1)
    if _direct(cache_seqlens):
        return _metadata_run(cache_seqlens, num_heads_per_head_k, num_heads_k, n_part)
    _require_device("cache_seqlens", cache_seqlens)
    return torch.ops.flash_mla.get_metadata.default(cache_seqlens, num_heads_per_head_k, num_heads_k, n_part)


def _metadata_outputs(cache_seqlens, num_heads_per_head_k, num_heads_k, n_part):
    return (
        cache_seqlens.new_empty((n_part, _METADATA_COLUMNS), dtype=torch.int32),
        cache_seqlens.new_empty((cache_seqlens.numel() + 1,), dtype=torch.int32),
    )


def _metadata_run(cache_seqlens, num_heads_per_head_k, num_heads_k, n_part):
    tile_scheduler_metadata, num_splits = _metadata_outputs(cache_seqlens, num_heads_per_head_k, num_heads_k, n_part)
    stream, _ = launch_of(cache_seqlens)
    _core.get_metadata(cache_seqlens, num_heads_per_head_k, num_heads_k, tile_scheduler_metadata, num_splits, stream)
    return tile_scheduler_metadata, num_splits


# ---- prefill ---------------------------------------------------------------------------------------------------------


def varlen(q, k, v, cu_seqlens_qo, cu_seqlens_kv, softmax_scale, causal):
    """(out [n_token, h_q, d_v], lse [n_token, h_q])"""
    if _direct(q):
        return _varlen_run(q, k, v, cu_seqlens_qo, cu_seqlens_kv, softmax_scale, causal)
    _require_device("q", q)
    return torch.ops.flash_mla.attn_varlen.default(q, k, v, cu_seqlens_qo, cu_seqlens_kv, softmax_scale, causal)


def _varlen_outputs(q, k, v, cu_seqlens_qo, cu_seqlens_kv, softmax_scale, causal):
    if q.dim() != 3:
        raise ValueError(f"q has {q.dim()} dimensions, must have 3: [n_token][h_q][d]")
    n_token, h_q, _ = q.shape
    return q.new_empty((n_token, h_q, v.shape[-1])), q.new_empty((n_token, h_q), dtype=torch.float32)


def _varlen_run(q, k, v, cu_seqlens_qo, cu_seqlens_kv, softmax_scale, causal):
    out, lse = _varlen_outputs(q, k, v, cu_seqlens_qo, cu_seqlens_kv, softmax_scale, causal)
    # Padding rows before the first and after the last sequence belong to nobody: they get what a row without keys gets.
    if q.is_cuda:  # where the sequences begin and end, the CPU cannot know without waiting
        out.zero_()
        lse.fill_(float("inf"))
        _core.attn_varlen(q, k, v, cu_seqlens_qo, cu_seqlens_kv, softmax_scale, causal, out, lse, *launch_of(q))
        return out, lse
    _core.attn_varlen(q, k, v, cu_seqlens_qo, cu_seqlens_kv, softmax_scale, causal, out, lse, None, None)
    first, last = int(cu_seqlens_qo[0]), int(cu_seqlens_qo[-1])
    for padding in (slice(0, first), slice(last, None)):
        out[padding].zero_()
        lse[padding].fill_(float("inf"))
    return out, lse


# ---- registration ----------------------------------------------------------------------------------------------------

_library = torch.library.Library("flash_mla", "FRAGMENT")


def _register(schema, implementation, shape_rule):
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, implementation, "CPU")
    _library.impl(name, implementation, "CUDA")
    # Forward only, like the original: outputs do not require grad, and nothing is recorded.
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"flash_mla::{name}", shape_rule, lib=_library)


_register(
    "with_kvcache(Tensor q, Tensor k_cache, Tensor block_table, Tensor cache_seqlens, SymInt head_dim_v, "
    "Tensor? tile_scheduler_metadata, Tensor? num_splits, float softmax_scale, bool causal, Tensor? attn_sink, "
    "bool batch_invariant=False) -> (Tensor, Tensor)",
    _decode_run,
    _decode_fake,
)
_register(
    "get_metadata(Tensor cache_seqlens, SymInt num_heads_per_head_k, SymInt num_heads_k, int n_part) "
    "-> (Tensor, Tensor)",
    _metadata_run,
    _metadata_outputs,
)
_register(
    "attn_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_qo, Tensor cu_seqlens_kv, float softmax_scale, "
    "bool causal) -> (Tensor, Tensor)",
    _varlen_run,
    _varlen_outputs,
)
