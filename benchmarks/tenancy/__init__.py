"""Two teams on one cluster, of which one is hostile."""
