"""`trimtab why-slow`: where the time of a job's samples and steps goes."""
