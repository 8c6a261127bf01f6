"""Rights that requests need, API by API: what is allowed goes on, the rest gets its error code."""
