"""A broker whose counting of requests and of traffic is taken out and put back by SIGUSR1.

    python -m bench.uncounted up ...

Two processes of the same program differ by more than what is to be measured.
"""

import signal
import sys
from typing import Any

from headrace.broker.request_metrics import RequestMetrics
from headrace.broker.topic_traffic import BrokerTraffic, TopicTraffic
from headrace.cli.main import main

_made: list[RequestMetrics] = []
_uncounted_traffic = TopicTraffic()


def _count_nothing(*_: Any) -> None:
    """Stand in for `RequestMetrics.handled`."""


def _no_traffic(traffic: BrokerTraffic, topic: str) -> TopicTraffic:
    return _uncounted_traffic


def toggle(*_: object) -> None:
    """Take the counting out of this process, or put it back."""
    is_counting = BrokerTraffic.of is _of
    setattr(BrokerTraffic, "of", _no_traffic if is_counting else _of)  # noqa: B010  # For mypy.
    for metrics in _made:
        setattr(metrics, "handled", _count_nothing if is_counting else metrics._counters.handled)  # noqa: B010


_make, _of = RequestMetrics.__init__, BrokerTraffic.of


def _make_listed(metrics: RequestMetrics, *given: Any) -> None:
    _make(metrics, *given)
    _made.append(metrics)


if __name__ == "__main__":
    setattr(RequestMetrics, "__init__", _make_listed)  # noqa: B010  # For mypy.
    signal.signal(signal.SIGUSR1, toggle)
    sys.exit(main())
