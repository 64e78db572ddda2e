"""Which rollout pods go first when there are too many: those whose loss costs least."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.operator.plan.pods import ObservedPod, Phase


def victims(pods: Iterable[ObservedPod], count: int, *, named: frozenset[str] = frozenset()) -> list[ObservedPod]:
    """`count` of them: those that are named, then unscheduled, pending, not ready, suspect, slow, and the
    newest among equals.
    """
    return sorted(pods, key=lambda pod: (pod.name not in named, _cost(pod)))[: max(0, count)]


def _cost(pod: ObservedPod) -> tuple[bool, bool, bool, bool, float, float, str]:
    return (
        pod.scheduled,
        pod.phase is not Phase.PENDING,
        pod.ready,
        not pod.suspect,
        pod.tokens_per_second,
        -pod.created_at,
        pod.name,
    )
