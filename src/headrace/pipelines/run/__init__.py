"""Running a pipeline: queries, progress, checkpoints, and errors."""
