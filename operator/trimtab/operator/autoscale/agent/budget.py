"""The tokens of one decision, over all its requests. What a request will read is estimated before it is sent, so that a
decision ends before its budget does and not after.
"""

from __future__ import annotations

from trimtab.operator.autoscale.agent.failure import Cause, MaintainerFailed
from trimtab.operator.autoscale.agent.messages import Usage

# JSON with many figures has about three bytes per token.
_BYTES_PER_TOKEN = 3
_SMALLEST_ANSWER = 256
_LARGEST_ANSWER = 8192


class TokenBudget:
    def __init__(self, total: int) -> None:
        self._total = total
        self._conversation = 0
        self.spent = 0

    def answer_limit(self, *, new_bytes: int) -> int:
        """Tokens that the next answer may have, when the request adds so many bytes to what was sent before."""
        reading = self._conversation + new_bytes // _BYTES_PER_TOKEN
        left = self._total - self.spent - reading
        if left < _SMALLEST_ANSWER:
            raise MaintainerFailed(
                Cause.BUDGET,
                f"{self.spent} of {self._total} tokens are spent, and the next request would need about "
                f"{reading + _SMALLEST_ANSWER}; raise agent.maxTokens",
            )
        return min(left, _LARGEST_ANSWER)

    def spend(self, usage: Usage) -> None:
        self.spent += usage.total
        # The next request reads all of this again.
        self._conversation = usage.total
