"""Programs that a policy wrote, judged by tests that they cannot see."""
