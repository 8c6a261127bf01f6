"""Framing on sockets: connections, and the server that accepts and bounds them."""
