"""Running a pipeline: its queries, their progress, and how they end."""
