"""A solver answers, a verifier says whether it is right, and a solver that was rejected tries again."""

from __future__ import annotations

import re

from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team


class SolverVerifier:
    roles = ("solver", "verifier")

    def __init__(self, *, retries: int = 1) -> None:
        self._retries = retries

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        prompt, answer = task.column("prompt"), task.column("answer")
        solver, verifier = team.begin("solver"), team.begin("verifier")
        solver.hear(f"{prompt}\n")
        right, verdicts = False, []
        for attempt in range(1 + self._retries):
            said = await solver.speak()
            right = re.findall(r"-?\d+", said)[-1:] == [answer]
            verifier.hear(f"{prompt}\nAnswer: {said}\nIs it right? End with ACCEPT or REJECT.\n")
            judged = await verifier.speak()
            accepted = "ACCEPT" in judged and "REJECT" not in judged
            verdicts.append(float(accepted == right))
            if accepted or attempt == self._retries or solver.over or verifier.over:
                break
            solver.hear(f"A verifier rejected this: {judged}\nTry again.\n")
        # The verifier is paid for being right, not for saying yes.
        return Episode(
            (
                ScoredConversation(solver, reward=float(right)),
                ScoredConversation(verifier, reward=sum(verdicts) / len(verdicts)),
            )
        )
