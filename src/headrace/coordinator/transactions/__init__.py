"""The transaction coordinator: a state machine over the records of `__transaction_state`.

Rule: pure, as the groups are. The latest record of a transactional id is its whole state; soft
state, such as timers and marker orders, is rebuilt from that record.
"""
