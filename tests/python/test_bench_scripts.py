"""The programs of bench/ that measure through Python: that they run, and that what they say has the form that is read."""

import importlib.util
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


def load_counters():
    spec = importlib.util.spec_from_file_location("counters", BENCH / "gpu" / "counters.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# of ncu 2025.3, shortened to a few columns
NCU = """==WARNING== Note: Running with unmodified GPU clocks.
==PROF== Connected to process 615 (/usr/bin/python3.12)
"ID","Process ID","Kernel Name","Block Size","dram__bytes_read.sum","gpu__time_duration.sum","smsp__average_warps_issue_stalled_wait_per_issue_active.ratio","sm__cycles_elapsed.avg.per_second"
"","","","","byte","ns","inst","hz"
"0","615","dense_sm90_bf16_576","(384, 1, 1)","621,085,696","230624","2.4","1618084309.34"
"1","615","dense_sm90_combine_bf16","(256, 1, 1)","1024","5120","n/a","1618084309.34"
"2","615","void flash_fwd_splitkv_mla_kernel<Traits<bfloat16_t>, int>(Params, int)","(256, 1, 1)","620088576","234720","1.0","n/a"
"3","615","void flash_fwd_mla_combine_kernel<int>(Params)","(256, 1, 1)","1024","4000","1.0","n/a"
"4","615","dense_few_causal_sm90_f16_512_8","(192, 1, 1)","1","1000","1.0","2"
"""


def test_counters_read_what_ncu_writes():
    counters = load_counters()
    known = {"dram__bytes_read", "gpu__time_duration", "sm__cycles_elapsed", "sm__inst_executed_pipe_tensor"}
    known.add("smsp__average_warps_issue_stalled_wait_per_issue_active")
    metrics = counters.choose_metrics(known)
    assert metrics["dram_read_bytes"] == "dram__bytes_read.sum" and "l2_percent" not in metrics
    assert metrics["tensor_percent"].startswith("sm__inst_executed_pipe_tensor.avg")  # the second choice
    assert [name for name in metrics if name.startswith("stall_")] == ["stall_wait"]
    mine, theirs, few = counters.parse(NCU, metrics)
    assert mine == {
        "kernel": "dense_sm90_bf16_576", "other_us": 5.12, "dram_read_bytes": 621085696, "duration_ns": 230624,
        "stall_wait": 2.4, "sm_clock_hz": 1618084309.34}  # fmt: skip
    assert theirs["kernel"] == "flash_fwd_splitkv_mla_kernel" and theirs["other_us"] == 4
    assert few["kernel"] == "dense_few_causal_sm90_f16_512_8" and few["other_us"] == 0
    made = [{"row": f"b{i}", "side": "ours", "bytes": 6e8, "roof_us": 190.0} for i in range(3)]
    launches = counters.join({"launches": made}, [mine, theirs, few])
    head, line, *_ = counters.table(launches, False)
    assert head.split()[:4] == ["row", "side", "us", "other"]
    assert line.split() == ["b0", "ours", "230.6", "5.1", "1.62", "2.69", *["nan"] * 4, "190.0", "0.82", "wait", "2.4"]
    results = BENCH / "results" / "nvidia-h200-counters.json"
    lines = run("gpu/counters.py", "--read", results, "--markdown").splitlines()
    page = (BENCH.parent / "docs" / "cuda-roofline.md").read_text()
    assert len(lines) == 3 + len(counters.ROWS) and all(line in page for line in lines[1:])
    with pytest.raises(ValueError, match="3 launches measured, 2 made"):
        counters.join({"launches": made[:2]}, [mine, theirs, few])
    with pytest.raises(ValueError, match="no table"):
        counters.parse("==ERROR== ERR_NVGPUCTRPERM", metrics)


def test_gpu_scripts_explain_themselves():
    """They need a GPU; counters.py needs no torch to say so."""
    assert "--theirs" in run("gpu/eager.py", "--help") and "--stalls" in run("gpu/counters.py", "--help")
    told = subprocess.run(
        [sys.executable, BENCH / "gpu" / "counters.py", "--ours", ".", "--ncu", "no-such-ncu"], capture_output=True, text=True
    )
    assert told.returncode == 1 and told.stderr == "there is no no-such-ncu: Nsight Compute is part of CUDA's toolkit\n"
