"""What a header meant to the books, whichever of them it was for."""

from __future__ import annotations

from enum import StrEnum


class Arrival(StrEnum):
    """What came of a header."""

    NEW = "new"
    DUPLICATE = "duplicate"
    COMPLETED = "completed"
    STAGED = "staged"
    """A group is complete, and waits for what stages have to say of it."""
    FAILED = "failed"
    EMPTY = "empty"
    """A group is complete, and no episode of it has a row: there is nothing to train, and nothing went wrong."""
    NOT_FOR_TRAINING = "not-for-training"
    EVALUATED = "evaluated"
    """A group of an evaluation is complete."""
    REFUSED = "refused"
    """No task of this job can have led to it."""
