"""What the dataflow benchmark computes from what it saw."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.trajectories.ledger_cost import arrivals, bytes_per_trajectory, empty_ledger, grant_all, queue
from benchmarks.trajectories.payloads import POLICY, Writer
from benchmarks.trajectories.rounds import Passage
from trimtab.fabric.wire.header import headers, parse_headers

BATCH = 16


@pytest.mark.parametrize("parts", [1, 4])
def test_cheaply_made_headers_are_those_that_a_worker_sends(parts: int) -> None:
    writer = Writer("job", tokens=16, batch_size=BATCH, seed=0, parts=parts)
    sent = [parse_headers(headers(writer.trajectory(number))) for number in range(20, 60)]
    made = list(arrivals(20, 40, batch_size=BATCH, parts=parts))
    assert [(trajectory_id, header.group_index) for _, trajectory_id, header in made] == [
        (trajectory_id, header.group_index) for trajectory_id, header in sent
    ]
    for (_, _, cheap), (_, real) in zip(made, sent, strict=True):
        assert (cheap.part, cheap.parts, cheap.run) == (real.part, real.parts, real.run)
        same = (cheap.task_id, cheap.prompt_id, cheap.group_id, cheap.oldest_version, cheap.newest_version)
        assert same == (real.task_id, real.prompt_id, real.group_id, real.oldest_version, real.newest_version)


@pytest.mark.parametrize("parts", [1, 4])
def test_all_that_was_queued_is_granted(parts: int) -> None:
    ledger = empty_ledger(batch_size=BATCH)
    queue(ledger, list(arrivals(0, 10 * BATCH * parts, batch_size=BATCH, parts=parts)))
    grant_all(ledger)
    assert ledger.trainers[POLICY].next_step == 10
    assert ledger.trainers[POLICY].durable_steps == 10


def test_memory_is_what_is_still_held() -> None:
    assert bytes_per_trajectory(lambda: bytearray(1 << 20), trajectories=1024) == pytest.approx(1024, rel=0.05)
    assert bytes_per_trajectory(lambda: len(bytearray(1 << 20)), trajectories=1024) < 50


def test_a_rate_counts_from_the_first_publication_to_the_last_batch() -> None:
    passage = Passage(published=np.array([10.0, 10.1, 10.2, 10.3]), received=np.array([10.5, 10.5, 12.0, 12.0]))
    assert passage.rows_per_second == pytest.approx(2.0)


def test_latency_is_by_row_and_the_way_of_a_full_batch_is_told_apart() -> None:
    passage = Passage(published=np.array([0.0, 1.0, 2.0, 3.0]), received=np.array([1.25, 1.25, 3.25, 3.25]))
    assert passage.latency_ms(0, 100) == [250.0, 1250.0]
    assert passage.after_last_ms(2) == 250.0
