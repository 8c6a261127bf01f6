"""The command line. Commands are clients of a broker, through `headrace.client`.

Rule: `main` imports a command's module when the command is called, so that `headrace up` does not
wait for importing the client, nor `headrace --help` for anything.
"""
