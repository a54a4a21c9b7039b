"""Where work on a GPU goes: the stream, and memory for the library's workspace."""

import functools
import sys


def launch_of(array, stream=None):
    """(stream, allocate) for _core: torch's current stream on the tensor's GPU, unless one is given, and a function
    that takes workspace from torch's caching allocator. On the CPU, (None, None); arrays of other libraries,
    (stream, None): libmla then allocates in the order of the stream."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor) or not array.is_cuda:
        return stream, None
    index = array.device.index
    if stream is None:
        stream = torch._C._cuda_getCurrentRawStream(index)
        allocate = functools.partial(_bytes, torch, array.device)
    elif stream == torch._C._cuda_getCurrentRawStream(index):
        allocate = functools.partial(_bytes, torch, array.device)
    else:
        allocate = None  # torch's memory is safe to reuse on its current stream alone
    return stream, allocate


def _bytes(torch, device, n):
    return torch.empty(n, dtype=torch.uint8, device=device)
