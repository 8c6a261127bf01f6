"""The warning of a process that runs the uncompiled build of the codec.

Without a C compiler, the modules that setup.py compiles run uncompiled: correct, but several times
slower, which is not obvious to a user who has never run the compiled build.
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
    """Log a warning with advice if the codec is uncompiled, once per process."""
    global _has_warned  # noqa: PLW0603  # As the build itself, it belongs to the process.
    if not COMPILED and not _has_warned:
        _has_warned = True
        logger.warning(UNCOMPILED)
