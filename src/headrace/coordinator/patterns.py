"""Regular expressions of clients, matched in linear time by RE2.

Python's own engine can run for ever on a pattern of a few characters, and block the event loop.
The module is loaded with the first pattern: most brokers never get any.
"""

from collections.abc import Callable

from headrace.errors import ErrorCode, KafkaError


def full_matcher(pattern: str) -> Callable[[str], bool]:
    """A test whether a whole text matches; INVALID_REGULAR_EXPRESSION for a bad pattern."""
    try:
        import re2  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError as error:
        detail = "this broker has no google-re2 to match patterns with"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, detail) from error
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        detail = f"{pattern!r} is no regular expression: {error}"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, detail) from error
    return lambda text: compiled.fullmatch(text) is not None
