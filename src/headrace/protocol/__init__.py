"""Messages and record batches of the Kafka protocol. Sans-IO: values and bytes only."""
