"""Policies that say what they are told, in tokens that no encoder would have chosen, and remember every one of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.gateway.tokenizers import end_of_turn, tokenizer_of
from tests.support.rollout.speakers import assignment
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.spans import model_span
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.budget import Budget, BudgetLimits
from trimtab.rollout.gateway.session import EpisodeSession
from trimtab.rollout.gateway.tally import GatewayMetrics
from trimtab.rollout.policy.sampler import Completion, Listener
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.team import Role, Team


@dataclass(frozen=True)
class Request:
    """As the engine got it, and what it answered."""

    prompt: tuple[int, ...]
    settings: SamplingSettings
    completion: Completion


class Talker:
    """`says` gives the words for the number of a request; `misspelt` is the share of tokens said letter by letter."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        says: Callable[[int], str],
        *,
        end: int | None,
        seed: int = 0,
        misspelt: float = 0.5,
    ) -> None:
        self._tokenizer = tokenizer
        self._says = says
        self._end = end
        self._chance = random.Random(seed)
        self._misspelt = misspelt
        self.requests: list[Request] = []

    async def complete(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        deadline_s: float,
        listener: Listener | None = None,
    ) -> Completion:
        number = len(self.requests)
        whole = self._spelt(self._says(number)) + ([] if self._end is None else [self._end])
        said = whole[: settings.max_new_tokens]
        # Logprobs that say of which request and place a token is.
        logprobs = tuple(-(number * 1000 + at + 1) / 1e6 for at in range(len(said)))
        spans = (model_span(len(said), version=number),) if said else ()
        finish = "stop" if len(said) == len(whole) else "length"
        completion = Completion(token_ids=tuple(said), logprobs=logprobs, spans=spans, finish=finish)  # type: ignore[arg-type]
        self.requests.append(Request(tuple(prompt), settings, completion))
        return completion

    def _spelt(self, text: str) -> list[int]:
        token_ids: list[int] = []
        for token in self._tokenizer.encode(text):
            letters = self._tokenizer.decode([token])
            apart = [each for letter in letters for each in self._tokenizer.encode(letter)]
            token_ids += apart if letters and self._chance.random() < self._misspelt else [token]
        return token_ids


def talking_role(
    family: str, says: Callable[[int], str], *, name: str = "solver", frozen: bool = False, seed: int = 0
) -> tuple[Role, Talker]:
    tokenizer = tokenizer_of(family)
    # What gpt-oss says ends with one of several marks, which say what kind of turn it was.
    talker = Talker(tokenizer, says, end=None if family == "gpt-oss" else end_of_turn(family), seed=seed)
    sampling = SamplingSettings(max_new_tokens=400)
    return Role(name, name, tokenizer, talker, sampling, frozen=frozen), talker


def session_of(
    *roles: Role,
    limits: BudgetLimits | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    metrics: Metrics | None = None,
    keep_thoughts: bool = False,
) -> EpisodeSession:
    team = Team({role.name: role for role in roles}, assignment())
    return EpisodeSession(
        team,
        budget=Budget(limits or BudgetLimits(), clock=clock),
        metrics=GatewayMetrics(metrics or Metrics()),
        keep_thoughts=keep_thoughts,
    )
