"""The policies of this package, and the base of all that hand out the stream in order."""
