"""What is shipped: one binary for every Python, with the library beside it."""

import importlib.metadata
import inspect
import os
import pathlib
import subprocess
import sys

import flash_mla
import mla
from mla import _core

HOME = pathlib.Path(mla.__file__).parent
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def dynamic(path):
    return subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout


def test_the_extension_finds_the_library_next_to_it():
    extension = pathlib.Path(_core.__file__)
    assert extension.name == "_core.abi3.so" and extension.parent == HOME
    (library,) = HOME.glob("libmla.so.*")
    text = dynamic(extension)
    assert f"[{library.name}]" in text and "Library runpath: [$ORIGIN]" in text
    assert f"Library soname: [{library.name}]" in dynamic(library)
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if "libmla.so" in line}
    assert loaded == {str(library.resolve())}


def test_versions_agree():
    assert importlib.metadata.version("libmla") == mla.__version__ == flash_mla.__version__ == mla.version()


def test_the_native_module_needs_no_other_package():
    code = "import sys, mla; assert not {'torch', 'numpy'} & set(sys.modules); print(mla.version())"
    environment = {"PYTHONPATH": str(HOME.parent)}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == mla.version()


def test_without_torch_one_sentence_says_so():
    for module in ("flash_mla", "cann_ops_transformer", "mla.atb"):
        code = f"import sys; sys.modules['torch'] = None; import {module}"
        environment = {"PYTHONPATH": str(HOME.parent)}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        sentence = f"{module} computes on torch tensors, and torch is not installed: pip install torch"
        assert run.returncode == 1 and run.stderr.splitlines()[-1] == f"ModuleNotFoundError: {sentence}"


def test_the_summary_names_what_is_inside():
    summary = importlib.metadata.metadata("libmla")["Summary"]
    for word in ("CPU", "NVIDIA GPU", "mla", "flash_mla", "cann_ops_transformer", "ATB"):
        assert word in summary


def what_make_would_do(target):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--directory", ROOT, "--dry-run", "--always-make", target]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_the_wheel_is_built_without_the_packages_of_the_tests():
    needed = (ROOT / "python" / "requirements-build.txt").read_text()
    packages = {line.split("#")[0].split(">=")[0].strip() for line in needed.splitlines()}
    assert packages - {""} == {"setuptools", "wheel"}
    building, testing = what_make_would_do("python"), what_make_would_do("test")
    assert "requirements-build.txt" in building and "requirements-test.txt" not in building
    assert "requirements-build.txt" in testing and "requirements-test.txt" in testing


def test_typed_and_documented():
    for package in (mla, flash_mla):
        assert (pathlib.Path(package.__file__).parent / "py.typed").exists()
        assert package.__doc__
        for name in package.__all__:
            thing = getattr(package, name)
            assert not callable(thing) or inspect.getdoc(thing), f"{name} has no docstring"


def test_every_argument_is_documented():
    for function in (mla.attention, flash_mla.flash_mla_with_kvcache, flash_mla.flash_attn_varlen_func):
        text = inspect.getdoc(function)
        missing = [name for name in inspect.signature(function).parameters if name not in text]
        # Sparse arguments are not implemented; the docstring names them as a kind.
        assert set(missing) <= {
            "indices",
            "extra_k_cache",
            "extra_indices_in_kvcache",
            "topk_length",
            "extra_topk_length",
            "is_varlen",
            "max_seqlen_qo",
            "max_seqlen_kv",
        }, function.__name__
