"""Run with the built packages on PYTHONPATH: `make test`, or

    make python && PYTHONPATH=build/python build/venv/bin/python -m pytest tests/python

MLA_TEST_FULL=1 adds the whole dense matrix (an hour) to the reduced one.
"""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """Every test draws the same numbers, whatever ran before it."""
    torch.manual_seed(20250221)
