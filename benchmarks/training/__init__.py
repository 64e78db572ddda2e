"""Parts of the trainer benchmark."""
