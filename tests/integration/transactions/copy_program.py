"""A program that copies a topic in transactions, until it is told to stop or is killed.

`python -m tests.integration.transactions.copy_program JSON`. Some transactions it aborts, and in
the middle of some it dies by SIGKILL; what those held says so, and nobody may ever read it. It ends
with status FENCED if another one has taken its place, and by SIGALRM, saying where it was, if a
call does not come back or nothing comes to be copied. Both happen to kafka-python: it forgets a
request if its coordinator refuses the connection, and its assignment if a poll ends before that
comes.
"""

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random

from tests.integration.transactions.copiers import COPIERS, Copier
from tests.integration.transactions.copiers.interface import (
    CALL_S,
    Abortable,
    Fenced,
    Job,
    Taken,
)
from tests.integration.transactions.judging import doomed

FENCED = 3
_POLL_S = 0.2
_CALLS_S_MAX = int(1.5 * CALL_S)
_SLOW_S = 4.0


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a copier works; the seed makes it do the same again."""

    client: str
    seed: str
    records_max: int = 100
    """Of one transaction."""
    pause_s: float = 0.0
    """Between two transactions."""
    abort_chance: float = 0.1
    death_chance: float = 0.01


def arguments(job: Job, manner: Manner) -> list[str]:
    """What a copier is told on its command line."""
    return [json.dumps([asdict(job), asdict(manner)])]


class Program:
    """Transactions in a row."""

    def __init__(self, copier: Copier, manner: Manner) -> None:
        self._copier = copier
        self._manner = manner
        self._rng = Random(manner.seed)
        self.stop = False

    def run(self) -> None:
        signal.alarm(_CALLS_S_MAX)
        while not self.stop:
            taken = self._copier.poll(_POLL_S, self._rng.randint(1, self._manner.records_max))
            if taken:
                self._copy(taken)
                time.sleep(self._manner.pause_s)
                signal.alarm(_CALLS_S_MAX)

    def _copy(self, taken: Sequence[Taken]) -> None:
        copier, draw = self._copier, self._rng.random()
        dies = draw < self._manner.death_chance
        aborts = not dies and draw < self._manner.death_chance + self._manner.abort_chance
        try:
            self._watch("begin", copier.begin)
            for record in taken:
                copier.send(
                    record.partition, doomed(record.value) if dies or aborts else record.value
                )
            if dies or aborts:
                self._watch("flush", copier.flush)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            if not aborts:
                offsets = {position.partition: position.offset + 1 for position in taken}
                self._watch("send_offsets", lambda: copier.send_offsets(offsets))
                self._watch("commit", copier.commit)
                return
        except Abortable as error:
            print(f"aborting: {error}", flush=True)
        self._watch("abort", copier.abort)
        starts: dict[int, int] = {}
        for record in taken:
            starts.setdefault(record.partition, record.offset)
        copier.seek(starts)

    @staticmethod
    def _watch(name: str, call: Callable[[], None]) -> None:
        """Do it, and tell if it took long."""
        signal.alarm(_CALLS_S_MAX)
        began = time.monotonic()
        call()
        if (took := time.monotonic() - began) > _SLOW_S:
            print(f"{time.strftime('%X')} {name} took {took:.1f} s", flush=True)


def main() -> int:
    job, manner = json.loads(sys.argv[1])
    copier = COPIERS[manner["client"]](Job(**job))
    program = Program(copier, Manner(**manner))

    def on_term(number: int, frame: object) -> None:
        program.stop = True

    signal.signal(signal.SIGTERM, on_term)
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(_CALLS_S_MAX)
    try:
        copier.open_producer()
        signal.alarm(_CALLS_S_MAX)
        copier.open_consumer()
        program.run()
        signal.alarm(_CALLS_S_MAX)
        copier.close_consumer()
        copier.close_producer()
    except Fenced as error:
        print(f"fenced: {error}", flush=True)
        # Closing would only ask again what was answered already.
        os._exit(FENCED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
