"""From the workflow to the leases: whatever shape episodes have and however often their tasks are run, every token that
counts is trained in exactly one row of one rank, and the auditor agrees.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dataflow.storm.evidence import Episodes
from tests.support.rollout.forests import NumberedSampler, RandomForest, Sampled
from tests.support.rollout.group_runners import runner
from tests.support.rollout.speakers import role
from trimtab.dataflow.audit.report import judged
from trimtab.dataflow.audit.streams import Streams
from trimtab.dataflow.leases import DealtPortion, LeaseTerms, step_totals
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import Record, StepDurable, StepGranted, TasksIssued
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.header import headers, parse_headers
from trimtab.fabric.wire.lease import BatchLease, BatchRequest
from trimtab.fabric.wire.spans import model_mask
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Trajectory

GROUP, RANKS = 3, 2
ROLES = ("solver", "critic")


def task(number: int) -> Task:
    return Task(
        task_id=f"t{number}",
        job="job",
        prompt_id=f"p{number}",
        prompt={},
        group_size=GROUP,
        seed=number,
        created_at=1.0,
    )


async def published(tasks: int, chance: random.Random, *, steps: int) -> list[Trajectory]:
    """What workers store in whatever order: of some tasks a part, by workers that died, and all of it by another."""
    sampled = Sampled()
    queues: list[list[Trajectory]] = []
    for number in range(tasks):
        speakers = {
            name: role(NumberedSampler(sampled, seed=chance.randrange(1 << 30)), name, policy=name) for name in ROLES
        }
        stored: list[Trajectory] = []
        for attempt in range(chance.randrange(1, 4), 0, -1):
            forest = RandomForest(ROLES, seed=chance.randrange(1 << 30), steps=steps)
            rows = await runner(forest, speakers).run(task(number))
            stored += rows if attempt == 1 else rows[: chance.randrange(len(rows))]
        queues.append(stored)
    brought: list[Trajectory] = []
    while queues := [queue for queue in queues if queue]:
        brought.append(chance.choice(queues).pop(0))
        if chance.random() < 0.1:
            brought.append(chance.choice(brought))
    return brought


def granted_all(books: Ledger, records: list[Record]) -> list[BatchLease]:
    """Every group that can be trained is, one to a step, by two ranks."""
    leases = []
    for policy, trainer in books.trainers.items():
        while (record := books.propose(policy, now=1.0)) is not None:
            records.append(record)
            books.apply(record)
            assert isinstance(record, StepGranted)
            portion = trainer.granted[record.step][0]
            requests = [
                BatchRequest(job="job", policy=policy, step=record.step, rank=rank, world_size=RANKS)
                for rank in range(RANKS)
            ]
            totals = step_totals(portion)
            dealt = DealtPortion(
                portion, LeaseTerms(totals=totals, stream="S", issued_at=1.0, expires_at=6.0), world_size=RANKS
            )
            own = [decode(dealt.lease(one), BatchLease) for one in requests]
            assert sum(len(one.samples) for one in own) == totals.samples
            leases += own
            durable = StepDurable(policy=policy, step=record.step)
            records.append(durable)
            books.apply(durable)
    return leases


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 9))
def test_every_token_that_counts_is_trained_in_one_row_of_one_rank(seed: int, tasks: int, steps: int) -> None:
    chance = random.Random(seed)
    stored = asyncio.run(published(tasks, chance, steps=steps))
    books = Ledger(
        dict.fromkeys(ROLES, 1),
        selection=Fresh({name: {name: 1.0} for name in ROLES}, seed=0),
        group_size=GROUP,
        batch_sizes=dict.fromkeys(ROLES, GROUP),
        max_staleness=1 << 20,
        window_steps=3,
    )
    issued = TasksIssued(first=0, count=tasks)
    records: list[Record] = [issued]
    books.apply(issued)
    parsed = [parse_headers(headers(one)) for one in stored]
    for sequence, (trajectory_id, header) in enumerate(parsed, start=1):
        books.arrived(sequence, trajectory_id, header)
    leases = granted_all(books, records)

    streams = Streams(records=records, headers=[header for _, header in parsed], queued=frozenset())
    report = judged(streams)
    assert report.violations == []
    assert all(count == 0 for count in report.waiting.values())

    episodes = Episodes(streams.headers)
    leased = Counter(reference.sequence for one in leases for reference in one.samples)
    assert leased == Counter(place for rows in episodes.sequences.values() for place in rows.values())
    trained: Counter[int] = Counter()
    for sequence in leased:
        row = stored[sequence - 1]
        trained.update(row.token_ids[model_mask(row.spans)].tolist())
    assert set(trained.values()) <= {1}
    for one in leases:
        for reference in one.samples:
            group = one.groups[reference.group]
            own = [key for key in episodes.sequences[group.group_id] if key[1] == reference.group_index]
            assert group.episodes[reference.episode].rows == len(own)
    for stream in books.streams.values():
        assert stream.arriving == {}
        assert stream.finished_groups == tasks
