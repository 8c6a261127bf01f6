"""Which segments a log may drop: too old, too many bytes, or below the log start offset.

Rule: whole segments from the oldest on, and none that holds a record above the high watermark.
"""

from collections.abc import Sequence
from typing import Protocol

from headrace.config import TopicConfig


class Kept(Protocol):
    """What retention needs to know of a segment."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    def age_timestamp(self) -> int: ...


def expired(
    segments: Sequence[Kept],
    config: TopicConfig,
    now_ms: int,
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
) -> int:
    """How many segments, from the oldest on, are to go; the active one may be among them."""
    deletes = "delete" in config.cleanup_policy
    excess = 0
    if deletes and config.retention_bytes >= 0:
        excess = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for index, segment in enumerate(segments):
        is_active = index == len(segments) - 1
        end_offset = log_end_offset if is_active else segments[index + 1].base_offset
        if end_offset > high_watermark or (is_active and not segment.size):
            break
        by_start = not is_active and end_offset <= log_start_offset
        by_size = excess >= segment.size and excess > 0
        by_age = (
            deletes
            and config.retention_ms >= 0
            and now_ms - segment.age_timestamp() > config.retention_ms
        )
        if not (by_start or by_size or by_age):
            break
        excess -= segment.size
        count += 1
    return count
