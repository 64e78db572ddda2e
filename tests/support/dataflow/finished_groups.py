"""Finished groups for tests of curators and filters, by what matters there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trimtab.dataflow.outcomes import GroupOutcome, SampleOutcome
from trimtab.fabric.wire.trajectory import Finish


def finished(
    prompt_id: str,
    rewards: Iterable[float],
    *,
    policy: str = "solver",
    role: str = "solver",
    finishes: Sequence[Finish] = (),
    tokens: Sequence[int] = (),
) -> GroupOutcome:
    """A group by its rewards. Samples stopped by themselves after 10 tokens unless told otherwise."""
    return GroupOutcome(
        policy=policy,
        role=role,
        prompt_id=prompt_id,
        samples=tuple(
            SampleOutcome(
                index=index,
                reward=float(reward),
                finish=finishes[index] if finishes else Finish.STOP,
                prompt_tokens=5,
                response_tokens=tokens[index] if tokens else 10,
                trained_tokens=tokens[index] if tokens else 10,
                turns=1,
                oldest_version=0,
                newest_version=0,
            )
            for index, reward in enumerate(rewards)
        ),
    )
