"""What this machine and this build of libmla can do."""

from typing import List, NamedTuple, Optional

from . import _core


class Isa(NamedTuple):
    """A level of instruction set that kernels were compiled for."""

    name: str
    usable: bool  # this machine can run it
    selected: bool  # kernels of this level are in use


class Kernel(NamedTuple):
    """One kernel of one level."""

    name: str
    kind: str  # "load", "qk", "softmax", "pv", ...
    isa: str
    selected: bool


def version() -> str:
    """The version of the library in use, for instance "0.1.0"."""
    return _core.version()


def threads() -> int:
    """How many threads a call without n_thread takes at most, now: what OMP_NUM_THREADS or the last call that told OpenMP
    (torch.set_num_threads() is one) says; else as many as there are CPUs that the process may run on and that a CPU quota of
    its container grants. Small problems take fewer.
    """
    return _core.threads()


def isa() -> List[Isa]:
    """The levels compiled in, from low to high."""
    return [Isa(*row) for row in _core.isa()]


def kernels() -> List[Kernel]:
    """The kernels of all levels compiled in."""
    return [Kernel(*row) for row in _core.kernels()]


def set_isa(name: Optional[str]) -> None:
    """Caps the level of instruction set for the whole process: "scalar", "avx2", ...; None lifts the cap (the
    environment variable MLA_ISA then counts again).

    Raises ValueError for a level that is unknown, not compiled in or not usable on this machine. Not meant to be called
    while other threads compute.
    """
    _core.set_isa(name)
