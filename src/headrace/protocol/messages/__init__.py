"""Schema tables, one module per API, fields with the versions that have them."""
