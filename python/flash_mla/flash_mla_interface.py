"""The functions callers know, with both calling conventions."""

import dataclasses
from typing import NamedTuple, Optional, Tuple, Union

import torch
from mla._flags import as_bool
from torch import Tensor

from . import _ops

_EIGHT_BIT = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)


@dataclasses.dataclass(eq=False)
class FlashMLASchedMeta:
    """The schedule of a series of equal calls; empty until the first one fills it.

    Every call must have the configuration of the first (AssertionError otherwise). Lengths may change freely: the
    schedule is a hint, and a stale one costs time, never correctness.
    """

    class Config(NamedTuple):
        b: int
        s_q: int
        h_q: int
        page_block_size: int
        h_k: int
        causal: bool
        is_fp8_kvcache: bool
        topk: Optional[int]
        extra_page_block_size: Optional[int]
        extra_topk: Optional[int]

    have_initialized: bool = False
    config: Optional[Config] = None
    tile_scheduler_metadata: Optional[Tensor] = None
    num_splits: Optional[Tensor] = None


# ---- metadata --------------------------------------------------------------------------------------------------------

_style = "auto"


def set_metadata_style(style: str) -> None:
    """Chooses what `get_mla_metadata` returns, for callers that pass one convention's arguments and expect the other's
    result: "object" (always a FlashMLASchedMeta), "tensor" (always tensors), or "auto" (the default: what the arguments
    suggest)."""
    global _style
    if style not in ("auto", "object", "tensor"):
        raise ValueError(f"style = {style!r} must be one of 'auto', 'object', 'tensor'")
    _style = style


def get_mla_metadata(*args, **kwargs) -> Tuple[Union[FlashMLASchedMeta, Tensor], Optional[Tensor]]:
    """The schedule for `flash_mla_with_kvcache`.

    get_mla_metadata() -> (FlashMLASchedMeta(), None)

    get_mla_metadata(cache_seqlens, num_heads_per_head_k, num_heads_k, num_heads_q=None, is_fp8_kvcache=False,
                     topk=None) -> (tile_scheduler_metadata, num_splits)
        cache_seqlens           int32 [b], contiguous, on the CPU or on an NVIDIA GPU: keys per request
        num_heads_per_head_k    s_q * h_q // h_k; also called num_q_tokens_per_head_k
        num_heads_k             h_k
        num_heads_q             ignored
        tile_scheduler_metadata int32 [n_part, 8], num_splits int32 [b + 1]; treat both as opaque

    Raises TypeError (dtype, missing arguments), ValueError (shape, counts below 1), NotImplementedError
    (is_fp8_kvcache, topk). See also `set_metadata_style`.
    """
    if _style == "object" or (_style == "auto" and not args and not kwargs):
        return FlashMLASchedMeta(), None
    return _metadata_tensors(*args, **kwargs)


def _metadata_tensors(
    cache_seqlens,
    num_heads_per_head_k=None,
    num_heads_k=None,
    num_heads_q=None,
    is_fp8_kvcache=False,
    topk=None,
    *,
    num_q_tokens_per_head_k=None,
):
    if num_heads_per_head_k is None:
        num_heads_per_head_k = num_q_tokens_per_head_k
    elif num_q_tokens_per_head_k is not None:
        raise TypeError("num_heads_per_head_k and num_q_tokens_per_head_k are two names of one argument; give one")
    if num_heads_per_head_k is None:
        raise TypeError("get_mla_metadata() needs num_heads_per_head_k (or num_q_tokens_per_head_k) with cache_seqlens")
    if num_heads_k is None:
        raise TypeError("get_mla_metadata() needs num_heads_k with cache_seqlens")
    if is_fp8_kvcache is not None and as_bool("is_fp8_kvcache", is_fp8_kvcache):
        raise NotImplementedError("is_fp8_kvcache=True is not implemented")
    if topk is not None:
        raise NotImplementedError("topk (sparse attention) is not implemented")
    _require_tensors(cache_seqlens=cache_seqlens)
    return _ops.metadata(cache_seqlens, num_heads_per_head_k, num_heads_k)


# ---- decode ----------------------------------------------------------------------------------------------------------

_POSITIONS = "the arguments after num_splits are softmax_scale, causal, is_fp8_kvcache, indices, in this order"


