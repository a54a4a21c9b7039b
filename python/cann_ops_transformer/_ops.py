"""The two operators: what callers see, what runs, what torch.compile sees, and their registration."""

from typing import Optional, Tuple

import torch
from mla import _core
from mla._launch import launch_of
from torch import Tensor

_METADATA_WORDS = 1024


def quant_sparse_flash_mla(
    q: Tensor,
    quant_mode: int,
    *,
    ori_kv: Optional[Tensor] = None,
    cmp_kv: Optional[Tensor] = None,
    q_descale: Optional[Tensor] = None,
    ori_kv_descale: Optional[Tensor] = None,
    cmp_kv_descale: Optional[Tensor] = None,
    ori_sparse_indices: Optional[Tensor] = None,
    cmp_sparse_indices: Optional[Tensor] = None,
    ori_block_table: Optional[Tensor] = None,
    cmp_block_table: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_ori_kv: Optional[Tensor] = None,
    cu_seqlens_cmp_kv: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_ori_kv: Optional[Tensor] = None,
    seqused_cmp_kv: Optional[Tensor] = None,
    cmp_residual_kv: Optional[Tensor] = None,
    ori_topk_length: Optional[Tensor] = None,
    cmp_topk_length: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None,
    metadata: Optional[Tensor] = None,
    softmax_scale: Optional[float] = 1.0,
    cmp_ratio: Optional[int] = 1,
    ori_mask_mode: int = 0,
    cmp_mask_mode: int = 0,
    ori_win_left: int = -1,
    ori_win_right: int = -1,
    layout_q: str = "BSND",
    layout_kv: str = "BSND",
    topk_value_mode: int = 1,
    return_softmax_lse: bool = False,
) -> Tuple[Tensor, Tensor]:
    """Attention over a window of raw keys and, together with it, over compressed keys, all in HiFloat8.

    B sequences, N1 = 1..128 query heads, one kv head, D = 512, keys are values. i32 tensors are torch.int32, descales
    and sinks torch.float32, and q, ori_kv and cmp_kv torch.uint8 that hold HiFloat8.

    q                [B, S1, N1, D] (layout_q "BSND") or [T1, N1, D] ("TND")
    quant_mode       1: one descale per tensor
    ori_kv, cmp_kv   [B, S2, 1, D], [B, S3, 1, D] (layout_kv "BSND"); [T2, 1, D], [T3, 1, D] ("TND"); or blocks
                     [n_block, block_size, 1, D] ("PA_BBND", block_size 1..1024); without cmp_kv only the window counts
    *_descale        [1]; a stored value times its descale is the value meant
    *_sparse_indices i32 [B, S1, 1, K] or [T1, 1, K]: the keys a token attends to, -1 ends the list
    *_block_table    i32 [B, max_block], with PA_BBND
    cu_seqlens_*     i32 [B + 1], with TND: where sequences begin
    seqused_*        i32 [B]: valid tokens per sequence, replaces what the shape says
    cmp_residual_kv  i32 [B]: tokens not compressed yet; absent: 0
    *_topk_length    i32 [B, S1, 1] or [T1, 1]: entries of the list in use
    sinks            [N1]: an extra logit per head, with value 0
    metadata         i32 [1024] of quant_sparse_flash_mla_metadata; a hint: whatever it holds, the result is right
    softmax_scale    multiplies the scores; None: 1
    cmp_ratio        1..128: tokens per compressed key; None: 1
    ori_mask_mode    0 none, 3 causal (bottom right), 4 a window of ori_win_left tokens before and ori_win_right tokens
                     after the token's own position, -1 for no limit
    cmp_mask_mode    0 none, 3 causal

    Returns attention, bfloat16 in the shape of q, and the natural log-sum-exp, float32 [B, 1, S1, N1] or [1, T1, N1],
    or a zero of shape [1] unless return_softmax_lse. A token that sees no key has 0 in both.

    Raises ValueError, TypeError or NotImplementedError with a sentence that names the argument.
    """
    return torch.ops.cann_ops_transformer.quant_sparse_flash_mla.default(
        q,
        quant_mode,
        ori_kv=ori_kv,
        cmp_kv=cmp_kv,
        q_descale=q_descale,
        ori_kv_descale=ori_kv_descale,
        cmp_kv_descale=cmp_kv_descale,
        ori_sparse_indices=ori_sparse_indices,
        cmp_sparse_indices=cmp_sparse_indices,
        ori_block_table=ori_block_table,
        cmp_block_table=cmp_block_table,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_ori_kv=cu_seqlens_ori_kv,
        cu_seqlens_cmp_kv=cu_seqlens_cmp_kv,
        seqused_q=seqused_q,
        seqused_ori_kv=seqused_ori_kv,
        seqused_cmp_kv=seqused_cmp_kv,
        cmp_residual_kv=cmp_residual_kv,
        ori_topk_length=ori_topk_length,
        cmp_topk_length=cmp_topk_length,
        sinks=sinks,
        metadata=metadata,
        softmax_scale=softmax_scale,
        cmp_ratio=cmp_ratio,
        ori_mask_mode=ori_mask_mode,
        cmp_mask_mode=cmp_mask_mode,
        ori_win_left=ori_win_left,
        ori_win_right=ori_win_right,
        layout_q=layout_q,
        layout_kv=layout_kv,
        topk_value_mode=topk_value_mode,
        return_softmax_lse=return_softmax_lse,
    )


