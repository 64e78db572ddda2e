"""The coordination plane: prompts in, batches out. It sees headers and references, never a payload."""
