#!/usr/bin/env python3
"""Times libmla on the CPU beside attention composed of torch's matrix products (oneDNN), in one process, in turn.

    PYTHONPATH=build/python python bench/compare_torch.py [--threads 16] [--arith bf16,f32] [--json FILE] \
        [--only WORD | --shapes 16x4096,1x65536]

One decode step of 128 heads, 576/512, bf16 keys in one piece of memory. Composed: keys are cut into equal chunks, one batched product
gives the scores of all requests and chunks, softmax in fp32, one batched product with the values, chunks merged. For "bf16" the
products take and give bf16, as torch does it; for "f32" the keys are widened to fp32 first, chunk by chunk. The number of chunks and
whether chunks go in one batched call or one after another are tried for each shape and the fastest counts. Calls alternate;
shown are medians, the median of the paired ratios and its quartiles. Outputs must agree with each other.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import sys
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--arith", default="bf16,f32")
parser.add_argument("--isa", help="highest instruction set level of ours; torch chooses its own")
parser.add_argument("--pairs", type=int, default=15)
parser.add_argument("--shapes", default="16x4096,4x4096,1x65536,1x16384", help="requests x keys of each, multiples of 64")
parser.add_argument("--only", default="", help="shapes whose name (b16_s4096) contains this")
parser.add_argument("--json", type=pathlib.Path)
options = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(options.threads)

import mla
import torch

SHAPES = [tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")]
HEADS, D_K, D_V, SCALE, PAGE = 128, 576, 512, 192**-0.5, 64


def composed(q, k, chunks, batched, wide):
    """o [b][h][d_v] of q [b][h][d_k] and k [b][s][d_k]."""
    b, s = k.shape[:2]
    k = k.view(b, chunks, s // chunks, D_K)
    q = q.float() if wide else q

    def part(rows):  # [n][keys][d_k], with the queries repeated for each
        rows = rows.float() if wide else rows
        some_q = q.repeat_interleave(len(rows) // b, 0)
        scores = torch.bmm(some_q, rows.transpose(1, 2)).float() * SCALE
        lse = torch.logsumexp(scores, -1, keepdim=True)
        p = torch.exp_(scores - lse)
        return torch.bmm(p if wide else p.bfloat16(), rows[..., :D_V]).float(), lse

    if batched:
        o, lse = part(k.reshape(b * chunks, s // chunks, D_K))
        o, lse = o.view(b, chunks, HEADS, D_V), lse.view(b, chunks, HEADS, 1)
    else:
        o, lse = (torch.stack(all_of, 1) for all_of in zip(*(part(k[:, i]) for i in range(chunks))))
    return o[:, 0] if chunks == 1 else (o * torch.softmax(lse, 1)).sum(1)


def seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def compare(b, s, arith):
    torch.manual_seed(1)
    q = torch.randn(b, 1, HEADS, D_K, dtype=torch.bfloat16)
    k = torch.randn(b * s // PAGE, PAGE, 1, D_K, dtype=torch.bfloat16)
    table = torch.arange(b * s // PAGE, dtype=torch.int32).view(b, -1)
    lengths = torch.full((b,), s, dtype=torch.int32)
    out = torch.empty(b, 1, HEADS, D_V)
    lse = torch.empty(b, 1, HEADS)

    def ours():
        mla.attention(
            q, k, page_table=table, lengths=lengths, d_v=D_V, softmax_scale=SCALE, out=out, lse=lse, arithmetic=arith,
            n_thread=options.threads,
        )  # fmt: skip

    flat_q, flat_k = q.view(b, HEADS, D_K), k.view(b, s, D_K)
    ways = [(c, way) for c in (1, 4, 16, 64) if s // c >= 256 for way in (True, False) if c > 1 or way]
    tried = {}
    for way in ways:
        run = lambda: composed(flat_q, flat_k, *way, arith == "f32")  # noqa: E731
        run()
        tried[way] = min(seconds(run) for _ in range(2))
    best = min(tried, key=tried.get)
    theirs = lambda: composed(flat_q, flat_k, *best, arith == "f32")  # noqa: E731
    ours()
    difference = ((theirs() - out[:, 0]).norm() / out.norm()).item()
    if not difference < (1e-2 if arith == "bf16" else 1e-5):
        sys.exit(f"b {b} s {s} {arith}: results differ by {difference}")
    times = [(seconds(ours), seconds(theirs)) for _ in range(options.pairs)]
    mine = statistics.median(t[0] for t in times)
    other = statistics.median(t[1] for t in times)
    ratios = statistics.quantiles([t[1] / t[0] for t in times], n=4)
    flop = 2 * b * HEADS * s * (D_K + D_V)
    return {
        "b": b, "s_k": s, "arithmetic": arith, "threads": options.threads,
        "ours_ms": mine * 1e3, "composed_ms": other * 1e3, "ratio": ratios[1], "quartiles": [ratios[0], ratios[2]],
        "ours_gflops": flop / mine * 1e-9, "composed_gflops": flop / other * 1e-9,
        "chunks": best[0], "chunks_batched": best[1], "difference": difference,
    }  # fmt: skip


torch.set_num_threads(options.threads)
mla.set_isa(options.isa)
level = next(level.name for level in mla.isa() if level.selected)
print(f"libmla {mla.version()}, {level} kernels; torch {torch.__version__}; {options.threads} threads")
rows = []
for shape in SHAPES:
    if options.only not in "b{}_s{}".format(*shape):
        continue
    for arith in options.arith.split(","):
        r = compare(*shape, arith)
        rows.append(r)
        print(
            f"b{r['b']:<3} s{r['s_k']:<6} {arith:5} ours {r['ours_ms']:8.2f} ms {r['ours_gflops']:8.0f} GFLOP/s   composed "
            f"{r['composed_ms']:8.2f} ms {r['composed_gflops']:8.0f} GFLOP/s   x {r['ratio']:.2f} "
            f"({r['quartiles'][0]:.2f}-{r['quartiles'][1]:.2f})   {r['chunks']} chunks, "
            f"{'batched' if r['chunks_batched'] else 'in turn'}",
            flush=True,
        )
if rows:
    print(f"geometric mean {math.prod(r['ratio'] for r in rows) ** (1 / len(rows)):.2f}")
if options.json:
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    facts = {
        "program": "bench/compare_torch.py " + " ".join(sys.argv[1:]), "date": time.strftime("%Y-%m-%d"), "cpu": cpu,
        "libmla": mla.version(), "isa": level, "torch": torch.__version__, "rows": rows,
    }  # fmt: skip
    options.json.write_text(json.dumps(facts, indent=2) + "\n")
