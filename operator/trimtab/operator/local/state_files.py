"""What a job of `trimtab run` keeps in its state folder beside its streams and objects, for who takes it elsewhere."""

from __future__ import annotations

MANIFEST_FILE = "manifest.yaml"
"""As the job was run the last time."""
SEED_FILE = "signing-seed"
LEDGER_KEY_FILE = "ledger-key"
ATTEMPTS_FILE = "attempts.json"
SUCCEEDED_FILE = "succeeded"
ENVIRONMENT_FILE = "environment"
"""Where the servers of the job's last run were, for people's shells."""
RESUME_FILE = "resume.json"
"""Where the job begins when it resumes another, as it was found at its first run."""
RESUME_FOLDER = "resume"
"""The other job's checkpoint, until there is one of its own."""
