"""Metrics of a running program."""
