"""Raft consensus on the metadata log, as in KRaft: followers fetch, the leader counts replicas.

Rule: sans-IO. Messages and the time are arguments; the writes, requests and responses to be made
are results. The shell sends no message before the state that it promises is on stable storage.
"""
