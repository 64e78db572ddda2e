"""What the API server asks before it takes an RLJob, RolloutPool or Trainer."""
