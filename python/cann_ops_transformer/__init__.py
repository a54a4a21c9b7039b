"""CANN's quant_sparse_flash_mla for torch tensors, without an NPU.

    import cann_ops_transformer
    metadata = torch.ops.cann_ops_transformer.quant_sparse_flash_mla_metadata(...)
    out, lse = torch.ops.cann_ops_transformer.quant_sparse_flash_mla(q, 1, ori_kv=ori_kv, ..., metadata=metadata)

Importing the package registers both operators under the names that callers of CANN use; the functions below are the
same with their documentation. HiFloat8 tensors are torch.uint8, as torch has no such type: `mla.hif8_encode` and
`mla.hif8_decode` convert. On the CPU or an NVIDIA GPU; forward only.
"""

from mla import version as _version
from mla._torch import need_torch as _need_torch

_need_torch("cann_ops_transformer")

from ._ops import quant_sparse_flash_mla, quant_sparse_flash_mla_metadata

__version__ = _version()

__all__ = ["__version__", "quant_sparse_flash_mla", "quant_sparse_flash_mla_metadata"]
