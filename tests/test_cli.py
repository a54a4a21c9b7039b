#!/usr/bin/env python3
"""test_cli.py MLA [EMULATOR...] - the command as people and scripts use it, and as hostile files do. Prints TAP.

Needs nothing but the Python standard library. Captures are built here byte by byte, so that the reader and the writer
of the command are tested against the format and not against each other. With an emulator's command line, what computes for
long or measures is skipped.
"""
import itertools
import json
import math
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

MLA, EMULATOR = os.path.abspath(sys.argv[1]), sys.argv[2:]
ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRATCH = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(SCRATCH.name)
SUBCOMMANDS = ["demo", "info", "run", "check", "bench"]

tests = []


def test(function):
    tests.append(function)
    return function


def long_test(function):
    """One that is skipped under emulation."""
    function.long = True
    return test(function)


def mla(*arguments, code=0, seconds=240, environment=None, command=MLA):
    """Runs the command; its exit status must be `code`. Whatever it was fed, a failure is one sentence on stderr."""
    process = subprocess.run([*EMULATOR, command, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                             timeout=seconds, env={**os.environ, **(environment or {})})
    out, error = process.stdout.decode(errors="replace"), process.stderr.decode(errors="replace")
    told = f"mla {' '.join(map(str, arguments))}\nexit status {process.returncode}\n{out}{error}"
    expected = (code,) if isinstance(code, int) else code
    assert process.returncode in expected, f"expected exit status {code}: {told}"
    if process.returncode == 2:
        assert error.startswith("mla") and error.count("\n") == 1 and len(error) > 10, f"not one sentence: {told}"
        parts = error.split(": ")
        for before, after in zip(parts, parts[1:]):
            assert not before or not after.startswith(before), f"'{before}' is said twice: {told}"
    else:
        assert error == "", f"unexpected words on stderr: {told}"
    return out, error


# ---- captures --------------------------------------------------------------------------------------------------------

def bf16(values):
    """Exact only for values with few digits, which is all that is used here."""
    return b"".join(struct.pack("<f", x)[2:] for x in values)


def pack(tensors, metadata, header=None):
    """A safetensors file: tensors = {name: (dtype, shape, bytes)}; `header` changes the JSON before it is written."""
    table, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    if metadata is not None:
        table["__metadata__"] = metadata
    if header:
        changed = header(table)
        table = table if changed is None else changed
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + data


def unpack(path):
    content = pathlib.Path(path).read_bytes()
    length, = struct.unpack_from("<Q", content)
    table = json.loads(content[8:8 + length])
    metadata = table.pop("__metadata__", None)
    data, at, tensors = content[8 + length:], 0, {}
    for name, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == at, f"{name} leaves a hole or overlaps"
        tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
        at = end
    assert at == len(data) and (8 + length) % 8 == 0
    return tensors, metadata


LENGTHS = [5, 70, 0]
HEADS, D, D_V, PAGE = 3, 6, 4, 64


def example():
    """q = 0, so every key weighs the same: out = mean of the value rows, lse = ln(number of keys). All columns of the
    t-th key of a request are t. Page table entries that nobody may use are garbage, rows that nobody may read NaN."""
    table = [[2, 2147480000], [3, 0], [-1, -1]]
    cache = [float("nan")] * (4 * PAGE * D)
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            row = (table[i][t // PAGE] * PAGE + t % PAGE) * D
            cache[row:row + D] = [float(t)] * D
    tensors = {"block_table": ("I32", [3, 2], struct.pack("<6i", *sum(table, []))),
               "cache_seqlens": ("I32", [3], struct.pack("<3i", *LENGTHS)),
               "q": ("BF16", [3, 1, HEADS, D], bf16([0.0] * (3 * HEADS * D))),
               "k_cache": ("BF16", [4, PAGE, 1, D], bf16(cache))}
    metadata = {"op": "flash_mla_with_kvcache", "head_dim_v": str(D_V), "softmax_scale": "0.125", "causal": "false",
                "source": "example of test_cli.py"}
    return tensors, metadata


def expected_out():
    return [2.0] * (HEADS * D_V) + [34.5] * (HEADS * D_V) + [0.0] * (HEADS * D_V)


def expected_lse():
    return [math.log(5)] * HEADS + [math.log(70)] * HEADS + [math.inf] * HEADS


def recorded(out=None, lse=None):
    tensors, metadata = example()
    tensors["lse"] = ("F32", [3, HEADS, 1], struct.pack(f"<{3 * HEADS}f", *(lse or expected_lse())))
    tensors["out"] = ("BF16", [3, 1, HEADS, D_V], bf16(out or expected_out()))
    return tensors, metadata


def save(content, name="capture.safetensors"):
    path = FOLDER / name
    path.write_bytes(content)
    return path


# ---- the command line ------------------------------------------------------------------------------------------------

@test
def help_and_version():
    version = mla("--version")[0]
    assert version.startswith("mla ") and version.count(".") == 2, version
    text = mla("--help")[0]
    for name in SUBCOMMANDS:
        assert f"  {name}" in text, name
        help_text = mla(name, "--help")[0]
        assert help_text.startswith(f"Usage: mla {name}") and "Examples:" in help_text, help_text
        assert max(map(len, help_text.splitlines())) <= 120, help_text
        assert mla("help", name)[0] == help_text == mla(name, "-h")[0]
    process = subprocess.run([*EMULATOR, MLA], capture_output=True)
    assert process.returncode == 2 and b"Usage: mla" in process.stdout


@test
def wrong_command_lines_are_refused_in_one_sentence():
    for words, say in [(["fly"], "'fly' is not known"), (["--fly"], "'--fly' is not known"),
                       (["run"], "exactly one"), (["run", "a", "b"], "exactly one"),
                       (["run", "--fly", "x"], "'--fly' is not known"), (["run", "-Q", "x"], "'-Q' is not known"),
                       (["run", "x", "--out"], "'--out' needs a value"), (["run", "--check=1", "x"], "takes no value"),
                       (["run", "--threads", "0", "x"], "--threads = '0'"), (["run", "-t", "2x", "x"], "'2x'"),
                       (["run", "--backend", "tpu", "x"], "'tpu'"), (["run", "--isa", "mmx", "x"], "mmx"),
                       (["run", "--arith", "f64", "x"], "--arith: MLA_ARITH = \"f64\""),
                       (["info", "x"], "'x'"), (["demo", "x"], "'x'"), (["check", "x"], "'x'"), (["bench", "x"], "'x'"),
                       (["check", "--seconds", "-1"], "'-1'"), (["check", "--seed", "-1"], "'-1'"),
                       (["check", "--cases", "99999999999999999999"], "999"),
                       (["bench", "--threads", "1,,2"], "'1,,2'"), (["bench", "--samples", "1"], "'1'"),
                       (["bench", "--backend", "tpu"], "'tpu'"), (["bench", "--seconds", "0"], "'0'"),
                       (["bench", "--threads", "2", "--backend", "cuda"], "--threads is about CPUs"),
                       (["bench", "--rival-isa", "sse"], "'sse'"), (["bench", "--filter", "no such shape"], "no such"),
                       (["bench", "--list", "--filter", "no such shape"], "no such"),
                       (["bench", "--filter", "h16 s65536", "--threads", "1"], "two threads"),
                       (["bench", "--quick", "--json", FOLDER], "cannot write it: Is a directory"),
                       (["bench", "--quick", "--json", FOLDER / "no/such"], "cannot write it: No such file")]:
        out, error = mla(*words, code=2)
        assert say in error, f"{words}: {error}"
        assert out == "", f"{words} began before it was refused: {out}"


@test
def info_is_text_and_json():
    facts = json.loads(mla("info", "--json")[0])
    assert facts["threads"] >= 1 and facts["machine"]["cpus"] >= 1 and facts["version"]
    levels = {level["name"]: level for level in facts["isa"]}
    assert levels["scalar"]["usable"] and sum(level["selected"] for level in levels.values()) == 1
    assert any(kernel["selected"] for kernel in facts["kernels"])
    text = mla("info")[0]
    assert "scalar" in text and "in use" in text and "gpus" in text
    kind = {kernel["name"]: kernel["kind"] for kernel in facts["kernels"] if kernel["selected"]}
    kinds = [kind[word] for word in text.split() if word in kind]
    assert len(kinds) == len(kind) and len(list(itertools.groupby(kinds))) == len(set(kinds)), text
    assert facts["gpus"] or "CUDA kernels" in facts["gpus_note"], facts
    assert facts["arithmetic"] in ("f32", "bf16", "bf16x2", "int16") and f"arithmetic   {facts['arithmetic']}, " in text
    for word in ("f32", "int16"):
        chosen = json.loads(mla("info", "--json", environment={"MLA_ARITH": word})[0])["arithmetic"]
        assert chosen in (word, "f32"), chosen
    facts = json.loads(mla("info", "--json", environment={"MLA_ISA": "scalar", "OMP_NUM_THREADS": "3"})[0])
    assert [level["name"] for level in facts["isa"] if level["selected"]] == ["scalar"]
    assert facts["threads"] == 3 and facts["environment"]["MLA_ISA"] == "scalar"
    assert facts["machine"]["cores"] <= facts["machine"]["cpus"]
    for name in SUBCOMMANDS:
        words = [name, "capture"] if name == "run" else [name]
        out, error = mla(*words, code=2, environment={"MLA_ISA": "mmx"})
        assert error.startswith(f"mla {name}: MLA_ISA = ") and "mmx" in error and out == "", out + error
        long = "f32" + "x" * 97  # one that does not fit is quoted as far as it goes, and the sentence ends as ever
        for variable, rest in (("MLA_ISA", "is not a level of this build: scalar"), ("MLA_ARITH", "must be auto, f32, ")):
            out, error = mla(*words, code=2, environment={variable: long})
            assert error.startswith(f'mla {name}: {variable} = "{long[:60]}..." {rest}') and out == "", out + error
        out, error = mla(*words, code=2, environment={"MLA_ARITH": "f64"})
        assert error.startswith(f'mla {name}: MLA_ARITH = "f64" must be auto, f32, ') and out == "", out + error


# ---- run -------------------------------------------------------------------------------------------------------------

@test
def run_computes_what_the_formula_says():
    path = save(pack(*example()))
    for options in [[], ["--isa", "scalar"], ["--backend", "ref"], ["--threads", "1"], ["--threads", "5"]]:
        result = FOLDER / "result.safetensors"
        out = mla("run", "--check", "--out", result, *options, path)[0]
        assert "example of test_cli.py" in out and "oracle" in out and "GFLOP/s" in out, out
        assert ("ref in fp64, " if "ref" in options else "scalar in f32, " if "scalar" in options else "cpu ") in out, out
        tensors, metadata = unpack(result)
        by = metadata.pop("recorded_by")
        assert by.startswith("libmla ") and ("ref" if "ref" in options else "cpu ") in by, by
        assert metadata == example()[1]
        for name, tensor in example()[0].items():
            assert tensors[name] == tensor, f"{name} changed on the way"
        assert tensors["out"] == ("BF16", [3, 1, HEADS, D_V], bf16(expected_out())), tensors["out"]
        lse = struct.unpack(f"<{3 * HEADS}f", tensors["lse"][2])
        assert all(a == b or abs(a - b) < 1e-6 for a, b in zip(lse, expected_lse())), lse
        again = mla("run", "--check", result)[0]
        assert f"(by {by}) " in again and "FAILED" not in again, again
    assert "(by " not in mla("run", "--check", save(pack(*recorded())))[0]
    tensors, metadata = recorded()
    said = save(pack(tensors, {**metadata, "recorded_by": "another program 7"}))
    assert "(by another program 7) " in mla("run", "--check", said)[0]
    mla("run", "--out", said, said)  # its own result now
    assert unpack(said)[1]["recorded_by"].startswith("libmla ")


@test
def run_replays_a_hif8_capture_and_notices_another_scale():
    path = ROOT / "tests/data/deepseek_hif8.safetensors"
    for options in [[], ["--isa", "scalar"], ["--backend", "ref"], ["--threads", "3"]]:
        told = mla("run", "--check", *options, path)[0]
        assert "hif8, 1 kv head, values of 512" in told and "lists of 16" in told and "tiles of 128" in told, told
        assert "FAILED" not in told and "(by libmla" in told, told
    tensors, metadata = unpack(path)
    for name in ["q_descale", "segment[0].descale", "segment[1].descale"]:
        dtype, shape, content = tensors[name]
        other = struct.pack("<f", 4 * struct.unpack("<f", content)[0])
        told = mla("run", "--check", save(pack({**tensors, name: (dtype, shape, other)}, metadata)), code=1)[0]
        oracle, said = (next(line for line in told.splitlines() if word in line) for word in ["oracle ", "recorded "])
        assert " ok " in oracle and "FAILED" in said, told


@test
def run_takes_every_dtype_and_causal_queries():
    for dtype, code, size in [("F32", "f", 4), ("F16", "e", 2)]:
        cache = [float(t) for t in range(8) for _ in range(D)]
        tensors = {"block_table": ("I32", [1, 8], struct.pack("<8i", *range(8))),
                   "cache_seqlens": ("I32", [1], struct.pack("<i", 2)),
                   "q": (dtype, [1, 4, 2, D], bytes(4 * 2 * D * size)),
                   "k_cache": (dtype, [8, 1, 1, D], struct.pack(f"<{len(cache)}{code}", *cache))}
        metadata = {"op": "flash_mla_with_kvcache", "head_dim_v": "1", "causal": "1"}
        result = FOLDER / "causal.safetensors"
        mla("run", "--check", "--out", result, save(pack(tensors, metadata)))
        written = unpack(result)[0]
        out = struct.unpack(f"<8{code}", written["out"][2])
        assert out == (0, 0, 0, 0, 0, 0, 0.5, 0.5), out  # tokens 0 and 1 see nothing, 2 sees key 0, 3 sees keys 0 and 1
        lse = struct.unpack("<8f", written["lse"][2])  # [head][token]
        assert lse[:3] == (math.inf, math.inf, 0) and abs(lse[3] - math.log(2)) < 1e-6, lse


def problem_example():
    """q = 0, so a row is the mean of its keys: three HiFloat8 keys 1, 2 and 4 of layout NZ in pieces of two columns, of
    which a token with a window sees the last two, and one bf16 key of 8 that everybody sees."""
    page = b"".join(bytes([code] * 2) for _ in range(2) for code in (0x08, 0x10, 0x20, 0x80))  # the fourth slot: NaN
    tensors = {"segment[0].page_table": ("I32", [1, 1], struct.pack("<i", 0)),
               "segment[0].length": ("I32", [1], struct.pack("<i", 3)),
               "segment[1].k_begin": ("I32", [2], struct.pack("<2i", 0, 1)),
               "sink": ("F32", [2], struct.pack("<2f", -math.inf, 0)),
               "segment[1].k": ("BF16", [1, 1, 4], bf16([8.0] * 4)),
               "q": ("U8", [1, 2, 4], bytes(8)),
               "segment[0].k": ("U8", [1, 2, 4, 2], page)}
    metadata = {"op": "mla_attention", "d_v": "3", "segment[0].layout": "nz", "segment[0].visible.rule": "window",
                "segment[0].visible.left": "1", "segment[0].visible.right": "0", "p_rounding": "hif8", "p_tile": "128",
                "lse_with_sink": "true", "lse_empty": "0", "out_dtype": "F32"}
    return tensors, metadata


@test
def run_replays_any_problem():
    tensors, metadata = problem_example()
    result = FOLDER / "problem_result.safetensors"
    told = mla("run", "--check", "--out", result, "--backend", "ref", save(pack(tensors, metadata)))[0]
    assert "hif8 NZ" in told and "probabilities to hif8, in tiles of 128" in told and "FAILED" not in told, told
    written, said = unpack(result)
    assert all(written[name] == tensor for name, tensor in tensors.items())
    assert said.pop("recorded_by").startswith("libmla ") and said == metadata
    out, lse = struct.unpack("<6f", written["out"][2]), struct.unpack("<2f", written["lse"][2])
    assert all(abs(x - y) < 1e-6 for x, y in zip(out, [14 / 3] * 3 + [14 / 4] * 3)), out
    assert abs(lse[0] - math.log(3)) < 1e-6 and abs(lse[1] - math.log(4)) < 1e-6, lse
    assert mla("run", "--check", "--backend", "ref", result)[0].count("ok") >= 2
    written["out"] = ("F32", [1, 2, 3], struct.pack("<6f", *[14 / 3] * 3, *[14 / 3] * 3))
    mla("run", "--check", "--backend", "ref", save(pack(written, {**said, "p_rounding": "none", "p_tile": "0"})), code=1)


@test
def captures_of_problems_are_not_trusted_either():
    def changed(tensor=None, content=None, **fields):
        tensors, metadata = problem_example()
        if tensor is not None and content is None:
            del tensors[tensor]
        elif tensor is not None:
            tensors[tensor] = content
        for key, value in fields.items():
            key = key.replace("segment_", "segment[0].").replace("__", ".")
            metadata.pop(key, None) if value is None else metadata.update({key: value})
        return pack(tensors, metadata)

    for content, words in [
            (changed("q"), "no tensor 'q'"), (changed("segment[0].k"), "segment[0].k is missing"),
            (changed("segment[0].length"), "segment[0].length is missing"),
            (changed("q", ("U8", [8], bytes(8))), "'q' has 1 dimensions"),
            (changed("q", ("I32", [1, 2, 4], bytes(32))), "'q' has dtype I32"),
            (changed("sink", ("F32", [1, 1, 1, 1, 1, 1, 1, 2], bytes(8))), "'sink' has 8 dimensions"),
            (changed("sink", ("F32", [3], bytes(12))), "sink.dim[0] = 3 differs from q.dim[1] = 2"),
            (changed("segment[0].k", ("U8", [1, 4, 2, 3], bytes(24))), "4 pieces of dim[3] = 3 columns"),
            (changed("segment[1].k_begin", ("I32", [2], struct.pack("<2i", 0, 2))), "k_begin[1] = 2 exceeds"),
            (changed("segment[0].length", ("I32", [1], struct.pack("<i", 5))), "length[0] = 5 exceeds"),
            (changed(d_v=None), "'d_v' is missing"), (changed(d_v="0"), "'d_v' is less"),
            (changed(d_v="5"), "d_v = 5 must be at most 4"), (changed(d_v="3.0"), "'d_v' is '3.0'"),
            (changed(p_rounding="fp8"), "must be 'none', '16bit', 'int8' or 'hif8'"),
            (changed(p_rounding="16bit"), "q.dtype = hif8 must be f16 or bf16"),
            (changed(p_tile="513"), "p_tile = 513 must be between 1 and 512"),
            (changed(p_tile="99999999999"), "'p_tile'"), (changed(lse_base="10"), "must be 'e' or '2'"),
            (changed(lse_with_sink="maybe"), "must be true or false"), (changed(out_dtype="U8"), "'out_dtype'"),
            (changed(segment_layout="zn"), "must be 'row' or 'nz'"),
            (changed(segment_visible__rule="diagonal"), "'compressed'"),
            (changed(segment_visible__left="-2"), "visible.left = -2"),
            (changed(segment_visible__left=""), "must be a whole number"),
            (changed("out", ("BF16", [1, 2, 3], bytes(12))), "'out' has dtype BF16"),
            (changed("out", ("F32", [1, 2, 4], bytes(32))), "out.dim[2] = 4 must be 3"),
            (changed("lse", ("F32", [1, 3], bytes(12))), "lse.dim[1] = 3 must be 2")]:
        error = mla("run", "--check", "--backend", "ref", save(content, "hostile.safetensors"), code=2)[1]
        assert words in error, error


@test
def run_check_notices_a_wrong_recorded_result():
    good = mla("run", "--check", save(pack(*recorded())))[0]
    assert "recorded" in good and "FAILED" not in good, good
    out = expected_out()
    out[HEADS * D_V + D_V + 2] = 34.0  # request 1, head 1, column 2
    assert "out[1][0][1][2] = 34" in mla("run", "--check", save(pack(*recorded(out=out))), code=1)[0]
    out = expected_out()
    out[-1] = 1e-30  # a request without keys: exactly 0
    assert "out[2][0][2][3]" in mla("run", "--check", save(pack(*recorded(out=out))), code=1)[0]
    for wrong in (math.log(70) + 1e-4, math.inf, math.nan):
        lse = expected_lse()
        lse[5] = wrong
        told = mla("run", "--check", save(pack(*recorded(lse=lse))), code=1)[0]
        assert "lse of request 1, token 0, head 2" in told, told
    lse = expected_lse()
    lse[-1] = -math.inf
    mla("run", "--check", save(pack(*recorded(lse=lse))), code=1)
    mla("run", save(pack(*recorded(lse=lse))))  # without --check nothing is compared


@test
def run_handles_requests_of_nothing():
    tensors, metadata = example()
    tensors["q"] = ("BF16", [0, 1, HEADS, D], b"")
    tensors["block_table"] = ("I32", [0, 2], b"")
    tensors["cache_seqlens"] = ("I32", [0], b"")
    mla("run", "--check", save(pack(tensors, metadata)))
    tensors["q"] = ("BF16", [0, 2**50, HEADS, D], b"")  # vast, and empty all the same
    mla("run", "--check", save(pack(tensors, metadata)), code=(0, 2))
    tensors, metadata = example()
    tensors["q"] = ("BF16", [3, 0, HEADS, D], b"")
    mla("run", "--check", save(pack(tensors, metadata)))
    tensors["q"] = ("BF16", [2**50, 0, HEADS, D], b"")
    mla("run", "--check", save(pack(tensors, metadata)), code=2)


@test
def run_replays_the_committed_capture():
    path = ROOT / "tests/data/deepseek_decode.safetensors"
    told = mla("run", "--check", path)[0]
    assert told.count("ok") >= 2 and "FAILED" not in told, told
    # its result is stored in bf16: that rounding, some 2^-9 / sqrt(3) norm-wise, is what the norm-wise error shows
    assert told.count("nearly all of it the rounding of a bf16 output") == 2, told
    assert told.count("arithmetic uses ") == 2, told


@test
def out_is_written_safely():
    path = save(pack(*example()))
    before = sorted(FOLDER.iterdir())
    for bad in (FOLDER / "no" / "such", FOLDER, ""):
        out, error = mla("run", "--out", bad, path, code=2)
        assert "cannot write" in error and out == "", out + error  # and nothing was computed before
    assert sorted(FOLDER.iterdir()) == before
    target, link = FOLDER / "target.safetensors", FOLDER / "link.safetensors"
    target.write_bytes(b"old")
    link.symlink_to(target)
    mla("run", "--out", link, path)
    assert link.is_symlink() and "out" in unpack(target)[0]
    mla("run", "--out", path, path)  # onto itself
    assert "out" in unpack(path)[0]
    assert not list(FOLDER.glob("*.part"))
    if os.path.exists("/dev/full"):
        assert "cannot write" in mla("run", "--out", "/dev/full", path, code=2)[1]
        assert not os.path.isfile("/dev/full")


# ---- hostile files ---------------------------------------------------------------------------------------------------

def change(**entries):
    """Replaces fields: change(q={"dtype": "I8"}) or, with None, removes the entry."""
    def header(table):
        for name, fields in entries.items():
            if fields is None:
                del table[name]
            else:
                table[name].update(fields)
    return header


def text(content):
    return lambda table: content


def with_metadata(**fields):
    metadata = {**example()[1], **fields}
    return pack(example()[0], {key: value for key, value in metadata.items() if value is not None})


def without(*names):
    tensors, metadata = example()
    return pack({name: tensor for name, tensor in tensors.items() if name not in names}, metadata)


def with_tensor(name, *tensor):
    tensors, metadata = example()
    return pack({**tensors, name: tensor}, metadata)


def hostile_files():
    whole = pack(*example())
    length, = struct.unpack_from("<Q", whole)
    table = whole[8:8 + length]
    for name, header in [("dtype I64", change(q={"dtype": "I64"})), ("dtype unknown", change(q={"dtype": "BF17"})),
                         ("dtype no string", change(q={"dtype": 7})), ("dtype missing", change(q={"dtype": None})),
                         ("negative offset", change(block_table={"data_offsets": [-24, 0]})),
                         ("offsets reversed", change(block_table={"data_offsets": [24, 0]})),
                         ("offset past the end", change(q={"data_offsets": [36, 10**9]})),
                         ("offset past 2^53", change(q={"data_offsets": [36, 2**60]})),
                         ("offset past 2^64", change(q={"data_offsets": [36, 1e300]})),
                         ("fractional offset", change(q={"data_offsets": [36.5, 144]})),
                         ("overlap", change(cache_seqlens={"data_offsets": [0, 12]})),
                         ("one offset", change(q={"data_offsets": [36]})),
                         ("three offsets", change(q={"data_offsets": [36, 40, 144]})),
                         ("offsets no array", change(q={"data_offsets": "36"})),
                         ("shape negative", change(q={"shape": [3, 1, HEADS, -D]})),
                         ("shape overflows", change(q={"shape": [2**52, 2**52, 2**52, 2**52]})),
                         ("shape wraps to the right size", change(q={"shape": [2**40, 2**24, 2, 27]})),
                         ("shape too large", change(q={"shape": [3, 1, HEADS, D + 1]})),
                         ("shape of strings", change(q={"shape": ["3", "1", "3", "6"]})),
                         ("shape no array", change(q={"shape": 54})),
                         ("nine dimensions", change(q={"shape": [1] * 8 + [54]})),
                         ("unknown field", change(q={"offset": 0})),
                         ("a hole", change(cache_seqlens=None)),
                         ("bytes left over", change(k_cache=None)),
                         ("entry no object", lambda t: {**t, "q": []}),
                         ("metadata no object", lambda t: {**t, "__metadata__": []}),
                         ("metadata of numbers", lambda t: {**t, "__metadata__": {"op": 1}}),
                         ("header no object", text(b"[1, 2]")), ("header empty", text(b"")),
                         ("header no JSON", text(b"{\"q\": {")), ("header binary", text(bytes(range(256)))),
                         ("header deep", text(b"{\"a\":" * 5000)), ("header with a tail", text(table + b"x")),
                         ("header with a zero byte", text(table + b"\0")),
                         ("name twice", text(table.replace(b'"cache_seqlens"', b'"block_table"'))),
                         ("field twice", text(table.replace(b'"shape"', b'"dtype"', 1))),
                         ("metadata twice", text(table.replace(b'"causal"', b'"op"')))]:
        yield name, pack(*example(), header)
    yield "nothing", b""
    yield "seven bytes", whole[:7]
    yield "length alone", struct.pack("<Q", 0)
    yield "header cut", whole[:8 + length // 2]
    yield "data cut", whole[:-1]
    yield "data too long", whole + b"\0"
    yield "header of 2^63", struct.pack("<Q", 2**63) + whole[8:]
    yield "header of 2^64 - 1", struct.pack("<Q", 2**64 - 1) + whole[8:]
    yield "header past the end", struct.pack("<Q", len(whole)) + whole[8:]
    yield "header over the format's limit", struct.pack("<Q", 100_000_001) + bytes(100)
    for name in example()[0]:
        yield f"no {name}", without(name)
    for name in ("op", "head_dim_v"):
        yield f"no metadata {name}", with_metadata(**{name: None})
    for name, values in {"op": ["", "flash_mla"], "head_dim_v": ["", "0", "-1", "7", "4x", "99999999999999999999"],
                         "softmax_scale": ["", "inf", "nan", "1e60", "0.1 "], "causal": ["", "yes"]}.items():
        for value in values:
            yield f"metadata {name} = '{value}'", with_metadata(**{name: value})
    yield "no metadata", pack(example()[0], None)
    yield "q of rank 3", with_tensor("q", "BF16", [3, HEADS, D], bf16([0.0] * (3 * HEADS * D)))
    yield "q of another dtype", with_tensor("q", "F16", [3, 1, HEADS, D], bytes(2 * 3 * HEADS * D))
    yield "q of another width", with_tensor("q", "BF16", [3, 1, HEADS, D + 1], bytes(2 * 3 * HEADS * (D + 1)))
    yield "q without heads", with_tensor("q", "BF16", [3, 1, 0, D], b"")
    yield "table of I64", with_tensor("block_table", "I64", [3, 2], bytes(48))
    yield "table of other requests", with_tensor("block_table", "I32", [2, 2], bytes(16))
    yield "lengths of other requests", with_tensor("cache_seqlens", "I32", [4], bytes(16))
    yield "length past the table", with_tensor("cache_seqlens", "I32", [3], struct.pack("<3i", 5, 129, 0))
    yield "page out of range", with_tensor("block_table", "I32", [3, 2], struct.pack("<6i", 4, 0, 3, 0, 0, 0))
    yield "page negative", with_tensor("block_table", "I32", [3, 2], struct.pack("<6i", -1, 0, 3, 0, 0, 0))
    yield "out of another width", with_tensor("out", "BF16", [3, 1, HEADS, D], bytes(2 * 3 * HEADS * D))
    yield "lse of another shape", with_tensor("lse", "F32", [3, 1, HEADS], bytes(4 * 3 * HEADS))
    yield "lse of BF16", with_tensor("lse", "BF16", [3, HEADS, 1], bytes(2 * 3 * HEADS))


@test
def hostile_files_are_refused_in_one_sentence():
    names = 0
    for name, content in hostile_files():
        try:
            error = mla("run", "--check", save(content, "hostile.safetensors"), code=2)[1]
        except AssertionError as wrong:
            raise AssertionError(f"{name}: {wrong}") from wrong
        assert "hostile.safetensors: " in error or "the captured call: " in error, f"{name}: {error}"
        names += 1
    assert names > 80


@test
def what_is_no_file_is_refused():
    assert "cannot open" in mla("run", FOLDER / "missing", code=2)[1]
    assert "not a regular file" in mla("run", FOLDER, code=2)[1]
    os.mkfifo(FOLDER / "fifo")
    assert "not a regular file" in mla("run", FOLDER / "fifo", code=2, seconds=20)[1]


@test
def text_from_a_file_cannot_steer_the_terminal():
    evil = "\x1b[2J\x07\u009b31m"
    told = mla("run", save(with_metadata(source=evil)))[0]
    error = mla("run", save(with_metadata(op=evil)), code=2)[1]
    error += mla("run", save(pack(*example(), lambda table: {**table, evil: 1})), code=2)[1]
    for line in (told + error).splitlines():
        assert line.isprintable(), repr(line)


@test
def other_tensors_and_padding_are_ignored():
    tensors, metadata = example()
    tensors["another"] = ("F8_E4M3", [5], bytes(5))
    padded = pack(tensors, metadata, lambda table: json.dumps(table).encode() + b"   ")
    assert "1 other tensor" in mla("run", "--check", save(padded))[0]


@test
def spoiled_files_never_crash_it():
    rng = random.Random(7)
    whole = pack(*recorded())
    length, = struct.unpack_from("<Q", whole)
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(8 + length) if rng.random() < 0.8 else rng.randrange(len(content))
            content[at] = rng.choice([0, 0x22, 0x2d, 0x30, 0x39, 0x5d, 0x7d, 0xff, rng.randrange(256)])
        if rng.random() < 0.2:
            del content[rng.randrange(len(content)):]
        mla("run", "--check", "--threads", "1", save(bytes(content), "spoiled.safetensors"), code=(0, 1, 2))


# ---- check, bench, demo ----------------------------------------------------------------------------------------------

@long_test
def check_passes_repeats_and_can_fail():
    told = mla("check", "--seed", "11", "--cases", "12", "--verbose")[0]
    assert "12 passed" in told and told == mla("check", "--seed", "11", "--cases", "12", "-v")[0]
    assert "scalar" in mla("check", "--seed", "11", "--cases", "3", "--isa", "scalar")[0]
    assert "spoiled and noticed" in mla("check", "--seed", "1", "--cases", "12", "--self-test")[0]
    assert "passed" in mla("check", "--seconds", "0.3")[0]


@long_test
def check_draws_every_format():
    told = mla("check", "--seed", "1", "--cases", "50", "--verbose")[0]
    for words in ["hif8 keys", "i8 keys", "NZ by 16", "NZ by 32", "p int8 by ", "p hif8 by ", "p 16bit", "bf16 keys", "f32 keys"]:
        assert words in told, f"no case has {words}: {told}"
    assert "50 passed" in told, told


@long_test
def bench_measures_verifies_and_writes_json():
    path = FOLDER / "bench.json"
    names = mla("bench", "--list")[0]
    assert "b1 h128 s4096 576/512 bf16" in names and "growth" in names and "scaling" in names
    told = mla("bench", "--filter", "b1 h128 s4096 576/512 bf16", "--samples", "3", "--threads", "1,2", "--compare",
               "--arith", "f32", "--json", path)[0]
    assert "h128" in told and "WRONG" not in told, told
    facts = json.loads(path.read_text())
    assert facts["date"].endswith("Z") and "--filter 'b1 h128 s4096 576/512 bf16'" in facts["command"], facts
    assert all(facts[key] for key in ("version", "compiler", "libc", "isa")), facts
    hardware = facts["hardware"]
    assert hardware["cpu"] and hardware["system"] and hardware["cpus"] == len(os.sched_getaffinity(0)), hardware
    assert hardware["cores"] <= hardware["cpus"] and hardware["l3_bytes"] >= 0 and hardware["memory_bytes"] > 0
    assert facts["load_average"]["start"] >= 0 and facts["load_average"]["end"] >= 0
    *results, lent = facts["results"]
    assert [(result["kind"], result["threads"]) for result in facts["results"]] == [
        ("speed", 1), ("speed", 2), ("executor", 2)], told
    assert lent["correct"] and lent["times_openmp"]["median"] > 0 and "x OpenMP" in told, lent
    for result in results:
        # on AMX probabilities are sums of two bf16 numbers
        assert result["correct"] and result["error_normwise"] < (2**-16 if facts["isa"] == "amx" else 2e-6), result
        assert result["seconds"]["low"] <= result["seconds"]["median"] <= result["seconds"]["high"]
        assert 0 < result["of_fma_peak"]["median"], result
        raw = result["raw"]
        assert len(raw["seconds"]) == len(raw["fma_peak_gflops"]) == len(raw["undisturbed"]), raw
        assert len(raw["seconds"]) == result["samples"] + result["discarded"], result
        assert min(raw["seconds"]) <= result["seconds"]["median"] <= max(raw["seconds"])
        for rival in result["rivals"]:
            assert rival["difference_normwise"] < 1e-5 and rival["times_ours"]["median"] > 0


@long_test
def bench_compares_ascend_formats_with_plain_keys():
    path = FOLDER / "ascend.json"
    told = mla("bench", "--filter", "cann", "--samples", "3", "--threads", "2", "--arith", "f32", "--json", path)[0]
    csa, hca = json.loads(path.read_text())["results"]
    assert "x plain bf16" in told and csa["name"] in told and hca["name"] in told and "WRONG" not in told, told
    assert csa["kind"] == "format" and csa["shape"]["ascend"] == "cann csa" and csa["shape"]["dtype"] == "hif8", csa
    assert csa["key_bytes"] == 32 * 640 * 512 and 0.5 < csa["time_against_plain_bf16"]["median"] < 4, csa
    assert hca["kind"] == "scaling" and hca["shape"]["keys"] == 128 + 8192 and hca["times_one_thread"]["median"] > 0, hca
    names = mla("bench", "--list", "--filter", "atb")[0].splitlines()
    assert len(names) == 4 and all(name.startswith("format ") for name in names), names
    assert mla("bench", "--list", "--filter", "atb|") == mla("bench", "--list", "--filter", "|atb"), "nothing is no text"
    assert mla("bench", "--list", "--filter", "atb|")[0].splitlines() == names
    names = mla("bench", "--list", "--filter", "scaling b1 h128 s65536|growth b1 h128 s65|no such")[0].splitlines()
    assert [name.split()[0] for name in names] == ["scaling", "growth"], names


@long_test
def disturbed_figures_are_kept_but_not_shown_as_ratios():
    """Four threads on one CPU never have a core each."""
    path, cpu = FOLDER / "disturbed.json", {min(os.sched_getaffinity(0))}
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpu)
    try:
        told = mla("bench", "--quick", "--filter", "b1 h128 s4096", "--samples", "3", "--threads", "4", "--json",
                   path)[0]
    finally:
        os.sched_setaffinity(0, everywhere)
    row, = [line for line in told.splitlines() if line.startswith("b1 h128 s4096")]
    assert row.endswith("disturbed") and row.count("  -  ") == 2 and "(" not in row, told
    result, = json.loads(path.read_text())["results"]
    raw = result["raw"]
    assert result["disturbed"] and not any(raw["undisturbed"]) and len(raw["seconds"]) == result["samples"] >= 3
    assert len(raw["fma_peak_gflops"]) == result["samples"] and min(raw["seconds"] + raw["fma_peak_gflops"]) > 0


@long_test
def a_busy_machine_is_noted():
    path = ROOT / "tests/data/deepseek_decode.safetensors"
    before = os.getloadavg()[0]
    told = mla("run", path)[0]
    after = os.getloadavg()[0]
    noted, half = "other work is running here" in told, 0.5 * os.cpu_count()
    assert noted or max(before, after) <= 1.02 * half, (before, after, told)
    assert not noted or max(before, after) >= 0.98 * half, (before, after, told)


@long_test
def slow_calls_are_timed_several_times():
    """One that takes longer than the 0.3 s of a quick one."""
    keys, heads, d = 8192, 32, 576
    tensors = {"block_table": ("I32", [1, keys // 64], struct.pack(f"<{keys // 64}i", *range(keys // 64))),
               "cache_seqlens": ("I32", [1], struct.pack("<i", keys)),
               "q": ("BF16", [1, 1, heads, d], bytes(2 * heads * d)),
               "k_cache": ("BF16", [keys // 64, 64, 1, d], bytes(2 * keys * d))}
    metadata = {"op": "flash_mla_with_kvcache", "head_dim_v": "512"}
    told = mla("run", "--backend", "ref", "--threads", "1", save(pack(tensors, metadata), "slow.safetensors"))[0]
    line, = [line for line in told.splitlines() if line.startswith("  time ")]
    _, value, unit, *rest = line.split()
    took = float(value) * {"us,": 1e-6, "ms,": 1e-3, "s,": 1}[unit]
    runs = int(rest[2]) if rest[0] == "median" else 1
    assert took > 0.6 or runs >= 3, line


@long_test
def demo_shows_two_verified_results():
    capture = ROOT / "tests/data/deepseek_decode.safetensors"
    told = mla("demo", "--threads", "2", "--capture", capture)[0]
    assert told.count(" ok  ") == 3 and "FAILED" not in told and "GFLOP/s" in told, told
    assert told.count(", median of ") == 2 and told.count("fastest ") == 1, told
    out, error = mla("demo", "--capture", FOLDER / "missing", code=2)
    assert "cannot open" in error and "serving" in told and "serving" not in out, out + error
    # where it looks by itself: as installed
    prefix = FOLDER / "prefix"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "share/mla").mkdir(parents=True)
    command = shutil.copy(MLA, prefix / "bin/mla")
    library = {"LD_LIBRARY_PATH": os.path.dirname(MLA)}
    assert "--capture" in mla("demo", code=2, environment=library, command=command)[1]
    shutil.copy(capture, prefix / "share/mla")
    assert "deepseek_generate.py" in mla("demo", environment=library, command=command)[0]


@test
def the_man_page_knows_every_option_and_arithmetic():
    page = (ROOT / "cli/mla.1").read_text().replace("\\-", "-")
    for name in SUBCOMMANDS:
        for line in mla(name, "--help")[0].split("Options:")[1].split("Examples:")[0].splitlines():
            for word in line.split()[:2]:
                if word.startswith("--"):
                    assert word[2:].rstrip(",") in page, f"{name} {word} is not in mla.1"
    words = re.search(r"must be (.+) \(", mla("run", "--arith", "f64", "capture", code=2)[1]).group(1)
    for word in re.split(", | or ", words):
        assert re.search(rf"^\.Cm {word}\b", page, re.MULTILINE), f"{word} is not in mla.1"


@test
def examples_name_what_exists():
    page = (ROOT / "cli/mla.1").read_text().split(".Sh EXAMPLES")[1]
    lines = [line[4:] for line in page.splitlines() if line.startswith(".Dl ")]
    assert len(lines) >= 4
    for name in SUBCOMMANDS:
        lines += [line.strip() for line in mla(name, "--help")[0].split("Examples:\n")[1].splitlines()]
    files = 0
    for line in lines:
        words = line.split()
        for before, word in zip(words, words[1:]):
            if word.endswith(".safetensors") and before != "--out":
                assert (ROOT / word).is_file(), f"{line}: there is no {word}"
                files += 1
    assert files >= 4
    words = (ROOT / "cli/mla.1").read_text().split() + " ".join(mla(name, "--help")[0] for name in SUBCOMMANDS).split()
    documents = [word for word in words if word.startswith("docs/")]
    assert len(documents) >= 3 and all((ROOT / name).is_file() for name in documents), documents


@long_test
def run_check_and_bench_on_a_gpu():
    """On the emulated driver where this build has it and kernels for it; else there must be a GPU, or a sentence."""
    build, capture = pathlib.Path(MLA).parent, ROOT / "tests/data/deepseek_decode.safetensors"
    emulated = build / "tests/emulated_cuda"
    if (emulated / "libcuda.so.1").exists() and (build / "cuda/generic.fatbin").exists():
        environment = {"LD_LIBRARY_PATH": str(emulated)}
        out = mla("run", "--check", "--backend", "cuda", capture, environment=environment)[0]
        assert "cuda generic" in out and out.count("ok") >= 2, out
        out = mla("check", "--backend", "cuda", "--cases", "8", "--seed", "7", environment=environment)[0]
        assert "8 passed" in out and "CUDA kernels" in out, out
        out, error = mla("run", "--backend", "cuda", capture, code=2, environment={**environment, "EMULATED_GPUS": "0"})
        assert "the driver finds none" in error, error
        path, step = FOLDER / "gpu.json", ["bench", "--backend", "cuda", "--filter", "h16 s64 "]
        told = mla(*step, "--samples", "3", "--json", path, environment=environment)[0]
        facts = json.loads(path.read_text())
        row, = facts["results"]
        assert row["name"] in told and "% of copying" in told and "emulated GPU" == facts["hardware"]["gpu"], told
        assert row["kind"] == "gpu" and row["kernel"] == "generic" and row["correct"] and 0 < row["error_normwise"] < 2e-3
        assert row["bytes"] == 64 * 576 * 2 + 16 * (576 + 512) * 2 and row["flops"] == 2 * 16 * 64 * (576 + 512), row
        share = [row["bytes"] / s * 1e-9 / c for s, c in zip(row["raw"]["seconds"], row["raw"]["copy_gb_per_s"])]
        assert len(share) == 3 and math.isclose(sorted(share)[1], row["of_copying"]["median"]), row
        assert "the driver finds none" in mla(*step, code=2, environment={**environment, "EMULATED_GPUS": "0"})[1]
        names = mla("bench", "--backend", "cuda", "--list")[0].splitlines()
        assert len(names) > 8 and not {name.split()[0] for name in names} - {"gpu"} and "gpu " not in mla("bench", "--list")[0]
    else:
        out, error = mla("run", "--check", "--backend", "cuda", capture, code=(0, 2))
        assert "cuda " in out or "CUDA" in error, out + error
    assert "what the others are checked against" in mla("check", "--backend", "ref", code=2)[1]


def main():
    failures = 0
    for number, function in enumerate(tests, 1):
        name = function.__name__.replace("_", " ")
        if EMULATOR and hasattr(function, "long"):
            print(f"ok {number} - {name} # SKIP it takes long under emulation", flush=True)
            continue
        try:
            function()
            print(f"ok {number} - {name}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired, json.JSONDecodeError, KeyError, OSError) as error:
            failures += 1
            print(f"not ok {number} - {name}", flush=True)
            for line in f"{type(error).__name__}: {error}".splitlines():
                print(f"# {line}", flush=True)
    print(f"1..{len(tests)}")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
