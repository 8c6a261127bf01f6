"""Compiles the codecs when Cython and a C compiler are there; the same files run uncompiled.

`HEADRACE_PURE=1` skips compiling. Everything else about the package is in pyproject.toml.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

COMPILED = (
    "headrace.broker.request_counters",
    "headrace.client.producer.accumulator",
    "headrace.client.producer.delivery",
    "headrace.protocol.arrays",
    "headrace.protocol.batch",
    "headrace.protocol.builder",
    "headrace.protocol.column_decoder",
    "headrace.protocol.column_encoder",
    "headrace.protocol.consumer_records",
    "headrace.protocol.message_codec",
    "headrace.protocol.murmur2",
    "headrace.protocol.partitioning",
    "headrace.protocol.record_scan",
    "headrace.protocol.records",
    "headrace.storage.compaction.batch_walk",
    "headrace.storage.compaction.checksums",
    "headrace.storage.compaction.key_table",
    "headrace.storage.compaction.output",
    "headrace.storage.compaction.record_filter",
)

# What Cython adds for views of memory: compiled once, where it would be most of every module.
SHARED = "headrace._cyutility"


def source(name: str) -> str:
    """The file of a module."""
    return f"src/{name.replace('.', '/')}.py"


def extensions() -> list[Extension]:
    """The modules to compile, none of which the installation needs to succeed with."""
    if os.environ.get("HEADRACE_PURE") == "1":
        return []
    try:
        from Cython.Build import cythonize  # noqa: PLC0415 - not there in a pure installation
    except ImportError:
        return []
    sources = {name: source(name) for name in COMPILED if Path(source(name)).exists()}
    sources[SHARED] = str(Path(source(SHARED)).with_suffix(".c"))
    modules: list[Extension] = cythonize(
        [
            # Debug information takes time to make, and nobody looks at it.
            Extension(name, [path], extra_compile_args=["-g0"])
            for name, path in sources.items()
        ],
        nthreads=os.cpu_count() or 1,
        language_level=3,
        shared_utility_qualified_name=SHARED,
    )
    for module in modules:
        # cythonize() forgets `optional` given to Extension; without it a missing compiler
        # fails the installation instead of leaving the Python files to run.
        module.optional = True
    return modules


setup(ext_modules=extensions())
