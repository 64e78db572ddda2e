"""Which version sampled each token of an answer, as far as the engine's word agrees with what it was given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from trimtab.fabric.wire.spans import Span, model_span
from trimtab.rollout.engines.contract import Generated
from trimtab.rollout.weight_labels import label_of
from trimtab.weights.store.position import Position


def token_versions(part: Generated, possible: Sequence[Position]) -> list[int] | None:
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


def spans_of(versions: Iterable[int]) -> tuple[Span, ...]:
    return tuple(model_span(len(list(run)), version=version) for version, run in groupby(versions))
