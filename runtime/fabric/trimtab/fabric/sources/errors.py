"""How a source that cannot be had is told: what waiting may mend, and what only a person can."""

from __future__ import annotations

from trimtab.fabric.pod import JobMisconfigured


class SourceRefused(JobMisconfigured):
    """It is not there, or not for us; the message names the source and the fix."""


class SourceAway(Exception):
    """It cannot be reached just now; the message says what to do without it."""