def quant_sparse_flash_mla_metadata(
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    quant_mode: int,
    *,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_ori_kv: Optional[Tensor] = None,
    cu_seqlens_cmp_kv: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_ori_kv: Optional[Tensor] = None,
    seqused_cmp_kv: Optional[Tensor] = None,
    cmp_residual_kv: Optional[Tensor] = None,
    ori_topk_length: Optional[Tensor] = None,
    cmp_topk_length: Optional[Tensor] = None,
    batch_size: int = 0,
    max_seqlen_q: int = 0,
    max_seqlen_ori_kv: int = 0,
    max_seqlen_cmp_kv: int = 0,
    ori_topk: int = 0,
    cmp_topk: int = 0,
    cmp_ratio: int = 1,
    ori_mask_mode: int = 0,
    cmp_mask_mode: int = 0,
    ori_win_left: int = -1,
    ori_win_right: int = -1,
    layout_q: str = "BSND",
    layout_kv: str = "BSND",
    has_ori_kv: bool = True,
    has_cmp_kv: bool = True,
) -> Tensor:
    """The schedule for quant_sparse_flash_mla calls of these shapes and lengths: i32 [1024], opaque.

    The arguments are those of the calls to come; batch_size and max_seqlen_* are needed where no tensor tells them.
    """
    return torch.ops.cann_ops_transformer.quant_sparse_flash_mla_metadata.default(
        num_heads_q,
        num_heads_kv,
        head_dim,
        quant_mode,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_ori_kv=cu_seqlens_ori_kv,
        cu_seqlens_cmp_kv=cu_seqlens_cmp_kv,
        seqused_q=seqused_q,
        seqused_ori_kv=seqused_ori_kv,
        seqused_cmp_kv=seqused_cmp_kv,
        cmp_residual_kv=cmp_residual_kv,
        ori_topk_length=ori_topk_length,
        cmp_topk_length=cmp_topk_length,
        batch_size=batch_size,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_ori_kv=max_seqlen_ori_kv,
        max_seqlen_cmp_kv=max_seqlen_cmp_kv,
        ori_topk=ori_topk,
        cmp_topk=cmp_topk,
        cmp_ratio=cmp_ratio,
        ori_mask_mode=ori_mask_mode,
        cmp_mask_mode=cmp_mask_mode,
        ori_win_left=ori_win_left,
        ori_win_right=ori_win_right,
        layout_q=layout_q,
        layout_kv=layout_kv,
        has_ori_kv=has_ori_kv,
        has_cmp_kv=has_cmp_kv,
    )


# ---- what runs -------------------------------------------------------------------------------------------------------
# The dispatcher hands over keyword arguments that were given; the defaults here are the schema's.

_CALL_TENSORS = (
    "ori_kv",
    "cmp_kv",
    "q_descale",
    "ori_kv_descale",
    "cmp_kv_descale",
    "ori_sparse_indices",
    "cmp_sparse_indices",
    "ori_block_table",
    "cmp_block_table",
    "cu_seqlens_q",
    "cu_seqlens_ori_kv",
    "cu_seqlens_cmp_kv",
    "seqused_q",
    "seqused_ori_kv",
    "seqused_cmp_kv",
    "cmp_residual_kv",
    "ori_topk_length",
    "cmp_topk_length",
    "sinks",
    "metadata",
)


def _attend_run(
    q,
    quant_mode,
    *,
    softmax_scale=1.0,
    cmp_ratio=1,
    ori_mask_mode=0,
    cmp_mask_mode=0,
    ori_win_left=-1,
    ori_win_right=-1,
    layout_q="BSND",
    layout_kv="BSND",
    topk_value_mode=1,
    return_softmax_lse=False,
    **tensors,
):
    out, lse = _attend_outputs(q, layout_q, return_softmax_lse)
    if q.dtype != torch.uint8:
        raise TypeError(f"q has dtype {q.dtype}, must be torch.uint8 that holds HiFloat8")
    _core.quant_sparse_flash_mla(
        q,
        *(tensors.get(name) for name in _CALL_TENSORS),
        quant_mode,
        1 if cmp_ratio is None else cmp_ratio,
        ori_mask_mode,
        cmp_mask_mode,
        ori_win_left,
        ori_win_right,
        topk_value_mode,
        1.0 if softmax_scale is None else softmax_scale,
        layout_q,
        layout_kv,
        out,
        lse if return_softmax_lse else None,
        *launch_of(q),
    )
    return out, lse


