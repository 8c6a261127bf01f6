"""All benchmarks: `python -m bench [--quick]`."""

import sys

from bench.broker import main

sys.exit(main())
