"""What a command on the metadata comes to."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.protocol.schema import Message

Response_co = TypeVar("Response_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Result(Generic[Response_co]):
    """Records to append as one batch, and the response to send once they are durable.

    The response may go out at once if there are no records.
    """

    records: tuple[Message, ...]
    response: Response_co


def repeated(names: Iterable[str]) -> set[str]:
    """The names that occur more than once."""
    return {name for name, count in Counter(names).items() if count > 1}
