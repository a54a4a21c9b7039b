#!/usr/bin/env python3
"""Markdown tables for docs/performance*.md from what `mla bench --json FILE` wrote: bench/table.py [--summary|--all] FILE...

A table per file, of the shapes that matter most or, with --all, of every one; with --summary one table of all files, a
column each. Files of a GPU are put into tables of their own before the others, those of bench/peers/compare_ggml into one at the end.
"""

import argparse
import sys

from bench_results import Unusable, read, title_of, usable

MAIN = ("b1 h128 s4096 576/512 bf16", "b1 h128 s16384 576/512 bf16", "b1 h16 s4096 576/512 bf16 dram",
        "b1 h16 s16384 576/512 bf16 dram", "b1 h1 s16384 576/512 bf16 dram", "b8 h128 s~4096 576/512 bf16",
        "b32 h16 s~4096 576/512 bf16", "b1 h128 s65536 576/512 bf16", "b1 h16 s65536 576/512 bf16",
        "b1 h1 s65536 576/512 bf16 dram", "b1 h128 s524288 576/512 bf16")
RATIOS = ("times_one_thread", "time_per_key_against_4096", "time_against_plain_bf16", "times_openmp")


def share(value):
    return f"{100 * value['median']:.0f} % ({100 * value['low']:.0f}-{100 * value['high']:.0f})" if value else ""


def ratio(value):
    return f"{value['median']:.2f} ({value['low']:.2f}-{value['high']:.2f})" if value else ""


def rivals_of(bench):
    """Those that have a column."""
    return ["OpenBLAS", "oneDNN"] + [name for name in bench["rivals"] if name not in ("OpenBLAS", "oneDNN")]


def cells(result, names):
    """One line of a table."""
    rivals = {rival["name"]: rival["times_ours"] for rival in result.get("rivals", [])}
    return [
        result["name"], str(result["threads"]), f"{result['gflops']:.0f}", share(result.get("of_fma_peak")),
        share(result.get("of_read_bandwidth")), *(ratio(rivals.get(name)) for name in names),
        ratio(next((result[key] for key in RATIOS if key in result), None)), f"{result['error_normwise']:.1e}",
    ]


def print_bench(bench, everything):
    hardware = bench["hardware"]
    print(f"{hardware['cpu']}, {hardware['cpus']} CPUs, {bench['isa']} kernels, libmla {bench['version']}, {bench['date'][:10]}, "
          f"`{bench['command']}`; rivals: " + ", ".join(f"{k} {v}" for k, v in bench["rivals"].items()) + ".\n")
    names = rivals_of(bench)
    print("| shape | threads | GFLOP/s | of FMA peak | of read peak | " + " | ".join(f"x {name}" for name in names)
          + " | ratio | error |")
    print("|---" * (7 + len(names)) + "|")
    left_out = 0
    for result in bench["results"]:
        if everything or result["name"] in MAIN or result["shape"].get("ascend"):
            left_out += result["disturbed"]
            if not result["disturbed"]:
                print("| " + " | ".join(cells(result, names)) + " |")
    if left_out:
        print(f"\n{left_out} rows left out: the threads did not have a core each.")
    print()


def print_gpu(bench):
    """What `mla bench --backend cuda` wrote."""
    print(f"{bench['hardware']['gpu']}, libmla {bench['version']}, {bench['date'][:10]}, `{bench['command']}`.\n")
    print("| shape | us | TFLOP/s | TB/s | of copying | error | kernel |\n|---|---|---|---|---|---|---|")
    for row in bench["results"]:
        seconds = row["seconds"]["median"]
        print(f"| {row['name']} | {seconds * 1e6:.1f} | {row['flops'] / seconds * 1e-12:.1f} | {row['bytes'] / seconds * 1e-12:.2f} "
              f"| {share(row['of_copying'])} | {row['error_normwise']:.1e} | {row['kernel']} |")
    print()


# ---- one table of all files --------------------------------------------------------------------------------------------

def span(values, unit=1, digits=0, suffix=""):
    """'0.85', '0.85-0.92', or '' of nothing."""
    low, high = (f"{unit * pick(values):.{digits}f}" for pick in (min, max)) if values else ("", "")
    return low + (f"-{high}" if high != low else "") + (suffix if values else "")


def by_threads(rows, value, **form):
    """A span for each thread count: '85-92 / 78-81 %'."""
    counts = sorted({row["threads"] for row in rows})
    spans = [span([value(row) for row in rows if row["threads"] == n and value(row) is not None], **form) for n in counts]
    return " / ".join(text for text in spans if text)


def rival_ratio(name):
    return lambda row: next((rival["times_ours"]["median"] for rival in row["rivals"] if rival["name"] == name), None)


