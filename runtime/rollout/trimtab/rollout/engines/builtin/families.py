"""The kinds of models that the built-in engine computes. Who only asks should not wait for torch."""

FAMILIES = ("llama", "qwen2", "qwen3")
