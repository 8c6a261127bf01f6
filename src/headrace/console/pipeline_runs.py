"""The runs of pipelines on this machine, read from the notes beside their checkpoints."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.pipelines.locations import NOTES
from headrace.pipelines.run.run_state import RunState, read_state

RUNS_MAX = 200
# Pages of several viewers ask at once; a run writes its state about once a second.
_FRESH_S = 1.0


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """The newest run of each pipeline, and the notes that cannot be read."""

    runs: tuple[RunState, ...] = ()
    errors: tuple[str, ...] = ()


class PipelineRuns:
    """Reads the newest runs: of given notes, and of all pipelines in some directories."""

    def __init__(
        self,
        notes: Iterable[Path],
        directories: Iterable[Path],
        clock: Clock,
    ) -> None:
        self._notes = tuple(notes)
        self._directories = tuple(directories)
        self._clock = clock
        self._read_s = -_FRESH_S
        self._found = FoundRuns()
        self._lock = asyncio.Lock()

    async def read(self) -> FoundRuns:
        """The newest runs, a second old at most."""
        async with self._lock:
            now = self._clock.monotonic()
            if now - self._read_s >= _FRESH_S:
                self._found = await asyncio.to_thread(self._read)
                self._read_s = now
            return self._found

    def _read(self) -> FoundRuns:
        runs: dict[str, RunState] = {}
        errors: list[str] = []
        for notes in self._places():
            try:
                run = read_state(notes)
            except (HeadraceError, OSError) as error:
                errors.append(str(error))
                continue
            if run is not None:
                before = runs.get(run.pipeline)
                if before is None or before.updated < run.updated:
                    runs[run.pipeline] = run
        return FoundRuns(tuple(runs[name] for name in sorted(runs)), tuple(errors))

    def _places(self) -> Iterator[Path]:
        yield from self._notes
        for directory in self._directories:
            # The checkpoints of one pipeline, or a directory of many pipelines' checkpoints.
            if (directory / NOTES).is_dir():
                yield directory / NOTES
            yield from sorted(directory.glob(f"*/{NOTES}"))[:RUNS_MAX]
