"""Two benchmarks of a simulated job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PROMPTS = 7


def evaluation(folder: Path, *, prompts: int = PROMPTS, limit: int = 5, **fields: Any) -> dict[str, Any]:
    for name in ("easy", "hard"):
        lines = (json.dumps({"prompt": f"{name} {number}"}) + "\n" for number in range(prompts))
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return {
        "everySteps": 2,
        "benchmarks": [
            {"name": "easy", "jsonl": {"uri": "easy.jsonl"}, "samples": 3, "limit": limit},
            {"name": "hard", "jsonl": {"uri": "hard.jsonl"}, "sampling": {"temperature": 0.5, "maxTokens": 9}},
        ],
    } | fields
