"""What a mirror needs beside its pipeline: its topics made, groups moved over, copies compared.

python mirror.py topics            make the topics in the second cluster
python mirror.py offsets GROUP     where the group goes on in the second cluster; --apply sets it
python mirror.py check             compare every copy with its record
"""

import argparse
import re
from collections.abc import Callable, Iterator

import headrace
from headrace import Admin, Consumer, ConsumerRecord, TopicPartition

OFFSET = "mirror.offset"
OWN_HEADERS = {"mirror.topic", "mirror.partition", OFFSET}


def create_topics(source: str, target: str, pattern: str) -> list[str]:
    """Make the topics that the second cluster lacks, with as many partitions; their names."""
    with Admin(bootstrap_servers=source) as first, Admin(bootstrap_servers=target) as second:
        there = second.list_topics()
        missing = [
            headrace.NewTopic(name, partitions=len(topic.partitions))
            for name, topic in first.list_topics().items()
            if re.fullmatch(pattern, name) and name not in there
        ]
        second.create_topics(missing)
    return [topic.name for topic in missing]


def first_copy_from(
    wanted: int, start: int, end: int, original_at: Callable[[int], int | None]
) -> int:
    """The offset of a copy to go on from, for who would go on from `wanted` in the first cluster.

    Copies are in the order of their records, so this is a binary search. After a crash the last of
    them may have been copied again, up to where the mirror was and on: then there are several such
    offsets, and from each of them every record from `wanted` on still comes. `original_at` says
    which record the copy at an offset, or the next one after it, was made of.
    """
    while start < end:
        middle = (start + end) // 2
        original = original_at(middle)
        if original is None or original >= wanted:
            end = middle
        else:
            start = middle + 1
    return start


def translate(source: str, target: str, group: str) -> dict[TopicPartition, tuple[int, int]]:
    """For each partition, the group's offset in the first cluster and that in the second."""
    with Admin(bootstrap_servers=source) as admin:
        committed = admin.group_offsets(group)
    with Consumer(
        bootstrap_servers=target, max_poll_records=1, isolation_level="read_committed"
    ) as consumer:
        consumer.assign(committed)
        starts, ends = consumer.beginning_offsets(committed), consumer.end_offsets(committed)

        def original_of(tp: TopicPartition) -> Callable[[int], int | None]:
            return lambda offset: _original_at(consumer, tp, offset, ends[tp])

        return {
            tp: (entry.offset, first_copy_from(entry.offset, starts[tp], ends[tp], original_of(tp)))
            for tp, entry in committed.items()
        }


def _original_at(consumer: Consumer, tp: TopicPartition, offset: int, end: int) -> int | None:
    consumer.assign([tp])
    consumer.seek(tp, offset)
    # The last offset may be the mark of a transaction, which is nobody's copy.
    while consumer.position(tp) < end:
        for record in consumer.poll(timeout_ms=100):
            return original_offset(record)
    return None


def original_offset(copy: ConsumerRecord) -> int:
    """The offset of the record that this is a copy of."""
    [offset] = [value for name, value in copy.headers if name == OFFSET]
    assert offset is not None
    return int(offset)


def read_all(servers: str, topic: str) -> dict[int, list[ConsumerRecord]]:
    """Every committed record of a topic now, by partition."""
    with Admin(bootstrap_servers=servers) as admin:
        parts = [
            TopicPartition(topic, partition.index)
            for partition in admin.describe_topic(topic).partitions
        ]
    with Consumer(
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.assign(parts)
        ends = consumer.end_offsets(parts)
        records: dict[int, list[ConsumerRecord]] = {tp.partition: [] for tp in parts}
        while any(consumer.position(tp) < ends[tp] for tp in parts):
            for record in consumer.poll(timeout_ms=1_000):
                records[record.partition].append(record)
    return records


def differences(source: str, target: str, topic: str) -> Iterator[str]:
    """What is wrong with the copy of a topic; a record that was copied again is not."""
    copies = read_all(target, topic)
    for partition, originals in read_all(source, topic).items():
        newest = -1
        firsts = []
        for copy in copies.get(partition, []):
            if (offset := original_offset(copy)) > newest:
                newest = offset
                firsts.append(copy)
        if [original.offset for original in originals] != [
            original_offset(first) for first in firsts
        ]:
            yield f"{topic}-{partition}: {len(originals)} records, {len(firsts)} of them copied"
            continue
        for original, copy in zip(originals, firsts, strict=True):
            own = [header for header in copy.headers if header[0] not in OWN_HEADERS]
            same = (copy.key, copy.value, own) == (
                original.key,
                original.value,
                list(original.headers),
            )
            if not same or copy.timestamp != original.timestamp:
                yield f"{topic}-{partition}@{original.offset}: its copy at {copy.offset} differs"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", default="127.0.0.1:9092", help="first cluster")
    parser.add_argument("--to", dest="target", default="127.0.0.1:9192", help="second cluster")
    parser.add_argument("--topics", default="shop-.*", help="which topics, as a pattern")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("topics", help="make the topics in the second cluster")
    offsets = commands.add_parser("offsets", help="translate a group's offsets")
    offsets.add_argument("group")
    offsets.add_argument("--apply", action="store_true", help="commit them in the second cluster")
    commands.add_parser("check", help="compare every copy with its record")
    arguments = parser.parse_args()
    source, target = arguments.source, arguments.target
    if arguments.command == "topics":
        print(*create_topics(source, target, arguments.topics), sep="\n")
    elif arguments.command == "offsets":
        moved = translate(source, target, arguments.group)
        for tp, (there, here) in sorted(moved.items()):
            print(f"{tp.topic}-{tp.partition}: {there} is {here} in the second cluster")
        if arguments.apply:
            with Admin(bootstrap_servers=target) as admin:
                admin.alter_group_offsets(
                    arguments.group, {tp: here for tp, (_, here) in moved.items()}
                )
    else:
        with Admin(bootstrap_servers=source) as admin:
            names = [name for name in admin.list_topics() if re.fullmatch(arguments.topics, name)]
        found = [line for name in names for line in differences(source, target, name)]
        print(*found or [f"{len(names)} topics are copied, record by record"], sep="\n")
        return 1 if found else 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
