"""DataFrames from the parts of a pipeline."""
