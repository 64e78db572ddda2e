"""Roles that need no engine."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.fabric.wire.spans import model_span
from trimtab.rollout.engines.client import EngineError, SamplingSettings
from trimtab.rollout.sampler import Completion, PolicySampler
from trimtab.rollout.workflows.team import Role, Tokenizer

CHARACTERS = Tokenizer(encode=lambda text: [ord(c) for c in text], decode=lambda ids: "".join(map(chr, ids)))


class EchoSampler(PolicySampler):
    """Says the last two tokens it heard, backwards; or raises what it is told to."""

    def __init__(self, *, fails: EngineError | None = None) -> None:
        self.version = 3
        self.asked: list[SamplingSettings] = []
        self._fails = fails

    async def complete(
        self, prompt: Sequence[int], settings: SamplingSettings, *, request_id: str, deadline_s: float
    ) -> Completion:
        if self._fails is not None:
            raise self._fails
        self.asked.append(settings)
        tokens = tuple(reversed(prompt[-2:]))
        spans = (model_span(len(tokens), version=self.version),)
        return Completion(token_ids=tokens, logprobs=(-0.5,) * len(tokens), spans=spans, finish="stop")


def role(sampler: PolicySampler, name: str = "solver", *, policy: str = "solver") -> Role:
    return Role(
        name=name, policy=policy, tokenizer=CHARACTERS, sampler=sampler, sampling=SamplingSettings(max_new_tokens=8)
    )
