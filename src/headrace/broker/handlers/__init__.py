"""Handlers of APIs, one module per API or family; `broker/apis.py` has the API of each."""
