"""examples/hif8_window.py passes on the recorded layer, and notices what would spoil it."""

import importlib.util
import pathlib
import re
import sys

import mla
import pytest
import torch
from safetensors import safe_open

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "hif8_window.py"


@pytest.fixture
def example(monkeypatch):
    spec = importlib.util.spec_from_file_location("hif8_window", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    return module


def test_passes(example, capsys):
    assert example.main() == 0
    shown = capsys.readouterr().out
    assert shown.endswith("PASSED\n")
    percent = [float(word) for word in re.findall(r"([0-9.]+) %", shown)]
    assert len(percent) == 2 * 3 * 3  # attentions, requests, stages
    assert all(0.1 < value < 100 / 17 for value in percent)


def wrong_descale(x, *args, **options):
    codes, descale = QUANTIZE(x, *args, **options)
    return codes, descale * 1.1


def coarse_scale(x, *args, **options):
    return QUANTIZE(x, 2.0**-12)


QUANTIZE = mla.hif8_quantize


@pytest.mark.parametrize("fault", [wrong_descale, coarse_scale])
def test_notices_a_fault(example, monkeypatch, capsys, fault):
    monkeypatch.setattr(mla, "hif8_quantize", fault)
    assert example.main() == 1
    assert capsys.readouterr().out.endswith("FAILED\n")


def test_writes_the_capture_in_tests_data(example, monkeypatch, tmp_path):
    path = tmp_path / "capture.safetensors"
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--write", str(path)])
    assert example.main() == 0
    with safe_open(path, "pt") as new, safe_open(example.CAPTURE.with_name("deepseek_hif8.safetensors"), "pt") as old:
        assert set(new.keys()) == set(old.keys())
        for name in set(new.keys()) - {"out", "lse"}:  # those differ by the last bits between instruction sets
            assert torch.equal(new.get_tensor(name), old.get_tensor(name)), name
        assert {**new.metadata(), "recorded_by": ""} == {**old.metadata(), "recorded_by": ""}
        torch.testing.assert_close(new.get_tensor("out"), old.get_tensor("out"), atol=2e-3, rtol=2e-2)
