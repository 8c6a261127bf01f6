"""The replicas on this broker, leading and following: the shell of `headrace.replication`."""
