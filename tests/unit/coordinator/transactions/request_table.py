"""What a transaction coordinator answers, for every state, request and epoch of the request.

`tests/unit` holds our decisions to the table, `tests/compat` holds Apache Kafka to it.

Rows: the request and its sender. `current` has the present producer id and epoch, `last` the epoch
before, which the end or start before has raised, `older` one before that, `ahead` the next one,
`other` another producer id, and `new` names no producer. `v4` is EndTxn of transactions version 1,
`v5` of version 2. `add` is AddPartitionsToTxn and AddOffsetsToTxn.

Cells: OK changes nothing; a state, with how much the epoch rises; CON is CONCURRENT_TRANSACTIONS,
FEN PRODUCER_FENCED, MAP INVALID_PRODUCER_ID_MAPPING, ITS INVALID_TXN_STATE, ABO
TRANSACTION_ABORTABLE. FEN* is ours alone: Kafka aborts the open transaction first (PA+1).
"""

from typing import NamedTuple

STATES = (
    "unknown",
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)

_TABLE = """
                  unknown Empty Ongoing PrepareCommit PrepareAbort CompleteCommit CompleteAbort
commit-v5 current MAP     ITS   PC+1    CON           CON          ITS            ITS
commit-v5 last    MAP     FEN   FEN     CON           CON          OK             ITS
commit-v5 older   MAP     FEN   FEN     CON           CON          FEN            FEN
commit-v5 ahead   MAP     FEN   FEN     CON           CON          FEN            FEN
commit-v5 other   MAP     MAP   MAP     CON           CON          MAP            MAP
abort-v5  current MAP     CA+1  PA+1    CON           CON          CA+1           CA+1
abort-v5  last    MAP     FEN   FEN     CON           CON          ITS            OK
abort-v5  older   MAP     FEN   FEN     CON           CON          FEN            FEN
abort-v5  ahead   MAP     FEN   FEN     CON           CON          FEN            FEN
abort-v5  other   MAP     MAP   MAP     CON           CON          MAP            MAP
commit-v4 current MAP     ITS   PC+0    CON           CON          OK             ITS
commit-v4 last    MAP     FEN   FEN     FEN           FEN          FEN            FEN
commit-v4 ahead   MAP     FEN   FEN     FEN           FEN          FEN            FEN
commit-v4 other   MAP     MAP   MAP     MAP           MAP          MAP            MAP
abort-v4  current MAP     ITS   PA+0    CON           CON          ITS            OK
abort-v4  last    MAP     FEN   FEN     FEN           FEN          FEN            FEN
abort-v4  ahead   MAP     FEN   FEN     FEN           FEN          FEN            FEN
abort-v4  other   MAP     MAP   MAP     MAP           MAP          MAP            MAP
add       current MAP     ON+0  ON+0    CON           CON          ON+0           ON+0
add       last    MAP     FEN   FEN     CON           CON          FEN            FEN
add       ahead   MAP     FEN   FEN     CON           CON          FEN            FEN
add       other   MAP     MAP   MAP     CON           CON          MAP            MAP
verify    current MAP     ABO   OK      CON           CON          ABO            ABO
verify    last    MAP     FEN   FEN     FEN           FEN          FEN            FEN
verify    ahead   MAP     FEN   FEN     FEN           FEN          FEN            FEN
verify    other   MAP     MAP   MAP     MAP           MAP          MAP            MAP
init      new     EM+0    EM+1  PA+1    CON           CON          EM+1           EM+1
init      current EM+0    EM+1  PA+1    CON           CON          EM+1           EM+1
init      last    EM+0    EM+0  FEN*    CON           CON          EM+0           EM+0
init      older   EM+0    FEN   FEN*    CON           CON          FEN            FEN
init      ahead   EM+0    FEN   FEN*    CON           CON          FEN            FEN
init      other   EM+0    FEN   FEN     CON           CON          FEN            FEN
"""


class Cell(NamedTuple):
    """A request in a state, and the outcome."""

    request: str
    sender: str
    state: str
    outcome: str


def _parsed() -> list[Cell]:
    title, *rows = _TABLE.strip().splitlines()
    assert tuple(title.split()) == STATES
    cells = []
    for row in rows:
        request, sender, *outcomes = row.split()
        cells += [
            Cell(request, sender, state, outcome)
            for state, outcome in zip(STATES, outcomes, strict=True)
        ]
    return cells


CELLS = _parsed()
