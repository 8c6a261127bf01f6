"""The asyncio side of a client: connections, the cluster behind them, a thread to run on."""
