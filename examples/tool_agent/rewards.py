"""What an episode of the agent is worth. A model with random weights gets there by steps: a call that begins, a call
that is one, the right box and no other, an answer that says what was in the box.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.rollout.agents.reward import AgentWork

_BEGINS = "<tool_call>"


def worth(prompt: Mapping[str, Any], outcome: Mapping[str, Any]) -> float:
    """1 for the right answer from the right box, and nothing else. Box and answer count apart: who opens the wrong one
    learns all the same to say what was in it.
    """
    opened: Sequence[object] = outcome["opened"]
    answer = str(outcome["answer"])
    if not opened:
        # Beginning again and again is no way to a call.
        return 0.1 if answer.startswith(_BEGINS) and answer.count(_BEGINS) == 1 else 0.0
    box, boxes = opened[-1], str(prompt["boxes"])
    inside = boxes[box] if isinstance(box, int) and 0 <= box < len(boxes) else None
    called = 0.2 + 0.1 * (len(opened) == 1) + 0.3 * (opened == [int(prompt["prompt"])])
    if inside is None:
        return called
    return called + 0.2 * answer.startswith(inside) + 0.2 * (answer == inside)


def of_output(work: AgentWork) -> float:
    """For the agent as a command, which prints its outcome."""
    return worth(work.prompt, json.loads(work.output))
