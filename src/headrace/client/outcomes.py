"""Codes in answers, as errors to raise."""

from headrace.errors import ErrorCode, KafkaError, error_code


def failure(code: int, detail: str | None = None, subject: str = "") -> KafkaError | None:
    """The error a code stands for, or None. `subject` is what it happened to: "topic orders".

    A detail from the broker that names the subject itself is left as it is.
    """
    if code == ErrorCode.NONE:
        return None
    known = error_code(code)
    words = detail or known.name.removesuffix("_EXCEPTION").replace("_", " ").lower()
    named = not subject or f"'{subject.rpartition(' ')[2]}'" in words
    return KafkaError(known, words if named else f"{subject}: {words}")


def check(code: int, detail: str | None = None, subject: str = "") -> None:
    """Raise the error a code stands for, if it stands for one."""
    error = failure(code, detail, subject)
    if error is not None:
        raise error
