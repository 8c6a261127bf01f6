"""From the parts of a pipeline to DataFrames."""
