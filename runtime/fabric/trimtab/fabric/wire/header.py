"""The NATS headers of a trajectory: all that dataflow needs to decide, so that it never reads a payload.

One header holds a JSON array (ASCII, one C call to parse, about 300 bytes) beside NATS's own id for duplicates.
Fields are only ever appended, each with a default: an old reader ignores those it does not know, a new one reads old
headers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from trimtab.fabric.wire.errors import (
    DepthError,
    InvalidFieldError,
    MalformedError,
    OversizeError,
    TruncatedError,
    VersionError,
)
from trimtab.fabric.wire.message import as_invalid_field
from trimtab.fabric.wire.purpose import Purpose, check_benchmark
from trimtab.fabric.wire.trajectory import (
    MAX_PARTS,
    MAX_TURNS,
    Failed,
    Finish,
    RewardParts,
    Scored,
    Trajectory,
    TurnReward,
)
from trimtab.fabric.wire.values import (
    Count,
    Finite,
    Identifier,
    Index,
    Label,
    Name,
    Slug,
    Token,
    UnixSeconds,
    Version,
    is_token,
)

MESSAGE_ID = "Nats-Msg-Id"
TRAJECTORY = "Trimtab-Trajectory"
# A thousand turns with their rewards. JetStream refuses a message whose headers together take 64 KiB.
MAX_HEADER_BYTES = 60_000
_VERSION = 1
_STARTS_WITH_VERSION = f"[{_VERSION},"

H = TypeVar("H")
Size = Annotated[int, Meta(ge=1, le=65536)]


class TrajectoryHeader(msgspec.Struct, frozen=True, array_like=True):
    """A row without its tokens. `reward` and `finish` are None exactly when `error` is not, or when `parts` is 0."""

    header_version: Literal[1]
    job: Name
    policy: Name
    role: Name
    task_id: Token
    prompt_id: Identifier
    group_id: Token
    group_index: Index
    group_size: Size
    part: Index
    parts: Annotated[int, Meta(ge=0, le=MAX_PARTS)]
    purpose: Purpose
    benchmark: Name | None
    reward: Finite | None
    finish: Finish | None
    error: Slug | None
    retryable: bool
    prompt_tokens: Count
    response_tokens: Count
    trained_tokens: Count
    oldest_version: Version | None
    newest_version: Version | None
    turns: Index
    worker: Name
    pool: Name
    engine: Name
    started_at: UnixSeconds
    finished_at: UnixSeconds
    run: Annotated[str, Meta(max_length=64)] = "0"
    """Compared with the id of the message, which is checked."""
    label: Label = ""
    turn_rewards: Annotated[tuple[TurnReward, ...], Meta(max_length=MAX_TURNS)] = ()
    reward_parts: RewardParts = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # Rows with a reward are nearly all there are, and every one of them passes here.
        if self.reward is None:
            if self.finish is not None or (self.error is None) != (self.parts == 0):
                raise InvalidFieldError("either an error, or a reward and a finish reason, or no rows", field="error")
        elif self.finish is None or self.error is not None or self.parts == 0:
            raise InvalidFieldError("either an error, or a reward and a finish reason, or no rows", field="error")
        if self.group_index >= self.group_size or (self.part >= self.parts and (self.part or self.parts)):
            raise InvalidFieldError("index beyond its size", field="group_index")
        if (self.oldest_version is None) != (self.trained_tokens == 0) or self.trained_tokens > self.response_tokens:
            raise InvalidFieldError("trained tokens, versions and response length disagree", field="trained_tokens")
        if self.oldest_version is None or self.newest_version is None:
            if self.oldest_version is not self.newest_version:
                raise InvalidFieldError("one of oldest and newest version is missing", field="newest_version")
        elif self.oldest_version > self.newest_version:
            raise InvalidFieldError("older than the oldest version", field="newest_version")
        if self.turn_rewards and sum(turn.tokens for turn in self.turn_rewards) != self.trained_tokens:
            raise InvalidFieldError("their tokens are not those that are trained", field="turn_rewards")
        check_benchmark(self.purpose, self.benchmark)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.response_tokens

    @classmethod
    def of(cls, trajectory: Trajectory) -> TrajectoryHeader:
        """What the header of this trajectory must say."""
        outcome = trajectory.outcome
        scored = outcome if isinstance(outcome, Scored) else None
        failed = outcome if isinstance(outcome, Failed) else None
        return cls(
            header_version=1,
            job=trajectory.job,
            policy=trajectory.policy,
            role=trajectory.role,
            task_id=trajectory.task_id,
            prompt_id=trajectory.prompt_id,
            group_id=trajectory.group_id,
            group_index=trajectory.group_index,
            group_size=trajectory.group_size,
            part=trajectory.part,
            parts=trajectory.parts,
            purpose=trajectory.purpose,
            benchmark=trajectory.benchmark,
            reward=scored.reward if scored else None,
            finish=scored.finish if scored else None,
            error=failed.error if failed else None,
            retryable=failed.retryable if failed else False,
            prompt_tokens=trajectory.prompt_tokens,
            response_tokens=trajectory.response_tokens,
            trained_tokens=trajectory.trained_tokens,
            oldest_version=trajectory.oldest_version,
            newest_version=trajectory.newest_version,
            turns=trajectory.turns,
            worker=trajectory.worker,
            pool=trajectory.pool,
            engine=trajectory.engine,
            started_at=trajectory.started_at,
            finished_at=trajectory.finished_at,
            run=trajectory.run,
            label=trajectory.label,
            turn_rewards=trajectory.turn_rewards,
            reward_parts=trajectory.reward_parts,
        )


_decode = msgspec.json.Decoder(TrajectoryHeader).decode


def headers(trajectory: Trajectory) -> dict[str, str]:
    """The headers to publish a trajectory with, refused here when a reader would refuse them."""
    try:
        values = msgspec.to_builtins(TrajectoryHeader.of(trajectory))
    except TypeError as error:
        raise InvalidFieldError(f"cannot be sent: {error}", field=TRAJECTORY) from None
    # Most rows have neither rewards by turn nor parts of one: what a reader adds by itself need not be read.
    while not values[-1]:
        values.pop()
    sent = {MESSAGE_ID: trajectory.message_id, TRAJECTORY: json.dumps(values, separators=(",", ":"))}
    parse_headers(sent)
    return sent


def parse_headers(received: Mapping[str, str]) -> tuple[str, TrajectoryHeader]:
    """The trajectory id and the header. Raises a WireError for anything that `headers` would not have written."""
    message_id, header = read_header(received, TRAJECTORY, _decode)
    trajectory_id, _, run = message_id.rpartition(".")
    if run != header.run or not run or not is_token(trajectory_id):
        raise InvalidFieldError("expected the row's id and its run, with a dot between them", field=MESSAGE_ID)
    return trajectory_id, header


def read_header(received: Mapping[str, str], name: str, decode: Callable[[str], H]) -> tuple[str, H]:
    """The id of a message, and what its header of this name says: a JSON array that begins with its version."""
    try:
        message_id = received[MESSAGE_ID]
        text = received[name]
    except KeyError as missing:
        raise TruncatedError("header is missing", field=str(missing.args[0])) from None
    if len(text) > MAX_HEADER_BYTES:
        raise OversizeError(f"{len(text)} characters, at most {MAX_HEADER_BYTES} are accepted", field=name)
    if not text.startswith(_STARTS_WITH_VERSION):
        raise VersionError(f"expected header version {_VERSION}, got {text[:8]!r}", field=name)
    try:
        return message_id, decode(text)
    except msgspec.ValidationError as error:
        raise as_invalid_field(error, root=name) from None
    except RecursionError:
        raise DepthError("nested too deeply", field=name) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise MalformedError(str(error), field=name) from None
