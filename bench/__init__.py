"""Measurements of headrace, each with its limit or its peer, measured in the same run."""
