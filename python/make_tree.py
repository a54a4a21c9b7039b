#!/usr/bin/env python3
"""Builds the Python wheel around a libmla that is already built, and unpacks it where PYTHONPATH can point.

    python python/make_tree.py --library build/libmla.so --wheel build/wheel --tree build/python

Run it with a Python that has setuptools and wheel (python/requirements-build.txt). The tree is the unpacked wheel, so
that what is tested is what is shipped. Nothing is written into the source folder.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parent
SHIPPED = ("pyproject.toml", "setup.py", "src", "mla", "flash_mla", "cann_ops_transformer", "../LICENSE")


def soname(library):
    """The name that programs linked against the library ask the loader for."""
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\(SONAME\).*\[(.+)\]", dynamic)
    if not found:
        raise SystemExit(f"{library} has no soname; build it with CMake")
    return found.group(1)


def build_wheel(library, include, wheel_dir):
    """Leaves exactly one wheel in wheel_dir and returns its path."""
    with tempfile.TemporaryDirectory() as temporary:
        stage = pathlib.Path(temporary, "source")
        stage.mkdir()
        for name in SHIPPED:
            if (SOURCE / name).is_dir():
                shutil.copytree(SOURCE / name, stage / name, ignore=shutil.ignore_patterns("__pycache__", "*.so*"))
            else:
                shutil.copy2(SOURCE / name, stage)
        fresh = pathlib.Path(temporary, "wheel")
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "--quiet",
                "--disable-pip-version-check",
                "--no-build-isolation",
                "--no-deps",
                "--no-index",
                "--wheel-dir",
                str(fresh),
                str(stage),
            ],
            check=True,
            env={**os.environ, "MLA_LIBRARY": str(library), "MLA_INCLUDE": str(include), "MLA_SONAME": soname(library)},
        )
        (built,) = fresh.glob("*.whl")
        wheel_dir.mkdir(parents=True, exist_ok=True)
        for old in wheel_dir.glob("libmla-*.whl"):
            old.unlink()
        return pathlib.Path(shutil.move(built, wheel_dir / built.name))


def unpack(wheel, tree):
    """Replaces `tree` by the contents of the wheel, in one step."""
    fresh = tree.with_name(tree.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(fresh)
    shutil.rmtree(tree, ignore_errors=True)
    fresh.rename(tree)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libmla.so")
    parser.add_argument("--include", type=pathlib.Path, default=SOURCE.parent / "include", help="folder with mla/mla.h")
    parser.add_argument("--wheel", type=pathlib.Path, required=True, help="folder for the wheel")
    parser.add_argument("--tree", type=pathlib.Path, required=True, help="folder for the importable tree (replaced)")
    options = parser.parse_args()
    wheel = build_wheel(options.library.resolve(strict=True), options.include.resolve(strict=True), options.wheel)
    unpack(wheel, options.tree)
    print(f"{wheel}\n{options.tree}")


if __name__ == "__main__":
    main()
