"""Growing a cluster and draining a broker with the commands, while it is written to."""

import json
import subprocess
from collections import Counter

from headrace.testing.time_limits import scaled
from tests.integration.cluster.trials import Subject
from tests.support import headrace_command

PARTITIONS = 8
DRAINED = 2
_COMMAND_S_MAX = 120.0


def expand_and_drain(one: Subject) -> tuple[Counter[int], Counter[int]]:
    """From three brokers to four, then everything off one; replicas and leaders it ends with."""
    added = one.cluster.add_broker()
    plan = _headrace(one, "reassign", "generate", "--topic", one.topic)
    assert json.loads(plan)["partitions"], "nothing moves to a broker that is empty"
    _headrace(one, "reassign", "execute", "-", "--wait", stdin=plan)
    one.settle()
    brokers = [broker.node_id for broker in one.cluster.brokers]
    check_even(one, brokers)
    assert added.node_id in brokers
    _headrace(one, "brokers", "drain", str(DRAINED))
    one.settle()
    return check_even(one, [number for number in brokers if number != DRAINED])


def check_even(one: Subject, brokers: list[int]) -> tuple[Counter[int], Counter[int]]:
    """Require that replicas and leaders are spread over these brokers, and no others, evenly."""
    views = one.cluster.partitions_of(one.topic)
    replicas = Counter(number for view in views.values() for number in view.replicas)
    leaders = Counter(view.leader for view in views.values())
    for counts in (replicas, leaders):
        assert set(counts) == set(brokers), (replicas, leaders)
        assert max(counts.values()) - min(counts.values()) <= 1, (replicas, leaders)
    return replicas, leaders


def _headrace(one: Subject, *arguments: str, stdin: str = "") -> str:
    command = [headrace_command(), *arguments, "-b", one.cluster.bootstrap_servers]
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=scaled(_COMMAND_S_MAX),
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout
