"""The traffic of topics: what is counted by name, and what for all others together."""

from headrace.broker.topic_traffic import OTHER_TOPICS, BrokerTraffic
from headrace.metrics.exposition import ExpositionFormat, exposition
from headrace.metrics.registry import Registry


def bytes_in(registry: Registry) -> dict[str, str]:
    """The bytes of producers by topic, as a scrape has them."""
    page = "".join(exposition(registry, ExpositionFormat.PROMETHEUS))
    prefix = 'headrace_topic_bytes_in_total{topic="'
    lines = [line.removeprefix(prefix) for line in page.splitlines() if line.startswith(prefix)]
    return dict(line.split('"} ') for line in lines)


def test_topics_beyond_the_limit_and_unknown_names_share_a_counter() -> None:
    registry = Registry()
    traffic = BrokerTraffic(registry, lambda: 2, lambda topic: topic != "made-up")
    for topic, size in (("a", 1), ("made-up", 2), ("b", 4), ("c", 8), ("a", 16)):
        traffic.of(topic).bytes_in += size
    assert bytes_in(registry) == {"a": "17", "b": "4", OTHER_TOPICS: "10"}


def test_the_sum_stays_when_a_topic_is_deleted_and_its_place_is_free() -> None:
    registry = Registry()
    traffic = BrokerTraffic(registry, lambda: 1, lambda topic: True)
    traffic.of("a").bytes_in += 1
    traffic.of("b").bytes_in += 2
    traffic.forget_deleted({"b"})
    traffic.of("b").bytes_in += 4
    assert bytes_in(registry) == {"b": "4", OTHER_TOPICS: "3"}
