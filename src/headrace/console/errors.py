"""Errors of requests to the console, and the status and words that any error is answered with."""

from headrace.client.errors import TimedOut, Unreachable
from headrace.errors import AuthenticationFailed, ErrorCode, HeadraceError, KafkaError, code_words

_STATUSES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.UNKNOWN_TOPIC_ID: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: 404,
    ErrorCode.RESOURCE_NOT_FOUND: 404,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.NON_EMPTY_GROUP: 409,
}


class RequestRefused(HeadraceError):
    """A request that is not served: the status, and for people why and what to do."""

    def __init__(self, status: int, what: str, *, advice: str = "") -> None:
        super().__init__(what, advice=advice)
        self.status = status


class FieldError(HeadraceError):
    """A value of a form that is missing or wrong; `field` is its name."""

    def __init__(self, field: str, what: str, *, advice: str = "") -> None:
        super().__init__(what, advice=advice)
        self.field = field


def not_found(kind: str, name: str, advice: str = "") -> RequestRefused:
    """The refusal of a page about something that is not there."""
    return RequestRefused(404, f"there is no {kind} {name}", advice=advice)


def status_of(error: HeadraceError) -> int:
    """The HTTP status of an answer that tells of an error."""
    match error:
        case RequestRefused():
            return error.status
        case AuthenticationFailed():
            return 401
        case TimedOut() | Unreachable():
            return 503
        case KafkaError():
            if error.code.name.endswith("AUTHORIZATION_FAILED"):
                return 403
            return _STATUSES.get(error.code, 400)
    return 400


def words_of(error: HeadraceError) -> tuple[str, str]:
    """What happened, and what to do about it, as two sentences."""
    what = error.what or str(error)
    advice = error.advice
    if isinstance(error, KafkaError):
        what = error.what or code_words(error.code)
        if not advice and error.code.name.endswith("AUTHORIZATION_FAILED"):
            advice = "sign in as a user with the right, or ask for it"
    elif isinstance(error, TimedOut | Unreachable) and not advice:
        advice = "see that the brokers run, and try again"
    return _sentence(what), _sentence(advice)


def _sentence(text: str) -> str:
    """Text that begins with a capital and ends with a full stop; names keep their letters."""
    text = " ".join(text.split())
    if not text:
        return ""
    first = text.split(" ", 1)[0]
    if first.isalpha() and first.islower():
        text = text[0].upper() + text[1:]
    return text if text[-1] in ".?!" else f"{text}."
