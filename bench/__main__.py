"""All benchmarks: `python -m bench [--quick]`."""

import sys

from bench import (
    broker,
    clients,
    cluster,
    compaction,
    connections,
    groups,
    metrics,
    quotas,
    scrubbing,
    search,
    security,
    spark,
    testing,
    transactions,
)

# Every part is run, even if an earlier one missed its target.
parts = (
    broker,
    cluster,
    transactions,
    compaction,
    scrubbing,
    search,
    security,
    connections,
    groups,
    metrics,
    quotas,
    testing,
    clients,
    spark,
)
sys.exit(max([part.main() for part in parts]))
