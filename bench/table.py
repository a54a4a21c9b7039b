#!/usr/bin/env python3
"""Markdown tables for docs/performance.md from what `mla bench --json FILE` wrote: bench/table.py FILE...

Files of bench/peers/compare_ggml are put into one table of their own, at the end.
"""

import json
import statistics
import sys


def share(value):
    return f"{100 * value['median']:.0f} % ({100 * value['low']:.0f}-{100 * value['high']:.0f})" if value else ""


def ratio(value):
    return f"{value['median']:.2f} ({value['low']:.2f}-{value['high']:.2f})" if value else ""


def rows(result):
    """One line of a table; None for a row whose threads never had a core each."""
    if result["disturbed"]:
        return None
    rivals = {rival["name"]: rival["times_ours"] for rival in result.get("rivals", [])}
    return [
        result["name"], str(result["threads"]), f"{result['gflops']:.0f}", share(result.get("of_fma_peak")),
        share(result.get("of_read_bandwidth")), ratio(rivals.get("OpenBLAS")), ratio(rivals.get("oneDNN")),
        ratio(result.get("times_one_thread") or result.get("time_per_key_against_4096") or result.get("time_against_plain_bf16") or result.get("times_openmp")), f"{result['error_normwise']:.1e}",
    ]


def print_bench(bench):
    hardware = bench["hardware"]
    print(f"{hardware['cpu']}, {hardware['cpus']} CPUs, {bench['isa']} kernels, libmla {bench['version']}, {bench['date'][:10]}, "
          f"`{bench['command']}`; rivals: " + ", ".join(f"{k} {v}" for k, v in bench["rivals"].items()) + ".\n")
    print("| shape | threads | GFLOP/s | of FMA peak | of read peak | x OpenBLAS | x oneDNN | ratio | error |")
    print("|---|---|---|---|---|---|---|---|---|")
    left_out = 0
    for result in bench["results"]:
        line = rows(result)
        left_out += line is None
        if line:
            print("| " + " | ".join(line) + " |")
    if left_out:
        print(f"\n{left_out} rows left out: the threads did not have a core each.")
    print()


def milliseconds(samples):
    return f"{1e3 * statistics.median(samples):.2f}"


def print_peers(files):
    print("| peer | our kernels | heads | keys | threads | ours, ms | peer, ms | x peer | our error | peer's error |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for file in files:
        for row in file["results"]:
            print("| " + " | ".join([
                file["peer"], f"{file['isa']}, {row['arithmetic']}", str(row["heads"]), str(row["keys"]), str(row["threads"]),
                milliseconds(row["our_seconds"]), milliseconds(row["peer_seconds"]), ratio(row["peer_times_ours"]),
                f"{row['our_error_normwise']:.1e}", f"{row['peer_error_normwise']:.1e}"]) + " |")


def main():
    files = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            files.append(json.load(file))
    for bench in files:
        if bench["tool"] == "mla bench":
            print_bench(bench)
    peers = [file for file in files if file["tool"] == "compare_ggml"]
    if peers:
        print_peers(peers)


if __name__ == "__main__":
    main()
