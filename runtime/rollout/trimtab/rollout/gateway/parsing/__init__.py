"""From what a model wrote to text, thoughts and tool calls: one file per family of models."""