def flash_mla_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    block_table: Optional[Tensor],
    cache_seqlens: Optional[Tensor],
    head_dim_v: int,
    tile_scheduler_metadata: Union[None, FlashMLASchedMeta, Tensor],
    num_splits: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    is_fp8_kvcache: Optional[bool] = False,
    indices: Optional[Tensor] = None,
    attn_sink: Optional[Tensor] = None,
    extra_k_cache: Optional[Tensor] = None,
    extra_indices_in_kvcache: Optional[Tensor] = None,
    topk_length: Optional[Tensor] = None,
    extra_topk_length: Optional[Tensor] = None,
    enable_batch_invariant: bool = False,
) -> Tuple[Tensor, Tensor]:
    """Decode attention over a paged cache whose row holds key and value at once; returns (out, lse).

    All tensors are on the CPU, or all on one NVIDIA GPU: there the work is queued on torch's current stream, nothing
    waits for it, and CUDA graphs may capture it; bad page ids, and lengths beyond the table, raise nothing there: they
    hide their keys.

    q              bf16 or f16 [b, s_q, h_q, d], last stride 1, the others free
    k_cache        dtype of q, [n_page, page_size, h_k, d], likewise; h_q % h_k == 0; any page size
    block_table    int32 [b, max_page], last stride 1; entries past a request's last page are never read
    cache_seqlens  int32 [b], contiguous: keys per request, the s_q new ones included; negative counts as 0
    head_dim_v     the value is the first head_dim_v columns of a row
    tile_scheduler_metadata, num_splits
                   a FlashMLASchedMeta and None, or the two tensors of get_mla_metadata(), or None and None. Tensors are
                   checked for dtype and shape; whatever they hold, the result is right
    softmax_scale  default 1 / sqrt(d)
    causal         a token sees no key after its own position, the last token being level with the last key; has no
                   effect when s_q is 1
    attn_sink      f32 [h_q]: out is scaled by 1 / (1 + exp(sink - lse)); lse does not count it
    enable_batch_invariant   a request's bits do not depend on the batch; on the CPU they never do
    out            new, dtype of q [b, s_q, h_q, head_dim_v]
    lse            new, f32 [b, h_q, s_q], natural log; a token that sees no key has out 0 and lse +inf

    Raises ValueError (shapes, strides, devices, lengths beyond the table, bad page ids), TypeError (dtypes, int64
    lengths or tables, a bool for a number or the reverse), AssertionError (a FlashMLASchedMeta of another
    configuration, or given together with num_splits), NotImplementedError naming the argument (is_fp8_kvcache and everything sparse).
    """
    if not (isinstance(q, Tensor) and isinstance(k_cache, Tensor)):
        _require_tensors(q=q, k_cache=k_cache)
    # True and False are told first: a call takes microseconds
    if is_fp8_kvcache is not False and is_fp8_kvcache is not None:
        is_fp8_kvcache = as_bool("is_fp8_kvcache", is_fp8_kvcache, f": {_POSITIONS}")
    if causal is not True and causal is not False:
        causal = as_bool("causal", causal, f": {_POSITIONS}")
    if enable_batch_invariant is not False:
        enable_batch_invariant = as_bool("enable_batch_invariant", enable_batch_invariant)
    if type(softmax_scale) is not float:
        softmax_scale = _scale(q, softmax_scale)
    if (
        is_fp8_kvcache
        or indices is not None
        or extra_k_cache is not None
        or extra_indices_in_kvcache is not None
        or topk_length is not None
        or extra_topk_length is not None
    ):
        for name, value in (
            ("indices", indices),
            ("is_fp8_kvcache", is_fp8_kvcache),
            ("extra_k_cache", extra_k_cache),
            ("extra_indices_in_kvcache", extra_indices_in_kvcache),
            ("topk_length", topk_length),
            ("extra_topk_length", extra_topk_length),
        ):
            if value is not None and value is not False:
                raise NotImplementedError(
                    f"{name} is not implemented: only dense attention over a bf16 or f16 cache is"
                )
    if block_table is None or cache_seqlens is None:
        name = "block_table" if block_table is None else "cache_seqlens"
        raise TypeError(f"{name} may be None only when indices is given")
    if k_cache.dtype is not q.dtype and k_cache.dtype in _EIGHT_BIT:
        raise NotImplementedError(
            f"k_cache has dtype {k_cache.dtype}, must be that of q, float16 or bfloat16: 8-bit caches are not implemented"
        )
    meta = None
    if isinstance(tile_scheduler_metadata, FlashMLASchedMeta):
        assert num_splits is None, "num_splits must be None when tile_scheduler_metadata is a FlashMLASchedMeta"
        meta = tile_scheduler_metadata
        tile_scheduler_metadata, num_splits = _schedule(meta, q, k_cache, cache_seqlens, causal)
    elif (tile_scheduler_metadata is None) != (num_splits is None):
        raise TypeError("tile_scheduler_metadata and num_splits must both be tensors or both be None")
    result = _ops.decoder(q)(
        q,
        k_cache,
        block_table,
        cache_seqlens,
        head_dim_v,
        tile_scheduler_metadata,
        num_splits,
        softmax_scale,
        causal,
        attn_sink,
        enable_batch_invariant,
    )
    if meta is not None:
        meta.have_initialized = True  # a call that failed leaves it as it was
    return result


def _require_tensors(**arguments):
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, not {type(value).__name__}")


