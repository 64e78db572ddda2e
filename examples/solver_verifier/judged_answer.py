"""A solver answers and a verifier judges: two roles, two policies, two rewards in one episode."""

from __future__ import annotations

import random

from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team

RIGHT, WRONG = "+", "-"


class JudgedAnswer:
    """The solver is rewarded for the right answer, the verifier for the right judgement of an answer.

    The verifier judges what the solver said, if that is right in one half of the episodes and wrong in the other half.
    Where it is not, an answer of that kind takes its place. With the solver's own answers alone the verifier would do
    well to reject everything at first and to accept everything later, without looking.
    """

    roles = ("solver", "verifier")

    def __init__(self, *, answers: str) -> None:
        """`answers` are all that are possible, a character each."""
        self._answers = answers

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        problem, known = str(task.column("prompt")), str(task.column("answer"))
        solver = team.begin("solver")
        solver.hear(problem)
        said = await solver.speak()

        chance = random.Random(task.seed)  # noqa: S311 - no secret
        judged = self._to_be_judged(said, known=known, chance=chance)
        verifier = team.begin("verifier")
        verifier.hear(f"{problem}{judged}?")
        verdict = await verifier.speak()

        return Episode(
            (
                ScoredConversation(solver, reward=float(said == known)),
                ScoredConversation(verifier, reward=float(verdict == (RIGHT if judged == known else WRONG))),
            )
        )

    def _to_be_judged(self, said: str, *, known: str, chance: random.Random) -> str:
        if chance.random() < 0.5:
            return known
        if said != known and said in self._answers:
            return said
        return chance.choice([answer for answer in self._answers if answer != known])
