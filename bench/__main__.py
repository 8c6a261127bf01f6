"""All benchmarks: `python -m bench [--quick]`."""

import sys

from bench import (
    broker,
    clients,
    cluster,
    compaction,
    groups,
    scrubbing,
    spark,
    testing,
    transactions,
)

# Every one is run, whatever the one before it missed.
parts = (broker, cluster, transactions, compaction, scrubbing, groups, testing, clients, spark)
sys.exit(max([one.main() for one in parts]))
