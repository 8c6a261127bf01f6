"""Commands that hold elections: on request, to balance leaderships, and for want of a leader."""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import IntEnum

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.elections import Election, Elections, elect_with_room
from headrace.metadata.image import NO_LEADER, Image, TopicImage
from headrace.metadata.result import Result
from headrace.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord
from headrace.protocol.schema import Message

# So many leaderships move at once that everybody can follow; the others come with the next round.
ELECTIONS_MAX = 1000


class ElectionType(IntEnum):
    """Kafka's codes for what ElectLeaders is to do."""

    PREFERRED = 0
    UNCLEAN = 1


def elect_leaders(
    image: Image, request: ElectLeadersRequest, *, unclean_by_default: bool
) -> Result[ElectLeadersResponse]:
    """Hold the elections asked for; each partition has its own outcome.

    Asked for all partitions, it tells only of those that needed an election.
    """
    try:
        election_type = ElectionType(request.election_type)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"there is no election of type {request.election_type}"
        ) from None
    elections = Elections(image, unclean_by_default=unclean_by_default)
    changes: dict[tuple[str, int], PartitionChangeRecord] = {}
    response = ElectLeadersResponse()
    for name, partition_ids in _asked(image, request):
        results = ReplicaElectionResult(topic=name)
        for partition_id in partition_ids:
            result = PartitionResult(partition_id=partition_id, error_message=None)
            try:
                if (name, partition_id) in changes:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, "the request names the partition more than once"
                    )
                topic = _topic(image, name, partition_id)
                changes[name, partition_id] = _elect(elections, topic, partition_id, election_type)
            except KafkaError as error:
                if error.code is ErrorCode.ELECTION_NOT_NEEDED and request.topic_partitions is None:
                    continue
                result.error_code, result.error_message = error.code, error.detail or None
            results.partition_result.append(result)
        if results.partition_result or request.topic_partitions is not None:
            response.replica_election_results.append(results)
    return Result(tuple(changes.values()), response)


def _asked(image: Image, request: ElectLeadersRequest) -> Iterator[tuple[str, Sequence[int]]]:
    if request.topic_partitions is None:
        for name, topic in sorted(image.topics.items()):
            yield name, range(len(topic.partitions))
    else:
        for wanted in request.topic_partitions:
            yield wanted.topic, wanted.partitions


def _topic(image: Image, name: str, partition_id: int) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None or not 0 <= partition_id < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{partition_id}"
        )
    return topic


def _elect(
    elections: Elections, topic: TopicImage, partition_id: int, election_type: ElectionType
) -> PartitionChangeRecord:
    partition = topic.partitions[partition_id]
    if election_type is ElectionType.PREFERRED:
        if partition.leader == partition.replicas[0]:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "the preferred leader leads")
        change = elections.change(topic, partition_id, election=Election.PREFERRED)
        if change is None:
            raise KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"broker {partition.replicas[0]} is not in sync, or not active",
            )
        return change
    if partition.leader != NO_LEADER:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "the partition has a leader")
    change = elections.change(topic, partition_id, election=Election.UNCLEAN)
    if change is None:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica is on an active broker"
        )
    return change


def balance_leaders(image: Image, percentage: int) -> Result[int]:
    """Give brokers back the leaderships of which they are the first replica.

    A broker of which others lead no more than `percentage` of its partitions is left alone, and so
    is every partition whose first replica could not lead it. Answers how many leaderships move.
    """
    owned = Counter[int]()
    strayed: dict[int, list[tuple[TopicImage, int]]] = {}
    active = image.active_racks()
    for topic in image.topics.values():
        for partition_id, partition in enumerate(topic.partitions):
            preferred = partition.replicas[0]
            owned[preferred] += 1
            if partition.leader == preferred:
                continue
            without_room = image.replicas_without_room(partition)
            elected = elect_with_room(partition, active, without_room, Election.PREFERRED)
            if elected.leader == preferred:
                strayed.setdefault(preferred, []).append((topic, partition_id))
    elections = Elections(image, unclean_by_default=False)
    records: list[Message] = []
    for broker_id in sorted(strayed):
        if len(strayed[broker_id]) * 100 <= owned[broker_id] * percentage:
            continue
        for topic, partition_id in strayed[broker_id][: ELECTIONS_MAX - len(records)]:
            change = elections.change(topic, partition_id, election=Election.PREFERRED)
            assert change is not None, (topic.name, partition_id)
            records.append(change)
    return Result(tuple(records), len(records))


def elect_missing_leaders(image: Image, *, unclean_by_default: bool) -> Result[int]:
    """Leaders for partitions without one, where topics came to allow it after they lost theirs.

    Answers how many partitions got one.
    """
    changes = Elections(image, unclean_by_default=unclean_by_default).arrivals()[:ELECTIONS_MAX]
    return Result(tuple(changes), len(changes))
