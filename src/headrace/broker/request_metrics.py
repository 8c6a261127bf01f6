"""Metrics of the requests that a broker answers, by API and listener.

A request waits in the queue from the arrival of its last byte until the dispatcher takes it. It is
in the handler while it is decoded, authorized, handled and encoded, which blocks the event loop;
after that it may wait, for other replicas, for records or for the controller.
"""

from typing import Any

from headrace.broker.request_counters import RequestCounters
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
        "_counters",
        "_errors",
        "_labels",
        "_registry",
        "handled",
        "has_error_code",
        "sending",
        "waiting",
    )

    def __init__(self, registry: Registry, api: Api, listener: str) -> None:
        self._registry = registry
        self._labels = labels = {"api": api.kafka_name, "listener": listener}
        self._errors: dict[int, Counter] = {}
        self.has_error_code = "error_code" in api.response.__specs__
        received = registry.counter(catalog.REQUEST_RECEIVED, labels)
        sent = registry.counter(catalog.REQUEST_SENT, labels)
        queue = registry.histogram(catalog.REQUEST_QUEUE, labels)
        handler = registry.histogram(catalog.REQUEST_HANDLER, labels)
        total = registry.histogram(catalog.REQUEST_TOTAL, labels)
        counters = RequestCounters(queue.bounds, queue.counts, handler.counts, total.counts)
        self._counters = counters
        # Called for every request, so without a call of our own in between.
        self.handled = counters.handled
        self.waiting = registry.histogram(catalog.REQUEST_WAITING, labels)
        self.sending = registry.histogram(catalog.REQUEST_SENDING, labels)

        def publish() -> None:
            received.value, sent.value = counters.received_bytes, counters.sent_bytes
            queue.sum, handler.sum, total.sum = (
                counters.queue_s,
                counters.handler_s,
                counters.total_s,
            )

        registry.before_collecting(publish)

    def waited(self, seconds: float, total_s: float, reply: Reply) -> None:
        """Count the wait for a reply after the handler had ended, and the time since arrival."""
        self.waiting.observe(seconds)
        self._counters.answered(total_s, reply)

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
