"""Which stages apply to which policy's rows, and what each of them waits for: the job's graph as a pure value."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from trimtab.api.stage import Stage

_JOINED = frozenset({"Logprobs", "Values", "Custom"})


class StageGraph:
    """Stages are in the order of the manifest, in which those that one needs stand before it."""

    def __init__(self, stages: Sequence[Stage], *, policies: Sequence[str]) -> None:
        """`policies` are those that learn."""
        self.stages = {stage.name: stage for stage in stages}
        self.policies = tuple(policies)
        self.asks_with_prompts = any(asks_with_prompt(stage) for stage in stages)
        self._by_policy = {
            policy: tuple(stage for stage in stages if policy in (stage.rows or policies)) for policy in policies
        }
        self._needs = {
            (policy, stage.name): self._needed(stage, own) for policy, own in self._by_policy.items() for stage in own
        }

    @staticmethod
    def _needed(stage: Stage, own: Iterable[Stage]) -> tuple[str, ...]:
        """A stage that does not get these rows has nothing to say of them, and is not waited for."""
        names = {other.name for other in own}
        return tuple(name for name in stage.needs if name in names)

    def of(self, policy: str) -> tuple[Stage, ...]:
        """Those that get the rows of a policy."""
        return self._by_policy.get(policy, ())

    def applies(self, stage: str, policy: str) -> bool:
        return (policy, stage) in self._needs

    def needs(self, policy: str, stage: str) -> tuple[str, ...]:
        """Of those, the ones that a stage waits for."""
        return self._needs[policy, stage]

    def behind(self, policy: str, stage: str) -> frozenset[str]:
        """All that must be done before a stage, at whatever distance."""
        direct = self.needs(policy, stage)
        return frozenset(direct).union(*(self.behind(policy, name) for name in direct))

    def ready(self, policy: str, done: Container[str]) -> tuple[Stage, ...]:
        """Those that are not done, and wait for nothing."""
        return tuple(
            stage
            for stage in self.of(policy)
            if stage.name not in done and all(name in done for name in self.needs(policy, stage.name))
        )


def is_joined(stage: Stage) -> bool:
    """Whether ranks join its numbers to rows. What other stages say is in their headers, and known to the books."""
    return stage.computes in _JOINED


def asks_with_prompt(stage: Stage) -> bool:
    """Whether it is told the prompt: code of one's own compares answers with it, and a model reads the rows alone."""
    return stage.plugin is not None


def deciding_rewards(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Those that say what a row is worth, and what they need: held-out rows go through these alone. Filters choose what
    is trained, and leave out nothing that is evaluated.
    """
    needed: set[str] = set()
    for stage in reversed(stages):
        if stage.computes == "Reward" or (stage.name in needed and stage.computes != "Filter"):
            needed.update((stage.name, *stage.needs))
    return tuple(stage for stage in stages if stage.name in needed and stage.computes != "Filter")
