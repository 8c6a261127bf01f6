"""Numbers that a program keeps about its own work."""
