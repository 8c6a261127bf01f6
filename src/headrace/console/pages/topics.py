"""Topics: their rates, sizes and lag, and of each its partitions and the groups that read it."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.client.admin.topics import EligibleReplicas
from headrace.client.cluster_metadata import PartitionInfo, TopicInfo
from headrace.client.errors import TimedOut
from headrace.console.charts import chart
from headrace.console.cluster_access import ClusterAccess
from headrace.console.errors import not_found
from headrace.console.listing import SortKey, listing
from headrace.console.pages.overview import where
from headrace.console.rendering import page, rate_text
from headrace.console.viewers import access_of
from headrace.errors import KafkaError
from headrace.monitoring.cluster_status import ClusterStatus, TopicStatus
from headrace.types import TopicPartition, uuid_text

# The groups whose lag in a topic is summed up for a list: a group may read thousands of partitions.
_LAGS_MAX = 100

_COLUMNS: dict[str, SortKey[TopicStatus]] = {
    "name": SortKey(lambda topic: topic.name),
    "partitions": SortKey(lambda topic: topic.partitions, descends=True),
    "replicas": SortKey(lambda topic: topic.replication_factor, descends=True),
    "messages": SortKey(lambda topic: topic.messages, descends=True),
    "rate": SortKey(lambda topic: topic.messages_per_s, descends=True),
    "size": SortKey(lambda topic: topic.size_bytes, descends=True),
    "health": SortKey(lambda topic: topic.offline * 1e6 + topic.under_replicated, descends=True),
}


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition with what the samples and the cluster say of it."""

    info: PartitionInfo
    eligible: EligibleReplicas | None
    start_offset: int | None
    end_offset: int | None
    rate: float | None
    size: int | None
    is_moving: bool

    @property
    def messages(self) -> int | None:
        if self.start_offset is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.start_offset, 0)


async def topics(request: Request) -> Response:
    """`GET /topics`."""
    access = access_of(request)
    state = access.state
    if state is None:
        return page(request, "waiting.html", title="Topics")
    internal = request.query_params.get("internal") == "1"
    rows = listing(
        request.query_params,
        "/topics",
        (topic for topic in state.topics.values() if internal or not topic.is_internal),
        _COLUMNS,
        text=lambda topic: topic.name,
        kept=("internal",),
    )
    return page(
        request,
        "topics.html",
        title="Topics",
        state=state,
        topics=rows,
        internal=internal,
        lags=topic_lags(access, state, [topic.name for topic in rows.rows]),
    )


def topic_lags(
    access: ClusterAccess, state: ClusterStatus, names: list[str]
) -> dict[str, tuple[str, int]]:
    """The group with the largest lag in each topic, and that lag, as far as they are counted."""
    wanted, counted = set(names), 0
    worst: dict[str, tuple[str, int]] = {}

    def note(topic: str, group: str, lag: int) -> None:
        if topic not in worst or worst[topic][1] < lag:
            worst[topic] = (group, lag)

    for group in state.groups.values():
        read = [topic for topic in group.topics if topic in wanted]
        if not read or group.lag is None:
            continue
        if len(group.topics) == 1:
            note(read[0], group.name, group.lag)
        elif counted < _LAGS_MAX:
            counted += 1
            sums = dict.fromkeys(read, 0)
            for lag in access.history.partition_lags(group.name):
                if lag.tp.topic in sums:
                    sums[lag.tp.topic] += lag.lag or 0
            for topic, count in sums.items():
                note(topic, group.name, count)
    return worst


async def described_topic(request: Request) -> tuple[ClusterAccess, TopicInfo]:
    """The topic of a request's path; `RequestRefused` with 404 if there is none."""
    access = access_of(request)
    name = request.path_params["name"]
    known = access.state.described.get(name) if access.state else None
    if known is None:
        try:
            known = await access.admin.describe_topic(name)
        except KafkaError as error:
            if error.code.name.startswith(("UNKNOWN_TOPIC", "INVALID_TOPIC")):
                raise not_found("topic", name, "see the list of topics, or create it") from None
            raise
    return access, known


async def topic(request: Request) -> Response:
    """`GET /topics/{name}`: its partitions."""
    access, info = await described_topic(request)
    state = access.state
    name = info.name
    if state is None:
        return page(request, "waiting.html", title=name)
    eligible: dict[TopicPartition, EligibleReplicas] = {}
    has_eligible = True
    try:
        eligible = await access.admin.describe_eligible_replicas([name])
    except (KafkaError, TimedOut):
        has_eligible = False  # A broker without KIP-966: the column is left out.
    rows = [_partition(access, name, partition, eligible) for partition in info.partitions]
    return page(
        request,
        "topic.html",
        title=name,
        state=state,
        topic=state.topics.get(name),
        info=info,
        topic_id=uuid_text(info.topic_id),
        has_eligible=has_eligible and bool(eligible),
        partitions=listing(
            request.query_params,
            request.url.path,
            rows,
            _PARTITION_COLUMNS,
            text=lambda row: str(row.info.index),
        ),
        problems=[
            (problem, where(problem))
            for problem in state.problems
            if problem.kind == "topic" and problem.name == name
        ],
        groups=[group for group in state.groups.values() if name in group.topics][:50],
        rates=chart("Messages per second", {name: access.history.topic_rates(name)}, rate_text),
    )


def _partition(
    access: ClusterAccess,
    name: str,
    info: PartitionInfo,
    eligible: dict[TopicPartition, EligibleReplicas],
) -> PartitionRow:
    tp, history = TopicPartition(name, info.index), access.history
    return PartitionRow(
        info,
        eligible.get(tp),
        history.start_offsets.get(tp),
        history.end_offsets.get(tp),
        history.partition_rate(tp),
        history.partition_size(tp),
        tp in history.reassignments(),
    )


_PARTITION_COLUMNS: dict[str, SortKey[PartitionRow]] = {
    "partition": SortKey(lambda row: row.info.index),
    "leader": SortKey(lambda row: row.info.leader),
    "messages": SortKey(lambda row: row.messages, descends=True),
    "rate": SortKey(lambda row: row.rate, descends=True),
    "size": SortKey(lambda row: row.size, descends=True),
}

ROUTES = [Route("/topics", topics), Route("/topics/{name}", topic)]
