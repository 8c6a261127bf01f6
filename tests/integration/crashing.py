"""Run a script and kill it at a chosen moment: `crashing.py MOMENT COUNT SCRIPT ARGUMENTS...`.

A moment is one of MOMENTS, and COUNT says at which of them. The process ends by SIGKILL, as in a
power cut: nothing is flushed, no handler runs, and the group is told nothing.
"""

import functools
import os
import runpy
import signal
import sqlite3
import sys
from typing import Any

import confluent_kafka

MOMENTS = (
    "before commit",  # The offsets of a consumer, or a transaction, are about to be committed.
    "after commit",
    "inside transaction",  # After a statement that changes something, or a record.
)


class Death:
    """Comes when its moment is reached for the last of so many times."""

    def __init__(self, moment: str, count: int) -> None:
        assert moment in MOMENTS
        self._moment = moment
        self._left = count

    def reached(self, moment: str) -> None:
        if moment == self._moment:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class MortalConsumer(confluent_kafka.Consumer):
    """A consumer that may die around a commit."""

    death: Death

    def commit(self, *args: Any, **options: Any) -> Any:
        self.death.reached("before commit")
        result = super().commit(*args, **options)
        self.death.reached("after commit")
        return result


class MortalProducer(confluent_kafka.Producer):
    """A producer that may die within a transaction or around its commit."""

    death: Death

    def produce(self, *args: Any, **options: Any) -> None:
        super().produce(*args, **options)
        self.death.reached("inside transaction")

    def commit_transaction(self, *args: Any) -> None:
        self.death.reached("before commit")
        super().commit_transaction(*args)
        self.death.reached("after commit")


class MortalDatabase(sqlite3.Connection):
    """A database whose user may die within a transaction or around its commit."""

    death: Death

    def execute(self, *args: Any) -> sqlite3.Cursor:
        cursor = super().execute(*args)
        if self.in_transaction:
            self.death.reached("inside transaction")
        return cursor

    def __exit__(self, *error: Any) -> Any:
        if not self.in_transaction:
            return super().__exit__(*error)
        self.death.reached("before commit")
        result = super().__exit__(*error)
        self.death.reached("after commit")
        return result


def main() -> None:
    moment, count, *command = sys.argv[1:]
    death = Death(moment, int(count))
    MortalConsumer.death = MortalProducer.death = MortalDatabase.death = death
    # The script imports these names when it is run, and gets the mortal ones.
    confluent_kafka.Consumer = MortalConsumer  # type: ignore[misc]
    confluent_kafka.Producer = MortalProducer  # type: ignore[misc]
    connect = functools.partial(sqlite3.connect, factory=MortalDatabase)
    sqlite3.connect = connect  # type: ignore[assignment]
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
