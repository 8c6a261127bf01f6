"""Where the results of a pipeline go, each once per batch however often a batch is run."""
