"""Monitoring: samples of a cluster, taken by client calls, with rates, lag and problems."""
