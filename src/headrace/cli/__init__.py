"""The command line. Commands talk to a broker through `headrace.client`, like anyone else.

Rule: a module here imports at its top only what parsing its options needs; what a command needs to
run is imported when it runs, so that `headrace up` and `--help` stay fast.
"""
