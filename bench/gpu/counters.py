#!/usr/bin/env python3
"""What the hardware counters say of dense decode on one GPU: one launch of each kernel under Nsight Compute.

    python bench/gpu/counters.py --ours build/gpu/python [--theirs /where/their/flash_mla/is] [--json FILE] [--only WORD]
    python bench/gpu/counters.py --read bench/results/nvidia-h200-counters.json --markdown

Needs `ncu` (of CUDA's toolkit, or --ncu PATH), the right to read counters, and torch. --theirs, a folder that holds
DeepSeek's built package `flash_mla`, puts their kernel beside ours; nothing of it is part of this repository. Inputs are
those of bench/compare_flash_mla.py, caches are flushed before each pass, and clocks are left as they are. --stalls lists all
reasons why warps wait, not three; --read shows the results of an earlier run; --markdown, the table of
docs/cuda-roofline.md.

    roof us    the larger of FLOP at the rate of an 8192^3 bf16 product and bytes at the rate of reading 4 GiB, both
               measured here by torch, the best of 10; FLOP and bytes as in gpu_bench.c, each key counted once
    other      us of the kernels behind it, which fold its parts; under ncu nothing overlaps
    into SMs   bytes that the multiprocessors received, over the bytes of the roof: 2.0 where every key is read twice
"""

import argparse
import csv
import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROWS = [  # b, s_q, s_k, h_q, lengths vary: as in compare_flash_mla.py
    (128, 1, 4096, 128, True),
    (128, 1, 4096, 64, True),
    (128, 1, 4096, 32, True),
    (128, 1, 4096, 16, True),
    (32, 1, 16384, 128, True),
    (1, 1, 131072, 128, False),
    (256, 1, 1024, 128, True),
    (128, 2, 32768, 128, True),
    (8, 1, 4096, 128, False),
]
# the kernels that walk over keys, ours and theirs; each begins a call, and those that follow it combine
KERNEL = r"(dense_(few_)?(causal_)?sm90_(bf16|f16)|flash_fwd_splitkv_mla_kernel)"
PEAK = ".avg.pct_of_peak_sustained_elapsed"
METRICS = {  # name in the results: the first of these that this ncu knows
    "duration_ns": ["gpu__time_duration.sum"],
    "sm_clock_hz": ["sm__cycles_elapsed.avg.per_second"],
    "dram_clock_hz": ["dram__cycles_elapsed.avg.per_second"],
    "dram_read_bytes": ["dram__bytes_read.sum"],
    "dram_write_bytes": ["dram__bytes_write.sum"],
    "dram_percent": ["dram__throughput" + PEAK],
    "l2_percent": ["lts__throughput" + PEAK],
    "l2_bytes": ["lts__t_bytes.sum"],
    "l2_hit_percent": ["lts__t_sector_hit_rate.pct"],
    "into_sm_bytes": ["l1tex__m_xbar2l1tex_read_bytes.sum"],
    "into_sm_percent": ["l1tex__m_xbar2l1tex_throughput" + PEAK],
    "tensor_percent": ["sm__pipe_tensor_cycles_active" + PEAK, "sm__inst_executed_pipe_tensor" + PEAK],
    "shared_read_percent": ["l1tex__data_bank_reads" + PEAK],
    "shared_write_percent": ["l1tex__data_bank_writes" + PEAK],
    "shared_wavefronts_percent": ["l1tex__data_pipe_lsu_wavefronts_mem_shared" + PEAK],
    "issue_percent": ["smsp__issue_active.avg.pct_of_peak_sustained_active", "sm__inst_issued" + PEAK],
    "registers": ["launch__registers_per_thread"],
    "thread_blocks": ["launch__grid_size"],
}
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = (
    "barrier branch_resolving dispatch_stall drain gmma imc_miss lg_throttle long_scoreboard math_pipe_throttle membar "
    "mio_throttle misc no_instruction not_selected selected short_scoreboard sleeping tex_throttle wait warpgroup_arrive"
).split()


def name_of(row):
    return "b{}_q{}_k{}_h{}".format(*row)


# ---- the program that ncu runs ---------------------------------------------------------------------------------------


def measured_rates(torch):
    """(FLOP/s, bytes/s) of a large product and of reading, the best of 10."""

    def seconds(call):
        times = []
        for _ in range(13):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e-3)
        return min(times[3:])

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    flops = 2 * 8192**3 / seconds(lambda: torch.mm(a, b, out=c))
    numbers = torch.ones(2**30, device="cuda")
    return flops, 4 * 2**30 / seconds(numbers.sum)


