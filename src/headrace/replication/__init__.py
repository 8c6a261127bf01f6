"""How a partition's replicas agree: who is in sync, how far records are committed, where logs part.

Rule: pure. Offsets, epochs and the time go in, decisions come out.
"""
