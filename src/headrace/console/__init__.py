"""The console: a cluster in a browser, watched and changed over the wire like by any client."""
