"""What a restart resumes from: every rank's share of model and optimiser, written beside training."""
