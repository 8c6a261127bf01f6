"""Logs on disk in Kafka's layout. Synchronous, and the only package that opens files.

One thread (the event loop) owns a `Log`; only `read`, `flush` and the removal of retired files may
run in a worker thread at the same time.
"""
