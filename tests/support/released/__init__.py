"""What each released version of Trimtab has left behind, as it wrote it: later versions must read it."""
