"""Tables of the ListTransactions API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
)


class ListTransactionsRequest(Message, api_key=66, versions=(0, 2), flexible_from=0):
    state_filters: list[str] = array(string, default=...)
    producer_id_filters: list[int] = array(int64, default=...)
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)


class TransactionState(Struct):
    transactional_id: str = string(default="")
    producer_id: int = int64(default=0)
    transaction_state: str = string(default="")


class ListTransactionsResponse(Message, api_key=66, versions=(0, 2), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    unknown_state_filters: list[str] = array(string, default=...)
    transaction_states: list[TransactionState] = array(TransactionState, default=...)
