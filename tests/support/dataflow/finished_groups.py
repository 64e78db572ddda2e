"""Finished groups for tests of curators and filters, by what matters there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

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
        rows=tuple(
            _sample(
                index,
                float(reward),
                finishes[index] if finishes else Finish.STOP,
                tokens[index] if tokens else 10,
            )
            for index, reward in enumerate(rewards)
        ),
    )


@cache
def _sample(index: int, reward: float, finish: Finish, tokens: int) -> SampleOutcome:
    """Populations roll out a hundred thousand groups, whose samples are a few kinds."""
    return SampleOutcome(
        index=index,
        reward=reward,
        finish=finish,
        prompt_tokens=5,
        response_tokens=tokens,
        trained_tokens=tokens,
        turns=1,
        oldest_version=0,
        newest_version=0,
    )
