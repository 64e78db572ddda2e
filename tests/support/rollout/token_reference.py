"""Recomputes with transformers what every token's logprob must have been, by the versions that its spans name."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from trimtab.fabric.wire.spans import Producer, Span
from trimtab.fabric.wire.trajectory import Trajectory

_CLOSE = 1e-3


class TokenReference:
    """The weights of every version that was published."""

    def __init__(self, folders: Mapping[int, Path]) -> None:
        loaded: dict[Path, Any] = {}
        for folder in folders.values():
            if folder not in loaded:
                loaded[folder] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._models = {version: loaded[folder] for version, folder in folders.items()}

    def check(self, trajectory: Trajectory) -> None:
        versions = [span.version for span in trajectory.spans if span.version is not None]
        assert versions == sorted(versions), f"{trajectory.trajectory_id} went back: {versions}"
        self.check_tokens(trajectory.token_ids.tolist(), trajectory.token_logprobs().tolist(), trajectory.spans)

    def check_tokens(self, token_ids: Sequence[int], logprobs: Sequence[float], spans: Sequence[Span]) -> None:
        """One turn: a prompt, and what was sampled after it.

        A request that a swap found running goes on with the keys and values it has. One that was aborted is computed
        again with the new weights. Which of the two it was at each change of version, nobody wrote down: one of them
        must give every logprob of the span.
        """
        tokens = torch.tensor([list(token_ids)])
        begins = 0
        cache: DynamicCache | None = None
        for span in spans:
            ends = begins + span.length
            if span.producer is Producer.MODEL:
                assert span.version is not None
                model = self._models[span.version]
                ways = [None] if cache is None else [cache, None]
                tried = [self._continued(model, tokens, begins, ends, way) for way in ways]
                fits = [
                    after
                    for expected, after in tried
                    if all(abs(a - b) < _CLOSE for a, b in zip(logprobs[begins:ends], expected, strict=True))
                ]
                assert fits, f"tokens {begins} to {ends} were not sampled with version {span.version}"
                cache = fits[0]
            begins = ends

    def _continued(
        self, model: Any, tokens: torch.Tensor, begins: int, ends: int, before: DynamicCache | None
    ) -> tuple[list[float], DynamicCache]:
        """Logprobs of tokens `begins` to `ends`, and the cache with all that was read for them. The last token of a
        span is read by whoever samples the next.
        """
        cache = DynamicCache(config=model.config) if before is None else copy.deepcopy(before)
        start = 0 if before is None else begins - 1
        with torch.inference_mode():
            logits = model(tokens[:, start : ends - 1], past_key_values=cache).logits[0]
        logprobs = torch.log_softmax(logits, dim=-1)
        taken = logprobs.gather(-1, tokens[0, start + 1 : ends, None])[:, 0]
        return taken[begins - 1 - start :].tolist(), cache
