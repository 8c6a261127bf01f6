"""Records to brokers: gathered, batched, sent in order, each once."""
