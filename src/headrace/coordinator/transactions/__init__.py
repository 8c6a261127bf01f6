"""Transactions: a state machine over the records of `__transaction_state`.

Rule: pure, as the groups are. A transactional id has one record, its latest; whatever else is known
of it can be found again from that record.
"""
