"""SGLang behind the engine contract: a launcher that keeps it running, and sparse weight updates into it."""
