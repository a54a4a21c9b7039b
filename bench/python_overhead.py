#!/usr/bin/env python3
"""What a call from Python costs before it computes anything, in microseconds.

    make python && PYTHONPATH=build/python build/venv/bin/python bench/python_overhead.py [--json] [--runs 60]

Each line is the best of many short runs, so that a busy machine adds little. "nothing" has no request at all; "tiny" is
one request with one key and one head of 64 columns, on one thread.
"""

import argparse
import json
import os
import timeit

os.environ.setdefault("OMP_NUM_THREADS", "1")

import flash_mla
import mla
import numpy
import torch
from mla import _core

GOAL = 10.0


def best(call, n_run):
    timer = timeit.Timer(call)
    n = max(1, int(0.02 / (timer.timeit(200) / 200)))
    return min(timer.repeat(n_run, n)) / n * 1e6


def problem(b, h_q, d):
    q = torch.zeros(b, 1, h_q, d, dtype=torch.bfloat16)
    cache = torch.zeros(4, 64, 1, d, dtype=torch.bfloat16)
    return q, cache, torch.zeros(b, 4, dtype=torch.int32), torch.ones(b, dtype=torch.int32)


def cases():
    for size, (q, cache, table, lengths) in (("nothing", problem(0, 16, 576)), ("tiny", problem(1, 1, 64))):
        d_v = q.shape[-1] // 64 * 64
        call = (q, cache, table, lengths, d_v)
        metadata = flash_mla.get_mla_metadata(lengths, q.shape[2], 1)
        schedule = flash_mla.get_mla_metadata()
        paged = {"page_table": table, "lengths": lengths, "d_v": d_v, "n_thread": 1}
        out, lse = mla.attention(q, cache, **paged)
        arrays = [x.float().numpy() for x in (q, cache)]
        numpy_paged = {**paged, "page_table": table.numpy(), "lengths": lengths.numpy()}
        c_lse = lse.mT.contiguous()
        yield (
            f"{size}: flash_mla, metadata tensors",
            lambda: flash_mla.flash_mla_with_kvcache(*call, *metadata, 0.1, True),
        )
        yield f"{size}: flash_mla, object", lambda: flash_mla.flash_mla_with_kvcache(*call, *schedule, 0.1, True)
        yield f"{size}: flash_mla, no metadata", lambda: flash_mla.flash_mla_with_kvcache(*call, None, None, 0.1, True)
        yield f"{size}: get_mla_metadata", lambda: flash_mla.get_mla_metadata(lengths, 16, 1)
        yield f"{size}: mla.attention, torch", lambda: mla.attention(q, cache, **paged)
        yield f"{size}: mla.attention, torch, out given", lambda: mla.attention(q, cache, out=out, lse=lse, **paged)
        yield f"{size}: mla.attention, NumPy", lambda: mla.attention(*arrays, **numpy_paged)
        yield (
            f"{size}: the C call alone (8 tensors lent)",
            lambda: _core.with_kvcache(*call, *metadata, 0.1, True, None, out, c_lse, None, None, False),
        )
    q, _, table, lengths = problem(0, 16, 576)
    yield "two empty outputs of torch, for scale", lambda: (q.new_empty((0, 1, 16, 512)), q.new_empty((0, 16, 1)))
    yield "two empty outputs of NumPy, for scale", lambda: (numpy.empty((0, 1, 16, 512)), numpy.empty((0, 16, 1)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object, name -> microseconds")
    parser.add_argument("--runs", type=int, default=60, help="runs of 20 ms for each line")
    options = parser.parse_args()
    results = {}
    for name, call in cases():
        results[name] = best(call, options.runs)
        if not options.json:
            print(f"{name:<48} {results[name]:6.2f} us", flush=True)
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        worst = max(value for name, value in results.items() if name.startswith("nothing"))
        print(f"slowest empty call: {worst:.2f} us (goal: below {GOAL:.0f})")


if __name__ == "__main__":
    main()
