"""All benchmarks: `python -m bench [--quick]`."""

import sys

from bench import broker, clients, cluster, groups, spark, testing

# Every one is run, whatever the one before it missed.
sys.exit(max([one.main() for one in (broker, cluster, groups, testing, clients, spark)]))
