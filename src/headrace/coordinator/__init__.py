"""Consumer groups and their offsets: a state machine over the records of `__consumer_offsets`.

Rule: pure. Requests and the time go in, records and replies come out. What has to survive a crash
changes only in `replay`; everything else is soft state that members rebuild by joining again.
"""
