"""Any valid message, for hypothesis; and one fixed specimen of each, for tables and for the fuzz run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from trimtab.fabric.wire.balance import BalanceReport, Branch, Instance, StageLoad, Volume
from trimtab.fabric.wire.best_versions import BestVersion, BestVersions, BestVersionsRequest
from trimtab.fabric.wire.checkpoint_proof import CheckpointProof, LedgerAnchored
from trimtab.fabric.wire.claim import ClaimCheck
from trimtab.fabric.wire.column import Column
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
    StepTiming,
    StepTotals,
)
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.progress import StepProgress
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.quarantine import QuarantinedTask
from trimtab.fabric.wire.spans import Producer, Span, model_length, total_length
from trimtab.fabric.wire.stage import ColumnReference, StageRow, StageTask
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import MAX_PARTS, Empty, Failed, Finish, Phase, Scored, Trajectory, TurnReward
from trimtab.fabric.wire.weights import WeightPointer

identifiers = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
names = identifiers
tokens = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)
slugs = st.from_regex(r"\A[a-z][a-z0-9_.-]{0,20}\Z")
digests = st.from_regex(r"\Asha256:[0-9a-f]{64}\Z")
counts = st.integers(0, 2**53)
indices = st.integers(0, 2**31 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
durations = st.floats(0, 1e9)
rates = st.floats(0, 1e15)
times = st.floats(0, 1e11)
versions = st.dictionaries(names, counts, max_size=3)
runs = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="."), min_size=1, max_size=20)
labels = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
reward_parts = st.dictionaries(slugs, finite, max_size=3)
tallies = st.dictionaries(slugs, counts, max_size=3)
plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | finite | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
mappings = st.dictionaries(st.text(max_size=8), plain, max_size=3)
purposes = st.one_of(
    st.just({"purpose": Purpose.TRAIN}),
    names.map(lambda name: {"purpose": Purpose.EVALUATION, "benchmark": name}),
)
ranks = st.integers(1, 1 << 20).flatmap(
    lambda size: st.integers(0, size - 1).map(lambda rank: {"rank": rank, "world_size": size})
)
spans = st.one_of(
    st.builds(Span, st.integers(1, 700), st.sampled_from([Producer.PROMPT, Producer.ENVIRONMENT, Producer.ECHO])),
    st.builds(Span, st.integers(1, 700), st.just(Producer.MODEL), counts),
)


def _ordered(values: st.SearchStrategy[Any], low: str, high: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(values, values).map(lambda pair: {low: min(pair), high: max(pair)})


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    targets = draw(versions)
    created_at = draw(times)
    return Task(
        task_id=draw(tokens),
        job=draw(names),
        prompt_id=draw(identifiers),
        prompt=draw(mappings),
        group_size=draw(st.integers(1, 65536)),
        seed=draw(st.integers(0, 2**63 - 1)),
        workflow_args=draw(mappings),
        sampling=draw(mappings),
        label=draw(labels),
        target_versions=targets,
        minimum_versions={policy: draw(st.integers(0, version)) for policy, version in targets.items()},
        attempt=draw(indices),
        created_at=created_at,
        deadline=draw(st.none() | st.floats(created_at, 1e11)),
        **draw(purposes),
    )


@st.composite
def turn_rewards(draw: st.DrawFn, *, trained: int) -> tuple[TurnReward, ...]:
    """Turns in order that share the trained tokens out among them."""
    numbers = sorted(draw(st.sets(indices, min_size=1, max_size=min(4, trained))))
    ends = sorted(draw(st.sets(st.integers(1, trained), min_size=len(numbers), max_size=len(numbers))) - {trained})
    bounds = [0, *ends[: len(numbers) - 1], trained]
    lengths = [later - earlier for earlier, later in itertools.pairwise(bounds)]
    return tuple(TurnReward(number, length, draw(finite)) for number, length in zip(numbers, lengths, strict=True))


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    purpose = draw(purposes)
    drawn = tuple(draw(st.lists(spans, max_size=6)))
    trained = model_length(drawn)
    scorable = trained > 0 or purpose["purpose"] is Purpose.EVALUATION
    failed = st.builds(Failed, error=slugs, message=st.text(max_size=20), retryable=st.booleans())
    scored = st.builds(Scored, reward=finite, finish=st.sampled_from(Finish))
    outcome = draw(st.just(Empty()) | failed | scored if scorable else st.just(Empty()) | failed)
    if isinstance(outcome, Empty):
        drawn, trained = (), 0
    turns = draw(turn_rewards(trained=trained)) if trained and draw(st.booleans()) else ()
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    group_size = draw(st.integers(1, 65536))
    parts = 0 if isinstance(outcome, Empty) else draw(st.integers(1, MAX_PARTS))
    return Trajectory(
        trajectory_id=draw(tokens),
        job=draw(names),
        policy=draw(names),
        role=draw(names),
        task_id=draw(tokens),
        prompt_id=draw(identifiers),
        group_id=draw(tokens),
        group_index=draw(st.integers(0, group_size - 1)),
        group_size=group_size,
        part=draw(st.integers(0, max(0, parts - 1))),
        parts=parts,
        run=draw(runs),
        label=draw(labels),
        outcome=outcome,
        token_ids=random.integers(0, draw(st.sampled_from([2, 150_000, 2**31])), total_length(drawn), dtype=np.int32),
        logprobs=-random.exponential(draw(st.sampled_from([0.0, 1.0, 1e30])), trained).astype(np.float32),
        spans=drawn,
        turns=len(turns) if turns else draw(indices),
        turn_rewards=turns,
        reward_parts=draw(reward_parts),
        phases=tuple(draw(st.lists(st.builds(Phase, name=slugs, after=durations, seconds=durations), max_size=3))),
        queued_at=draw(st.none() | times),
        worker=draw(names),
        pool=draw(names),
        engine=draw(names),
        **purpose,
        **draw(_ordered(times, "started_at", "finished_at")),
    )


@st.composite
def sample_references(draw: st.DrawFn, *, trajectory_id: str, groups: Sequence[Group]) -> SampleReference:
    response = draw(counts)
    group = draw(st.integers(0, len(groups) - 1))
    return SampleReference(
        sequence=draw(st.integers(1, 2**63 - 1)),
        trajectory_id=trajectory_id,
        group=group,
        episode=draw(st.integers(0, len(groups[group].episodes) - 1)),
        group_index=draw(indices),
        part=draw(indices),
        reward=draw(finite),
        prompt_tokens=draw(counts),
        response_tokens=response,
        trained_tokens=draw(st.integers(0, response)),
        uses=draw(indices),
        **draw(_ordered(counts, "oldest_version", "newest_version")),
    )


@st.composite
def batch_leases(draw: st.DrawFn) -> BatchLease:
    turns = st.lists(st.builds(TurnReward, indices, st.integers(1, 1 << 20), finite), max_size=3).map(tuple)
    episode = st.builds(Episode, finite, st.integers(1, MAX_PARTS), counts, st.booleans(), turns)
    episodes = st.lists(episode, min_size=1, max_size=4).map(tuple)
    groups = tuple(
        draw(
            st.lists(
                st.builds(
                    Group,
                    group_id=tokens,
                    prompt_id=identifiers,
                    episodes=episodes,
                    columns=st.lists(references, max_size=2, unique_by=lambda one: one.stage).map(tuple),
                ),
                min_size=1,
                max_size=3,
            )
        )
    )
    samples = tuple(
        draw(sample_references(trajectory_id=trajectory_id, groups=groups))
        for trajectory_id in draw(st.lists(tokens, max_size=4, unique=True))
    )
    totals = st.builds(
        StepTotals,
        samples=st.integers(len(samples), 2**53),
        groups=counts,
        episodes=counts,
        tokens=counts,
        trained_tokens=counts,
    )
    return BatchLease(
        lease_id=draw(tokens),
        job=draw(names),
        policy=draw(names),
        step=draw(counts),
        stream=draw(names),
        columns_stream=draw(names),
        groups=groups,
        samples=samples,
        chunk=draw(indices),
        totals=draw(st.none() | totals),
        **draw(ranks),  # type: ignore[arg-type]
        **draw(_ordered(times, "issued_at", "expires_at")),
    )


references = st.builds(ColumnReference, stage=names, sequence=st.integers(1, 2**63 - 1))


@st.composite
def stage_tasks(draw: st.DrawFn) -> StageTask:
    return StageTask(
        job=draw(names),
        stage=draw(names),
        policy=draw(names),
        group_id=draw(tokens),
        prompt_id=draw(identifiers),
        label=draw(labels),
        prompt=draw(mappings),
        rows=tuple(
            StageRow(sequence=draw(st.integers(1, 2**63 - 1)), trajectory_id=row, reward=draw(finite))
            for row in draw(st.lists(tokens, min_size=1, max_size=4, unique=True))
        ),
        columns=tuple(draw(st.lists(references, max_size=3))),
        minimum_versions=draw(versions),
        created_at=draw(times),
    )


@st.composite
def columns(draw: st.DrawFn) -> Column:
    rows = draw(st.lists(tokens, min_size=1, max_size=4, unique=True))
    lengths = tuple(draw(st.integers(0, 900)) for _ in rows)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Column(
        job=draw(names),
        stage=draw(names),
        policy=draw(names),
        group_id=draw(tokens),
        run=draw(runs),
        trajectory_ids=tuple(rows),
        lengths=lengths,
        values=random.normal(scale=draw(st.sampled_from([0.0, 1.0, 1e30])), size=sum(lengths)).astype(np.float32),
    )


@st.composite
def weight_pointers(draw: st.DrawFn) -> WeightPointer:
    version = draw(counts)
    return WeightPointer(
        job=draw(names),
        policy=draw(names),
        version=version,
        epoch=draw(counts),
        manifest_key=draw(identifiers),
        manifest_digest=draw(digests),
        base_version=draw(st.none() if version == 0 else st.none() | st.integers(0, version - 1)),
        size_bytes=draw(counts),
        published_at=draw(times),
    )


@st.composite
def heartbeats(draw: st.DrawFn) -> MemberHeartbeat:
    role = draw(st.sampled_from(Role))
    return MemberHeartbeat(
        member_id=draw(tokens),
        job=draw(names),
        role=role,
        pool=draw(names) if role is Role.ROLLOUT else None,
        engine=draw(st.none() | names),
        state=draw(st.sampled_from(State)),
        versions=draw(versions),
        in_flight=draw(counts),
        capacity=draw(counts),
        allowance=draw(st.none() | counts),
        samples_per_second=draw(rates),
        tokens_per_second=draw(rates),
        completed=draw(counts),
        failures=draw(tallies),
        measures=draw(st.dictionaries(slugs, finite, max_size=3)),
        **draw(_ordered(times, "started_at", "sent_at")),
    )


instances = st.builds(
    Instance,
    member_id=tokens,
    pool=names,
    state=st.sampled_from(State),
    samples_per_second=rates,
    tokens_per_second=rates,
    availability=st.floats(0, 1),
    version_lag=counts,
    in_flight=counts,
    capacity=counts,
)

stage_loads = st.builds(StageLoad, stage=names, waiting=counts, done=counts, failed=counts)


@st.composite
def balance_reports(draw: st.DrawFn) -> BalanceReport:
    volumes = st.builds(Volume, samples=counts, tokens=counts)
    return BalanceReport(
        job=draw(names),
        policy=draw(names),
        version=draw(counts),
        wall_seconds=draw(durations),
        wait_fraction=draw(st.floats(0, 1)),
        produced=draw(volumes),
        accepted=draw(volumes),
        consumed=draw(volumes),
        stale_skipped=draw(counts),
        buffered=draw(st.none() | counts),
        room=draw(st.none() | counts),
        instances=tuple(draw(st.lists(instances, max_size=3))),
        stages=tuple(draw(st.lists(stage_loads, max_size=3))),
        branch=draw(st.sampled_from(Branch)),
        current=draw(counts),
        maintainer=draw(names),
        target=draw(st.none() | counts),
        at=draw(times),
        **draw(_ordered(counts, "first_step", "last_step")),
        **draw(_ordered(durations, "wait_seconds", "step_seconds")),
    )


def _with(cls: type[Message], extra: st.SearchStrategy[dict[str, Any]], **fields: Any) -> st.SearchStrategy[Any]:
    return st.tuples(extra, st.fixed_dictionaries(fields)).map(lambda pair: cls(**pair[0], **pair[1]))


MESSAGES: dict[type[Message], st.SearchStrategy[Any]] = {
    Task: tasks(),
    Trajectory: trajectories(),
    BatchRequest: _with(
        BatchRequest,
        ranks,
        job=names,
        policy=names,
        step=counts,
        chunk=indices,
        attempt=indices,
        previous=st.none() | st.builds(StepTiming, wait_seconds=durations, step_seconds=durations),
        wait_hint=durations,
    ),
    BatchLease: batch_leases(),
    BatchNotReady: st.builds(
        BatchNotReady, policy=names, step=counts, reason=slugs, retry_after=durations, message=st.text(max_size=20)
    ),
    LeaseAck: _with(
        LeaseAck,
        ranks,
        lease_id=tokens,
        job=names,
        policy=names,
        step=counts,
        attempt=indices,
        weight_version=counts,
        acked_at=times,
    ),
    LeaseAcked: st.builds(LeaseAcked, lease_id=tokens, step=counts),
    LeaseRefused: st.builds(
        LeaseRefused, refusal=st.sampled_from(Refusal), message=st.text(max_size=20), next_step=st.none() | counts
    ),
    CheckpointProof: st.builds(
        CheckpointProof,
        job=names,
        policy=names,
        step=counts,
        attempt=st.integers(0, 100),
        world_size=st.integers(1, 1024),
        sealed=st.binary(max_size=64),
    ),
    LedgerAnchored: st.builds(LedgerAnchored, policy=names, step=counts),
    WeightPointer: weight_pointers(),
    ClaimCheck: st.builds(
        ClaimCheck,
        trajectory_id=tokens,
        policy=names,
        size_bytes=st.integers(1, 64 << 20),
        sha256=st.from_regex(r"\A[0-9a-f]{64}\Z"),
    ),
    StageTask: stage_tasks(),
    Column: columns(),
    MemberHeartbeat: heartbeats(),
    BalanceReport: balance_reports(),
    StepProgress: st.builds(
        StepProgress,
        job=names,
        policy=names,
        step=counts,
        reward=finite,
        reward_parts=reward_parts,
        staleness=finite,
        max_staleness=counts,
        wait_fraction=st.floats(0, 1),
        samples=counts,
        buffered=counts,
        running=counts,
        dropped=counts,
        trained_tokens=counts,
        length=st.none() | finite,
        truncated=st.none() | st.floats(0, 1),
        at=times,
        newer=st.just({}),
    ),
    QuarantinedTask: st.builds(
        QuarantinedTask,
        task_id=tokens,
        job=names,
        prompt_id=st.none() | identifiers,
        error=slugs,
        message=st.text(max_size=20),
        worker=names,
        pool=names,
        attempts=indices,
        quarantined_at=times,
        task=st.none() | tasks(),
        newer=st.just({}),
    ),
    EvaluationResult: st.builds(
        EvaluationResult,
        job=names,
        policy=names,
        benchmark=names,
        version=counts,
        newest_version=st.none() | counts,
        score=st.none() | finite,
        episodes=counts,
        failed=counts,
        best_version=st.none() | counts,
        best_score=st.none() | finite,
        at=times,
        newer=st.just({}),
    ),
    BestVersionsRequest: st.builds(BestVersionsRequest, job=names, policy=names, newer=st.just({})),
    BestVersions: st.builds(
        BestVersions,
        policy=names,
        best=st.lists(
            st.builds(BestVersion, benchmark=names, version=counts, score=finite, newer=st.just({})), max_size=3
        ).map(tuple),
        evaluating=st.none() | counts,
        newer=st.just({}),
    ),
}