def calls(options):
    """One call of each side a row, between cudaProfilerStart and cudaProfilerStop."""
    import torch

    sys.path.insert(0, str(HERE.parent))
    import compare_flash_mla as compare

    packages = [compare.load(options.theirs)] if options.theirs else []
    sys.path.insert(0, str(options.ours))
    packages.insert(0, compare.load(options.ours))
    flops, reads = measured_rates(torch)
    facts = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda_of_torch": torch.version.cuda,
        "matmul_tflops": round(flops * 1e-12, 1),
        "read_tbs": round(reads * 1e-12, 3),
        "rates": "best of 10",
        "launches": [],
    }
    for row in ROWS:
        if options.only not in name_of(row):
            continue
        b, s_q, _, h_q, _ = row
        q, pool, tables, lengths, mean = compare.make_inputs(*row, n_set=1)
        for package, side in zip(packages, ("ours", "theirs")):
            metadata = package.get_mla_metadata(lengths, s_q * h_q, 1)

            def call():
                package.flash_mla_with_kvcache(
                    q, pool, tables[0], lengths, compare.D_V, *metadata, softmax_scale=compare.SCALE, causal=s_q > 1
                )

            call()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
            call()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()
            flop = 2 * b * h_q * s_q * mean * (compare.D + compare.D_V)
            size = 2 * b * (s_q * h_q * (compare.D + compare.D_V) + mean * compare.D)
            roof = max(flop / flops, size / reads) * 1e6
            facts["launches"].append(
                {"row": name_of(row), "side": side, "flop": flop, "bytes": size, "roof_us": round(roof, 2)}
            )
        del q, pool, tables
        torch.cuda.empty_cache()
    options.facts.write_text(json.dumps(facts))


# ---- what runs it ----------------------------------------------------------------------------------------------------


def known_metrics(ncu):
    """The base names that this ncu knows for the GPU at hand."""
    told = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True)
    return set(re.findall(r"^([a-z]\w+__\w+)", told.stdout, re.M))


def choose_metrics(known):
    """{name in the results: metric}; what nobody knows is left out. Metrics of the launch itself are not listed."""
    chosen = {}
    for name, candidates in METRICS.items():
        chosen[name] = next((m for m in candidates if m.partition(".")[0] in known or m.startswith("launch__")), None)
    for reason in STALLS:
        metric = STALL.format(reason)
        chosen["stall_" + reason] = metric if metric.partition(".")[0] in known else None
    return {name: metric for name, metric in chosen.items() if metric}


def parse(text, metrics):
    """The calls in ncu's `--csv --page raw`, in order: {"kernel": ..., name: number}, of the kernel that walks over keys,
    and "other_us", what the call's other kernels take behind it."""
    lines = text.splitlines()
    header = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if header is None:
        raise ValueError("ncu wrote no table:\n" + "\n".join(lines[-20:]))
    launches = []
    for record in csv.DictReader(line for line in lines[header:] if line.startswith('"')):
        if not record["ID"]:  # the line of units
            continue
        numbers = {}
        for name, metric in metrics.items():
            try:
                numbers[name] = float((record.get(metric) or "").replace(",", ""))
            except ValueError:
                pass  # n/a
        walks = re.search(KERNEL + r"\w*", record["Kernel Name"])
        if walks:
            launches.append({"kernel": walks.group(), "other_us": 0.0, **numbers})
        elif launches:
            launches[-1]["other_us"] += numbers["duration_ns"] * 1e-3
    return launches


def join(facts, launches):
    if len(launches) != len(facts["launches"]):
        raise ValueError(f"{len(launches)} launches measured, {len(facts['launches'])} made")
    return [{**made, **measured} for made, measured in zip(facts["launches"], launches)]


def table(launches, stalls):
    """The lines that are printed."""
    yield (
        f"{'row':<20} {'side':<6} {'us':>7} {'other':>5} {'GHz':>5} {'TB/s':>5} {'DRAM%':>6} {'L2%':>5} {'into SMs':>8} {'tensor%':>7} "
        f"{'roof us':>8} {'roof/us':>7}  warps wait most for"
    )
    for x in launches:
        us = x["duration_ns"] * 1e-3
        why = sorted(((v, k) for k, v in x.items() if k.startswith("stall_") and k != "stall_selected"), reverse=True)
        number = {k: x.get(k, float("nan")) for k in (*METRICS, "roof_us", "bytes")}
        yield (
            f"{x['row']:<20} {x['side']:<6} {us:7.1f} {x['other_us']:5.1f} {number['sm_clock_hz'] * 1e-9:5.2f} "
            f"{number['dram_read_bytes'] / us * 1e-6:5.2f} {number['dram_percent']:6.1f} {number['l2_percent']:5.1f} "
            f"{number['into_sm_bytes'] / x['bytes']:8.2f} {number['tensor_percent']:7.1f} {x['roof_us']:8.1f} "
            f"{x['roof_us'] / us:7.2f}  " + ", ".join(f"{k[6:]} {v:.1f}" for v, k in why[: 20 if stalls else 3] if v > 0)
        )


def markdown(launches):
    """The lines of the page's table: ours, then theirs behind a comma."""
    yield "| row | kernel us | others us | TB/s | DRAM % | L2 % | into SMs | tensor cores % | GHz | roof us | roof / kernel |"
    yield "|---" * 11 + "|"
    rows = {}
    for x in launches:
        rows.setdefault(x["row"], {})[x["side"]] = x
    for row, sides in rows.items():
        both = [sides[side] for side in ("ours", "theirs") if side in sides]

        def cell(show):
            return ", ".join(show(x) for x in both)

        yield "| " + " | ".join(
            [
                row.replace("_", " "),
                cell(lambda x: f"{x['duration_ns'] * 1e-3:.1f}"),
                cell(lambda x: f"{x['other_us']:.1f}"),
                cell(lambda x: f"{x['dram_read_bytes'] / x['duration_ns'] * 1e-3:.2f}"),
                cell(lambda x: f"{x['dram_percent']:.0f}"),
                cell(lambda x: f"{x['l2_percent']:.0f}"),
                cell(lambda x: f"{x['into_sm_bytes'] / x['bytes']:.2f}"),
                cell(lambda x: f"{x['tensor_percent']:.0f}"),
                cell(lambda x: f"{x['sm_clock_hz'] * 1e-9:.2f}"),
                f"{both[0]['roof_us']:.0f}",
                cell(lambda x: f"{x['roof_us'] / x['duration_ns'] * 1e3:.2f}"),
            ]
        ) + " |"


def driver_version():
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
        )
        return told.stdout.splitlines()[0]
    except (OSError, IndexError):
        return "unknown"


def measure(options):
    metrics = choose_metrics(known_metrics(options.ncu))
    if "duration_ns" not in metrics:
        sys.exit(f"{options.ncu} knows no metrics of this GPU")
    with tempfile.TemporaryDirectory() as folder:
        facts, log = pathlib.Path(folder, "facts.json"), pathlib.Path(folder, "ncu.csv")
        command = [options.ncu, "--clock-control", "none", "--profile-from-start", "off"]
        command += ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
        command += ["--metrics", ",".join(metrics.values())]
        command += [sys.executable, __file__, "--ours", str(options.ours), "--only", options.only, "--facts", str(facts)]
        command += ["--theirs", str(options.theirs)] if options.theirs else []
        ended = subprocess.run(command)
        text = log.read_text() if log.exists() else ""
        if options.keep_csv:
            options.keep_csv.write_text(text)
        if ended.returncode != 0:
            sys.exit(f"ncu ended with {ended.returncode}\n" + "\n".join(text.splitlines()[-20:]))
        known = json.loads(facts.read_text())
        launches = join(known, parse(text, metrics))
    version = subprocess.run([options.ncu, "--version"], capture_output=True, text=True).stdout.split("Version ")[-1].split()[0]
    del known["launches"]
    return {
        "date": datetime.date.today().isoformat(),
        **known,
        "driver": driver_version(),
        "ncu": version,
        "command": "bench/gpu/counters.py --ours ... " + "--theirs ..." * bool(options.theirs),
        "metrics": metrics,
        "launches": launches,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", type=pathlib.Path, help="a tree of libmla's Python packages")
    parser.add_argument("--theirs", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--only", default="", help="rows whose name (b128_q1_k4096_h128) contains this")
    parser.add_argument("--read", type=pathlib.Path, help="results to show, instead of measuring")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--stalls", action="store_true", help="all reasons why warps wait")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--keep-csv", type=pathlib.Path, help="where to put what ncu wrote")
    parser.add_argument("--facts", type=pathlib.Path, help=argparse.SUPPRESS)  # set where ncu runs this program
    options = parser.parse_args()
    if options.facts:
        calls(options)
        return
    if (options.ours is None) == (options.read is None):
        parser.error("give --ours, to measure, or --read")
    if options.read is None and not shutil.which(options.ncu):
        sys.exit(f"there is no {options.ncu}: Nsight Compute is part of CUDA's toolkit")
    results = measure(options) if options.read is None else json.loads(options.read.read_text())
    print(
        f"{results['gpu']}, driver {results['driver']}, ncu {results['ncu']}; product of matrices {results['matmul_tflops']} "
        f"TFLOPS, reading {results['read_tbs']} TB/s"
    )
    launches = results["launches"]
    print("\n".join(markdown(launches) if options.markdown else table(launches, options.stalls)))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
