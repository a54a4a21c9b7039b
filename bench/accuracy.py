#!/usr/bin/env python3
"""Norm-wise errors of what the CPU computes in, against the fp64 oracle, as a table for docs/performance.md.

    PYTHONPATH=build/python python3 bench/accuracy.py [--isa avx2] [--keys 2048] [--heads 32]

One decode step of 576/512 in bf16 with an fp32 result, softmax scale 192 ** -0.5. "normal": q and keys N(0, 1).
"outliers": the last 64 columns of the keys 8 times as large, three of the others 16 times. "far outliers": 30 and 60 times.
Each cell: ||o - oracle|| / ||oracle|| of all rows together, and of the worst row. "bf16" is what rounding the oracle's
result to bf16 costs.
"""

import argparse

import mla
import numpy as np

D_K, D_V = 576, 512
SETS = {"normal": (1, 1), "outliers": (8, 16), "far outliers": (30, 60)}


def bf16(x):
    """Rounded to nearest even; as numbers and as the bits of the upper half."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    upper = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return (upper.astype(np.uint32) << 16).view(np.float32), upper


def errors(got, exact):
    difference = np.linalg.norm(got.astype(np.float64) - exact, axis=-1)
    norm = np.linalg.norm(exact, axis=-1)
    return f"{np.linalg.norm(difference) / np.linalg.norm(norm):.1e}, {np.max(difference / norm):.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", help="highest instruction set level")
    parser.add_argument("--keys", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=32)
    arguments = parser.parse_args()
    mla.set_isa(arguments.isa)
    level = next(level.name for level in mla.isa() if level.selected)
    print(f"libmla {mla.version()}, {level} kernels, {arguments.heads} heads, {arguments.keys} keys\n")
    print("| data | f32 | int16 | int16, columns not folded | bf16 |\n|---|---|---|---|---|")
    for name, (end, single) in SETS.items():
        rng = np.random.default_rng(1)
        q = rng.standard_normal((1, 1, arguments.heads, D_K))
        k = rng.standard_normal((1, arguments.keys, 1, D_K))
        k[..., D_V:] *= end
        k[..., [7, 100, 333]] *= single
        (q, q_bits), (k, k_bits) = bf16(q), bf16(k)
        call = {"d_v": D_V, "softmax_scale": 192**-0.5, "out_dtype": "f32"}
        exact = mla.attention(q, k, backend="ref", **call)[0].astype(np.float64)
        call["dtype"] = "bf16"
        no_mask = np.zeros((1, 1, arguments.keys), np.float32)  # it hides nothing, but under a mask nothing is folded
        cells = [
            errors(mla.attention(q_bits, k_bits, arithmetic="f32", **call)[0], exact),
            errors(mla.attention(q_bits, k_bits, arithmetic="int16", **call)[0], exact),
            errors(mla.attention(q_bits, k_bits, arithmetic="int16", mask=no_mask, **call)[0], exact),
            errors(bf16(exact)[0], exact),
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
