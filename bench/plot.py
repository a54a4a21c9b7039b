#!/usr/bin/env python3
"""Draws what `mla bench --json FILE` wrote, for docs/performance.md: bench/plot.py --folder docs FILE...

roofline.svg   a panel per file: FLOP/s over FLOP/byte, the roofs that were measured beside the samples, and every shape
               of kind "speed" with its rivals; files of bench/peers/compare_ggml add its rivals to the panel of the same
               processor and instruction set
growth.svg     time per key over the length of a request, and how much faster more threads are

Rows whose threads did not have a core each are left out, as in the tables. Colours are Okabe and Ito's, and every
series has a marker of its own besides; rivals stand a little beside the intensity that they share with us.
"""

import argparse
import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as pyplot
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench_results import Unusable, read, title_of, usable

SERIES = {  # colour, marker, and how far beside its place it is drawn, so that marks do not hide each other
    "libmla": ("#0072B2", "o", 1),
    "OpenBLAS": ("#E69F00", "^", 1.22),
    "oneDNN": ("#009E73", "s", 1.48),
    "ggml": ("#CC79A7", "v", 0.67),
    "ik_llama.cpp": ("#D55E00", "D", 0.82),
}
LINES = [("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", "-."), ("#CC79A7", "D", ":"), ("#000000", "v", "-"),
         ("#56B4E9", "P", "--")]
COLUMNS = 3


def thread_counts(bench):
    return sorted({row["threads"] for row in usable(bench, "speed")})


def roofs(bench, threads):
    """GFLOP/s and GB/s that this many threads reached beside the samples; None where nothing was read."""
    rows = [row for row in usable(bench, "speed") if row["threads"] == threads]
    reads = [row["read_gb_per_s"]["median"] for row in rows if "read_gb_per_s" in row]
    return statistics.median(row["fma_peak_gflops"]["median"] for row in rows), statistics.median(reads) if reads else None


def points(bench, threads):
    """(series, FLOP/byte, GFLOP/s) of every shape on this many threads."""
    found = []
    for row in usable(bench, "speed"):
        if row["threads"] != threads:
            continue
        intensity = row["flops"] / row["key_bytes"]
        found.append(("libmla", intensity, row["gflops"]))
        for rival in row.get("rivals", []):
            found.append((rival["name"], intensity, row["flops"] / rival["seconds"]["median"] * 1e-9))
    return found


def peer_points(peers, bench, threads):
    """The same for peers that were measured on the same processor with the same instruction set."""
    found = []
    for peer in peers:
        if peer["cpu"] != bench["hardware"]["cpu"] or peer["isa"] != bench["isa"]:
            continue
        series = peer["peer"].split()[0]
        for row in peer["results"]:
            if row["threads"] == threads:
                seconds = statistics.median(row["peer_seconds"])
                found.append((series, row["flops"] / (row["keys"] * 576 * 2), row["flops"] / seconds * 1e-9))
    return found


