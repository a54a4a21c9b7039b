"""Where work on a GPU goes: the stream, and memory for the library's workspace."""

import sys


def launch_of(array, stream=None):
    """(stream, gpu) for _core: torch's current stream on the tensor's GPU, unless one is given, and the number of that
    GPU, where torch's caching allocator then gives workspace. On the CPU, (None, None); arrays of other libraries,
    (stream, None): libmla then allocates in the order of the stream."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor) or not array.is_cuda:
        return stream, None
    gpu = array.get_device()
    current = torch._C._cuda_getCurrentRawStream(gpu)
    if stream is not None and stream != current:
        return stream, None  # torch's memory is safe to reuse on its current stream alone
    return current, gpu


def allocate(n_byte, gpu):
    """Workspace on a GPU (-1: on the CPU), where torch cannot be asked from C, or has refused."""
    import torch

    return torch.empty(n_byte, dtype=torch.uint8, device=torch.device("cuda", gpu) if gpu >= 0 else "cpu")
