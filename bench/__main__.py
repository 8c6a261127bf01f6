"""All benchmarks: `python -m bench [--quick]`."""

import sys

from bench import broker, groups

sys.exit(broker.main() | groups.main())
