"""This node's part in the quorum that keeps the metadata log: the shell of `headrace.raft`."""
