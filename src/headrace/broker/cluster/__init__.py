"""This node in its cluster: registration, channels to other nodes, the active controller."""
