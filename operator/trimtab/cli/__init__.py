"""The `trimtab` command line: one file per command."""
