"""Coordinators of groups and transactions: state machines driven by partitions led here."""
