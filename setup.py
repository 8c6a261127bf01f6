"""Compiles the codecs when Cython and a C compiler are there; the same files run uncompiled.

`HEADRACE_PURE=1` skips compiling. Everything else about the package is in pyproject.toml.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

PACKAGE = Path("src/headrace/protocol")
COMPILED = (
    "batch",
    "column_decoder",
    "column_encoder",
    "decoder",
    "encoder",
    "layout",
    "murmur2",
    "record_scan",
    "records",
)


def extensions() -> list[Extension]:
    """The modules to compile, none of which the installation needs to succeed with."""
    if os.environ.get("HEADRACE_PURE") == "1":
        return []
    try:
        from Cython.Build import cythonize  # noqa: PLC0415 - not there in a pure installation
    except ImportError:
        return []
    modules: list[Extension] = cythonize(
        [
            Extension(f"headrace.protocol.{name}", [str(PACKAGE / f"{name}.py")])
            for name in COMPILED
            if (PACKAGE / f"{name}.py").exists()
        ],
        language_level=3,
    )
    for module in modules:
        # cythonize() forgets `optional` given to Extension; without it a missing compiler
        # fails the installation instead of leaving the Python files to run.
        module.optional = True
    return modules


setup(ext_modules=extensions())
