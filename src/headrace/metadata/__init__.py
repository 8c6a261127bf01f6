"""The cluster's metadata: records of the metadata log, the image they replay into, commands.

Rule: pure. Commands take an image and a request and return records and a response; only
`Image.apply` turns records into a new image. Randomness is an argument; there is no clock.
"""
