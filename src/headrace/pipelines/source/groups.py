"""The progress of a query as brokers see it: the offsets of a consumer group without members."""

from collections.abc import Mapping
from typing import Any

from headrace.pipelines.source.links import borrowed
from headrace.pipelines.source.offsets import from_json
from headrace.pipelines.source.options import read_options
from headrace.pipelines.source.topics import Topics


def commit_progress(client: Mapping[str, str], group: str, offsets: Mapping[str, Any]) -> None:
    """Commit offsets, as `{topic: {partition: offset}}` of a query's progress, for a group.

    `client` has the properties of a Kafka client. A query with `groupId` does this by itself after
    each micro-batch; this is for moving a group by hand.
    """
    wanted = from_json(offsets).offsets
    if not wanted:
        return
    given = {f"kafka.{name}": value for name, value in client.items()}
    options = read_options(given | {"subscribe": ",".join(sorted({tp.topic for tp in wanted}))})
    with borrowed(options.client) as link:
        Topics(options, link).commit(group, wanted)
