"""What a simulated job is: how long its responses are step by step, how fast trainer and rollout replicas work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    lengths: Sequence[float]
    """Mean tokens of a response at each trainer step; there are as many steps as lengths."""
    length_spread: float
    """Sigma of the log-normal spread of prompt groups around the mean."""
    step_spread: float
    """The same for trainer steps."""
    group_size: int = 8
    batch_groups: int = 32
    max_staleness: int = 8
    accepted: float = 0.8
    """Share of the groups that dynamic sampling keeps."""
    step_fixed_s: float
    """Seconds of a trainer step, whatever its length."""
    step_s_per_token: float
    """And for each token of its mean response."""
    trainer_devices: int = 4
    tokens_per_second: float
    """Of one replica with all its slots in use and short contexts."""
    slots: int = 16
    """Prompt groups that a replica works on at once."""
    half_speed_slots: float = 4.0
    """Slots in use at which a replica would reach half of its best speed."""
    context_tokens: float = 20_000.0
    """Length at which a token costs twice of what it costs at the beginning."""
    startup_s: float
    startup_spread: float = 0.25
    drain_s: float = 300.0
    """Grace period: what a drained replica has not finished then is handed back."""
    min_replicas: int
    max_replicas: int
    first_replicas: int
    seed: int

    @property
    def steps(self) -> int:
        return len(self.lengths)

    def work(self, tokens: float) -> float:
        """Tokens as an engine feels them: long contexts are slower."""
        return tokens * (1.0 + tokens / self.context_tokens)

    def speed(self, busy: int) -> float:
        """Work per second of one replica with so many groups in flight."""
        if busy == 0:
            return 0.0
        best = self.slots / (self.slots + self.half_speed_slots)
        return self.tokens_per_second * (busy / (busy + self.half_speed_slots)) / best

    def step_s(self, step: int) -> float:
        return self.step_fixed_s + self.step_s_per_token * self.lengths[min(step, self.steps - 1)]

    def replicas_needed(self, step: int) -> float:
        """What keeps pace with the trainer at a step, as if replicas could be divided."""
        samples = self.batch_groups * self.group_size / self.accepted
        return samples * self.work(self.lengths[step]) / (self.tokens_per_second * self.step_s(step))
