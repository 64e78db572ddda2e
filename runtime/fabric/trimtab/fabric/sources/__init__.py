"""Models and prompts that a manifest names by hf:// or s3://: fetched before anything starts."""
