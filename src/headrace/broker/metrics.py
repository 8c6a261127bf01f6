"""Metrics of the requests that a broker answers, by API and listener.

A request waits in the queue from the arrival of its last byte until the dispatcher takes it. It is
in the handler while it is decoded, authorized, handled and encoded, which blocks the event loop;
after that it may wait, for other replicas, for records or for the controller.
"""

from bisect import bisect_left
from typing import Any

from headrace.errors import ErrorCode, KafkaError, ProtocolError, error_code
from headrace.metrics import catalog
from headrace.metrics.registry import Counter, Registry
from headrace.net.server import Reply
from headrace.protocol.apis import Api


class RequestMetrics:
    """The metrics of one API at one listener. Every request is counted by its time in the handler.

    `has_error_code` is whether the API's responses have one error for the whole request; errors of
    single partitions and other resources are not counted.
    """

    __slots__ = (
        "_errors",
        "_labels",
        "_registry",
        "handler",
        "has_error_code",
        "queue",
        "received",
        "sending",
        "sent",
        "total",
        "waiting",
    )

    def __init__(self, registry: Registry, api: Api, listener: str) -> None:
        self._registry = registry
        self._labels = labels = {"api": api.kafka_name, "listener": listener}
        self._errors: dict[int, Counter] = {}
        self.has_error_code = "error_code" in api.response.__specs__
        self.received = registry.counter(catalog.REQUEST_RECEIVED, labels)
        self.sent = registry.counter(catalog.REQUEST_SENT, labels)
        self.queue = registry.histogram(catalog.REQUEST_QUEUE, labels)
        self.handler = registry.histogram(catalog.REQUEST_HANDLER, labels)
        self.waiting = registry.histogram(catalog.REQUEST_WAITING, labels)
        self.sending = registry.histogram(catalog.REQUEST_SENDING, labels)
        self.total = registry.histogram(catalog.REQUEST_TOTAL, labels)

    def handled(
        self,
        received_bytes: int,
        queue_s: float,
        handler_s: float,
        reply: Reply,
        *,
        is_answered: bool,
    ) -> None:
        """Count a request at the end of its handler; if it is not answered yet, see `waited`."""
        self.received.value += received_bytes
        # As `Histogram.observe` does it, without two calls for every request.
        queue, handler = self.queue, self.handler
        queue.counts[bisect_left(queue.bounds, queue_s)] += 1
        queue.sum += queue_s
        handler.counts[bisect_left(handler.bounds, handler_s)] += 1
        handler.sum += handler_s
        if is_answered:
            total, total_s = self.total, queue_s + handler_s
            total.counts[bisect_left(total.bounds, total_s)] += 1
            total.sum += total_s
        if reply is not None:
            self.sent.value += len(reply[0]) if len(reply) == 1 else sum(map(len, reply))

    def waited(self, seconds: float, total_s: float, reply: Reply) -> None:
        """Count the wait for a reply after the handler had ended, and the time since arrival."""
        self.waiting.observe(seconds)
        self.total.observe(total_s)
        if reply is not None:
            self.sent.value += sum(map(len, reply))

    def failed(self, error: Exception) -> None:
        """Count a request without a response, which costs its client the connection."""
        if isinstance(error, KafkaError):
            self.refused(error.code)
        elif isinstance(error, ProtocolError):
            self.refused(ErrorCode.INVALID_REQUEST)
        else:
            self.refused(ErrorCode.UNKNOWN_SERVER_ERROR)

    def check(self, response: Any) -> None:
        """Count a response that has an error; only if `has_error_code`."""
        if response.error_code:
            self.refused(response.error_code)

    def refused(self, code: int) -> None:
        """Count a request that is answered with an error."""
        counter = self._errors.get(code)
        if counter is None:
            counter = self._errors[code] = self._registry.counter(
                catalog.REQUEST_ERRORS, {**self._labels, "error": error_code(code).name}
            )
        counter.value += 1