def draw_panel(axes, bench, peers):
    for threads, line in zip((thread_counts(bench)[0], thread_counts(bench)[-1]), ("-", "--")):
        peak, read_rate = roofs(bench, threads)
        if read_rate:
            ridge = peak / read_rate
            axes.plot([0.5, ridge, 1000], [0.5 * read_rate, peak, peak], color="#444444", linewidth=1, linestyle=line)
        else:
            axes.axhline(peak, color="#444444", linewidth=1, linestyle=line)
        axes.annotate(f"{threads} thread{'s' * (threads > 1)}: {peak:.0f}", (95, peak), fontsize=6.5, color="#444444",
                      va="bottom", ha="center")
        found = points(bench, threads) + peer_points(peers, bench, threads)
        for series, (colour, marker, beside) in SERIES.items():
            axes.plot([x * beside for name, x, _ in found if name == series], [y for name, _, y in found if name == series],
                      marker=marker, color=colour, markersize=4.5 if series == "libmla" else 4, linestyle="none",
                      fillstyle="full" if line == "-" else "none", zorder=3 if series == "libmla" else 2)
    axes.set_title(title_of(bench), fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(0.55, 1000)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 1.2)
    axes.xaxis.set_major_locator(FixedLocator([1, 4, 16, 64, 256]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.yaxis.set_major_locator(FixedLocator([n * 10**e for e in range(5) for n in (1, 2, 5)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.5)
    axes.tick_params(labelsize=7)


def draw_roofline(benches, peers):
    rows = -(-len(benches) // COLUMNS)
    columns = min(COLUMNS, len(benches))
    figure, all_axes = pyplot.subplots(rows, columns, figsize=(3.3 * columns, 2.9 * rows + 0.7), sharex=True, squeeze=False)
    flat = [axes for line in all_axes for axes in line]
    for axes, bench in zip(flat, benches):
        draw_panel(axes, bench, peers)
        axes.set_xlabel("FLOP per byte of keys" if axes.get_subplotspec().is_last_row() else "", fontsize=8)
    for axes in flat[len(benches):]:
        axes.set_visible(False)
    for line in all_axes:
        line[0].set_ylabel("GFLOP/s", fontsize=8)
    seen = {series for bench in benches for threads in thread_counts(bench)
            for series, _, _ in points(bench, threads) + peer_points(peers, bench, threads)}
    marks = [Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=5, label=series)
             for series, (colour, marker, _) in SERIES.items() if series in seen]
    marks.append(Line2D([], [], color="#444444", linestyle="-", label="roof and full marks: fewest threads"))
    marks.append(Line2D([], [], color="#444444", linestyle="--", label="and hollow marks: most"))
    figure.legend(handles=marks, loc="lower center", ncol=len(marks), fontsize=7.5, frameon=False)
    figure.tight_layout(rect=(0, 0.35 / figure.get_figheight(), 1, 1))
    return figure


def growth(bench):
    """(keys, time per key against that of 4096 keys), with the measure itself first."""
    rows = [(row["shape"]["keys"], row["time_per_key_against_4096"]["median"]) for row in usable(bench, "growth")]
    return [(4096, 1.0), *sorted(rows)] if rows else []


def scaling(bench, heads):
    """(threads, times as fast as one thread) for one request of 65,536 keys."""
    rows = [(row["threads"], row["times_one_thread"]["median"]) for row in usable(bench, "scaling")
            if row["shape"]["heads"] == heads and row["shape"]["keys"] == 65536]
    return [(1, 1.0), *sorted(rows)] if rows else []


def draw_growth(benches):
    figure, (left, *right) = pyplot.subplots(1, 4, figsize=(11.5, 3.4), width_ratios=(1.5, 1, 1, 1))
    for bench, (colour, marker, line) in zip(benches, LINES):
        style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 4, "linewidth": 1.2}
        grown = growth(bench)
        if grown:
            left.plot(*zip(*grown), label=title_of(bench), **style)
        for axes, heads in zip(right, (128, 16, 1)):
            scaled = scaling(bench, heads)
            if scaled:
                axes.plot(*zip(*scaled), **style)
    left.set_xscale("log", base=2)
    left.xaxis.set_major_locator(FixedLocator([2**n for n in range(12, 20)]))
    left.xaxis.set_minor_locator(NullLocator())
    left.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1024:g}k"))
    left.set_ylim(0.9, 1.1)
    left.set_title("time per key, 4k keys = 1 (128 heads, 1 thread)", fontsize=8.5)
    left.set_xlabel("keys of the request", fontsize=8)
    for axes, heads in zip(right, (128, 16, 1)):
        most = max([2, *(axes_line.get_xdata()[-1] for axes_line in axes.get_lines())])
        counts = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= most]
        axes.plot([1, most], [1, most], color="#AAAAAA", linewidth=0.8, zorder=1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator(counts))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.set_title(f"x one thread, {heads} head{'s' * (heads > 1)}, 64k keys", fontsize=8.5)
        axes.set_xlabel("threads", fontsize=8)
    for axes in (left, *right):
        axes.grid(True, color="#DDDDDD", linewidth=0.5)
        axes.tick_params(labelsize=7)
    names = left.get_legend_handles_labels()
    figure.legend(*names, loc="lower center", ncol=len(names[1]), fontsize=7.5, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure


def save(figure, path):
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    pyplot.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, type=pathlib.Path, help="where the pictures go")
    parser.add_argument("file", nargs="+")
    asked = parser.parse_args(arguments)
    matplotlib.rcParams.update({"svg.hashsalt": "mla", "svg.fonttype": "none", "font.family": "sans-serif"})
    try:
        files = [read(path) for path in asked.file]
        benches = [content for content in files if content["tool"] == "mla bench"]
        if not any(usable(bench, "speed") for bench in benches):
            raise Unusable("no file holds an undisturbed row of kind 'speed'")
    except Unusable as reason:
        print(f"plot.py: {reason}", file=sys.stderr)
        return 2
    peers = [content for content in files if content["tool"] == "compare_ggml"]
    save(draw_roofline([bench for bench in benches if usable(bench, "speed")], peers), asked.folder / "roofline.svg")
    save(draw_growth(benches), asked.folder / "growth.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
