"""Multi-head latent attention on any CPU and on NVIDIA GPUs, for NumPy, torch and every other array that speaks DLPack.

    import mla
    out, lse = mla.attention(q, k_cache, page_table=table, lengths=lengths, d_v=512, softmax_scale=0.1, causal=True)

Arrays are read where they are: nothing is copied, inputs are never written, and the GIL is released while computing.
`mla.attention` maps one to one to the library's `mla_problem`; the package `flash_mla` is the drop-in for DeepSeek's
interface on top of the same library.
"""

from . import _core
from ._attention import Segment, Visible, attention, compressed, window
from ._formats import hif8_decode, hif8_dequantize, hif8_encode, hif8_quantize, nd_to_nz, nz_to_nd
from ._machine import Isa, Kernel, isa, kernels, set_isa, threads, version
from ._merge import merge_states

__version__ = _core.version()

__all__ = [
    "Isa",
    "Kernel",
    "Segment",
    "Visible",
    "__version__",
    "attention",
    "compressed",
    "hif8_decode",
    "hif8_dequantize",
    "hif8_encode",
    "hif8_quantize",
    "isa",
    "kernels",
    "merge_states",
    "nd_to_nz",
    "nz_to_nd",
    "set_isa",
    "threads",
    "version",
    "window",
]
