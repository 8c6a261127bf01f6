"""The broker: event loop, partitions, and a handler for each API."""
