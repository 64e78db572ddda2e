"""What must survive a restart: which groups were issued, granted to a step and trained."""
