"""Runs a workflow with lines instead of models: to see that it asks, passes on and rewards as it should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trimtab.fabric.wire.spans import model_span
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.policy.sampler import Completion, Listener
from trimtab.rollout.sandbox.contract import Sandbox
from trimtab.rollout.workflows.team import Assignment, Episode, Role, Team, Tokenizer, Workflow, WorkflowError

CHARACTERS = Tokenizer(encode=lambda text: [ord(c) for c in text], decode=lambda ids: "".join(map(chr, ids)))
"""A token for every character."""

_MAX_NEW_TOKENS = 1 << 16
_DEADLINE_S = 60.0


class Script:
    """Says its lines one after the other, each cut at what is allowed, and keeps what it was asked."""

    def __init__(self, *lines: str, tokenizer: Tokenizer = CHARACTERS, version: int = 0) -> None:
        self._lines = list(lines)
        self._tokenizer = tokenizer
        self._version = version
        self.prompts: list[list[int]] = []
        self.asked: list[SamplingSettings] = []
        self.request_ids: list[str] = []

    async def complete(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        deadline_s: float,
        listener: Listener | None = None,
    ) -> Completion:
        self.prompts.append(list(prompt))
        self.asked.append(settings)
        self.request_ids.append(request_id)
        if not self._lines:
            raise WorkflowError(f"no line left for request {request_id}, which heard {self.heard[-1]!r}")
        whole = self._tokenizer.encode(self._lines.pop(0))
        said = whole[: settings.max_new_tokens]
        finish: Literal["stop", "length"] = "stop" if len(said) == len(whole) else "length"
        spans = (model_span(len(said), version=self._version),) if said else ()
        return Completion(token_ids=tuple(said), logprobs=(-0.5,) * len(said), spans=spans, finish=finish)

    @property
    def heard(self) -> list[str]:
        """What it was asked, as text."""
        return [self._tokenizer.decode(prompt) for prompt in self.prompts]


async def rehearse(
    workflow: Workflow, prompt: Mapping[str, Any], *, scripts: Mapping[str, Script], sandbox: Sandbox | None = None
) -> Episode:
    """One episode of the workflow, in which each role follows its script."""
    task = Assignment(prompt=prompt, seed=0, request_id="rehearsal", deadline_s=_DEADLINE_S)
    sampling = SamplingSettings(max_new_tokens=_MAX_NEW_TOKENS)
    roles = {
        name: Role(name=name, policy=name, tokenizer=CHARACTERS, sampler=script, sampling=sampling)
        for name, script in scripts.items()
    }
    return await workflow.run(task, Team(roles, task, sandbox=sandbox))
