"""Group and transaction coordinators: state machines over the records of their internal topics.

Rule: pure. Requests and the time go in, records and replies come out. State that must survive a
crash changes only in `replay`; everything else is soft state that clients rebuild by retrying.
"""
