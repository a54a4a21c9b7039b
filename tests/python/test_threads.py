"""Who decides how many threads a call takes, and what more threads than work cost."""

import os
import subprocess
import sys

import mla
import numpy as np
import pytest
import torch

CPUS = sorted(os.sched_getaffinity(0))


def threads_of(environment=None, cpus=None):
    """mla.threads() in a process of its own."""
    told = subprocess.run([sys.executable, "-c", "import mla; print(mla.threads())"], capture_output=True, text=True, check=True,
                          env={**{k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}, **(environment or {})},
                          preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None)
    return int(told.stdout)


def test_the_environment_decides():
    assert [threads_of({"OMP_NUM_THREADS": str(n)}) for n in (1, 3)] == [1, 3]


def test_affinity_decides():
    assert threads_of(cpus=CPUS[:1]) == 1
    assert 1 <= threads_of(cpus=CPUS) <= len(CPUS)
    assert threads_of({"OMP_NUM_THREADS": "3"}, CPUS[:1]) == 3, "what is said counts more than what is found"


def test_frameworks_decide():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert mla.threads() == 3 or len(CPUS) == 3
        torch.set_num_threads(1)
        assert mla.threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("n_thread", [1, 2, 16, 1000])
def test_more_threads_than_work_change_nothing(n_thread):
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((1, 1, 1, 576), dtype=np.float32), rng.standard_normal((1, 64, 1, 576), dtype=np.float32)
    out, lse = mla.attention(q, k, d_v=512, softmax_scale=0.1, n_thread=n_thread)
    alone, alone_lse = mla.attention(q, k, d_v=512, softmax_scale=0.1, n_thread=1)
    assert np.array_equal(out, alone) and np.array_equal(lse, alone_lse)
    assert len(os.listdir("/proc/self/task")) < 900, "threads were started for one row of 64 keys"
