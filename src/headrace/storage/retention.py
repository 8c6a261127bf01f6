"""Which segments a log may drop: too old, too many bytes, or below the log start offset.

Rule: whole segments from the oldest on, and none that holds a record above the high watermark.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from headrace.config import TopicConfig

_UNITS = ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1000, "seconds"))


class Expiry(NamedTuple):
    """Why a segment is deleted, in words for the broker's log.

    `advice` is empty unless the records were past `retention.ms` already when they were appended.
    """

    reason: str
    advice: str = ""


class Kept(Protocol):
    """The segment as retention sees it: its size, its largest timestamp, its last write."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    def modified_ms(self) -> int: ...


def expired(
    segments: Sequence[Kept],
    config: TopicConfig,
    now_ms: int,
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
) -> list[Expiry]:
    """The segments to delete, from the oldest on, each with its reason; perhaps the active one."""
    deletes = "delete" in config.cleanup_policy
    log_bytes = sum(segment.size for segment in segments)
    found: list[Expiry] = []
    for index, segment in enumerate(segments):
        is_active = index == len(segments) - 1
        end_offset = log_end_offset if is_active else segments[index + 1].base_offset
        if end_offset > high_watermark or (is_active and not segment.size):
            break
        expiry = None
        if not is_active and end_offset <= log_start_offset:
            expiry = Expiry(
                f"it ends at offset {end_offset}, and the log start offset is {log_start_offset}"
            )
        elif deletes:
            expiry = _by_size(segment, log_bytes, config) or _by_age(segment, config, now_ms)
        if expiry is None:
            break
        log_bytes -= segment.size
        found.append(expiry)
    return found


def _by_size(segment: Kept, log_bytes: int, config: TopicConfig) -> Expiry | None:
    limit = config.retention_bytes
    if limit < 0 or log_bytes <= limit or log_bytes - segment.size < limit:
        return None
    return Expiry(
        f"the log has {log_bytes} bytes, and without this segment at least the {limit} bytes of"
        " retention.bytes"
    )


def _by_age(segment: Kept, config: TopicConfig, now_ms: int) -> Expiry | None:
    limit = config.retention_ms
    if limit < 0:
        return None
    timestamp = segment.max_timestamp
    compared = timestamp if timestamp >= 0 else segment.modified_ms()
    age_ms = now_ms - compared
    if age_ms <= limit:
        return None
    setting = f"retention.ms is {limit} ({_duration(limit)})"
    if timestamp < 0:
        return Expiry(
            f"its records have no timestamp, its file was last written at {_time(compared)},"
            f" {_duration(age_ms)} ago, and {setting}"
        )
    reason = (
        f"its largest record timestamp, {_time(compared)}, is {_duration(age_ms)} old, and"
        f" {setting}"
    )
    appended_ms = segment.modified_ms()
    if appended_ms - timestamp <= limit:
        return Expiry(reason)
    return Expiry(
        reason,
        f"they were appended {_duration(max(now_ms - appended_ms, 0))} ago with producer timestamps"
        f" that were {_duration(appended_ms - timestamp)} old by then, so they were past"
        " retention.ms from the start. To keep such records, set the topic's retention.ms to more"
        " than their age (or to -1), or message.timestamp.type=LogAppendTime, which counts from"
        " the time of the append",
    )


def _duration(duration_ms: int) -> str:
    for unit_ms, unit in _UNITS:
        if duration_ms >= unit_ms:
            return f"{duration_ms / unit_ms:.1f} {unit}"
    return f"{duration_ms} ms"


def _time(timestamp_ms: int) -> str:
    """A timestamp in ISO 8601, or as a number where no calendar reaches."""
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
