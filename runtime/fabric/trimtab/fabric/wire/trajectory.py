"""What a worker sends back: a row of one role's tokens in one episode, with its reward or its failure, never both.

`outcome` is a Scored or a Failed. Failed has no place for a reward and Scored none for an error, so a failed generation
cannot reach a trainer as a zero. A role that brought no row to an episode closes it with one Empty.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from trimtab.fabric.wire import arrays
from trimtab.fabric.wire.errors import InvalidFieldError
from trimtab.fabric.wire.message import Message, Part
from trimtab.fabric.wire.purpose import Purpose, check_benchmark
from trimtab.fabric.wire.spans import (
    MAX_TOKENS,
    Producer,
    Spans,
    model_length,
    model_versions,
    over_tokens,
    total_length,
)
from trimtab.fabric.wire.values import (
    Finite,
    Identifier,
    Index,
    Label,
    Name,
    RunId,
    Seconds,
    Slug,
    Text,
    Token,
    UnixSeconds,
)

# Not numpy's NDArray, which from Python 3.12 on is an alias that msgspec takes apart: hooks would not know it again.
TokenIds = np.ndarray[tuple[Any, ...], np.dtype[np.int32]]
Logprobs = np.ndarray[tuple[Any, ...], np.dtype[np.float32]]

MAX_PARTS = 1024
MAX_TURNS = 1024
MAX_REWARD_PARTS = 16
MAX_PHASES = 64
RewardParts = Annotated[dict[Slug, Finite], Meta(max_length=MAX_REWARD_PARTS)]

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")
# Rounding in an engine's log-softmax may lift a certain token this far above zero.
_LOGPROB_SLACK = 1e-3


class Finish(StrEnum):
    """Why a scored trajectory ended. There is no `abort`: what was aborted has no reward and is a Failed."""

    STOP = "stop"
    LENGTH = "length"
    TURNS = "turns"


class Scored(Part, frozen=True, kw_only=True, tag_field="status", tag="scored"):
    """A finished trajectory with its reward."""

    reward: Finite
    finish: Finish


class Failed(Part, frozen=True, kw_only=True, tag_field="status", tag="failed"):
    """A trajectory that came to nothing: the kind of error, a sentence for people, and whether to try again."""

    error: Slug
    message: Text = ""
    retryable: bool = True


class Empty(Part, frozen=True, kw_only=True, tag_field="status", tag="empty"):
    """The episode went well, and the role has no row in it."""


class TurnReward(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one turn earned at once, beside the outcome of the episode."""

    number: Index
    """Of the turn among all that the role had in the episode, in the order in which they were asked for."""
    tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    """Trained tokens of the turn."""
    reward: Finite


