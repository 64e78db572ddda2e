"""What a job needs to go on somewhere else, in a folder: how it is laid out, filled and put back."""
