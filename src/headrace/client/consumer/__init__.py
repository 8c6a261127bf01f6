"""The consumer: subscriptions, group membership, fetching, offsets."""
