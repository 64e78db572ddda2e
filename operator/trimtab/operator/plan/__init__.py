"""Pure decisions: what should run, given what was asked for and what is there."""
