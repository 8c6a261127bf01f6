"""Which build of the codec a process runs, and the warning about the slow one.

The modules that setup.py compiles run uncompiled where there was no C compiler: right, and several
times slower, which nobody sees who has not known the other build.
"""

import logging

from headrace.protocol.records import COMPILED

UNCOMPILED = (
    "headrace runs uncompiled here, which is several times slower: install a C compiler and"
    " Python's headers (Debian, Ubuntu: apt install build-essential python3-dev), then headrace"
    " again (pip install --force-reinstall --no-cache-dir headrace; in its source tree: make venv)"
)

_has_warned = False


def warn_if_uncompiled(logger: logging.Logger) -> None:
    """Log what is slow and the remedy, once in the life of the process."""
    global _has_warned  # noqa: PLW0603  # As the build itself, it belongs to the process.
    if not COMPILED and not _has_warned:
        _has_warned = True
        logger.warning(UNCOMPILED)