def single(bench, heads):
    """Undisturbed decode steps of one request and one token with 576/512."""
    return [row for row in usable(bench, "speed") if row["shape"]["heads"] == heads and row["shape"]["requests"] == 1
            and row["shape"]["query_tokens"] == 1 and row["shape"]["d_k"] == 576]


def of_peak(row):
    return row["of_fma_peak"]["median"]


def of_read(row):
    return row["of_read_bandwidth"]["median"] if "of_read_bandwidth" in row else None


def scaling(bench):
    rows = [row for row in usable(bench, "scaling") if row["shape"]["keys"] == 65536]
    most = max((row["threads"] for row in rows), default=0)
    found = [f"{row['times_one_thread']['median']:.2f} (h {row['shape']['heads']})" for row in rows if row["threads"] == most]
    return ", ".join(found) + (f", {most} threads" if found else "")


def ascend(word):
    return lambda bench: by_threads([row for row in usable(bench, "format") if word in row["name"]],
                                    lambda row: row["time_against_plain_bf16"]["median"], digits=2)


SUMMARY = (
    ("h 128, % of FMA peak", lambda bench: by_threads(single(bench, 128), of_peak, unit=100)),
    ("h 128, x OpenBLAS", lambda bench: by_threads(single(bench, 128), rival_ratio("OpenBLAS"), digits=2)),
    ("h 128, x oneDNN", lambda bench: by_threads(single(bench, 128), rival_ratio("oneDNN"), digits=2)),
    ("h 16 from memory, % of FMA peak", lambda bench: by_threads(single(bench, 16), of_peak, unit=100)),
    ("h 16 from memory, x OpenBLAS", lambda bench: by_threads(single(bench, 16), rival_ratio("OpenBLAS"), digits=2)),
    ("h 16 from memory, x oneDNN", lambda bench: by_threads(single(bench, 16), rival_ratio("oneDNN"), digits=2)),
    ("h 1 from memory, % of read peak", lambda bench: by_threads(single(bench, 1), of_read, unit=100)),
    ("65,536 keys, x one thread", scaling),
    ("time per key, 4k = 1", lambda bench: span(
        [row["time_per_key_against_4096"]["median"] for row in usable(bench, "growth")], digits=2)),
    ("CANN CSA, x plain bf16", ascend("csa")),
    ("ATB cache modes, x plain bf16", ascend("atb")),
    ("largest error", lambda bench: f"{max(row['error_normwise'] for row in bench['results']):.1e}"),
)


def print_summary(benches):
    print("| | " + " | ".join(title_of(bench) for bench in benches) + " |")
    print("|---|" + "---|" * len(benches))
    for name, value in SUMMARY:
        line = [value(bench) for bench in benches]
        if any(line):
            print(f"| {name} | " + " | ".join(line) + " |")
    print()


# ---- peers -------------------------------------------------------------------------------------------------------------

def print_peers(files):
    """Time of each peer over ours, a column each; its error behind it is the largest of the column."""
    columns = sorted({(file["peer"], file["isa"]) for file in files})
    rows = {}
    for file in files:
        for row in file["results"]:
            if not row["disturbed"]:
                rows.setdefault((row["heads"], row["keys"], row["threads"]), {})[file["peer"], file["isa"]] = row
    errors = [max(found[column]["peer_error_normwise"] for found in rows.values() if column in found) for column in columns]
    ours = max(row["our_error_normwise"] for found in rows.values() for row in found.values())
    print("| heads | keys | threads | " + " | ".join(f"{peer}; ours {isa}" for peer, isa in columns) + " |")
    print("|---|---|---|" + "---|" * len(columns))
    for (heads, keys, threads), found in sorted(rows.items(), key=lambda item: (-item[0][0], *item[0][1:])):
        print(f"| {heads} | {keys} | {threads} | " + " | ".join(
            ratio(found[column]["peer_times_ours"]) if column in found else "" for column in columns) + " |")
    print(f"| largest error (ours {ours:.1e}) | | | " + " | ".join(f"{error:.1e}" for error in errors) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("file", nargs="+")
    asked = parser.parse_args()
    try:
        files = [read(path) for path in asked.file]
    except Unusable as reason:
        print(f"table.py: {reason}", file=sys.stderr)
        return 2
    gpus = [file for file in files if "gpu" in file.get("hardware", {})]
    benches = [file for file in files if file["tool"] == "mla bench" and file not in gpus]
    peers = [file for file in files if file["tool"] == "compare_ggml"]
    for bench in gpus:
        print_gpu(bench)
    if asked.summary and benches:
        print_summary(benches)
    else:
        for bench in benches:
            print_bench(bench, asked.all)
    if peers:
        print_peers(peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
