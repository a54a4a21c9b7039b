"""Builds the extension mla._core against a libmla that is already built; make_tree.py prepares the folder this runs in.

MLA_LIBRARY  path of libmla.so to link against and to put into the wheel
MLA_INCLUDE  the folder that holds mla/mla.h
"""

import os
import pathlib
import re
import shutil

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = pathlib.Path(__file__).resolve().parent
LIMITED_API = "0x030A0000"  # one binary for CPython 3.10 and later


def needed(variable):
    if variable not in os.environ:
        raise SystemExit(f"{variable} is not set: build the wheel with `make python` (or python/make_tree.py)")
    return pathlib.Path(os.environ[variable]).resolve()


class BuildExt(build_ext):
    """The usual build, without the run paths that the building Python itself was linked with: $ORIGIN must be the only
    place where the loader looks for libmla."""

    def build_extensions(self):
        self.compiler.linker_so = [word for word in self.compiler.linker_so if not word.startswith("-Wl,-rpath")]
        super().build_extensions()


library = needed("MLA_LIBRARY")
include = needed("MLA_INCLUDE")
version = re.search(r'MLA_VERSION_STRING "([^"]+)"', (include / "mla" / "mla_version.h").read_text()).group(1)

# The wheel carries the library under the name the loader will look for, next to the extension.
shutil.copy2(library, HERE / "mla" / os.environ["MLA_SONAME"])

setup(
    version=version,
    cmdclass={"build_ext": BuildExt},
    ext_modules=[
        Extension(
            "mla._core",
            sources=sorted(str(path.relative_to(HERE)) for path in (HERE / "src").glob("*.c")),
            depends=sorted(str(path.relative_to(HERE)) for path in (HERE / "src").glob("*.h")),
            include_dirs=[str(include)],
            define_macros=[("Py_LIMITED_API", LIMITED_API)],
            py_limited_api=True,
            extra_objects=[str(library)],
            extra_compile_args=[
                "-std=c11",
                "-O2",
                "-g0",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Wshadow",
                "-Wstrict-prototypes",
                "-fvisibility=hidden",
            ],
            extra_link_args=["-Wl,-rpath,$ORIGIN"],
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
