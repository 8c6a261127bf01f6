"""The asyncio side of a client: connections, the cluster they lead to, and a thread to run it on."""
