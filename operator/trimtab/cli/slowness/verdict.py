"""What the figures come down to, in a sentence: which side holds the job up, and what on that side takes longest."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.cli.chronicle.figures import percent
from trimtab.cli.slowness.samples import OTHER, QUEUE, READY, SampleTimes
from trimtab.cli.slowness.steps import StepTimes

_STARVING = 0.1
_WAITING_MOST = 0.5
_ADVICE = {
    "prefill": "long prompts or a full engine: more replicas, a larger engine, or prompts that share a beginning",
    "decode": "long answers: a lower maxTokens, a faster engine or more replicas",
    "engine": "the engine: more replicas, or a faster one",
    "weights": "swaps of weights: trainer.publish.everySteps, or an engine that takes weights while requests run",
    "tools": "tools: faster ones, or more episodes side by side (engine.concurrency)",
    "programs": "programs in the sandbox: workflow.sandbox's processors, or shorter limits",
    "scoring": "checks of answers",
    OTHER: "the workflow's own code, and what agents do in it",
}


def verdict(step: StepTimes, samples: Sequence[SampleTimes]) -> str:
    """Of one policy."""
    waiting = step.parts.get("wait", 0.0) / step.seconds if step.seconds else 0.0
    own = next((one for one in samples if one.policy == step.policy), None)
    if waiting < _STARVING:
        busiest = max((name for name in step.parts if name != "wait"), key=lambda name: step.parts[name])
        return f"{step.policy}: the trainer is busy, mostly with {busiest}; more rollouts would not make it faster"
    said = f"{step.policy}: the trainer waits for samples {percent(waiting)} of its time"
    if own is None:
        return said
    queued = next((share.seconds for share in own.shares if share.name == QUEUE), 0.0)
    working = [share for share in own.shares if share.name not in (QUEUE, READY)]
    if not working:
        return said
    longest = max(working, key=lambda share: share.seconds)
    advice = _ADVICE.get(longest.name, f"{longest.name}, as the workflow calls it")
    more = "" if queued < _WAITING_MOST * own.seconds else "; tasks wait for workers first: more replicas help"
    return f"{said}; most of an episode is {longest.name} ({advice}){more}"