class Phase(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Something that an episode did or waited for."""

    name: Slug
    after: Seconds
    """From the episode's beginning."""
    seconds: Seconds


class Trajectory(Message, frozen=True, kw_only=True, eq=False):
    """One row. Decoded arrays are read-only; logprobs has one entry per model token, since others have none."""

    KIND: ClassVar[int] = 2
    MAX_BYTES: ClassVar[int] = 64 << 20
    COMPRESS_TO: ClassVar[int] = 4 * (2 * arrays.PLANES_FROM) + 4096  # in longer ones the arrays are compressed already

    trajectory_id: Token
    """`<group>.<index>.<part>`."""
    job: Name
    policy: Name
    role: Name
    task_id: Token
    prompt_id: Identifier
    group_id: Token
    """Episodes whose rewards are compared with each other: one prompt, one role."""
    group_index: Index
    group_size: Annotated[int, Meta(ge=1, le=65536)]
    part: Index = 0
    """Which of the `parts` rows of this role in this one episode: retries, branches and compaction make several."""
    parts: Annotated[int, Meta(ge=0, le=MAX_PARTS)] = 1
    """Every row has the count, so that each of them closes the episode; 0 for an Empty."""
    run: RunId = "0"
    """Which run of the episode this row comes of. A task that is given out again runs again, and rows of two runs are
    not of one episode."""
    label: Label = ""
    """The task's."""
    purpose: Purpose = Purpose.TRAIN
    benchmark: Name | None = None
    outcome: Scored | Failed | Empty
    token_ids: TokenIds
    logprobs: Logprobs
    spans: Spans
    turns: Index = 1
    """Trained in this row."""
    turn_rewards: Annotated[tuple[TurnReward, ...], Meta(max_length=MAX_TURNS)] = ()
    """Of each trained turn in order, where the policy learns by turns; else empty."""
    reward_parts: RewardParts = msgspec.field(default_factory=dict)
    """What the reward is made of, by name: for people, filters and selections."""
    phases: Annotated[tuple[Phase, ...], Meta(max_length=MAX_PHASES)] = ()
    """What the episode did and waited for, also for its other rows: for people."""
    queued_at: UnixSeconds | None = None
    """When its task was given out."""
    worker: Name
    pool: Name
    engine: Name
    started_at: UnixSeconds
    finished_at: UnixSeconds

    @classmethod
    def enc_hook(cls, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return arrays.pack(value)
        return super().enc_hook(value)

    @classmethod
    def dec_hook(cls, kind: Any, value: Any) -> Any:
        if not isinstance(value, bytes):
            raise InvalidFieldError(f"expected a packed array, got {type(value).__name__}")
        if kind == TokenIds:
            return arrays.unpack(value, _INT32, max_items=MAX_TOKENS, field="token_ids")
        return arrays.unpack(value, _FLOAT32, max_items=MAX_TOKENS, field="logprobs")

    def own_value(self, kind: Any, value: Any) -> Any:
        return self.token_ids if kind == TokenIds else self.logprobs

    def __post_init__(self) -> None:
        super().__post_init__()
        check_benchmark(self.purpose, self.benchmark)
        if self.group_index >= self.group_size:
            raise InvalidFieldError(f"{self.group_index} in a group of {self.group_size}", field="group_index")
        if self.part >= max(1, self.parts):
            raise InvalidFieldError(f"{self.part} of {self.parts} parts", field="part")
        if isinstance(self.outcome, Empty) != (self.parts == 0):
            raise InvalidFieldError("an episode without rows is closed by an Empty, and no other is", field="parts")
        if isinstance(self.outcome, Empty) and len(self.token_ids):
            raise InvalidFieldError("an Empty has no tokens", field="token_ids")
        self._check_tokens()
        self._check_turns()

    def _check_tokens(self) -> None:
        ids, logprobs = self.token_ids, self.logprobs
        if ids.dtype != np.int32 or ids.ndim != 1 or len(ids) > MAX_TOKENS:
            raise InvalidFieldError(
                f"expected at most {MAX_TOKENS} int32, got {ids.shape} {ids.dtype}", field="token_ids"
            )
        if logprobs.dtype != np.float32 or logprobs.ndim != 1:
            raise InvalidFieldError(f"expected float32, got {logprobs.shape} {logprobs.dtype}", field="logprobs")
        covered = total_length(self.spans)
        if covered != len(ids):
            raise InvalidFieldError(f"spans cover {covered} of {len(ids)} tokens", field="spans")
        # The ufuncs themselves: numpy's min() and max() take twice as long on arrays of this size.
        if len(ids) and np.minimum.reduce(ids) < 0:
            raise InvalidFieldError("negative token id", field="token_ids")
        trained = self.trained_tokens
        if len(logprobs) != trained:
            raise InvalidFieldError(f"{len(logprobs)} logprobs for {trained} model tokens", field="logprobs")
        # Both reductions hand a NaN on, and no comparison admits one.
        if trained and not (np.minimum.reduce(logprobs) > -np.inf and np.maximum.reduce(logprobs) <= _LOGPROB_SLACK):
            raise InvalidFieldError("a logprob is not finite, or above zero", field="logprobs")
        if not trained and isinstance(self.outcome, Scored) and self.purpose is Purpose.TRAIN:
            raise InvalidFieldError("scored for training, but the model wrote no token", field="spans")

    def _check_turns(self) -> None:
        if not self.turn_rewards:
            return
        if len(self.turn_rewards) != self.turns:
            raise InvalidFieldError(f"{len(self.turn_rewards)} for {self.turns} turns", field="turn_rewards")
        if sum(turn.tokens for turn in self.turn_rewards) != self.trained_tokens:
            raise InvalidFieldError("their tokens are not those that are trained", field="turn_rewards")
        numbers = [turn.number for turn in self.turn_rewards]
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            raise InvalidFieldError("not in the order of their numbers", field="turn_rewards")

    @property
    def message_id(self) -> str:
        """Decides duplicates in the stream: the same row of the same run published twice is stored once."""
        return f"{self.trajectory_id}.{self.run}"

    @property
    def prompt_tokens(self) -> int:
        return sum(span.length for span in self.spans if span.producer is Producer.PROMPT)

    @property
    def response_tokens(self) -> int:
        """Everything after the prompt, the environment's words included."""
        return len(self.token_ids) - self.prompt_tokens

    @property
    def trained_tokens(self) -> int:
        return model_length(self.spans)

    @property
    def oldest_version(self) -> int | None:
        """The version staleness is judged on: that of the oldest trained token."""
        versions = model_versions(self.spans)
        return versions[0] if versions else None

    @property
    def newest_version(self) -> int | None:
        versions = model_versions(self.spans)
        return versions[1] if versions else None

    def token_logprobs(self) -> Logprobs:
        """One logprob per token, 0 where the model did not write it: aligned with token_ids."""
        return over_tokens(self.spans, self.logprobs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return all(
            np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else bool(mine == theirs)
            for mine, theirs in ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        )

    def __hash__(self) -> int:
        return hash(self.trajectory_id)
