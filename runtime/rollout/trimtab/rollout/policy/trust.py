"""What of an engine's answer can be trusted: tokens count only where it is known which weights sampled them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trimtab.rollout.engines.contract import Generated, Scored
from trimtab.rollout.policy.version_gate import Crossing, label_of
from trimtab.weights.store.position import Position


def token_versions(part: Generated | Scored, possible: Sequence[Position]) -> list[int] | None:
    """One version for each token; None when the answer cannot be trusted.

    `possible` are the weights that the engine can have had while the request ran, in their order. An engine that names
    others was restarted behind our back. One that does not account for each token can be believed only where there
    was nothing to choose from: what it says of its weights holds for the moment of the answer.
    """
    labels = [label_of(position) for position in possible]
    if part.weight_runs is None:
        if [part.weight_version] != labels:
            return None
        return [possible[0].version] * len(part.token_ids)
    versions: list[int] = []
    at = 0
    for run in part.weight_runs:
        # Never backwards: weights that were replaced do not come back while a request runs.
        if run.weight_version not in labels[at:]:
            return None
        at = labels.index(run.weight_version, at)
        versions += [possible[at].version] * run.length
    return versions


class TrustedSoFar:
    """The beginning of an answer that is still being sampled. What it has once, it keeps: should the rest never come,
    or not be believed, this was aborted there.
    """

    def __init__(self, crossing: Crossing, grown: Callable[[Sequence[int]], None]) -> None:
        """`grown` is told of tokens when they are trusted."""
        self._crossing = crossing
        self._grown = grown
        self._latest = 0
        """The place among the possible weights of those that sampled the latest token."""
        self._doubted = False
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []

    def take(self, part: Generated) -> None:
        """What came since. Behind something that cannot be trusted nothing is."""
        # An engine that does not account for tokens may have had any of the possible weights.
        possible = self._crossing.possible[self._latest if part.weight_runs is not None else 0 :]
        versions = None if self._doubted else token_versions(part, possible)
        if versions is None:
            self._doubted = True
            return
        for run in part.weight_runs or ():
            labels = [label_of(position) for position in self._crossing.possible]
            self._latest = labels.index(run.weight_version, self._latest)
        self.token_ids += part.token_ids
        self.logprobs += part.logprobs
        self.versions += versions
        self._grown(part.token_ids)

    def aborted(self) -> tuple[Generated, list[int]] | None:
        """None where there is nothing."""
        if not self.token_ids:
            return None
        part = Generated(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            finish="abort",
            weight_version=label_of(self._crossing.possible[self._latest]),
            weight_runs=None,
        )
        return part, self.versions
