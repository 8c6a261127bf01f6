"""A small blocking client: one thread, one socket per broker, the Kafka protocol alone."""
