"""Text as microbatches; it lives in `grad_txn.text`."""

from grad_txn.text import ByteText, read_text

__all__ = ["ByteText", "read_text"]
