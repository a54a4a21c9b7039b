"""New output arrays, of the library that the queries came from."""

import sys

_TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def empty_like_library(q, shape, dtype):
    """An uninitialised array on the CPU. dtype: "f32", "f16", "bf16", or None for that of q."""
    if dtype is not None and dtype not in _TORCH_NAMES:
        raise ValueError(f"out_dtype = {dtype!r} must be one of 'f32', 'f16', 'bf16'")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(q, torch.Tensor):
        return q.new_empty(shape, dtype=None if dtype is None else getattr(torch, _TORCH_NAMES[dtype]))
    import numpy

    return numpy.empty(shape, q.dtype if dtype is None else _numpy_dtype(numpy, q, dtype))


def _numpy_dtype(numpy, q, dtype):
    if dtype == "f32":
        return numpy.float32
    if dtype == "f16":
        return numpy.float16
    if str(q.dtype) in ("bfloat16", "uint16"):
        return q.dtype  # bfloat16 stays what the caller calls it: ml_dtypes.bfloat16, or its bits
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise ValueError(
            "out_dtype = 'bf16' needs the package ml_dtypes (or give out= as a uint16 array and dtype='bf16')"
        ) from None
    return bfloat16
