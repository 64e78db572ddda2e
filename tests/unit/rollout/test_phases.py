"""Where the time of an episode goes, as those say who take it."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.rollout.group_runners import TASK, runner
from tests.support.rollout.speakers import EchoSampler, role
from trimtab.fabric.wire.trajectory import MAX_PHASES
from trimtab.rollout.phases import ENGINE, SCORING, EpisodePhases, phase
from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_phase_within_another_counts_once_and_one_outside_of_episodes_not_at_all() -> None:
    clock = Clock()
    episode = EpisodePhases(clock=clock)
    clock.now = 2.0
    with phase("nobody"):
        clock.now = 3.0
    with episode.recorded(), phase(SCORING):
        clock.now = 4.0
        with phase("programs"):
            clock.now = 6.0
    assert [(one.name, one.after, one.seconds) for one in episode.found] == [(SCORING, 3.0, 3.0)]


def test_an_engine_that_says_when_its_first_token_came_is_told_apart() -> None:
    clock = Clock()
    episode = EpisodePhases(clock=clock)
    with episode.recorded(), phase(ENGINE) as answer:
        clock.now = 5.0
        answer.first_token_s = 1.5
    assert [(one.name, one.after, one.seconds) for one in episode.found] == [
        ("prefill", 0.0, 1.5),
        ("decode", 1.5, 3.5),
    ]


def test_an_episode_of_very_many_turns_adds_the_later_ones_up() -> None:
    clock = Clock()
    episode = EpisodePhases(clock=clock)
    with episode.recorded():
        for _ in range(3 * MAX_PHASES):
            with phase("tools"):
                clock.now += 1.0
    assert len(episode.found) == MAX_PHASES
    assert sum(one.seconds for one in episode.found) == 3 * MAX_PHASES


def test_a_name_that_no_row_could_carry_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="small letters"), phase("My Tool"):
        pass


class Retrieves:
    async def run(self, task: Assignment, team: Team, /) -> Episode:
        async def retrieve() -> None:
            with phase("retrieval"):
                await asyncio.sleep(0.02)

        conversation = team.begin()
        conversation.hear("ab")
        async with asyncio.TaskGroup() as both:
            both.create_task(retrieve())
            both.create_task(retrieve())
        await conversation.speak()
        return Episode((ScoredConversation(conversation, reward=1.0),))


async def test_rows_carry_what_their_episode_did_and_when_its_task_was_given_out() -> None:
    rows = await runner(Retrieves(), {"solver": role(EchoSampler())}).run(TASK)
    assert len(rows) == TASK.group_size
    for row in rows:
        assert row.queued_at == TASK.created_at
        assert [one.name for one in row.phases] == ["retrieval", "retrieval"], "side by side, and each its own"
        assert all(0.02 <= one.seconds < 60.0 for one in row.phases)
