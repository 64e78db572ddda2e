"""What happened during a run, kept in the job's folder: the live view, the summary and the report all tell from it."""
