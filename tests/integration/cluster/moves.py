"""Growing a cluster and draining a broker with the commands, while it is written to."""

import json
import subprocess
from collections import Counter

from headrace.testing.time_limits import scaled
from tests.integration.cluster.trials import FaultedCluster
from tests.support import headrace_command

PARTITIONS = 8
DRAINED = 2
_COMMAND_S_MAX = 120.0


def expand_and_drain(faulted: FaultedCluster) -> tuple[Counter[int], Counter[int]]:
    """From three brokers to four, then everything off one; replicas and leaders it ends with."""
    added = faulted.cluster.add_broker()
    plan = _headrace(faulted, "reassign", "generate", "--topic", faulted.topic)
    assert json.loads(plan)["partitions"], "nothing moves to a broker that is empty"
    _headrace(faulted, "reassign", "execute", "-", "--wait", stdin=plan)
    faulted.settle()
    brokers = [broker.node_id for broker in faulted.cluster.brokers]
    check_even(faulted, brokers)
    assert added.node_id in brokers
    _headrace(faulted, "brokers", "drain", str(DRAINED))
    faulted.settle()
    return check_even(faulted, [number for number in brokers if number != DRAINED])


def check_even(faulted: FaultedCluster, brokers: list[int]) -> tuple[Counter[int], Counter[int]]:
    """Require that replicas and leaders are spread over these brokers, and no others, evenly."""
    views = faulted.cluster.partitions_of(faulted.topic)
    replicas = Counter(number for view in views.values() for number in view.replicas)
    leaders = Counter(view.leader for view in views.values())
    for counts in (replicas, leaders):
        assert set(counts) == set(brokers), (replicas, leaders)
        assert max(counts.values()) - min(counts.values()) <= 1, (replicas, leaders)
    return replicas, leaders


def _headrace(faulted: FaultedCluster, *arguments: str, stdin: str = "") -> str:
    command = [headrace_command(), *arguments, "-b", faulted.cluster.bootstrap_servers]
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
