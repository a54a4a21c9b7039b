#!/usr/bin/env python3
"""What a call of flash_mla from Python costs on the host of a GPU, and where it goes.

    python bench/gpu/eager.py --ours build/gpu/python [--theirs /where/their/flash_mla/is] [--rounds 200] [--json FILE]

For each row, medians in us, all of them by turns:

    call        one Python call and a synchronisation
    replay      one replay of a graph of that call and a synchronisation: what the GPU needs, and the least a host can do
    warm        the same two, each right after a small call and a synchronisation: the host's caches then hold its code
    returns     until the Python call comes back, with nothing queued before it

and for the first row what single steps take, each repeated without a synchronisation. --theirs is a folder that holds
DeepSeek's built package `flash_mla`.
"""

import argparse
import datetime
import json
import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import compare_flash_mla as compare  # noqa: E402

ROWS = [(1, 1, 256, 16, False), (1, 1, 4096, 128, False), (8, 1, 4096, 128, False), (128, 1, 4096, 16, True), (128, 1, 4096, 128, True)]


def timed(do, synchronize=True):
    begin = time.perf_counter()
    kept = do()
    if synchronize:
        torch.cuda.synchronize()
    took = time.perf_counter() - begin
    del kept
    return took * 1e6


def measure_row(side, small, rounds):
    table = side.arguments[2][0]
    call, replay = lambda: side.call(table), side.single.replay
    times = {"call": [], "replay": [], "warm call": [], "warm replay": [], "returns": []}
    for _ in range(rounds):
        for name, do in (("call", call), ("replay", replay)):
            torch.cuda.synchronize()
            times[name].append(timed(do))
            small()
            torch.cuda.synchronize()
            times["warm " + name].append(timed(do))
        torch.cuda.synchronize()
        times["returns"].append(timed(call, synchronize=False))
    torch.cuda.synchronize()
    return {name: round(statistics.median(kept), 1) for name, kept in times.items()}


def steps(side):
    """Single steps of a call, on the host alone; those that launch are few, so that no queue fills."""
    from mla import _core
    from mla._launch import launch_of

    q, pool, tables, lengths = side.arguments
    b, s_q, h_q, _ = q.shape
    row = h_q * compare.D_V
    out, lse = (x.clone() for x in side.call(tables[0]))
    stream, gpu = launch_of(q)
    arguments = (q, pool, tables[0], lengths, compare.D_V, None, None, compare.SCALE, False, None)

    def empty_outputs():
        torch.empty_strided((b, s_q, h_q, compare.D_V), (s_q * row, row, compare.D_V, 1), dtype=q.dtype, device=q.device)
        torch.empty_strided((b, h_q, s_q), (h_q * s_q, s_q, 1), dtype=torch.float32, device=q.device)

    one = torch.zeros(1, device="cuda")
    each = {
        "torch.empty_strided, both outputs": (empty_outputs, 500),
        "torch.empty, 4 MiB of workspace": (lambda: torch.empty(2**22, dtype=torch.uint8, device="cuda"), 500),
        "stream and GPU, through Python": (lambda: launch_of(q), 500),
        "whole call": (lambda: side.call(tables[0]), 100),
        "the C call, outputs given": (lambda: _core.with_kvcache(*arguments, out, lse, stream, gpu, False), 100),
        "one kernel of torch, in place": (lambda: one.add_(1), 100),
        "a synchronisation with nothing queued": (torch.cuda.synchronize, 500),
    }
    if getattr(_core, "find_torch", lambda gpu: False)(True):
        each["the C call that makes outputs"] = (lambda: _core.with_kvcache(*arguments, *[None] * 4, False), 100)
    times = {name: [] for name in each}
    for _ in range(30):
        for name, (do, n) in each.items():
            torch.cuda.synchronize()
            times[name].append(timed(lambda: [do() for _ in range(n)] and None, synchronize=False) / n)
    torch.cuda.synchronize()
    return {name: round(statistics.median(kept), 2) for name, kept in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", type=pathlib.Path, required=True)
    parser.add_argument("--theirs", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    packages = {"theirs": compare.load(options.theirs)} if options.theirs else {}
    sys.path.insert(0, str(options.ours))
    packages = {"ours": compare.load(options.ours), **packages}
    small = {name: compare.Side(package, *compare.make_inputs(*ROWS[0])[:4]) for name, package in packages.items()}
    results = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "command": "bench/gpu/eager.py --ours ... " + "--theirs ... " * bool(options.theirs) + f"--rounds {options.rounds}",
        "rows": [],
    }
    print(f"{'b':>4} {'s_k':>6} {'h_q':>4} {'side':<6} {'call':>7} {'replay':>7} {'differ':>7} | warm {'call':>7} {'replay':>7} {'differ':>7} | {'returns':>7}")
    for row in ROWS:
        inputs = compare.make_inputs(*row)[:4]
        for name, package in packages.items():
            side = compare.Side(package, *inputs)
            x = measure_row(side, lambda: small[name].call(small[name].arguments[2][0]), options.rounds)
            results["rows"].append({"b": row[0], "s_k": row[2], "h_q": row[3], "side": name, **x})
            print(
                f"{row[0]:4} {row[2]:6} {row[3]:4} {name:<6} {x['call']:7.1f} {x['replay']:7.1f} {x['call'] - x['replay']:7.1f} | "
                f"     {x['warm call']:7.1f} {x['warm replay']:7.1f} {x['warm call'] - x['warm replay']:7.1f} | {x['returns']:7.1f}",
                flush=True,
            )
            del side
        del inputs
        torch.cuda.empty_cache()
    results["steps"] = steps(small["ours"])
    for name, us in results["steps"].items():
        print(f"{name:<42} {us:6.2f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
