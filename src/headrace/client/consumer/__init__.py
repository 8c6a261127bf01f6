"""Records from brokers: subscriptions, groups, fetching, offsets."""
