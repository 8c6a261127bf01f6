"""Consensus on one log, shaped like KRaft: followers pull, the leader counts who has what.

Rule: pure. Messages and the time go in; what to write, send and answer comes out. Nothing is sent
before what it promises is on stable storage: that is the shell's part of the bargain.
"""
