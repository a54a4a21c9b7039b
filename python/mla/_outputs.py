"""New output arrays, of the library that the queries came from."""

import sys

from . import _core

_TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def empty_like_library(q, shape, dtype, u16_is_bf16):
    """An uninitialised array where q is: torch's if q is, else NumPy's. dtype: "f32", "f16", "bf16"; None: as q."""
    if dtype is not None and dtype not in _TORCH_NAMES:
        raise ValueError(f"out_dtype = {dtype!r} must be one of 'f32', 'f16', 'bf16'")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(q, torch.Tensor):
        return q.new_empty(shape, dtype=None if dtype is None else getattr(torch, _TORCH_NAMES[dtype]))
    import numpy

    return numpy.empty(shape, _numpy_dtype(numpy, q, dtype, u16_is_bf16))


def _numpy_dtype(numpy, q, dtype, u16_is_bf16):
    own = q.dtype if isinstance(q, numpy.ndarray) else None
    if dtype is None:
        if own is not None:
            return own
        _, dtype = _core.describe(q, "q", u16_is_bf16)  # another library's: it need not have a dtype that NumPy knows
    if dtype == "f32":
        return numpy.float32
    if dtype == "f16":
        return numpy.float16
    if dtype != "bf16":
        raise TypeError(f"q.dtype = {dtype} must be f32, f16 or bf16")
    if str(own) in ("bfloat16", "uint16"):
        return own  # bfloat16 stays what the caller calls it: ml_dtypes.bfloat16, or its bits
    if own is None and u16_is_bf16:
        return numpy.uint16
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise ValueError(
            "an out of bf16 needs the package ml_dtypes (or give out= as a uint16 array and dtype='bf16')"
        ) from None
    return bfloat16


def codes_like_library(x, shape):
    """An uninitialised uint8 array on the CPU: torch's if x is, else NumPy's."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.new_empty(shape, dtype=torch.uint8)
    import numpy

    return numpy.empty(shape, numpy.uint8)


_NUMPY_NAMES = {"i8": "int8", "u8": "uint8", "i32": "int32", "i64": "int64"}


def same_like_library(x, shape):
    """An uninitialised array of x's own dtype, whatever it is: torch's if x is, else NumPy's."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.new_empty(shape)
    import numpy

    if isinstance(x, numpy.ndarray):
        return numpy.empty(shape, x.dtype)
    _, dtype = _core.describe(x, "x", True)
    if dtype in _NUMPY_NAMES:
        return numpy.empty(shape, _NUMPY_NAMES[dtype])
    return numpy.empty(shape, _numpy_dtype(numpy, x, dtype, True))
