"""Where work on a GPU goes: the stream, and memory for the library's workspace."""

import functools
import sys


def launch_of(array, stream=None):
    """(stream, allocate) for _core: torch's current stream on the tensor's GPU, unless one is given, and a function
    that takes workspace from torch's caching allocator, for torch that cannot be asked from C. On the CPU, (None,
    None); arrays of other libraries, (stream, None): libmla then allocates in the order of the stream."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor) or not array.is_cuda:
        return stream, None
    index = array.get_device()
    current = torch._C._cuda_getCurrentRawStream(index)
    if stream is not None and stream != current:
        return stream, None  # torch's memory is safe to reuse on its current stream alone
    return current, _allocator(index)


@functools.lru_cache
def _allocator(index):
    import torch

    return functools.partial(torch.empty, dtype=torch.uint8, device=torch.device("cuda", index))
