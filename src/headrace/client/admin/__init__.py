"""Topics, configs, groups and offsets, looked at and changed."""
