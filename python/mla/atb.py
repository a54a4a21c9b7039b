"""ATB's multi-head latent attention for torch tensors, on the CPU or an NVIDIA GPU, without an NPU.

    import mla.atb
    out = torch.ops.atb.npu_multi_head_latent_attention(q_nope, q_rope, ctkv, k_rope, block_tables, context_lens, ...)

Importing the module registers the operator under the name that callers of the Ascend binding use, with its overloads
`default`, `out` and `lse`. The function `npu_multi_head_latent_attention` of this module is the same for eager callers.
Semantics and limits are those of AtbMLA: see mla/atb_mla.h.
"""

from typing import Optional, Sequence, Tuple, Union

from ._torch import need_torch

need_torch("mla.atb")

import torch
from torch import Tensor

from . import _core
from ._flags import as_bool
from ._launch import launch_of

__all__ = ["npu_multi_head_latent_attention"]

_HEAD_DIM = 512
# The words of each mode and their numbers in the C interface; the first is the default.
_MODES = {
    "mask_type": {"undefined": 0, "mask_type_spec": 1, "mask_type_free": 2},
    "calc_type": {
        "calc_type_undefined": 0,
        "calc_type_spec": 1,
        "calc_type_ring": 2,
        "calc_type_spec_and_ring": 3,
    },
    "cache_mode": {"krope_ctkv": 1, "int8_nzcache": 2, "nzcache": 3},
}


