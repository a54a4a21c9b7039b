#!/usr/bin/env python3
"""Markdown tables for docs/performance.md from what `mla bench --json FILE` wrote: bench/table.py FILE..."""

import json
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
        ratio(result.get("times_one_thread") or result.get("time_per_key_against_4096") or result.get("time_against_plain_bf16")), f"{result['error_normwise']:.1e}",
    ]


def main():
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            bench = json.load(file)
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


if __name__ == "__main__":
    main()
