"""What is asked of an engine, what it answers and how it fails: SGLang's HTTP surface as values and typed errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

PauseMode = Literal["abort", "retract", "in_place"]
"""Running requests are answered with their tokens so far, computed again later, or held where they are."""

Finish = Literal["stop", "length", "abort"]

BASE_WEIGHTS = "0"
"""What an engine calls the weights that it was started with."""
FIXED_VERSION = "0"
"""What the weights of an endpoint are called, which never change: those of the model that the job begins with."""


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How tokens are drawn, and what ends them."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Texts. The tokens that make up such a text are part of what was generated."""
    stop_token_ids: tuple[int, ...] = ()
    """Besides the model's own end tokens."""
    ignore_eos: bool = False

    def sampling_params(self) -> dict[str, Any]:
        """As SGLang names them."""
        params: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
        }
        if self.seed is not None:
            params["sampling_seed"] = self.seed
        if self.stop:
            params["stop"] = list(self.stop)
        if self.stop_token_ids:
            params["stop_token_ids"] = list(self.stop_token_ids)
        if self.ignore_eos:
            params["ignore_eos"] = True
        return params


@dataclass(frozen=True, kw_only=True)
class WeightRun:
    """So many output tokens in a row, sampled with the weights of this name."""

    weight_version: str
    length: int


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What one request brought, finished or not."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    weight_version: str
    """The engine's own word on its weights when it answered."""
    weight_runs: tuple[WeightRun, ...] | None
    """Its word on each token, from first to last; None from an engine that does not keep account of it."""
    first_token_s: float | None = field(default=None, compare=False)
    """How long it took until the first token, where the engine says so. Two that say the same are the same answer."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Numbers about tokens that were given: logprobs, or what a value head says."""

    token_ids: tuple[int, ...]
    """Those that have one: all but the first have a logprob, and all a value."""
    numbers: tuple[float, ...]
    finish: Finish
    """`length` when it is whole; what was aborted has no numbers."""
    weight_version: str
    weight_runs: tuple[WeightRun, ...] | None


Progress = Callable[[Generated], None]
"""Is given what came since it was last called, as an answer that was broken off there. All that it was given is what
the answer begins with, if there is one in the end.
"""


@dataclass(frozen=True, kw_only=True)
class WeightUpdate:
    """New weights are served."""

    pause_s: float | None
    """For how long nothing was computed, from an engine that takes weights between two tokens by itself. Any other is
    to be paused around an update.
    """


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What the engine serves."""

    model_path: str
    weight_version: str


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """How the engine was launched, as far as weight updates go."""

    weight_loaders: tuple[str, ...]
    """Custom ones, that it was launched with."""
    tensor_parallel: int | None
    """None where it does not say."""


@dataclass(frozen=True, kw_only=True)
class EngineLoad:
    """What the engine is doing, over all its ranks."""

    running: int
    waiting: int
    token_usage: float
    """The share of its cache that running requests occupy, where it is fullest."""


class SamplingEngine(Protocol):
    """What a worker needs of an engine to sample from it, whatever protocol it speaks. Raises an EngineError for
    everything that keeps it from an answer.
    """

    async def generate(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        weight_version: str,
        progress: Progress | None = None,
    ) -> Generated:
        """`weight_version` is what the weights are called that it should have. An engine that can say what it has
        sampled before it has sampled all tells `progress` of it.
        """

    async def load(self, *, timeout_s: float) -> EngineLoad: ...


class ScoringEngine(Protocol):
    """What a worker needs of an engine to have given tokens scored. Raises an EngineError for everything that keeps it
    from an answer.
    """

    async def score(
        self, token_ids: Sequence[int], *, temperature: float, request_id: str, weight_version: str
    ) -> Scored:
        """The logprob of every token after the first, given those before it, as if it had been sampled at
        `temperature` from the whole vocabulary: what sampling would have told of it.
        """

    async def values(self, token_ids: Sequence[int], *, request_id: str, weight_version: str) -> Scored:
        """What the value head says at every token, the tokens up to it being known. Engines without one refuse."""


class EngineError(RuntimeError):
    """Something between us and a generation went wrong; `kind` names it in trajectories and metrics."""

    kind = "engine-error"


class EngineUnavailable(EngineError):
    """No answer, or the connection broke."""

    kind = "engine-unavailable"


class EngineTimeout(EngineError):
    """No answer within the deadline."""

    kind = "engine-timeout"


class EngineOverloaded(EngineError):
    """The engine's queue is full; the same request may succeed later."""

    kind = "engine-overloaded"


class EngineRefused(EngineError):
    """The engine understood and said no: repeating the request will not help."""

    kind = "engine-refused"


class EngineNotFound(EngineRefused):
    """The engine does not know what was asked for."""

    kind = "engine-not-found"


def refusal(path: str, status: int, text: str) -> EngineError:
    """What an HTTP status of 400 or more means."""
    if status == 429:
        return EngineOverloaded(f"{path}: {text}")
    if status >= 500:
        return EngineUnavailable(f"{path}: {status} {text}")
    if status == 404:
        return EngineNotFound(f"{path}: {status} {text}")
    return EngineRefused(f"{path}: {status} {text}")
