"""The producer: batching, ordered delivery without duplicates, transactions."""
