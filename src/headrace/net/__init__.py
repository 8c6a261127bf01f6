"""Sockets: framing, client connections, and the server that accepts and limits connections."""
