"""The client: producer, consumer and admin client over the Kafka protocol, blocking and asyncio."""
