"""Measurements of headrace, each beside the limit or the peer it is compared with, from one run."""
