"""The lag of the event loop, on a loop whose time is made."""

import asyncio

from headrace.broker.process_usage import LoopLag
from headrace.metrics import catalog
from headrace.metrics.exposition import ExpositionFormat, exposition
from headrace.metrics.registry import Registry


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock moves only when a test moves it."""

    now_s = 100.0

    def time(self) -> float:
        return self.now_s


def test_a_timer_that_fires_late_is_the_lag_for_a_minute() -> None:
    registry = Registry()
    loop = SteppedLoop()

    async def after(seconds: float) -> str:
        loop.now_s += seconds
        for _ in range(3):
            await asyncio.sleep(0)
        page = "".join(exposition(registry, ExpositionFormat.PROMETHEUS))
        return next(line for line in page.splitlines() if line.startswith(f"{name} ")).split()[1]

    async def test() -> None:
        lag = LoopLag(registry)
        lag.start()
        assert float(await after(0.1)) < 0.001
        assert round(float(await after(0.75)), 6) == 0.65
        # It is the longest of a minute: twelve slots of five seconds.
        for _ in range(11):
            assert float(await after(5.0)) >= 0.65
        histogram = registry.histogram(catalog.LOOP_LAG)
        assert histogram.count == 13
        lag.stop()
        await after(1.0)
        assert histogram.count == 13

    name = catalog.LOOP_LAG_MAX.name
    try:
        loop.run_until_complete(test())
    finally:
        loop.close()
