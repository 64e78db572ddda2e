"""From a lease and what the stream holds under its sequences to rows, each checked against what was leased."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.lease import BatchLease, Episode, SampleReference
from trimtab.fabric.wire.spans import model_mask, token_versions
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.trainer.advantages import AdvantageRule, AdvantagesUnusable, GroupAdvantages, TurnsUnknown
from trimtab.trainer.batch import Row, RowEpisode, RowLimits, blank_row
from trimtab.trainer.row_rewards import RowRewards

_NO_COLUMNS: Mapping[str, npt.NDArray[np.float32]] = {}


class RowUnusable(ValueError):
    """The stream holds something else under a sequence than the lease names, or what the model cannot read."""


def row_of(
    trajectory: Trajectory,
    *,
    key: int,
    episode: RowEpisode,
    advantages: npt.NDArray[np.float32],
    columns: Mapping[str, npt.NDArray[np.float32]] | None = None,
    masked: bool = False,
) -> Row:
    """`key` is the position in the stream, `advantages` and `columns` are of its trained tokens. A row that is masked
    has none."""
    mask = model_mask(trajectory.spans)

    def aligned(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        everywhere = np.zeros(len(mask), dtype=np.float32)
        everywhere[mask] = values
        return everywhere

    return Row(
        key=key,
        episode=episode,
        token_ids=trajectory.token_ids,
        logprobs=trajectory.token_logprobs(),
        mask=np.zeros_like(mask) if masked else mask,
        versions=token_versions(trajectory.spans),
        advantages=aligned(advantages),
        columns={stage: aligned(values) for stage, values in (columns or {}).items()},
    )


@dataclass(frozen=True, kw_only=True)
class LeasedRows:
    """The rows of one lease. What lies below a header is the rollout pod's word alone, so it is not believed."""

    lease: BatchLease
    advantages: AdvantageRule
    limits: RowLimits | None = None

    @cached_property
    def _groups(self) -> list[GroupAdvantages]:
        return [self.advantages.group(group) for group in self.lease.groups]

    def row(
        self,
        sample: SampleReference,
        payload: bytes,
        columns: Mapping[str, npt.NDArray[np.float32]] = _NO_COLUMNS,
    ) -> Row:
        """`columns` are, by stage, of its trained tokens. Raises WireError and RowUnusable for what would be the same
        on every attempt.
        """
        trajectory = decode(payload, Trajectory)
        assert isinstance(trajectory, Trajectory)
        self._check(trajectory, sample)
        self._check_columns(columns, sample)
        episode = self._came_to(sample)
        rewards = RowRewards(
            reward=sample.reward,
            episode=episode,
            trained_tokens=sample.trained_tokens,
            turns=trajectory.turn_rewards,
            logprobs=trajectory.logprobs,
            columns=columns,
        )
        try:
            advantages = self._groups[sample.group].of(rewards)
        except (TurnsUnknown, AdvantagesUnusable) as error:
            raise RowUnusable(str(error)) from None
        return row_of(
            trajectory,
            key=sample.sequence,
            episode=self._episode(sample),
            advantages=advantages,
            columns=columns,
            # All of an episode or nothing of it, whichever of its rows was cut short.
            masked=self.advantages.masks_truncated and episode.truncated,
        )

    def blank(self, sample: SampleReference) -> Row:
        """In place of a row that cannot be used: nothing of it is trained, and the step has what was granted."""
        return blank_row(sample.sequence, self._episode(sample))

    def _came_to(self, sample: SampleReference) -> Episode:
        return self.lease.groups[sample.group].episodes[sample.episode]

    def _episode(self, sample: SampleReference) -> RowEpisode:
        came_to = self._came_to(sample)
        return RowEpisode(
            group=self.lease.groups[sample.group].group_id,
            index=sample.group_index,
            rows=came_to.rows,
            trained_tokens=came_to.trained_tokens,
        )

    def _check_columns(self, columns: Mapping[str, npt.NDArray[np.float32]], sample: SampleReference) -> None:
        missing = [stage for stage in self.advantages.columns if stage not in columns]
        if missing:
            raise RowUnusable(f"it has no column of {', '.join(missing)}, which its algorithm needs")
        for stage, values in columns.items():
            if values.shape != (sample.trained_tokens,):
                raise RowUnusable(
                    f"the column of {stage} has the shape {list(values.shape)}, for {sample.trained_tokens} trained"
                    " tokens"
                )

    def _check(self, trajectory: Trajectory, sample: SampleReference) -> None:
        if trajectory.trajectory_id != sample.trajectory_id:
            raise RowUnusable(f"it is {trajectory.trajectory_id}, leased was {sample.trajectory_id}")
        tokens, leased = len(trajectory.token_ids), sample.prompt_tokens + sample.response_tokens
        if tokens != leased or trajectory.trained_tokens != sample.trained_tokens:
            raise RowUnusable(
                f"it has {tokens} tokens, {trajectory.trained_tokens} of them trained; leased were {leased} and"
                f" {sample.trained_tokens}"
            )
        limits = self.limits
        if limits is not None and tokens > limits.longest:
            raise RowUnusable(f"it has {tokens} tokens, the model reads {limits.longest}")
        if limits is not None and tokens and int(trajectory.token_ids.max()) >= limits.vocabulary:
            raise RowUnusable(f"it has the token {trajectory.token_ids.max()}, the model {limits.vocabulary} of them")
