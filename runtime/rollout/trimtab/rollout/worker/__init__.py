"""The worker of a rollout pod: takes tasks, runs their episodes, settles every delivery, and drains when told."""
