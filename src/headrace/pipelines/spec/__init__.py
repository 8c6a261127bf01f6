"""What a pipeline is: its parts as values, read from YAML or declared in Python."""
