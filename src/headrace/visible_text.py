"""Text of others made safe to look at: characters that act instead of being seen are escaped.

Rule: what comes from a cluster (names, records, errors) must not command a terminal, hide, or
change the direction of other text.
"""

import re

# C0 and C1 controls, marks and overrides of direction, separators of lines, characters without a
# width, tags, and halves of surrogate pairs.
_OBEYED = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_IN_A_LINE = re.compile(f"[\t\n{_OBEYED}]")
_IN_LINES = re.compile(f"[{_OBEYED}]")


def printable(text: str) -> str:
    """The text on one line, with control characters escaped."""
    return _IN_A_LINE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """The text with control characters escaped, except tabs and ends of lines."""
    return _IN_LINES.sub(_escaped, text)


def printable_json(document: str) -> str:
    """A JSON document that means the same, with control characters in JSON's own escapes."""
    return _IN_LINES.sub(_escaped_in_json, document)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped_in_json(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
