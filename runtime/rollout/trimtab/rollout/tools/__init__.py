"""Tools that a planner may use by name. What a model wrote is executed in the sandbox alone."""
