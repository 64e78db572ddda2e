"""`python -m trimtab.rollout.workflows.mathematics_child`: compares mathematical answers, one JSON line each.

It is a process of its own because sympy can think for ever or take all the memory there is, and because only a process
can be stopped. It ends when its input does.
"""

from __future__ import annotations

import json
import logging
import math
import resource
import signal
import sys
from typing import Any

from math_verify import parse, verify

_MEMORY_BYTES = 2 << 30
_ORPHAN_S = 5
"""After this much beyond the question's time there is no parent that could kill it, so the alarm does."""
_TEXT_MARKS = ("$", "\\boxed", "\\(", "\\[")


def judged(*, answer: str, expected: str) -> dict[str, Any]:
    # The library's own timeouts would call a comparison that takes too long a wrong answer. Ours is the parent's kill.
    marked = expected if any(mark in expected for mark in _TEXT_MARKS) else f"\\boxed{{{expected}}}"
    gold = parse(marked, parsing_timeout=None, raise_on_error=True)
    if not gold:
        return {"unusable": "math-verify finds no mathematics in the expected answer"}
    said = parse(answer, parsing_timeout=None, raise_on_error=True)
    return {"correct": bool(verify(gold, said, timeout_seconds=None, raise_on_error=True))}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    logging.disable(logging.WARNING)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        question = json.loads(line)
        signal.alarm(math.ceil(question["seconds"]) + _ORPHAN_S)
        try:
            verdict = judged(answer=question["answer"], expected=question["expected"])
        except Exception as error:  # noqa: BLE001 - whatever the library raises is told to the parent, by name
            verdict = {"error": f"{type(error).__name__}: {error}"[:500]}
        signal.alarm(0)
        sys.stdout.write(json.dumps(verdict) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
