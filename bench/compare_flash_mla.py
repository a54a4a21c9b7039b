#!/usr/bin/env python3
"""Times libmla's flash_mla beside DeepSeek's own, on one GPU, in one run, on the same inputs, in turn.

    python bench/compare_flash_mla.py --ours build/python --theirs /where/their/flash_mla/is [--json FILE] [--only WORD]

--theirs is a folder that holds their built package `flash_mla`; nothing of it is part of this repository. Both are called
as their users call them, the call is captured into a CUDA graph over several sets of pages that together exceed the L2
cache, and replays of the two graphs alternate; the medians count. Outputs must agree. "eager" and "graph" are times of the
host, for one Python call, and for one replay of a graph of one such call, each with a synchronisation, in turn: what they
differ by is what a call costs beside its kernels.
"""

import argparse
import importlib
import json
import math
import pathlib
import statistics
import sys
import time

import torch

GRID = [  # b, s_q, s_k, h_q, lengths vary
    (128, 1, 4096, 128, True),
    (128, 1, 8192, 128, True),
    (32, 1, 16384, 128, True),
    (128, 1, 4096, 64, True),
    (128, 1, 8192, 64, True),
    (128, 1, 4096, 32, True),
    (128, 1, 4096, 16, True),
    (32, 1, 16384, 16, True),
    (128, 2, 4096, 128, True),
    (128, 2, 8192, 128, True),
    (128, 2, 32768, 128, True),
    (1, 1, 4096, 128, False),
    (1, 1, 131072, 128, False),
    (1, 1, 131072, 16, False),
    (8, 1, 4096, 128, False),
    (256, 1, 1024, 128, True),
]
PAGE, D, D_V, SCALE = 64, 576, 512, 192**-0.5


def load(folder):
    """The package flash_mla of a folder, beside another one of the same name."""
    for name in [name for name in sys.modules if name == "flash_mla" or name.startswith("flash_mla.")]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        package = importlib.import_module("flash_mla")
    finally:
        sys.path.remove(str(folder))
    if not pathlib.Path(package.__file__).resolve().is_relative_to(folder.resolve()):
        sys.exit(f"{folder} holds no package flash_mla")
    return package


def make_inputs(b, s_q, s_k, h_q, varied, n_set=None):
    """(q, pages, one page table a set, lengths, their mean); so many sets of pages as exceed the L2 cache, unless told."""
    torch.manual_seed(1)
    lengths = torch.full((b,), s_k, dtype=torch.int32)
    if varied:
        lengths = torch.normal(float(s_k), s_k / 2, (b,)).int().clamp(min=s_q)
    need = [math.ceil(int(n) / PAGE) for n in lengths]
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    n_set = n_set or min(32, 4 * l2 // (sum(need) * PAGE * D * 2) + 1)
    pool = (torch.randn(sum(need) * n_set, PAGE, 1, D, device="cuda", dtype=torch.bfloat16) / 10).clamp_(-1, 1)
    order = torch.randperm(len(pool)).int()
    tables, at = [], 0
    for _ in range(n_set):
        table = torch.zeros(b, max(need), dtype=torch.int32)
        for i, n in enumerate(need):
            table[i, :n] = order[at : at + n]
            at += n
        tables.append(table.cuda())
    q = (torch.randn(b, s_q, h_q, D, device="cuda", dtype=torch.bfloat16) / 10).clamp_(-1, 1)
    return q, pool, tables, lengths.cuda(), float(lengths.float().mean())


class Side:
    def __init__(self, package, q, pool, tables, lengths):
        self.package, self.causal = package, q.shape[1] > 1
        self.arguments = q, pool, tables, lengths
        self.metadata = package.get_mla_metadata(lengths, q.shape[1] * q.shape[2], 1)
        self.call(tables[0])
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = [self.call(table) for table in tables]
        self.single = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.single):
            self.call(tables[0])

    def call(self, table):
        q, pool, _, lengths = self.arguments
        return self.package.flash_mla_with_kvcache(
            q, pool, table, lengths, D_V, *self.metadata, softmax_scale=SCALE, causal=self.causal
        )

    def replay(self):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / len(self.out)

    def host_times(self, rounds):
        """Medians of an eager call and of a replay of one, in us, until the GPU is done."""
        table = self.arguments[2][0]
        times = [[], []]
        for _ in range(rounds):
            for do, kept in zip((lambda: self.call(table), self.single.replay), times):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                do()
                torch.cuda.synchronize()
                kept.append((time.perf_counter() - begin) * 1e6)
        return [round(statistics.median(kept), 1) for kept in times]


def compare(row, ours, theirs, replays):
    b, s_q, s_k, h_q, varied = row
    *inputs, mean = make_inputs(*row)
    sides = [Side(package, *inputs) for package in (ours, theirs)]
    times = [[], []]
    for i in range(replays + 3):
        for side, kept in zip(sides, times):
            took = side.replay()
            if i >= 3:
                kept.append(took)
    (out, lse), (their_out, their_lse) = sides[0].out[0], sides[1].out[0]
    difference = (out.float() - their_out.float()).abs().max().item()
    torch.testing.assert_close(out.float(), their_out.float(), atol=8e-4, rtol=2.01 / 128)
    torch.testing.assert_close(lse, their_lse, atol=1e-4, rtol=1e-4)
    mine, other = map(statistics.median, times)
    host = [side.host_times(60) for side in sides]
    flop = 2 * b * h_q * s_q * mean * (D + D_V)
    return {
        "b": b,
        "s_q": s_q,
        "s_k": s_k,
        "h_q": h_q,
        "varied": varied,
        "ours_us": round(mine, 2),
        "theirs_us": round(other, 2),
        "ratio": round(other / mine, 3),
        "ours_tflops": round(flop / mine * 1e-6, 1),
        "ours_eager_us": host[0][0],
        "ours_graph_us": host[0][1],
        "theirs_eager_us": host[1][0],
        "theirs_graph_us": host[1][1],
        "largest_difference": difference,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", type=pathlib.Path, required=True)
    parser.add_argument("--theirs", type=pathlib.Path, required=True)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--only", default="", help="rows whose name (b128_q1_k4096_h128) contains this")
    parser.add_argument("--replays", type=int, default=20)
    options = parser.parse_args()
    theirs = load(options.theirs)
    sys.path.insert(0, str(options.ours))  # ours also needs its package mla
    ours = load(options.ours)
    rows = []
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, bf16 {D}/{D_V}, page {PAGE}, graph replay")
    print(f"{'b':>4} {'s_q':>3} {'s_k':>7} {'h_q':>4} {'ours us':>9} {'theirs us':>9} {'ratio':>6} {'TFLOPS':>7}  ours eager - graph  theirs")
    for row in GRID:
        if options.only not in "b{}_q{}_k{}_h{}".format(*row):
            continue
        r = compare(row, ours, theirs, options.replays)
        rows.append(r)
        print(
            f"{r['b']:4} {r['s_q']:3} {r['s_k']:7} {r['h_q']:4} {r['ours_us']:9.1f} {r['theirs_us']:9.1f} "
            f"{r['ratio']:6.2f} {r['ours_tflops']:7.1f} {r['ours_eager_us']:9.1f} - {r['ours_graph_us']:.1f} "
            f"{r['theirs_eager_us']:9.1f} - {r['theirs_graph_us']:.1f}",
            flush=True,
        )
    if rows:
        print(f"geometric mean of the ratios: {statistics.geometric_mean(r['ratio'] for r in rows):.3f}")
    if options.json:
        facts = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "rows": rows}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
