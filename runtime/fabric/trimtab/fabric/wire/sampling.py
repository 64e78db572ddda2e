"""Sampling settings on the wire: under the names that engines have for them, which are not those of the manifest."""

from __future__ import annotations

from typing import Any

from trimtab.api.sampling import Sampling


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """The settings as Task.sampling and the engine client name them."""
    return {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "stop": sampling.stop,
    }
