"""How long a string may be to be written to the log."""

_BYTES_MAX = 32_767


def fits_string(text: str | None) -> bool:
    """Whether a string can be written to the log, where its length takes 16 bits.

    Flexible versions of requests can carry longer ones.
    """
    return text is None or 4 * len(text) <= _BYTES_MAX or len(text.encode()) <= _BYTES_MAX
