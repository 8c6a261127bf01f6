"""All benchmarks: `python -m bench [--quick]`."""

import sys

from bench import (
    broker,
    clients,
    cluster,
    compaction,
    groups,
    quotas,
    scrubbing,
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
    security,
    groups,
    quotas,
    testing,
    clients,
    spark,
)
sys.exit(max([part.main() for part in parts]))
