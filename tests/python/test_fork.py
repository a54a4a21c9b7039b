"""A child of fork() has one thread; the OpenMP run time it inherits would wait for the others for ever."""

import os
import signal
import time

import numpy as np
import mla


def attend(n_thread):
    rng = np.random.default_rng(1)
    q = rng.standard_normal((4, 1, 16, 64), dtype=np.float32)
    k = rng.standard_normal((4, 3000, 1, 64), dtype=np.float32)
    return mla.attention(q, k, d_v=64, softmax_scale=0.1, n_thread=n_thread)[0]


def test_a_forked_child_can_call():
    expected = attend(2)  # the parent's threads exist from here on
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(attend(2), expected) else 1)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")
