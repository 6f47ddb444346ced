"""One optimizer step as a transaction: it survives dying ranks and keeps its batch."""

__version__ = "0.1.0"
