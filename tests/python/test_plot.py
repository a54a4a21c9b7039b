"""bench/plot.py, on results that are part of the repository."""

import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results"
SCRIPT = ROOT / "bench/plot.py"

sys.path.insert(0, str(SCRIPT.parent))
import plot  # noqa: E402


def draw(folder, *files):
    return subprocess.run([sys.executable, SCRIPT, "--folder", folder, *files], capture_output=True, text=True)


def words(path):
    """All text of a picture, which is also well-formed."""
    return " ".join("".join(element.itertext()) for element in xml.etree.ElementTree.parse(path).iter()
                    if element.tag.endswith("}text"))


def test_pictures_of_committed_results(tmp_path):
    told = draw(tmp_path, RESULTS / "milan-avx2.json", RESULTS / "xeon-avx512.json")
    assert told.returncode == 0 and told.stdout == "" and told.stderr == "", told
    roofline, growth = words(tmp_path / "roofline.svg"), words(tmp_path / "growth.svg")
    for title in ("EPYC, Zen 3, avx2", "Xeon (model 207), avx512"):
        assert title in roofline and title in growth
    for word in ("libmla", "OpenBLAS", "oneDNN", "FLOP per byte of keys", "1 thread: 91", "8 threads:"):
        assert word in roofline, roofline
    assert "time per key" in growth and "512k" in growth and "x one thread, 16 heads" in growth, growth


@pytest.mark.parametrize("model, name", [("1", "EPYC, Zen 3"), ("17", "EPYC, Zen 4"), ("3", "AMD EPYC (family 25 model 3)")])
def test_processors_are_told_apart(model, name):
    bench = {"hardware": {"cpu": f"AMD EPYC (family 25 model {model})"}, "isa": "avx2", "command": "mla bench"}
    assert plot.title_of(bench) == f"{name}, avx2"


def test_the_same_results_give_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        draw(tmp_path / folder, RESULTS / "milan-avx2.json")
    for name in ("roofline.svg", "growth.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_points_are_what_was_measured():
    bench = plot.read(RESULTS / "zen4-avx2.json")
    row = next(row for row in bench["results"] if row["name"] == "b1 h1 s16384 576/512 bf16 dram" and row["threads"] == 2)
    drawn = [(x, y) for name, x, y in plot.points(bench, 2) if name == "libmla"]
    assert (2 * 1088 / 1152, row["gflops"]) in [(pytest.approx(x), y) for x, y in drawn]
    peak, read_rate = plot.roofs(bench, 2)
    assert 200 < peak < 250 and 35 < read_rate < 60
    assert plot.growth(bench)[0] == (4096, 1.0) and [keys for keys, _ in plot.growth(bench)] == [4096, 16384, 65536, 262144, 524288]
    assert plot.scaling(bench, 128)[-1] == (2, pytest.approx(1.972, abs=1e-3))


def test_disturbed_rows_are_left_out():
    bench = plot.read(RESULTS / "xeon-avx512.json")
    assert any(row["disturbed"] for row in bench["results"])
    before = plot.points(bench, 8)
    assert len([name for name, _, _ in before if name == "libmla"]) == len(
        [row for row in bench["results"] if row["kind"] == "speed" and row["threads"] == 8 and not row["disturbed"]])
    bench["results"] = [row for row in bench["results"] if not row["disturbed"]]
    assert plot.points(bench, 8) == before


def test_peers_join_their_machine():
    bench = plot.read(RESULTS / "milan-avx2.json")
    row = {"heads": 16, "keys": 4096, "threads": 1, "flops": 2.0 * 16 * 4096 * 1088, "peer_seconds": [2e-3, 3e-3, 1e-3]}
    peer = {"tool": "compare_ggml", "peer": "ggml 1234, AVX2", "cpu": bench["hardware"]["cpu"], "isa": "avx2", "results": [row]}
    assert plot.peer_points([peer], bench, 1) == [("ggml", pytest.approx(2 * 16 * 1088 / 1152), pytest.approx(row["flops"] / 2e6))]
    assert plot.peer_points([peer], bench, 2) == [] == plot.peer_points([{**peer, "isa": "avx512"}], bench, 1)


@pytest.mark.parametrize("content", ["", "[]", '{"tool": "other"}', '{"tool": "mla bench", "results": []}'])
def test_what_cannot_be_drawn_is_one_sentence(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_text(content)
    told = draw(tmp_path, path)
    assert told.returncode == 2 and re.fullmatch(r"plot\.py: .{10,}\n", told.stderr), told
    assert not list(tmp_path.glob("*.svg"))


def test_pictures_in_the_documents_exist_and_are_small():
    text = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    shown = [ROOT / "docs" / name for name in re.findall(r"!\[[^]]*\]\(([^)]*\.svg)\)", text)]
    assert len(shown) == 2 and sum(path.stat().st_size for path in shown) < 200_000
    drawn = words(ROOT / "docs/roofline.svg")
    named = re.search(r"bench/plot\.py --folder docs ((?:bench/results/[\w-]+\.json\s*\\?\s*)+)", text).group(1)
    for name in re.findall(r"bench/results/[\w-]+\.json", named):
        content = json.loads((ROOT / name).read_text(encoding="utf-8"))
        if content["tool"] == "mla bench":
            assert plot.title_of(content) in drawn, name


def table(*arguments):
    return subprocess.run([sys.executable, SCRIPT.with_name("table.py"), *arguments], capture_output=True, text=True)


def test_tables_say_what_was_measured(tmp_path):
    told = table(RESULTS / "milan-avx2.json").stdout
    assert "| b1 h1 s16384 576/512 bf16 dram | 2 | 26 | 16 % (16-16) | 83 % (81-87) |  |  |  | 4.1e-07 |" in told, told
    assert "b1 h128 s4096 576/512 f16 " not in told and "b1 h128 s4096 576/512 f16 " in table("--all", RESULTS / "milan-avx2.json").stdout
    line, = [line for line in table("--summary", RESULTS / "milan-avx2.json").stdout.splitlines() if "% of read peak" in line]
    assert line == "| h 1 from memory, % of read peak | 70-74 / 76-83 |"
    told = table(*sorted(RESULTS.glob("peer-*.json"))).stdout.splitlines()
    assert told[0].count("ggml d99724f") == 2 == told[0].count("ik_llama.cpp 8337e4c") and len(told) == 2 + 8 + 1, told
    spread = {"median": 0.5, "low": 0.25, "high": 0.75}
    row = {"name": "b1 h16 s64 576/512 bf16", "seconds": {"median": 2e-4}, "flops": 3e10, "bytes": 6e8, "of_copying": spread,
           "error_normwise": 1.7e-3, "kernel": "generic"}
    file = {"tool": "mla bench", "version": "1", "date": "2026-12-01T00:00:00Z", "command": "mla bench --backend cuda",
            "hardware": {"gpu": "a GPU"}, "results": [row]}
    (tmp_path / "file.json").write_text(json.dumps(file))
    for words in ([], ["--summary"]):
        told = table(*words, tmp_path / "file.json").stdout.splitlines()
        assert told[0] == "a GPU, libmla 1, 2026-12-01, `mla bench --backend cuda`."
        assert told[4:] == ["| b1 h16 s64 576/512 bf16 | 200.0 | 150.0 | 3.00 | 50 % (25-75) | 1.7e-03 | generic |", ""], told
    (tmp_path / "file.json").write_text("{}")
    assert re.fullmatch(r"table\.py: .{10,}\n", table(tmp_path / "file.json").stderr)
