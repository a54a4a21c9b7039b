"""DeepSeek's flash_mla interface on any CPU and on NVIDIA GPUs, for torch tensors.

    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

A drop-in for both conventions of the original: the metadata tensors of 2025 and the FlashMLASchedMeta object of 2026.
Where the original is limited (one GPU generation, page size 64, dims 576/512), this one is not. Forward only: outputs
never require grad.
"""

from mla import version as _version
from mla._torch import need_torch as _need_torch

_need_torch("flash_mla")

from .flash_mla_interface import (
    FlashMLASchedMeta,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    get_mla_metadata,
    set_metadata_style,
)

__version__ = _version()

__all__ = [
    "FlashMLASchedMeta",
    "__version__",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "get_mla_metadata",
    "set_metadata_style",
]
