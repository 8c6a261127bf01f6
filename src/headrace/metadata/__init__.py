"""The cluster's metadata: a log of records, the image they replay into, the commands behind.

Rule: pure. Commands take an image and a request and return records and a response; only
`Image.apply` turns records into a new image. Randomness is an argument; there is no clock.
"""
