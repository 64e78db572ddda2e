"""What a look at a job and a machine came to, before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """A problem is what the job cannot run with; a warning what may end it later, or slow it."""

    FINE = "fine"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    level: Level
    text: str


def fine(text: str) -> Finding:
    return Finding(Level.FINE, text)


def warning(text: str) -> Finding:
    return Finding(Level.WARNING, text)


def problem(text: str) -> Finding:
    return Finding(Level.PROBLEM, text)
