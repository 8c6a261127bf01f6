"""The admin client: describe and change topics, settings, groups, offsets and brokers."""