def npu_multi_head_latent_attention(
    q_nope: Tensor,
    q_rope: Tensor,
    ctkv: Tensor,
    k_rope: Tensor,
    block_tables: Tensor,
    context_lens: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    *,
    mask: Optional[Tensor] = None,
    qseqlen: Optional[Sequence[int]] = None,
    qk_descale: Optional[Tensor] = None,
    pv_descale: Optional[Tensor] = None,
    mask_type: Optional[str] = None,
    calc_type: Optional[str] = None,
    cache_mode: Optional[str] = None,
    output: Optional[Tensor] = None,
    return_lse: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Decode attention over a paged latent cache in blocks of 128 tokens; returns output, or (output, lse).

    q_nope        bf16 or f16, with "int8_nzcache" int8 [T, H, 512]; H is 8, 16, 32, 64 or 128
    q_rope        bf16 or f16 [T, H, 64]
    ctkv, k_rope  by cache_mode: "krope_ctkv" (default) [blocks, 128, 1, 512] and [blocks, 128, 1, 64];
                  "nzcache" [blocks, 32, 128, 16] and [blocks, 4, 128, 16];
                  "int8_nzcache" int8 [blocks, 16, 128, 32] and bf16 or f16 [blocks, 4, 128, 16]
    block_tables  int32 [B, max_block]
    context_lens  B integers: keys per sequence
    q_headnum, qk_scale, kv_headnum
                  H; multiplies the scores, in (0, 1]; 1
    mask          dtype of q_rope; for mask_type "mask_type_spec" [T, max_key], added to the scaled scores; for
                  "mask_type_free" a template [125 + 2 q, 128] or one per sequence
    qseqlen       B integers: query tokens per sequence; for calc_type "calc_type_spec" and "calc_type_spec_and_ring"
    qk_descale, pv_descale
                  f32 [H], with "int8_nzcache"
    calc_type     "calc_type_undefined" (default), "calc_type_spec", "calc_type_ring", "calc_type_spec_and_ring"
    output        dtype of q_rope [T, H, 512], written and returned; default: a new tensor
    return_lse    with a ring calc_type: return lse too, natural log, [T, H, 1] in the dtype of q_rope, with
                  "int8_nzcache" f32; a row without keys has output 0 and lse -inf

    Raises RuntimeError with a sentence and ATB's number for what AtbMLA refuses; ValueError for an unknown word or
    return_lse without a ring; TypeError for what is no tensor or no integer.
    """
    arguments = (q_nope, q_rope, ctkv, k_rope, block_tables, context_lens, q_headnum, qk_scale, kv_headnum)
    options = {
        "mask": mask,
        "qseqlen": qseqlen,
        "qk_descale": qk_descale,
        "pv_descale": pv_descale,
        "mask_type": mask_type,
        "calc_type": calc_type,
        "cache_mode": cache_mode,
    }
    operator = torch.ops.atb.npu_multi_head_latent_attention
    return_lse = as_bool("return_lse", return_lse)
    if return_lse and output is not None:
        raise ValueError("return_lse and output exclude each other")
    if return_lse:
        return operator.lse(*arguments, return_lse=True, **options)
    if output is not None:
        return operator.out(*arguments, output=output, **options)
    return operator.default(*arguments, **options)


# ---- the overloads ---------------------------------------------------------------------------------------------------
# The dispatcher hands over the positional arguments of the schema in place, and of the others those that were given.


def _number(options, name):
    """The number of a mode's word; None is the default."""
    known, word = _MODES[name], options.get(name)
    if word is None:
        return next(iter(known.values()))
    if word not in known:
        raise ValueError(f"{name} = {word!r} must be one of {', '.join(map(repr, known))}")
    return known[word]


def _is_ring(options):
    return _number(options, "calc_type") in (2, 3)


def _check_words(options):
    for name in _MODES:
        _number(options, name)


def _new_output(q_nope, q_rope):
    if q_nope.dim() != 3:
        raise RuntimeError(f"q_nope has {q_nope.dim()} dimensions, must have 3: [T][H][512] (ATB error 16)")
    return q_rope.new_empty((q_nope.shape[0], q_nope.shape[1], _HEAD_DIM))


def _new_lse(q_nope, q_rope, options):
    int8 = _number(options, "cache_mode") == 2
    shape = (q_nope.shape[0], q_nope.shape[1], 1)
    return q_rope.new_empty(shape, dtype=torch.float32 if int8 else q_rope.dtype)


def _compute(arguments, options, output, lse):
    q_nope, q_rope, ctkv, k_rope, block_tables, context_lens, q_headnum, qk_scale, kv_headnum = arguments
    if lse is None and _is_ring(options):
        lse = _new_lse(q_nope, q_rope, options)  # a ring operation always has it; here nobody asked for it
    _core.atb_decode(
        q_nope,
        q_rope,
        ctkv,
        k_rope,
        block_tables,
        options.get("mask"),
        options.get("qk_descale"),
        options.get("pv_descale"),
        output,
        lse,
        context_lens,
        options.get("qseqlen"),
        q_headnum,
        qk_scale,
        kv_headnum,
        *(_number(options, name) for name in _MODES),
        *launch_of(q_nope),
    )


def _default_run(*arguments, **options):
    output = _default_fake(*arguments, **options)
    _compute(arguments, options, output, None)
    return output


def _default_fake(q_nope, q_rope, *_, **options):
    _check_words(options)
    return _new_output(q_nope, q_rope)


def _out(*arguments, output, **options):
    if type(output) is Tensor and (output.is_cpu or output.is_cuda):
        _check_words(options)
        _compute(arguments, options, output, None)
        return output
    # torch.compile has no way to see an operator of ours return its argument, but it sees through this one.
    return output.copy_(torch.ops.atb.npu_multi_head_latent_attention.default(*arguments, **options))


def _lse_run(*arguments, **options):
    output, lse = _lse_fake(*arguments, **options)
    _compute(arguments, options, output, lse)
    return output, lse


def _lse_fake(q_nope, q_rope, *_, return_lse, **options):
    _check_words(options)
    if not return_lse:
        raise ValueError("return_lse = False: leave it out, for with it two tensors are returned")
    if not _is_ring(options):
        raise ValueError("return_lse needs calc_type 'calc_type_ring' or 'calc_type_spec_and_ring'")
    return _new_output(q_nope, q_rope), _new_lse(q_nope, q_rope, options)


# ---- registration ----------------------------------------------------------------------------------------------------

_library = torch.library.Library("atb", "FRAGMENT")


_ARGUMENTS = (
    "Tensor q_nope, Tensor q_rope, Tensor ctkv, Tensor k_rope, Tensor block_tables, SymInt[] context_lens, "
    "int q_headnum, float qk_scale, int kv_headnum, *, Tensor? mask=None, SymInt[]? qseqlen=None, "
    "Tensor? qk_descale=None, Tensor? pv_descale=None, str? mask_type=None, str? calc_type=None, str? cache_mode=None"
)
_NAME = "npu_multi_head_latent_attention"

for _overload, _more, _implementation, _shape_rule in (
    ("", ") -> Tensor", _default_run, _default_fake),
    (".lse", ", bool return_lse) -> (Tensor, Tensor)", _lse_run, _lse_fake),
):
    _library.define(f"{_NAME}{_overload}({_ARGUMENTS}{_more}", tags=(torch.Tag.pt2_compliant_tag,))
    for _key in ("CPU", "CUDA"):
        _library.impl(_NAME + _overload, _implementation, _key)
    # Forward only: nothing is recorded.
    _library.impl(_NAME + _overload, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"atb::{_NAME}{_overload}", _shape_rule, lib=_library)

_library.define(f"{_NAME}.out({_ARGUMENTS}, Tensor(a!) output) -> Tensor(a!)", tags=(torch.Tag.pt2_compliant_tag,))
_library.impl(f"{_NAME}.out", _out, "CompositeImplicitAutograd")
