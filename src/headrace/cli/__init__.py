"""The command line. Commands talk to a broker through `headrace.client`, like anyone else.

Rule: `main` imports a command's module when the command is called, so that `headrace up` does not
wait for the client, nor `headrace --help` for anything.
"""
