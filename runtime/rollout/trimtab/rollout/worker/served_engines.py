"""All engines of one policy in a rollout pod, as the worker sees them: one thing to sample from, with one version."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from trimtab.api.policy import Policy
from trimtab.rollout.engines.contract import SamplingEngine
from trimtab.rollout.policy.freshness import Announcements, VersionLine
from trimtab.rollout.policy.sampler import SpreadSampler
from trimtab.rollout.policy.scorer import PolicyScorer
from trimtab.rollout.worker.served_policy import (
    PodResources,
    ServedPolicy,
    endpoint_policy,
    fixed_policy,
    host_copy,
    refreshed_policy,
)
from trimtab.rollout.workflows.conversation import Role


class ServedEngines:
    """Each engine keeps its weights fresh by itself, in turn with the others."""

    def __init__(self, seats: Sequence[ServedPolicy[SamplingEngine]]) -> None:
        self.seats = tuple(seats)
        self.sampler = SpreadSampler([seat.sampler for seat in seats])
        self.scorer = PolicyScorer([seat.sampler for seat in seats])

    @property
    def policy(self) -> Policy:
        return self.seats[0].policy

    @property
    def announcements(self) -> Announcements:
        """All engines hear the same; the first one's ears are as good as any."""
        return self.seats[0].announcements

    @property
    def version(self) -> int:
        """The oldest that is served. An engine that is away serves nothing, and must not hold the others up."""
        there = [seat for seat in self.seats if not seat.sampler.away]
        return min(seat.gate.version for seat in there or self.seats)

    @property
    def line(self) -> VersionLine:
        return VersionLine(served=self, announcements=self.announcements)

    @property
    def is_ready(self) -> bool:
        """Each engine has served the newest weights at least once."""
        return all(seat.refresh.ready.is_set() for seat in self.seats)

    async def ready(self) -> None:
        """However long that takes: engines that do not come up end their pod by themselves."""
        await asyncio.gather(*(seat.refresh.ready.wait() for seat in self.seats))

    def role(self, name: str) -> Role:
        return self.seats[0].role(name, sampler=self.sampler)

    def named_seats(self) -> dict[str, ServedPolicy[SamplingEngine]]:
        """By names such as `solver` and `2-solver`, as the pod's containers have them."""
        policy = self.policy.name
        return {policy if number == 1 else f"{number}-{policy}": seat for number, seat in enumerate(self.seats, 1)}


async def served_engines(
    policy: Policy, urls: Sequence[str], resources: PodResources, stack: AsyncExitStack
) -> ServedEngines | None:
    """None where the pod has neither an engine nor an endpoint for the policy."""
    said = next((engines for engines in resources.pool.engines if engines.policy == policy.name), None)
    if said is not None and said.endpoint is not None:
        return ServedEngines([await endpoint_policy(policy, said.endpoint, resources, stack)])
    if not urls:
        return None
    if resources.pool.engine.name == "openai":
        return ServedEngines([await fixed_policy(policy, url, resources, stack) for url in urls])
    copy = await host_copy(policy, resources, stack)
    return ServedEngines([await refreshed_policy(policy, url, resources, stack, copy=copy) for url in urls])
