"""What an episode of the agent is worth. A model with random weights gets there by steps: a call that begins, a call
that is one, the right box and no other, the right answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.rollout.agents.reward import AgentWork

_BEGINS = "<tool_call>"


def worth(prompt: Mapping[str, Any], outcome: Mapping[str, Any]) -> float:
    """1 for the right answer from the right box, and nothing else."""
    opened: Sequence[object] = outcome["opened"]
    box = int(prompt["prompt"])
    answer, inside = str(outcome["answer"]), str(prompt["boxes"])[box]
    if not opened:
        # Beginning again and again is no way to a call.
        return 0.1 if answer.startswith(_BEGINS) and answer.count(_BEGINS) == 1 else 0.0
    called = 0.2 + 0.15 * (opened[0] == box) + 0.15 * (len(opened) == 1)
    if opened != [box]:
        return called
    return called + 0.2 * answer.startswith(inside) + 0.3 * (answer == inside)


def of_output(work: AgentWork) -> float:
    """For the agent as a command, which prints its outcome."""
    return worth(work.prompt, json.loads(work.output))
