"""What is mounted into containers: files of ConfigMaps, Secrets and tokens, folders on disk and in memory."""
