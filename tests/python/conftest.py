"""Run with the built packages on PYTHONPATH: `make test`, or

    make python build/venv/ready-for-tests && PYTHONPATH=build/python build/venv/bin/python -m pytest tests/python

MLA_TEST_FULL=1 adds the whole dense matrix (an hour) to the reduced one.
"""

import os

# Idle OpenMP threads sleep instead of spin: these tests are thousands of tiny parallel regions, and on a machine that
# does anything else besides, spinning makes them ten times slower. Read when OpenMP is loaded, so set before torch is.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """Every test draws the same numbers, whatever ran before it."""
    torch.manual_seed(20250221)
