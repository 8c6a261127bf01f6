"""This node in the quorum of the metadata log: the shell of `headrace.raft`."""
