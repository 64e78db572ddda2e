"""`transformers.generate` as one would use it without an engine: batches in order, each until its longest is done."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from transformers import LlamaForCausalLM

from benchmarks.engines.workload import Request, total_tokens


def static_rate(model: LlamaForCausalLM, requests: Sequence[Request], *, batch: int) -> float:
    """Tokens that were asked for, a second."""
    started = time.monotonic()
    with torch.inference_mode():
        for first in range(0, len(requests), batch):
            part = requests[first : first + batch]
            ids = torch.tensor([request.prompt for request in part])
            longest = max(request.new_tokens for request in part)
            model.generate(  # type: ignore[misc]
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=longest,
                min_new_tokens=longest,
                do_sample=True,
                top_k=0,
            )
    return total_tokens(requests) / (time.monotonic() - started)
