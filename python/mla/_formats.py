"""Formats of caches: the numbers of HiFloat8, and the layout FRACTAL_NZ."""

from typing import Any, Optional, Tuple

from . import _core
from ._attention import _choose, _integer, _shape
from ._outputs import codes_like_library, empty_like_library, same_like_library

_MODE = {"round": 0, "saturate": 1}
_ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "i64": 8, "i8": 1, "u8": 1}


def hif8_encode(x: Any, *, mode: str = "round", out: Any = None, dtype: Optional[str] = None) -> Any:
    """The HiFloat8 codes of x, uint8, shape of x.

    HiFloat8 is Ascend's 8-bit float: 3 bits of fraction from 2^-3 to 15, fewer the farther from there, none below
    2^-15; the largest number is 2^15, the least 2^-22. Each x becomes the nearest number; of two equally near, the one
    farther from zero.

        x      f32, f16 or bf16, any shape and strides
        mode   "round": magnitudes of 40960 and more become infinity, NaN stays NaN; "saturate": they become 2^15, and
               NaN 0
        out    uint8, written there; else new, a torch tensor if x is one, else NumPy
        dtype  "bf16": x is uint16, the bits of bfloat16

    Raises ValueError and TypeError as `mla.attention` does.
    """
    u16_is_bf16 = _u16_is_bf16(dtype)
    if out is None:
        out = codes_like_library(x, _shape("x", x, u16_is_bf16))
    _core.hif8_quantize(x, out, 1.0, _choose("mode", mode, _MODE), u16_is_bf16)
    return out


def hif8_decode(codes: Any, *, mode: str = "round", out: Any = None, out_dtype: str = "f32") -> Any:
    """The numbers of HiFloat8 codes (uint8), exactly; shape of codes.

        mode       "round": as they are; "saturate": the codes of infinity give 2^15 with their sign, the one of NaN 0
        out        f32, f16 or bf16, written there; else new, of out_dtype "f32", "f16" or "bf16"

    Raises ValueError and TypeError as `mla.attention` does.
    """
    return hif8_dequantize(codes, 1.0, mode=mode, out=out, out_dtype=out_dtype)


def hif8_quantize(
    x: Any, descale: Optional[float] = None, *, mode: str = "round", out: Any = None, dtype: Optional[str] = None
) -> Tuple[Any, float]:
    """(codes, descale) with x = decode(codes) * descale, as near as HiFloat8 comes; the convention of `mla.attention`
    and of the CANN operators.

        descale   finite and positive; None: the smallest power of two that leaves every |x| / descale below 15.5, where
                  HiFloat8 is most precise (1 for nothing but zeros)

    The other arguments are those of `hif8_encode`.
    """
    u16_is_bf16 = _u16_is_bf16(dtype)
    mode_number = _choose("mode", mode, _MODE)
    if descale is None:
        descale = _core.hif8_find_descale(x, u16_is_bf16)
    if out is None:
        out = codes_like_library(x, _shape("x", x, u16_is_bf16))
    _core.hif8_quantize(x, out, descale, mode_number, u16_is_bf16)
    return out, float(descale)


def hif8_dequantize(
    codes: Any, descale: float, *, mode: str = "round", out: Any = None, out_dtype: str = "f32"
) -> Any:
    """decode(codes) * descale, rounded once; the arguments are those of `hif8_decode`."""
    mode_number = _choose("mode", mode, _MODE)
    if out is None:
        out = empty_like_library(codes, _shape("codes", codes, False), out_dtype, False)
    _core.hif8_dequantize(codes, out, descale, mode_number, str(getattr(out, "dtype", "")) == "uint16")
    return out


def nd_to_nz(x: Any, columns: Optional[int] = None, *, out: Any = None) -> Any:
    """A cache [n_page, page_size, d] or [n_page, page_size, n_kv_head, d] in Ascend's layout FRACTAL_NZ:
    [n_page, n_piece, page_size, columns]. A page holds the first `columns` columns of all its rows, then the next ones
    of all its rows, and so on; heads lie side by side in a row.

        x         any dtype that libmla knows; bytes are moved, not looked at. Last dim contiguous
        columns   must divide the row; None: 32 bytes of elements, as Ascend has it
        out       written there; else new, of x's library and dtype

    Raises ValueError and TypeError as `mla.attention` does.
    """
    shape = _shape("x", x, True)
    if len(shape) not in (3, 4):
        raise ValueError(
            f"x.ndim = {len(shape)} must be 3 or 4: [n_page][page_size][d] or [n_page][page_size][n_kv_head][d]"
        )
    row = shape[2] * (shape[3] if len(shape) == 4 else 1)
    if columns is None:
        columns = 32 // _ITEM_BYTES[_core.describe(x, "x", True)[1]]
    columns = _integer("columns", columns, 1)
    if row % columns != 0:
        raise ValueError(f"columns = {columns} must divide the {row} columns of a row of x")
    if out is None:
        out = same_like_library(x, (shape[0], row // columns, shape[1], columns))
    _core.nd_to_nz(x, out)
    return out


def nz_to_nd(x: Any, n_kv_head: int = 1, *, out: Any = None) -> Any:
    """The way back from `nd_to_nz`: [n_page, n_piece, page_size, columns] to [n_page, page_size, n_kv_head, d], the
    cache of `mla.attention`. Arguments and errors as there."""
    shape = _shape("x", x, True)
    if len(shape) != 4:
        raise ValueError(f"x.ndim = {len(shape)} must be 4: [n_page][n_piece][page_size][columns]")
    n_kv_head = _integer("n_kv_head", n_kv_head, 1)
    row = shape[1] * shape[3]
    if row % n_kv_head != 0:
        raise ValueError(f"n_kv_head = {n_kv_head} must divide the {row} columns of a row of x")
    if out is None:
        out = same_like_library(x, (shape[0], shape[2], n_kv_head, row // n_kv_head))
    _core.nz_to_nd(x, out)
    return out


def _u16_is_bf16(dtype):
    if dtype not in (None, "bf16"):
        raise ValueError(f"dtype = {dtype!r} must be None or 'bf16'")
    return dtype is not None
