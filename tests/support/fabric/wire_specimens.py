"""One message of every kind, as a job would send it."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.fabric.wire.balance import BalanceReport, Branch, Instance, Volume
from trimtab.fabric.wire.best_versions import BestVersion, BestVersions, BestVersionsRequest
from trimtab.fabric.wire.checkpoint_proof import CheckpointProof, LedgerAnchored
from trimtab.fabric.wire.claim import ClaimCheck
from trimtab.fabric.wire.column import Column, ColumnHeader, rows_digest
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.fabric.wire.lease import (
    BatchLease,
    BatchNotReady,
    BatchRequest,
    Episode,
    Group,
    LeaseAck,
    LeaseAcked,
    LeaseRefused,
    Refusal,
    SampleReference,
    StepTotals,
)
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.progress import StepProgress
from trimtab.fabric.wire.quarantine import QuarantinedTask
from trimtab.fabric.wire.spans import Producer, Span
from trimtab.fabric.wire.stage import ColumnReference, StageRow, StageTask
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Empty, Failed, Finish, Scored, Trajectory, TurnReward
from trimtab.fabric.wire.weights import WeightPointer


def trajectory(**changes: Any) -> Trajectory:
    """A two-turn trajectory across a weight swap, long enough for byte planes unless told otherwise."""
    random = np.random.default_rng(7)
    runs = (
        Span(300, Producer.PROMPT),
        Span(700, Producer.MODEL, 7),
        Span(50, Producer.ENVIRONMENT),
        Span(450, Producer.MODEL, 8),
    )
    fields: dict[str, Any] = {
        "trajectory_id": "job-1.t-42.3.0",
        "job": "quickstart",
        "policy": "solver",
        "role": "solver",
        "task_id": "t-42",
        "prompt_id": "gsm8k/train/17",
        "group_id": "t-42/solver",
        "group_index": 3,
        "group_size": 8,
        "outcome": Scored(reward=0.75, finish=Finish.STOP),
        "token_ids": (random.zipf(1.3, 1500) % 150_000).astype(np.int32),
        "logprobs": -random.exponential(0.5, 1150).astype(np.float32),
        "spans": runs,
        "turns": 2,
        "worker": "quickstart-pool-a-0",
        "pool": "pool-a",
        "engine": "builtin",
        "started_at": 1_700_000_000.25,
        "finished_at": 1_700_000_004.5,
    }
    return Trajectory(**fields | changes)


def short_trajectory(**changes: Any) -> Trajectory:
    few = {
        "token_ids": np.array([1, 2, 3], dtype=np.int32),
        "logprobs": np.array([-0.5], dtype=np.float32),
        "spans": (Span(2, Producer.PROMPT), Span(1, Producer.MODEL, 4)),
    }
    return trajectory(**few | changes)


def row_of_a_forest(**changes: Any) -> Trajectory:
    """The second of three rows: it begins with what the first one trains."""
    more: dict[str, Any] = {
        "trajectory_id": "job-1.t-42.3.1",
        "part": 1,
        "parts": 3,
        "run": "6f1ed002",
        "token_ids": np.array([1, 2, 3, 4, 5, 6], dtype=np.int32),
        "logprobs": np.array([-0.5, -0.25, -0.125], dtype=np.float32),
        "spans": (Span(1, Producer.PROMPT), Span(2, Producer.ECHO), Span(3, Producer.MODEL, 4)),
        "turns": 2,
        "turn_rewards": (TurnReward(1, 1, 0.5), TurnReward(4, 2, -1.0)),
        "reward_parts": {"answer": 1.0, "format": -0.25},
    }
    return trajectory(**more | changes)


def empty(**changes: Any) -> Trajectory:
    """A role that has no row in its episode."""
    nothing = {
        "parts": 0,
        "outcome": Empty(),
        "token_ids": np.zeros(0, dtype=np.int32),
        "logprobs": np.zeros(0, dtype=np.float32),
        "spans": (),
        "turns": 0,
    }
    return trajectory(**nothing | changes)


def task(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "task_id": "t-42",
        "job": "quickstart",
        "prompt_id": "gsm8k/train/17",
        "prompt": {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "answer": 42},
        "group_size": 8,
        "seed": 1234,
        "sampling": {"temperature": 1.0},
        "target_versions": {"solver": 8},
        "minimum_versions": {"solver": 4},
        "created_at": 1_700_000_000.0,
        "deadline": 1_700_000_600.0,
    }
    return Task(**fields | changes)


def lease(**changes: Any) -> BatchLease:
    fields: dict[str, Any] = {
        "lease_id": "solver.12.0.0",
        "job": "quickstart",
        "policy": "solver",
        "step": 12,
        "rank": 0,
        "world_size": 2,
        "stream": "TRAJECTORIES",
        "groups": (
            Group(group_id="t-42/solver", prompt_id="gsm8k/train/17", episodes=(Episode(0.0), Episode(1.0, 2, 2300))),
        ),
        "samples": tuple(
            SampleReference(
                sequence=100 + index,
                trajectory_id=f"job-1.t-42.{index}.0",
                group=0,
                episode=index,
                group_index=index,
                reward=float(index),
                prompt_tokens=300,
                response_tokens=1200,
                trained_tokens=1150,
                oldest_version=7,
                newest_version=8,
            )
            for index in range(2)
        ),
        "totals": StepTotals(samples=4, groups=2, episodes=4, tokens=6000, trained_tokens=4600),
        "issued_at": 1_700_000_000.0,
        "expires_at": 1_700_000_060.0,
    }
    return BatchLease(**fields | changes)


def quarantined(**changes: Any) -> QuarantinedTask:
    fields: dict[str, Any] = {
        "task_id": "t-42",
        "job": "quickstart",
        "prompt_id": "gsm8k/train/17",
        "error": "workflow-error",
        "message": "RuntimeError: tool crashed",
        "worker": "quickstart-pool-a-0",
        "pool": "pool-a",
        "attempts": 5,
        "quarantined_at": 1_700_000_000.0,
        "task": task(),
    }
    return QuarantinedTask(**fields | changes)


ROWS = ("job-1.t-42.0.0", "job-1.t-42.1.0", "job-1.t-42.1.1")


def stage_task(**changes: Any) -> StageTask:
    fields: dict[str, Any] = {
        "job": "quickstart",
        "stage": "judge",
        "policy": "solver",
        "group_id": "t-42/solver",
        "prompt_id": "gsm8k/train/17",
        "prompt": {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "answer": 42},
        "rows": tuple(
            StageRow(sequence=100 + number, trajectory_id=row, reward=0.5 * number) for number, row in enumerate(ROWS)
        ),
        "columns": (ColumnReference(stage="reference", sequence=7),),
        "minimum_versions": {"judge": 4},
        "created_at": 1_700_000_000.0,
    }
    return StageTask(**fields | changes)


def column(**changes: Any) -> Column:
    fields: dict[str, Any] = {
        "job": "quickstart",
        "stage": "reference",
        "policy": "solver",
        "group_id": "t-42/solver",
        "run": "6f1ed002",
        "trajectory_ids": ROWS,
        "lengths": (700, 450, 0),
        "values": -np.random.default_rng(7).exponential(0.5, 1150).astype(np.float32),
    }
    return Column(**fields | changes)


def column_header(**changes: Any) -> ColumnHeader:
    fields: dict[str, Any] = {
        "header_version": 1,
        "job": "quickstart",
        "policy": "solver",
        "stage": "judge",
        "group_id": "t-42/solver",
        "run": "6f1ed002",
        "rows_digest": rows_digest(ROWS),
        "rewards": (0.0, 0.5, 1.0),
        "turn_rewards": None,
        "keep": None,
        "error": None,
        "message": "",
        "oldest_version": 7,
        "newest_version": 8,
        "worker": "quickstart-pool-a-0",
        "pool": "pool-a",
        "started_at": 1_700_000_000.25,
        "finished_at": 1_700_000_004.5,
    }
    return ColumnHeader(**fields | changes)


SPECIMENS: tuple[Message, ...] = (
    task(),
    trajectory(),
    short_trajectory(),
    short_trajectory(outcome=Failed(error="engine.timeout", message="no answer in 30 s")),
    row_of_a_forest(),
    empty(),
    BatchRequest(job="quickstart", policy="solver", step=12, rank=0, world_size=2, wait_hint=1.0),
    lease(),
    BatchNotReady(policy="solver", step=12, reason="filling", retry_after=0.5),
    LeaseAck(
        lease_id="solver.12.0.0",
        job="quickstart",
        policy="solver",
        step=12,
        rank=0,
        world_size=2,
        weight_version=13,
        acked_at=1_700_000_002.0,
    ),
    LeaseAcked(lease_id="solver.12.0.0", step=12),
    CheckpointProof(job="job", policy="solver", step=12, attempt=3, world_size=2, sealed=b"{}"),
    LedgerAnchored(policy="solver", step=12),
    LeaseRefused(refusal=Refusal.STEP_CONSUMED, message="step 11 was acknowledged", next_step=12),
    ClaimCheck(trajectory_id="t0.solver.0.0", policy="solver", size_bytes=9 << 20, sha256="ab" * 32),
    WeightPointer(
        job="quickstart",
        policy="solver",
        version=13,
        epoch=2,
        manifest_key="weights/solver/13.json",
        manifest_digest="sha256:" + "cd" * 32,
        base_version=12,
        size_bytes=1 << 20,
        published_at=1_700_000_002.0,
    ),
    MemberHeartbeat(
        member_id="quickstart-pool-a-0",
        job="quickstart",
        role=Role.ROLLOUT,
        pool="pool-a",
        state=State.READY,
        versions={"solver": 13},
        in_flight=4,
        capacity=16,
        allowance=12,
        samples_per_second=2.5,
        tokens_per_second=3000.0,
        failures={"engine.timeout": 1},
        started_at=1_700_000_000.0,
        sent_at=1_700_000_030.0,
    ),
    BalanceReport(
        job="quickstart",
        policy="solver",
        version=13,
        first_step=3,
        last_step=12,
        wall_seconds=20.0,
        wait_seconds=3.0,
        step_seconds=20.0,
        wait_fraction=0.15,
        produced=Volume(samples=80, tokens=80_000),
        accepted=Volume(samples=64, tokens=64_000),
        consumed=Volume(samples=60, tokens=60_000),
        instances=tuple(Instance(member_id=f"w-{n}", pool="pool-a", state=State.READY) for n in range(8)),
        maintainer="ThreeZone",
        branch=Branch.GROW,
        current=6,
        target=8,
        at=1_700_000_002.0,
    ),
    StepProgress(
        job="quickstart",
        policy="solver",
        step=12,
        reward=0.5,
        reward_parts={"answer": 0.75, "format": -0.25},
        staleness=0.75,
        max_staleness=2,
        wait_fraction=0.15,
        samples=96,
        buffered=8,
        running=16,
        dropped=0,
        at=1_700_000_002.0,
    ),
    quarantined(),
    stage_task(),
    column(),
    column(lengths=(1, 1, 0), values=np.array([0.5, -0.5], dtype=np.float32)),
    EvaluationResult(
        job="quickstart",
        policy="solver",
        benchmark="held-out",
        version=50,
        newest_version=52,
        score=0.5,
        episodes=40,
        failed=1,
        best_version=40,
        best_score=0.75,
        at=1_700_000_003.0,
    ),
    BestVersionsRequest(job="quickstart", policy="solver"),
    BestVersions(policy="solver", best=(BestVersion(benchmark="held-out", version=40, score=0.75),), evaluating=50),
)
