"""Trajectories of a wanted size on the wire, told apart by a number that survives the way into a batch.

Token ids are uniform over a vocabulary and logprobs are random, so that compression finds nothing but the unused top
byte of an id: what a model writes is smaller, never larger.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.header import headers
from trimtab.fabric.wire.spans import Producer, Span
from trimtab.fabric.wire.trajectory import Finish, Scored, Trajectory

POLICY = "solver"
GROUP_SIZE = 8
_VOCABULARY = 150_000
_NUMBER_BASE = 1 << 15
_PROMPT_TOKENS = 8
_SPARE = 4096
"""Rows begin at different places of one random stretch, which is quicker than fresh noise for each."""
_MAX_TOKENS = 1 << 20
_RUN = "0123456789abcdef"
"""As long as a worker's."""
_STARTED_AT = 1_760_000_000.123456
"""With as many digits as a clock gives: they are part of the header that the service reads."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One trajectory ready to be published."""

    trajectory_id: str
    message_id: str
    headers: dict[str, str]
    payload: bytes


class Writer:
    """Makes trajectories of one length. Episode `n` is number `n % 8` of group `n // 8`, sampled for step `n // batch`;
    the rows of an episode follow one another.
    """

    def __init__(self, job: str, *, tokens: int, batch_size: int, seed: int, parts: int = 1) -> None:
        if tokens <= _PROMPT_TOKENS:
            raise ValueError(f"{tokens} tokens: a trajectory here has a prompt of {_PROMPT_TOKENS} and a response")
        random = np.random.default_rng(seed)
        self._job = job
        self._tokens = tokens
        self._batch_size = batch_size
        self._parts = parts
        self._ids = random.integers(0, _VOCABULARY, tokens + _SPARE).astype(np.int32)
        self._logprobs = -random.exponential(0.3, tokens + _SPARE).astype(np.float32)

    def trajectory(self, number: int) -> Trajectory:
        episode, part = divmod(number, self._parts)
        group, index = divmod(episode, GROUP_SIZE)
        begin = number % _SPARE
        ids = self._ids[begin : begin + self._tokens].copy()
        ids[:2] = divmod(number, _NUMBER_BASE)
        response = self._tokens - _PROMPT_TOKENS
        return Trajectory(
            trajectory_id=f"t{group}.{POLICY}.{index}.{part}",
            job=self._job,
            policy=POLICY,
            role=POLICY,
            task_id=f"t{group}",
            prompt_id=f"prompt-{group}",
            group_id=f"t{group}.{POLICY}",
            group_index=index,
            group_size=GROUP_SIZE,
            part=part,
            parts=self._parts,
            run=_RUN,
            outcome=Scored(reward=index / GROUP_SIZE, finish=Finish.STOP),
            token_ids=ids,
            logprobs=self._logprobs[begin : begin + response],
            spans=(
                Span(_PROMPT_TOKENS, Producer.PROMPT),
                Span(response, Producer.MODEL, episode // self._batch_size),
            ),
            worker=f"{self._job}-rollout-pool-0",
            pool="pool",
            engine="builtin",
            started_at=_STARTED_AT,
            finished_at=_STARTED_AT + 7.654321,
        )

    def frame(self, number: int) -> Frame:
        trajectory = self.trajectory(number)
        return Frame(
            trajectory_id=trajectory.trajectory_id,
            message_id=trajectory.message_id,
            headers=headers(trajectory),
            payload=encode(trajectory),
        )


def number_of(token_ids: npt.NDArray[np.int32]) -> int:
    """Which row these tokens are."""
    return int(token_ids[0]) * _NUMBER_BASE + int(token_ids[1])


def tokens_for(encoded_bytes: int) -> int:
    """The fewest tokens whose trajectory takes at least so many bytes on the wire."""
    low, high = _PROMPT_TOKENS + 1, _MAX_TOKENS
    while low < high:
        middle = (low + high) // 2
        if len(Writer("job", tokens=middle, batch_size=GROUP_SIZE, seed=0).frame(0).payload) >= encoded_bytes:
            high = middle
        else:
            low = middle + 1
    return low
