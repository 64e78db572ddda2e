"""From a lease and what the stream holds under its sequences to rows, each checked against what was leased."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.lease import BatchLease, Episode, SampleReference
from trimtab.fabric.wire.spans import model_mask, over_tokens, token_versions
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.trainer.advantages import AdvantageRule, AdvantagesUnusable, GroupAdvantages, TurnsUnknown
from trimtab.trainer.batch import Row, RowEpisode, RowLimits, blank_row
from trimtab.trainer.leased_columns import ColumnUnusable, LeasedColumns
from trimtab.trainer.row_rewards import RowRewards


class RowUnusable(ValueError):
    """The stream holds something else under a sequence than the lease names, or what the model cannot read."""


def row_of(
    trajectory: Trajectory,
    *,
    key: int,
    episode: RowEpisode,
    advantages: npt.NDArray[np.float32],
    masked: bool = False,
    columns: Mapping[str, npt.NDArray[np.float32]] = MappingProxyType({}),
    column_versions: Mapping[str, int] = MappingProxyType({}),
) -> Row:
    """`key` is the position in the stream, `advantages` are of its trained tokens, `columns` of all its tokens. A row
    that is masked has none that are trained.
    """
    mask = model_mask(trajectory.spans)
    return Row(
        key=key,
        episode=episode,
        token_ids=trajectory.token_ids,
        logprobs=trajectory.token_logprobs(),
        mask=np.zeros_like(mask) if masked else mask,
        versions=token_versions(trajectory.spans),
        advantages=over_tokens(trajectory.spans, advantages),
        columns={stage: np.zeros_like(values) for stage, values in columns.items()} if masked else columns,
        column_versions=column_versions,
    )


@dataclass(frozen=True, kw_only=True)
class LeasedRows:
    """The rows of one lease. What lies below a header is the rollout pod's word alone, so it is not believed."""

    lease: BatchLease
    advantages: AdvantageRule
    limits: RowLimits | None = None
    columns: LeasedColumns | None = None
    """Absent where the lease has none."""

    @cached_property
    def _groups(self) -> list[GroupAdvantages]:
        return [self.advantages.group(group) for group in self.lease.groups]

    def row(self, sample: SampleReference, payload: bytes) -> Row:
        """Raises WireError and RowUnusable for what would be the same on every attempt."""
        trajectory = decode(payload, Trajectory)
        assert isinstance(trajectory, Trajectory)
        self._check(trajectory, sample)
        episode = self._came_to(sample)
        columns = self._columns(sample, trajectory)
        rewards = RowRewards(
            reward=sample.reward,
            episode=episode,
            trained_tokens=sample.trained_tokens,
            turns=trajectory.turn_rewards,
            logprobs=trajectory.logprobs,
            columns=_of_trained(columns, trajectory),
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
            # All of an episode or nothing of it, whichever of its rows was cut short.
            masked=self.advantages.masks_truncated and episode.truncated,
            columns=columns,
            column_versions={} if self.columns is None else self.columns.versions(self.lease.groups[sample.group]),
        )

    def _columns(self, sample: SampleReference, trajectory: Trajectory) -> Mapping[str, npt.NDArray[np.float32]]:
        group = self.lease.groups[sample.group]
        there = {column.stage for column in group.columns}
        if missing := [stage for stage in self.advantages.columns if stage not in there]:
            raise RowUnusable(f"it has no column of {', '.join(missing)}, which its algorithm needs")
        if not group.columns:
            return {}
        if self.columns is None:
            raise RowUnusable("it has columns, and none were read")
        try:
            return self.columns.of(sample, group, mask=model_mask(trajectory.spans), turns=trajectory.turn_rewards)
        except ColumnUnusable as error:
            raise RowUnusable(str(error)) from None

    def blank(self, sample: SampleReference) -> Row:
        """In place of a row that cannot be used: nothing of it is trained, and the step has what was granted."""
        stages = [column.stage for column in self.lease.groups[sample.group].columns]
        return blank_row(sample.sequence, self._episode(sample), stages=stages)

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


def _of_trained(
    columns: Mapping[str, npt.NDArray[np.float32]], trajectory: Trajectory
) -> Mapping[str, npt.NDArray[np.float32]]:
    """Of the trained tokens alone."""
    if not columns:
        return columns
    mask = model_mask(trajectory.spans)
    return {stage: values[mask] for stage, values in columns.items()}
