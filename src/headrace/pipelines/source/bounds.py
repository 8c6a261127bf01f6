"""Where a read begins and ends: the options `startingOffsets`, `endingTimestamp` and their kin."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.pipelines.source.failures import OptionError
from headrace.pipelines.source.offsets import TOPIC_IDS
from headrace.pipelines.source.texts import Texts
from headrace.types import TopicPartition

LATEST = -1
EARLIEST = -2

# In Spark's order: the first that is given counts.
STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
STRATEGY = "startingOffsetsByTimestampStrategy"

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Place:
    """A point in a partition: an offset, EARLIEST, LATEST, or the first record not before a time.

    Exactly one of the two is set.
    """

    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or to end: one place for all partitions, or one for each.

    `latest_if_no_record` is for times: whether the end will do where no record is that young.
    """

    option: str
    everywhere: Place | None = None
    each: Mapping[TopicPartition, Place] | None = None
    latest_if_no_record: bool = False

    def has(self, offset: int) -> bool:
        """Whether it is at EARLIEST or LATEST in any partition."""
        return Place(offset) in (self.everywhere, *(self.each or {}).values())

    def places(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Place]:
        """Where it lies in each partition; OptionError if it leaves one out or names another."""
        wanted = list(partitions)
        if self.everywhere is not None:
            return dict.fromkeys(wanted, self.everywhere)
        assert self.each is not None
        missing = [tp for tp in wanted if tp not in self.each]
        if missing:
            what = "a time" if self.option.endswith("Timestamp") else "an offset, -2 or -1"
            raise OptionError(
                f"option {self.option} says nothing of {listed(missing)}; give {what} for every"
                " partition that is read"
            )
        unknown = sorted(set(self.each) - set(wanted))
        if unknown:
            raise OptionError(
                f"option {self.option} names {listed(unknown)}, which is not read or does not"
                " exist; leave it out, or subscribe to it"
            )
        return {tp: self.each[tp] for tp in wanted}


FROM_EARLIEST = Bound("startingOffsets", Place(EARLIEST))
FROM_LATEST = Bound("startingOffsets", Place(LATEST))
TO_LATEST = Bound("endingOffsets", Place(LATEST))


def bound(texts: Texts, names: tuple[str, str, str]) -> Bound | None:
    """The bound that the first of the options says, if one of them is given."""
    name = next((name for name in names if name in texts), None)
    if name is None:
        return None
    # A batch that ends after the last record ends there; only a start can be a mistake.
    fallback = names is ENDING or texts.choice(STRATEGY, ("error", "latest"), "error") == "latest"
    if name.endswith("OffsetsByTimestamp"):
        times = _each(texts, name, '{"topic": {"0": 1700000000000}}', least=0)
        places = {tp: Place(time_ms=time_ms) for tp, time_ms in times.items()}
        return Bound(name, each=places, latest_if_no_record=fallback)
    if name.endswith("Timestamp"):
        time_ms = texts.number(name, "milliseconds since 1970", least=0)
        return Bound(name, Place(time_ms=time_ms), latest_if_no_record=fallback)
    if texts[name].lower() in ("earliest", "latest"):
        return Bound(name, Place(EARLIEST if texts[name].lower() == "earliest" else LATEST))
    form = 'earliest, latest or {"topic": {"0": 23, "1": -2}}'
    offsets = _each(texts, name, form, least=EARLIEST)
    return Bound(name, each={tp: Place(offset) for tp, offset in offsets.items()})


def _each(texts: Texts, name: str, form: str, least: int) -> dict[TopicPartition, int]:
    """The number of each partition, from JSON as {topic: {partition: number}}."""
    found: dict[TopicPartition, int] = {}
    for topic, numbers in texts.json(name, form).items():
        if topic == TOPIC_IDS:
            # Copied from the progress of a query together with its offsets.
            continue
        if not isinstance(numbers, dict):
            raise texts.refusal(name, f"write it as {form}")
        for partition, number in numbers.items():
            if not partition.isdecimal() or type(number) is not int or number < least:
                raise texts.refusal(name, f"write it as {form}")
            found[TopicPartition(topic, int(partition))] = number
    return found


def listed(items: Iterable[object]) -> str:
    """The items in words, a few of them if they are many."""
    texts = [str(item) for item in items]
    more = len(texts) - _NAMED_MAX
    return ", ".join(texts[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
