"""Every client copies a topic while copiers, coordinators and leaders die; see also `make soak`."""

import pytest

from headrace.testing.cluster import Cluster
from tests.integration.transactions.chaos import CONFIG, Chaos, Plan, require_exact

PLAN = Plan(records=4_000, partitions=2, pause_s=0.02, gap_s=0.3)
STRIKES = [
    "copier killed",
    "copier replaced while frozen",
    "transaction coordinator killed",
    "partition leader killed",
]


@pytest.mark.timeout(240)
def test_copies_are_exact_whoever_dies() -> None:
    with Cluster(brokers=3, config=CONFIG) as cluster:
        report = Chaos(cluster, PLAN, "ci").run(STRIKES)
    require_exact(report, PLAN.records)
