"""The partitions this broker holds, led and followed: the shell of `headrace.replication`."""
