"""What a job does about failures of its pods, and about a workflow that never works."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import ListSet, Rule
from trimtab.api.scalars import Count, PositiveSeconds


class FailureRule(ApiModel):
    """What a certain exit means."""

    exit_codes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=255)], ...], ListSet(), Field(min_length=1, max_length=64)
    ]
    """Exit codes of the failed container that the rule is for."""
    action: Literal["Restart", "RestartFree", "Fail"]
    """Restart counts against maxRestarts, RestartFree does not, Fail ends the job at once."""


class FailurePolicy(ApiModel):
    """Restarts of failed pods. Preemption, eviction and drain are not failures and cost nothing."""

    rules = (
        Rule(
            "self.backoffSeconds <= self.maxBackoffSeconds",
            "backoffSeconds must not exceed maxBackoffSeconds",
            ".backoffSeconds",
        ),
    )

    max_restarts: Count = 10
    """Restarts of a trainer group before the job has failed. Rollout and dataflow pods restart without limit."""
    backoff_seconds: PositiveSeconds = 5
    """Seconds before the first restart, half of them random; doubled each time."""
    max_backoff_seconds: PositiveSeconds = 300
    """Longest wait between restarts."""
    failed_groups: Count = 8
    """The job has failed when this many prompt groups in a row were given up with the same error, at the same line of
    the workflow, before any was completed. An engine that does not answer never counts. 0 goes on in any case."""
    on_exit: Annotated[tuple[FailureRule, ...], Field(max_length=32)] = ()
    """Rules by exit code; the first that matches wins, and without a match it is Restart."""
