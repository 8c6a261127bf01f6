"""Whole clusters in one process: virtual time, simulated network and disks, one seed for a run."""
