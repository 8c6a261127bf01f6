"""Where to start in a partition that has no committed offset: the policies of `auto_offset_reset`.

Besides Kafka's earliest, latest, none and by_duration there is a point in time.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

ALLOWED = (
    '"earliest", "latest", "none", "by_duration:PT1H" (any ISO 8601 duration), a datetime, '
    'ISO 8601 text such as "2026-01-31T12:00:00Z", or milliseconds since the epoch'
)

# The timestamps by which ListOffsets names the two ends of a log.
EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1

_BY_DURATION = "by_duration:"
_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?\Z",
    re.IGNORECASE,
)


class ResetPolicy(Enum):
    """The ways to choose an offset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = "by_duration"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A policy, and for the two that have one the duration or the time in milliseconds."""

    policy: ResetPolicy
    ms: int = 0

    def timestamp(self, now_ms: int) -> int | None:
        """The timestamp to ask ListOffsets for; None if the application has to be told."""
        match self.policy:
            case ResetPolicy.EARLIEST:
                return EARLIEST_TIMESTAMP
            case ResetPolicy.LATEST:
                return LATEST_TIMESTAMP
            case ResetPolicy.NONE:
                return None
            case ResetPolicy.BY_DURATION:
                return max(0, now_ms - self.ms)
            case ResetPolicy.TIMESTAMP:
                return self.ms


def parse_reset(value: Any) -> OffsetReset:
    """The policy a value stands for; ValueError if it stands for none."""
    match value:
        case OffsetReset():
            return value
        case bool():
            raise ValueError
        case int() if value >= 0:
            return OffsetReset(ResetPolicy.TIMESTAMP, value)
        case datetime():
            return OffsetReset(ResetPolicy.TIMESTAMP, _epoch_ms(value))
        case "earliest" | "latest" | "none":
            return OffsetReset(ResetPolicy(value))
        case str() if value.startswith(_BY_DURATION):
            return OffsetReset(ResetPolicy.BY_DURATION, _duration_ms(value[len(_BY_DURATION) :]))
        case str() if value.isascii() and value.isdigit():
            return OffsetReset(ResetPolicy.TIMESTAMP, int(value))
        case str():
            return OffsetReset(ResetPolicy.TIMESTAMP, _epoch_ms(_parse_time(value)))
    raise ValueError


def _parse_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError from None


def _epoch_ms(when: datetime) -> int:
    # A time without a zone would mean another instant on another machine.
    if when.tzinfo is None:
        raise ValueError("the time needs a zone: end it in Z, or give the datetime a tzinfo")
    since = when.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    milliseconds = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if milliseconds < 0:
        raise ValueError("the time lies before 1970")
    return milliseconds


def _duration_ms(text: str) -> int:
    match = _DURATION.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no ISO 8601 duration; write P7D, PT1H30M or PT0.5S")
    whole, _, fraction = (match["seconds"] or "0").partition(".")
    minutes = (int(match["days"] or 0) * 24 + int(match["hours"] or 0)) * 60
    seconds = (minutes + int(match["minutes"] or 0)) * 60 + int(whole)
    return seconds * 1000 + int(fraction[:3].ljust(3, "0"))
