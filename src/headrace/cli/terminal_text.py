"""Text of others on a terminal, escaped as `headrace.visible_text` says.

Rule: in a pipe records and JSON stay as they are.
"""

import sys

from headrace.visible_text import printable, printable_json, printable_lines

__all__ = ["for_terminal", "is_terminal", "printable", "printable_json", "printable_lines"]


def for_terminal(data: bytes) -> bytes:
    """Bytes of a record for a terminal; what is not UTF-8 is escaped too."""
    return printable_lines(data.decode(errors="backslashreplace")).encode()


def is_terminal() -> bool:
    """Whether standard output is read by somebody at a terminal."""
    return sys.stdout.isatty()
