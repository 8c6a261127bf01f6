"""Benchmark figures with their limits or targets, and a verdict at the end."""

import platform

import psutil
from rich.console import Console
from rich.table import Table


class Report:
    """Prints each figure when it is known, then all of them as a table."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._rows: list[tuple[str, str, str, str]] = []
        self._missed = 0
        self._console = Console(soft_wrap=True)
        memory = psutil.virtual_memory().total / 1e9
        machine = f"{psutil.cpu_count()} cores, {memory:.0f} GB"
        self._console.print(f"{title} ({machine}, Python {platform.python_version()})")

    def ratio(self, name: str, text: str, value: float, limit: float, target: float | None) -> None:
        """Report a figure as a part of the machine's limit."""
        share = value / limit
        met = target is None or share >= target
        wanted = "" if target is None else f", target {target:.0%}"
        self._add(name, text, f"{share:.0%} of the limit of {limit:,.0f} MB/s{wanted}", met)

    def at_least(self, name: str, value: float, target: float, unit: str) -> None:
        self._add(name, f"{value:,.0f} {unit}", f"at least {target:,.0f}", value >= target)

    def at_most(self, name: str, value: float, target: float, unit: str) -> None:
        self._add(name, f"{value:.2f} {unit}", f"at most {target:g}", value <= target)

    def times(
        self, name: str, ratio: float, other: str, target: float | None, note: str = ""
    ) -> None:
        """Report a figure as a multiple of another one's."""
        wanted = "" if target is None else f"at least {target:g}{note}"
        met = target is None or ratio >= target
        self._add(name, f"{ratio:.2f} times {other}", wanted, met)

    def fact(self, name: str, text: str) -> None:
        self._add(name, text, "", True)

    def _add(self, name: str, text: str, compared: str, met: bool) -> None:
        self._missed += not met
        verdict = "" if not compared else "ok" if met else "MISSED"
        self._rows.append((name, text, compared, verdict))
        self._console.print(f"  {name}: {text}; {compared} {verdict}", highlight=False)

    def close(self) -> int:
        """Print the table; the exit status is 0 if every target was met."""
        table = Table("measured", "figure", "beside", "", title=self._title)
        for row in self._rows:
            table.add_row(*row)
        self._console.print(table)
        return 1 if self._missed else 0
