"""Stages and columns for tests of the books."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trimtab.api.stage import Stage
from trimtab.dataflow.ledger.staged_group import StagedGroup
from trimtab.fabric.wire.column import ColumnHeader, rows_digest


def stage(name: str, computes: str = "Logprobs", **fields: Any) -> Stage:
    needs_policy = computes in ("Logprobs", "Values")
    whose = {"policy": "solver"} if needs_policy else {"plugin": {"entrypoint": "own:Code"}}
    return Stage.model_validate({"name": name, "computes": computes, **whose, **fields})


def column(
    name: str,
    group_id: str,
    rows: Iterable[str],
    *,
    policy: str = "solver",
    run: str = "0",
    rewards: Sequence[float] | None = None,
    turn_rewards: Sequence[Sequence[float]] | None = None,
    keep: Sequence[bool] | None = None,
    error: str | None = None,
) -> ColumnHeader:
    return ColumnHeader(
        header_version=1,
        job="job",
        policy=policy,
        stage=name,
        group_id=group_id,
        run=run,
        rows_digest=rows_digest(rows),
        rewards=None if rewards is None else tuple(rewards),
        turn_rewards=None if turn_rewards is None else tuple(map(tuple, turn_rewards)),
        keep=None if keep is None else tuple(keep),
        error=error,
        message="",
        oldest_version=None,
        newest_version=None,
        worker="worker",
        pool="pool",
        started_at=1.0,
        finished_at=2.0,
    )


def row_ids(staged: StagedGroup, name: str) -> tuple[str, ...]:
    """Of the rows that a stage is asked about."""
    return tuple(row.trajectory_id for row in staged.rows_for(name))
