#!/usr/bin/env python3
"""What HiFloat8 costs: a recorded layer of DeepSeek-V3, its cache in 8 bits, under the two attentions of CANN's
QuantSparseFlashMla.

    PYTHONPATH=build/python python examples/hif8_window.py [CAPTURE] [--write FILE]

CAPTURE is a decode call that `examples/deepseek_generate.py --capture FILE` has written (docs/capture-format.md);
without it, the one in tests/data. Its cache is 16-bit; here it becomes HiFloat8 with one scale per tensor, half the
size. Then each request's queries attend to

  SWA   the newest 128 keys, their own included (a window);
  CSA   these, and 16 rows out of a second cache in which a row stands for 4 tokens, in one softmax. The model that the
        operator was made for learns to compress and to choose; this layer did not, so a compressed row is the mean of
        four and the 16 are those that the queries score highest.

and the result is compared with the same attention on the numbers as they were recorded, in fp64, for three stages:

  cache     keys and values in HiFloat8
  queries   the queries too
  weights   and the softmax weights as well: 16 p is rounded to HiFloat8 before it multiplies the values, tile by tile
            of 128 keys, against the largest score so far. This is what the operator computes.

Printed is ||difference|| / ||result|| over all heads of a request. HiFloat8 has at most 3 bits of fraction: a number
near 1 moves by up to 1/17 of itself, by about 2.6 % in the mean square; averages over keys and sums over columns move
less. The program fails if a stage moves the result by more than 1/17, or if the library is not as near to its own
oracle as fp32 arithmetic is to fp64 (in the last stage, where a weight near a tie may be rounded the other way: as a
fifth of what the stage does). --write makes a capture of the last stage of CSA, for `mla run FILE`.
"""

import argparse
import pathlib
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import mla

CAPTURE = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "deepseek_decode.safetensors"
WINDOW = 128
RATIO = 4  # tokens that a compressed row stands for
TOP = 16  # compressed rows that a query reads
TILE = 128  # keys whose weights are rounded against one maximum
LARGEST_MOVE = 1 / 17


