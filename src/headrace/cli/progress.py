"""How far a long command is, on a terminal; nothing where nobody looks."""

import sys
from typing import TYPE_CHECKING

from headrace.cli.output import counted

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class Progress:
    """A bar on stderr if the amount of work is known, else what was done so far."""

    def __init__(
        self, label: str, total_bytes: int | None, *, shown: bool, noun: str = "record"
    ) -> None:
        self.items = 0
        self._noun = noun
        self._done_bytes = 0
        self._bar: RichProgress | None = None
        if shown and sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task(label, total=total_bytes, items="")

    @property
    def is_visible(self) -> bool:
        """Whether somebody sees the bar."""
        return self._bar is not None

    def start(self) -> None:
        if self._bar is not None:
            self._bar.start()

    def advance(self, count_bytes: int) -> None:
        """So many more bytes are done."""
        if self._bar is not None:
            self._done_bytes += count_bytes
            items = counted(self.items, self._noun)
            self._bar.update(self._task, completed=self._done_bytes, items=items)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> "RichProgress":
    # rich takes longer to import than a small command to run.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[items]}"),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
    )
