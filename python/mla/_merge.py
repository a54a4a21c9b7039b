"""Results over parts of the keys become one."""

from typing import Any, Optional, Sequence, Tuple

from . import _core
from ._attention import _LSE_BASE, _LSE_EMPTY, _choose, _shape
from ._outputs import empty_like_library


def merge_states(
    o_parts: Sequence[Any],
    lse_parts: Sequence[Any],
    *,
    out: Any = None,
    lse: Any = None,
    out_dtype: Optional[str] = None,
    lse_base: str = "e",
    lse_empty: str = "+inf",
    dtype: Optional[str] = None,
) -> Tuple[Any, Any]:
    """Joins attention of the same queries over disjoint parts of the keys (ring attention, a shared prefix) into the
    result over all of them; returns (out, lse).

        lse = log(sum_i exp(lse_parts[i]))        out = sum_i exp(lse_parts[i] - lse) * o_parts[i]

        o_parts    arrays [..., d] of one shape, 2 to 6 dims; f32, f16 or bf16, any strides
        lse_parts  as many arrays [...], f32 (16 bits are few for this), any strides
        out, lse   given: written there, `out` possibly in place of one of o_parts, `lse` of one of lse_parts; else new,
                   of the library of o_parts[0]; lse f32, out of out_dtype or of the dtype of o_parts[0]
        lse_base   "e" or "2"
        lse_empty  lse of a row without keys, whose out is 0: "+inf", "-inf" or "0". A part whose lse is this, or
                   infinite at all, is left out, NaN in its o or not
        dtype      "bf16": arrays of uint16 hold the bits of bfloat16

    Parts are added in order, in fp64. A sink joins one part at most, with lse_with_sink=True.
    Raises ValueError and TypeError as `mla.attention` does.
    """
    if dtype not in (None, "bf16"):
        raise ValueError(f"dtype = {dtype!r} must be None or 'bf16'")
    u16_is_bf16 = dtype is not None
    o_parts, lse_parts = tuple(o_parts), tuple(lse_parts)
    if len(o_parts) != len(lse_parts):
        raise ValueError(f"o_parts has {len(o_parts)} parts, lse_parts has {len(lse_parts)}")
    if not o_parts:
        raise ValueError("o_parts is empty; there must be at least one part")
    shape = _shape("o_parts[0]", o_parts[0], u16_is_bf16)
    if out is None:
        out = empty_like_library(o_parts[0], shape, out_dtype, u16_is_bf16)
    elif out_dtype is not None:
        raise ValueError("out_dtype is for a new out; the one given has its own dtype")
    if lse is None:
        lse = empty_like_library(o_parts[0], shape[:-1], "f32", u16_is_bf16)
    _core.merge_states(
        o_parts,
        lse_parts,
        _choose("lse_base", lse_base, _LSE_BASE),
        _choose("lse_empty", lse_empty, _LSE_EMPTY),
        out,
        lse,
        u16_is_bf16,
    )
    return out, lse
