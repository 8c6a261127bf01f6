"""Replication of a partition: ISR, high watermark, and truncation of diverged logs.

Rule: sans-IO. Offsets, epochs and the time are arguments, decisions are results.
"""
