"""Messages, record batches and framing of the Kafka protocol, as values and bytes only."""