def _attend_fake(q, quant_mode, *, layout_q="BSND", return_softmax_lse=False, **_):
    return _attend_outputs(q, layout_q, return_softmax_lse)


def _attend_outputs(q, layout_q, return_softmax_lse):
    dims = {"BSND": 4, "TND": 3}.get(layout_q)
    if dims is None:
        raise ValueError(f"layout_q = {layout_q!r} must be 'BSND' or 'TND'")
    if q.dim() != dims:
        raise ValueError(f"q has {q.dim()} dimensions, must have {dims} with layout_q {layout_q!r}")
    out = q.new_empty(q.shape, dtype=torch.bfloat16)
    if not return_softmax_lse:
        return out, q.new_zeros((1,), dtype=torch.float32)
    tokens_and_heads = q.shape[-3:-1]
    shape = (q.shape[0], 1, *tokens_and_heads) if layout_q == "BSND" else (1, *tokens_and_heads)
    return out, q.new_empty(shape, dtype=torch.float32)


_METADATA_TENSORS = (
    "cu_seqlens_q",
    "cu_seqlens_ori_kv",
    "cu_seqlens_cmp_kv",
    "seqused_q",
    "seqused_ori_kv",
    "seqused_cmp_kv",
    "cmp_residual_kv",
    "ori_topk_length",
    "cmp_topk_length",
)


def _metadata_run(
    num_heads_q,
    num_heads_kv,
    head_dim,
    quant_mode,
    *,
    batch_size=0,
    max_seqlen_q=0,
    max_seqlen_ori_kv=0,
    max_seqlen_cmp_kv=0,
    ori_topk=0,
    cmp_topk=0,
    cmp_ratio=1,
    ori_mask_mode=0,
    cmp_mask_mode=0,
    ori_win_left=-1,
    ori_win_right=-1,
    layout_q="BSND",
    layout_kv="BSND",
    has_ori_kv=True,
    has_cmp_kv=True,
    **tensors,
):
    metadata = _metadata_fake(**tensors)
    stream, _ = launch_of(metadata)
    _core.quant_sparse_flash_mla_metadata(
        *(tensors.get(name) for name in _METADATA_TENSORS),
        num_heads_q,
        num_heads_kv,
        head_dim,
        quant_mode,
        batch_size,
        max_seqlen_q,
        max_seqlen_ori_kv,
        max_seqlen_cmp_kv,
        ori_topk,
        cmp_topk,
        cmp_ratio,
        ori_mask_mode,
        cmp_mask_mode,
        ori_win_left,
        ori_win_right,
        layout_q,
        layout_kv,
        has_ori_kv,
        has_cmp_kv,
        metadata,
        stream,
    )
    return metadata


def _metadata_fake(*_, **tensors):
    for name in _METADATA_TENSORS:
        if tensors.get(name) is not None:
            return tensors[name].new_empty((_METADATA_WORDS,), dtype=torch.int32)
    return torch.empty((_METADATA_WORDS,), dtype=torch.int32)


# ---- registration ----------------------------------------------------------------------------------------------------

_library = torch.library.Library("cann_ops_transformer", "FRAGMENT")


def _register(schema, keys, implementation, shape_rule):
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in keys:
        _library.impl(name, implementation, key)
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # forward only: nothing is recorded
    torch.library.register_fake(f"cann_ops_transformer::{name}", shape_rule, lib=_library)


_register(
    "quant_sparse_flash_mla(Tensor q, int quant_mode, *, "
    + "".join(f"Tensor? {name}=None, " for name in _CALL_TENSORS)
    + "float? softmax_scale=1.0, int? cmp_ratio=1, int ori_mask_mode=0, int cmp_mask_mode=0, int ori_win_left=-1, "
    "int ori_win_right=-1, str layout_q='BSND', str layout_kv='BSND', int topk_value_mode=1, "
    "bool return_softmax_lse=False) -> (Tensor, Tensor)",
    ("CPU", "CUDA"),
    _attend_run,
    _attend_fake,
)
_register(
    "quant_sparse_flash_mla_metadata(SymInt num_heads_q, SymInt num_heads_kv, SymInt head_dim, int quant_mode, *, "
    + "".join(f"Tensor? {name}=None, " for name in _METADATA_TENSORS)
    + "SymInt batch_size=0, SymInt max_seqlen_q=0, SymInt max_seqlen_ori_kv=0, SymInt max_seqlen_cmp_kv=0, "
    "SymInt ori_topk=0, SymInt cmp_topk=0, int cmp_ratio=1, int ori_mask_mode=0, int cmp_mask_mode=0, "
    "int ori_win_left=-1, int ori_win_right=-1, str layout_q='BSND', str layout_kv='BSND', bool has_ori_kv=True, "
    "bool has_cmp_kv=True) -> Tensor",
    # a call may have no tensor at all, whose device would choose the kernel
    ("CompositeExplicitAutograd",),
    _metadata_run,
    _metadata_fake,
)
