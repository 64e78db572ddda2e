"""Pure decisions about the size of a job's rollout fleet: what the evidence asks for and what the rails allow."""
