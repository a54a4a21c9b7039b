"""The JSON files of `mla bench` and bench/peers/compare_ggml, for table.py and plot.py."""

import json
import pathlib
import re

SHORT_NAMES = {"family 6 model 167": "Xeon (model 167)", "family 6 model 207": "Xeon (model 207)",
               "family 25 model 1": "EPYC, Zen 3", "family 25 model 17": "EPYC, Zen 4", "family 26 model 2": "EPYC, Zen 5"}


class Unusable(Exception):
    """A file that says nothing; the sentence tells why."""


def read(path):
    try:
        content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unusable(f"{path}: {error}") from None
    if not isinstance(content, dict) or content.get("tool") not in ("mla bench", "compare_ggml"):
        raise Unusable(f"{path}: neither from mla bench nor from compare_ggml")
    return content


def title_of(bench):
    """Processor, level, and the arithmetic that was asked for, of a file of mla bench."""
    cpu, asked = bench["hardware"]["cpu"], re.search(r" --arith (\w+)", bench["command"])
    name = next((name for key, name in SHORT_NAMES.items() if f"({key})" in cpu), cpu)
    return f"{name}, {bench['isa']}" + (f" {asked.group(1)}" if asked else "")


def usable(bench, kind):
    """Rows whose threads had a core each."""
    return [row for row in bench["results"] if row["kind"] == kind and not row["disturbed"]]
