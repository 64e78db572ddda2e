"""A role of a frozen policy has a part in episodes and sends nothing: it needs no reward, and fails nobody's group."""

from __future__ import annotations

from dataclasses import replace

from tests.support.rollout.group_runners import TASK, runner
from tests.support.rollout.speakers import EchoSampler, role
from trimtab.fabric.wire.spans import Producer
from trimtab.rollout.worker.failures import EpisodeFailed
from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team

ROLES = {"solver": role(EchoSampler()), "judge": replace(role(EchoSampler(), name="judge"), frozen=True)}


class Judged:
    """The judge speaks first, the solver hears it, and who is scored is said."""

    def __init__(self, *scored: str) -> None:
        self._scored = scored

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        judge, solver = team.begin("judge"), team.begin("solver")
        judge.hear("what")
        said = await judge.speak()
        solver.hear("ab")
        await solver.speak()
        solver.hear(said)
        await solver.speak()
        both = {"solver": solver, "judge": judge}
        return Episode(tuple(ScoredConversation(both[name], reward=0.5) for name in self._scored))


async def test_only_roles_that_learn_are_sent_whether_or_not_a_frozen_one_is_scored() -> None:
    for scored in (("solver",), ("solver", "judge")):
        trajectories = await runner(Judged(*scored), ROLES).run(TASK)
        assert {trajectory.role for trajectory in trajectories} == {"solver"}
        assert len(trajectories) == TASK.group_size


async def test_what_a_frozen_role_says_is_environment_to_others() -> None:
    (first, *_) = await runner(Judged("solver"), ROLES).run(TASK)
    assert [span.producer for span in first.spans] == [
        Producer.PROMPT,
        Producer.MODEL,
        Producer.ENVIRONMENT,
        Producer.MODEL,
    ]


def test_a_group_that_is_given_up_has_failures_of_roles_that_learn_alone() -> None:
    failures = runner(Judged("solver"), ROLES).failed(TASK, EpisodeFailed("engine-timeout", "late"))
    assert {trajectory.role for trajectory in failures} == {"solver"}
