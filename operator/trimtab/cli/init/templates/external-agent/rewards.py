"""What the agent's work is worth: it is given the prompt's row and what the agent printed."""

from __future__ import annotations

import re

from trimtab.rollout.agents.reward import AgentWork


def score(work: AgentWork) -> float:
    """The last number counts."""
    return float(re.findall(r"-?\d+", work.output)[-1:] == [work.prompt["answer"]])