class Capture:
    """A recorded decode call: one query token per request over a paged cache."""

    def __init__(self, path):
        with safe_open(path, "pt") as file:
            self.q = file.get_tensor("q")  # [request][1][head][576]
            self.cache = file.get_tensor("k_cache")  # [page][slot][1][576]
            self.table = file.get_tensor("block_table")
            self.lengths = file.get_tensor("cache_seqlens")
            metadata = file.metadata()
        self.d_v = int(metadata["head_dim_v"])
        self.scale = float(metadata["softmax_scale"])
        self.source = metadata.get("source", path)
        if self.q.shape[1] != 1:
            sys.exit(f"{path} holds {self.q.shape[1]} query tokens per request; this example reads decode calls")

    def rows(self, request):
        """The keys of a request in order, [token][576], fp32."""
        length = int(self.lengths[request])
        pages = self.table[request, : -(-length // self.cache.shape[1])].long()
        return self.cache[pages].flatten(0, 1)[:length, 0].float()


def compress(capture):
    """[request][row][1][576] with a row for every RATIO tokens, how many there are, and the tokens left over."""
    count = capture.lengths // RATIO
    rows = torch.zeros(len(count), int(count.max()), 1, capture.cache.shape[3])
    for request, n in enumerate(count.tolist()):
        rows[request, :n, 0] = capture.rows(request)[: n * RATIO].unflatten(0, (n, RATIO)).mean(1)
    return rows.to(capture.cache.dtype), count, capture.lengths - count * RATIO


def choose(capture, rows, count):
    """The TOP rows of each request by the sum of its heads' scores, as the operator wants them: -1 behind the last."""
    chosen = torch.full((len(count), 1, TOP), -1, dtype=torch.int32)
    for request, n in enumerate(count.tolist()):
        score = (capture.q[request, 0].float() @ rows[request, :n, 0].float().T).sum(0)
        best = score.topk(min(TOP, n)).indices.sort().values
        chosen[request, 0, : len(best)] = best
    return chosen


class Numbers:
    """A tensor as it was recorded, or in HiFloat8 with its scale."""

    def __init__(self, tensor, quantised):
        self.data, self.descale = tensor, None
        if quantised:
            self.data, descale = mla.hif8_quantize(tensor)
            self.descale = torch.tensor([descale])


def attend(capture, compressed, quantise_cache, quantise_q, round_weights, backend, out_dtype="f32"):
    """(out [request][1][head][512], lse); compressed: what compress() and choose() returned, or None for SWA."""
    q, cache = Numbers(capture.q, quantise_q), Numbers(capture.cache, quantise_cache)
    second = None
    if compressed is not None:
        rows, count, residual, chosen = compressed
        rows = Numbers(rows, quantise_cache)
        second = mla.Segment(
            rows.data,
            lengths=count,
            visible=mla.compressed(RATIO, residual),
            key_list=chosen,
            list_rule="stop",
            descale=rows.descale,
        )
    return mla.attention(
        q.data,
        cache.data,
        q_descale=q.descale,
        descale=cache.descale,
        page_table=capture.table,
        lengths=capture.lengths,
        visible=mla.window(WINDOW - 1, 0),
        second=second,
        d_v=capture.d_v,
        softmax_scale=capture.scale,
        out_dtype=out_dtype,
        p_rounding="hif8" if round_weights else "none",
        p_tile=TILE if round_weights else 0,
        backend=backend,
    )


def write(capture, compressed, path):
    """The last stage of CSA, with the names of docs/capture-format.md and the operator's bf16 output."""
    out, lse = attend(capture, compressed, True, True, True, "cpu", "bf16")
    rows, count, residual, chosen = compressed
    q, cache, rows = (Numbers(tensor, True) for tensor in (capture.q, capture.cache, rows))
    tensors = {
        "q": q.data,
        "q_descale": q.descale,
        "segment[0].k": cache.data,
        "segment[0].descale": cache.descale,
        "segment[0].page_table": capture.table,
        "segment[0].length": capture.lengths,
        "segment[1].k": rows.data,
        "segment[1].descale": rows.descale,
        "segment[1].length": count,
        "segment[1].visible.residual": residual,
        "segment[1].list": chosen,
        "out": out,
        "lse": lse,
    }
    level = next(isa.name for isa in mla.isa() if isa.selected)
    metadata = {
        "op": "mla_attention",
        "d_v": str(capture.d_v),
        "softmax_scale": repr(capture.scale),
        "out_dtype": "BF16",
        "p_rounding": "hif8",
        "p_tile": str(TILE),
        "segment[0].visible.rule": "window",
        "segment[0].visible.left": str(WINDOW - 1),
        "segment[0].visible.right": "0",
        "segment[1].visible.rule": "compressed",
        "segment[1].visible.ratio": str(RATIO),
        "segment[1].list_rule": "stop",
        "source": f"examples/hif8_window.py, CSA in HiFloat8, of: {capture.source}",
        "recorded_by": f"libmla {mla.version()}, {level}",
    }
    save_file(tensors, path, metadata)


def distance(out, reference):
    """Of each request."""
    return (out - reference).flatten(1).norm(dim=1) / reference.flatten(1).norm(dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("capture", nargs="?", type=pathlib.Path, default=CAPTURE, help="default: %(default)s")
    parser.add_argument("--backend", choices=("auto", "cpu", "ref"), default="auto", help="default: %(default)s")
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE", help="make a capture of the last stage of CSA")
    args = parser.parse_args()
    capture = Capture(args.capture)
    rows, count, residual = compress(capture)
    chosen = choose(capture, rows, count)
    codes, descale = mla.hif8_quantize(capture.cache)
    print(capture.source)
    print(f"cache {capture.cache.nbytes} bytes in 16 bits, {codes.nbytes} in HiFloat8, scale {descale:g}")

    failed = False
    print("\n                    keys       cache     queries     weights")
    for name, compressed in (("SWA", None), ("CSA", (rows, count, residual, chosen))):
        exact, _ = attend(capture, compressed, False, False, False, "ref")
        errors = []
        for stage in ((True, False, False), (True, True, False), (True, True, True)):
            out, _ = attend(capture, compressed, *stage, args.backend)
            oracle, _ = attend(capture, compressed, *stage, "ref")
            errors.append(distance(out, exact))
            apart = float(distance(out, oracle).max())
            if apart > (0.2 * float(errors[-1].max()) if stage[2] else 2.0**-16):
                print(f"{name}: {apart:.1e} away from the oracle")
                failed = True
        for request, length in enumerate(capture.lengths.tolist()):
            keys = f"{min(length, WINDOW)}" + (f" + {int((chosen[request] >= 0).sum())}" if compressed else "")
            shown = "  ".join(f"{100 * float(stage[request]):8.2f} %" for stage in errors)
            print(f"{name}, request {request}  {keys:>9}  {shown}")
        failed = failed or max(float(stage.max()) for stage in errors) > LARGEST_MOVE
    if args.write:
        write(capture, (rows, count, residual, chosen), args.write)
    print("\nFAILED" if failed else "\nPASSED")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
