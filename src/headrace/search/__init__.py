"""Search through the records of a topic by an expression, on Arrow columns."""
