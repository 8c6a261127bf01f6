"""Log compaction: only the latest record of every key is kept, at its offset."""
