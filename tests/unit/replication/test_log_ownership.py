"""Whose a log is that a start finds: by its id, and by the epochs it was written in."""

import pytest

from headrace.replication.log_ownership import LogOwnership, ownership
from headrace.types import parse_uuid, uuid_text

OURS = bytes(range(16))
OTHER = bytes(range(100, 116))


@pytest.mark.parametrize(
    ("found", "latest_epoch", "expected"),
    [
        (OURS, 3, LogOwnership.OWN),
        # The metadata of a follower may be older than its log, but never its id.
        (OURS, 9, LogOwnership.OWN),
        (OTHER, 3, LogOwnership.FOREIGN),
        (OTHER, -1, LogOwnership.FOREIGN),
        (None, 3, LogOwnership.DAMAGED_ID),
        (None, 4, LogOwnership.DAMAGED_ID),
        (None, -1, LogOwnership.DAMAGED_ID),
        (None, 5, LogOwnership.DOUBTFUL),
    ],
)
def test_a_log_is_known_by_its_id_and_its_epochs(
    found: bytes | None, latest_epoch: int, expected: LogOwnership
) -> None:
    assert ownership(found, latest_epoch, OURS, 4) is expected


def test_every_flipped_bit_of_an_id_is_known_as_damage() -> None:
    text = uuid_text(OURS).encode()
    for position in range(len(text)):
        for bit in range(8):
            damaged = bytearray(text)
            damaged[position] ^= 1 << bit
            try:
                found: bytes | None = parse_uuid(damaged.decode())
            except ValueError:
                found = None
            expected = LogOwnership.OWN if found == OURS else LogOwnership.DAMAGED_ID
            assert ownership(found, 4, OURS, 4) is expected
