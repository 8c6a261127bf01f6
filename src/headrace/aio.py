"""The clients for asyncio: the same names and options, with calls that are awaited.

    async with headrace.aio.Producer() as producer:
        future = await producer.send("orders", "one espresso")  # waits for room in the buffer
        metadata = await future                                 # waits for the brokers

Each client belongs to the event loop that it is first used on.
"""

from headrace.client.admin.aio import AsyncAdmin as Admin
from headrace.client.consumer.consumer import AsyncConsumer as Consumer
from headrace.client.producer.producer import AsyncProducer as Producer

__all__ = ["Admin", "Consumer", "Producer"]
