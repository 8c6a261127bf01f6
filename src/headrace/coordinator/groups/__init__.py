"""The group coordinator: groups and their offsets, over the records of `__consumer_offsets`.

Rule: pure, as all coordinators are. State that must survive a crash changes only in `replay`.
"""