def _scale(q, softmax_scale):
    if softmax_scale is None:
        return max(q.shape[-1], 1) ** -0.5
    number = hasattr(softmax_scale, "__float__") or hasattr(softmax_scale, "__index__")
    if not number or isinstance(softmax_scale, (bool, Tensor)):
        raise TypeError(f"softmax_scale must be a number, not a {type(softmax_scale).__name__}: {_POSITIONS}")
    try:
        return float(softmax_scale)
    except OverflowError:
        raise ValueError("softmax_scale does not fit in float32") from None


def _schedule(meta, q, k_cache, cache_seqlens, causal):
    """Fills an empty FlashMLASchedMeta or compares a full one; returns its tensors."""
    if q.dim() != 4 or k_cache.dim() != 4:
        name, tensor = ("q", q) if q.dim() != 4 else ("k_cache", k_cache)
        raise ValueError(f"{name} has {tensor.dim()} dimensions, must have 4")
    b, s_q, h_q, _ = q.shape
    _, page_block_size, h_k, _ = k_cache.shape
    config = (b, s_q, h_q, page_block_size, h_k, causal, False, None, None, None)
    if not meta.have_initialized:
        meta.tile_scheduler_metadata, meta.num_splits = _ops.metadata(
            cache_seqlens, max(s_q * h_q // max(h_k, 1), 1), max(h_k, 1)
        )
        meta.config = FlashMLASchedMeta.Config(*config)
    elif meta.config != config:
        name, old, new = next(three for three in zip(meta.config._fields, meta.config, config) if three[1] != three[2])
        raise AssertionError(
            f"the FlashMLASchedMeta was made for {name} = {old}, this call has {new}; "
            "make a new one with get_mla_metadata()"
        )
    return meta.tile_scheduler_metadata, meta.num_splits


# ---- prefill ---------------------------------------------------------------------------------------------------------


def flash_mla_sparse_fwd(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: Optional[Tensor] = None,
    topk_length: Optional[Tensor] = None,
):
    """Sparse prefill. Raises NotImplementedError: `indices` is not implemented."""
    raise NotImplementedError("indices (sparse attention) is not implemented")


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_qo: Tensor,
    cu_seqlens_kv: Tensor,
    max_seqlen_qo: Optional[int] = None,
    max_seqlen_kv: Optional[int] = None,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> Tuple[Tensor, Tensor]:
    """Dense prefill over sequences laid end to end; returns (out, lse). Forward only.

    q              bf16, f16 or f32 [n_token, h_q, d], last stride 1
    k, v           [n_row, h_k, d] and [n_row, h_k, d_v]; h_q % h_k == 0; any d and d_v
    cu_seqlens_qo, cu_seqlens_kv   int32 [n_seq + 1]: sequence i has tokens cu_seqlens_qo[i] to cu_seqlens_qo[i + 1]
    max_seqlen_qo, max_seqlen_kv, is_varlen   ignored
    dropout_p, deterministic   must be 0 and False (AssertionError)
    softmax_scale  default 1 / sqrt(d)
    causal         aligned at the bottom right of each sequence
    out            new, dtype of q [n_token, h_q, d_v]
    lse            new, f32 [n_token, h_q], natural log; a token that sees no key has out 0 and lse +inf

    Raises as flash_mla_with_kvcache does.
    """
    _require_tensors(q=q, v=v)
    assert dropout_p == 0.0, f"dropout_p = {dropout_p} must be 0"
    deterministic = as_bool("deterministic", deterministic)
    assert not deterministic, "deterministic must be False (the result always is: it has no backward)"
    causal = as_bool("causal", causal)
    return _ops.varlen(q, k, v, cu_seqlens_qo, cu_seqlens_kv, _scale(q, softmax_scale), causal)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: Optional[int],
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> Tuple[Tensor, Tensor]:
    """`flash_attn_varlen_func` with q, k, v side by side in the last dim: qkv [n_token, h, 2 * head_dim_qk + d_v]."""
    return flash_attn_varlen_func(
        qkv[..., :head_dim_qk],
        qkv[..., head_dim_qk : 2 * head_dim_qk],
        qkv[..., 2 * head_dim_qk :],
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        deterministic,
        is_varlen,
    )


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_qo: Tensor,
    cu_seqlens_kv: Tensor,
    max_seqlen_qo: Optional[int],
    max_seqlen_kv: Optional[int],
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> Tuple[Tensor, Tensor]:
    """`flash_attn_varlen_func` with k and v side by side in the last dim: kv [n_row, h_k, head_dim_qk + d_v]."""
    return flash_attn_varlen_func(
        q,
        kv[..., :head_dim_qk],
        kv[..., head_dim_qk:],
        cu_seqlens_qo,
        cu_seqlens_kv,
        max_seqlen_qo,
        max_seqlen_kv,
        dropout_p,
        softmax_scale,
        causal,
        deterministic,
        is_varlen,
    )
