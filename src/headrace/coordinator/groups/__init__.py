"""Consumer groups and their offsets: a state machine over the records of `__consumer_offsets`.

Rule: pure, as all coordinators are. What has to survive a crash changes only in `replay`.
"""
