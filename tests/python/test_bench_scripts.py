"""The programs of bench/ that measure through Python: that they run, and that what they say has the form that is read."""

import json
import math
import pathlib
import re
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"


def run(script, *arguments):
    told = subprocess.run([sys.executable, BENCH / script, *map(str, arguments)], capture_output=True, text=True)
    assert told.returncode == 0 and told.stderr == "", told
    return told.stdout


def test_overhead():
    lines = run("python_overhead.py", "--runs", 1).splitlines()
    times = {name.strip(): float(us) for name, us in re.findall(r"^(.{48}) +([\d.]+) us$", "\n".join(lines[:-1]), re.M)}
    assert len(times) == len(lines) - 1 == 18 and all(time > 0 for time in times.values()), lines
    worst = max(time for name, time in times.items() if name.startswith("nothing"))
    assert lines[-1] == f"slowest empty call: {worst:.2f} us (goal: below 10)"
    as_json = json.loads(run("python_overhead.py", "--runs", 1, "--json"))
    assert list(as_json) == list(times)


def test_compare_torch(tmp_path):
    """It ends with a sentence and status 1 where results differ, so that they agree is part of this."""
    file = tmp_path / "compare.json"
    shapes = "2x256,1x1024"
    lines = run("compare_torch.py", "--shapes", shapes, "--pairs", 2, "--threads", 1, "--json", file).splitlines()
    assert re.fullmatch(r"libmla .+, \w+ kernels; torch .+; 1 threads", lines[0])
    rows = json.loads(file.read_text())["rows"]
    assert [(row["b"], row["s_k"], row["arithmetic"]) for row in rows] == [
        (2, 256, "bf16"), (2, 256, "f32"), (1, 1024, "bf16"), (1, 1024, "f32")]  # fmt: skip
    for row in rows:
        flop = 2 * row["b"] * 128 * row["s_k"] * 1088
        assert row["ours_gflops"] == pytest.approx(flop / row["ours_ms"] * 1e-6)
        assert row["composed_gflops"] == pytest.approx(flop / row["composed_ms"] * 1e-6)
    assert lines[-1] == f"geometric mean {math.prod(row['ratio'] for row in rows) ** 0.25:.2f}"
    assert len(lines) == 1 + len(rows) + 1
    assert len(run("compare_torch.py", "--shapes", shapes, "--only", "b1_", "--pairs", 2, "--arith", "f32").splitlines()) == 3


def test_accuracy():
    out = run("accuracy.py", "--keys", 96, "--heads", 20, "--isa", "scalar")
    rows = re.findall(r"^\| ([a-z ]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", out, re.M)
    rows = {name: [float(cell.split(",")[0]) for cell in cells] for name, *cells in rows if name != "data"}
    assert list(rows) == ["normal", "outliers", "far outliers"], out
    for f32, int16, _, bf16 in rows.values():
        assert f32 < 2e-6 and f32 < int16 < bf16 < 4e-3, out


def test_compare_flash_mla_explains_itself():
    """It needs a GPU, and DeepSeek's package."""
    assert "--theirs" in run("compare_flash_mla.py", "--help")
