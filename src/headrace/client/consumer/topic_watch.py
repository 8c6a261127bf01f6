"""Which topics a subscription means now: some may not exist yet, and patterns match anew."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from headrace.client.consumer.subscription import Mode, Subscription
from headrace.client.failures import TimedOut, Unreachable
from headrace.client.metadata import Topic
from headrace.client.options import ConsumerOptions
from headrace.client.outcomes import failure
from headrace.client.transport.cluster import Cluster
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.net.outgoing import ConnectionFailed

# How soon a topic that does not exist is looked for again.
MISSING_S = 1.0

_log = logging.getLogger("headrace.consumer")

_NOT_YET = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE))


class TopicWatch:
    """Looks at the topics of a subscription when it changes, and every `metadata_max_age_ms`.

    `on_topics` is told what there is after each look, `on_error` what the application must know.
    """

    def __init__(
        self,
        cluster: Cluster,
        subscription: Subscription,
        options: ConsumerOptions,
        *,
        on_topics: Callable[[Mapping[str, Topic]], Awaitable[None]],
        on_error: Callable[[HeadraceError], None],
        on_away: Callable[[HeadraceError], None],
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._options = options
        self._on_topics = on_topics
        self._on_error = on_error
        self._on_away = on_away
        self._look = asyncio.Event()
        self._warned: set[str] = set()

    def look(self) -> None:
        """Look now: the subscription changed."""
        self._look.set()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        attempts = 0
        while True:
            self._look.clear()
            mode = self._subscription.mode
            wait_s = None
            if mode in (Mode.TOPICS, Mode.PATTERN):
                try:
                    wait_s = await self._look_once(mode)
                    attempts = 0
                except (ConnectionFailed, TimedOut, Unreachable, KafkaError) as error:
                    wait_s = self._cluster.backoff.delay_s(attempts, self._cluster.rng)
                    attempts += 1
                    if isinstance(error, KafkaError) and not self._cluster.passes(error):
                        self._on_error(error)
                    else:
                        self._on_away(error)
            try:
                async with asyncio.timeout(wait_s):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def _look_once(self, mode: Mode) -> float:
        """Tell which topics there are; returned is how long that is to be believed."""
        max_age_s = max(self._options.metadata_max_age_ms / 1000, 0.01)
        deadline = self._cluster.deadline()
        if mode is Mode.PATTERN:
            view = await self._cluster.refresh(None, deadline)
            await self._on_topics({name: view.topics[name] for name in self._matching(view.topics)})
            return max_age_s
        names = self._subscription.topics
        view = await self._cluster.refresh(
            names, deadline, create=self._options.allow_auto_create_topics
        )
        missing = names - view.topics.keys()
        for name in missing:
            code = view.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if code not in _NOT_YET and (error := failure(code, subject=f"topic {name}")):
                raise error
        self._warn(missing)
        await self._on_topics({name: view.topics[name] for name in names - missing})
        return min(MISSING_S, max_age_s) if missing else max_age_s

    def _matching(self, topics: Mapping[str, Topic]) -> list[str]:
        pattern = self._subscription.pattern
        assert pattern is not None, "a pattern subscription has a pattern"
        return [
            name
            for name, topic in topics.items()
            if pattern.fullmatch(name)
            and not (topic.is_internal and self._options.exclude_internal_topics)
        ]

    def _warn(self, missing: frozenset[str]) -> None:
        for name in sorted(missing - self._warned):
            _log.warning(
                "%s: topic %s does not exist (yet); it will be read as soon as it does",
                self._options.client_id,
                name,
            )
        self._warned = set(missing)
