"""Whatever shape an episode has, every token that its scored conversations sampled is trained in exactly one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.rollout.forests import NumberedSampler, RandomForest, Sampled
from tests.support.rollout.group_runners import TASK, runner
from tests.support.rollout.speakers import EchoSampler, role
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.header import headers
from trimtab.fabric.wire.spans import Producer, model_mask, token_versions
from trimtab.fabric.wire.trajectory import MAX_PARTS, Empty, Scored, Trajectory
from trimtab.rollout.worker.failures import EpisodeFailed
from trimtab.rollout.workflows.team import Assignment, Conversation, Episode, ScoredConversation, Team

ROLES = ("solver", "critic")


def trained(rows: Sequence[Trajectory]) -> Counter[int]:
    return Counter(int(token) for row in rows for token in row.token_ids[model_mask(row.spans)])


def echoed(rows: Sequence[Trajectory]) -> set[int]:
    found: set[int] = set()
    for row in rows:
        begins = 0
        for span in row.spans:
            if span.producer is Producer.ECHO:
                found.update(row.token_ids[begins : begins + span.length].tolist())
            begins += span.length
    return found


async def check(forest: RandomForest, *, roles: Sequence[str] = ROLES) -> list[Trajectory]:
    """Runs a group of it, and finds every token again."""
    speakers = {name: role(NumberedSampler(Sampled()), name, policy=name) for name in roles}
    brought = await runner(forest, speakers).run(TASK)
    for index, scored in enumerate(forest.scored):
        for name in roles:
            rows = [one for one in brought if one.group_index == index and one.role == name]
            own = [one.conversation for one in scored if one.conversation.role.name == name]
            check_role(rows, own)
    for one in brought:
        headers(one)
        assert decode(encode(one), Trajectory) == one
    assert len({one.trajectory_id for one in brought}) == len(brought)
    assert len({one.run for one in brought}) == 1
    return brought


def check_role(rows: Sequence[Trajectory], scored: Sequence[Conversation]) -> None:
    if not scored:
        (only,) = rows
        assert (only.outcome, only.parts, len(only.token_ids)) == (Empty(), 0, 0)
        return
    assert [(one.part, one.parts) for one in rows] == [(part, len(scored)) for part in range(len(scored))]
    sampled = {token for conversation in scored for turn in conversation.spoken for token in turn.token_ids}
    counts = trained(rows)
    assert counts == Counter(sampled), "every one of them, and once"
    assert echoed(rows) <= counts.keys(), "an echo is trained in another row"
    versions = {
        token: version
        for conversation in scored
        for turn in conversation.spoken
        for token, version in zip(turn.token_ids, token_versions(turn.completion.spans).tolist(), strict=True)
    }
    for one, conversation in zip(rows, scored, strict=True):
        assert one.token_ids.tolist() == conversation.token_ids, "what was sampled from is what the trainer sees"
        for token, version, logprob in zip(
            one.token_ids.tolist(), token_versions(one.spans).tolist(), one.token_logprobs().tolist(), strict=True
        ):
            if version >= 0:
                assert (version, logprob) == (versions[token], pytest.approx(-token / 1e6))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32), st.integers(1, 14))
async def test_every_sampled_token_is_trained_in_exactly_one_row(seed: int, steps: int) -> None:
    await check(RandomForest(ROLES, seed=seed, steps=steps))


class Wide:
    """A thousand branches of one beginning, and one that none of them is scored with."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.scored: list[tuple[ScoredConversation, ...]] = []

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        trunk = team.begin("solver")
        trunk.hear("ab")
        await trunk.speak()
        branches = [trunk.fork() for _ in range(self._rows)]
        for branch in branches:
            branch.hear("c")
            await branch.speak()
        self.scored.append(tuple(ScoredConversation(branch, 1.0) for branch in branches))
        return Episode(self.scored[-1])


async def test_an_episode_may_have_a_thousand_rows_and_no_more() -> None:
    brought = await check(Wide(1000), roles=("solver",))  # type: ignore[arg-type]
    assert len(brought) == 1000 * TASK.group_size
    with pytest.raises(EpisodeFailed, match=f"1025 scored conversations, at most {MAX_PARTS}"):
        await runner(Wide(MAX_PARTS + 1), {"solver": role(NumberedSampler(Sampled()))}).run(TASK)


class TwoCandidates:
    """Two candidates for an answer, and a selector that says which of them it is."""

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        opening = team.begin("solver")
        opening.hear(str(assignment.prompt["prompt"]))
        await opening.speak()
        candidates = [opening.fork(), opening.fork()]
        for candidate in candidates:
            candidate.hear("?")
        texts = [await candidate.speak() for candidate in candidates]
        selector = team.begin("selector")
        selector.hear("".join(texts))
        await selector.speak()
        chosen = assignment.seed % 2
        return Episode(
            (
                *(
                    ScoredConversation(one, reward=float(number == chosen), reward_parts={"chosen": number == chosen})
                    for number, one in enumerate(candidates)
                ),
                ScoredConversation(selector, reward=1.0),
            )
        )


async def test_what_branches_share_is_trained_in_the_first_and_seen_in_the_second() -> None:
    speakers = {name: role(EchoSampler(), name, policy="both") for name in ("solver", "selector")}
    metrics = Metrics()
    brought = await runner(TwoCandidates(), speakers, metrics=metrics).run(TASK)
    first, second = (one for one in brought if (one.role, one.group_index) == ("solver", 1))
    assert [one.trajectory_id for one in (first, second)] == ["task-1.solver.1.0", "task-1.solver.1.1"]
    assert [span.producer for span in first.spans] == [
        Producer.PROMPT,
        Producer.MODEL,
        Producer.ENVIRONMENT,
        Producer.MODEL,
    ]
    assert [span.producer for span in second.spans] == [
        Producer.PROMPT,
        Producer.ECHO,
        Producer.ENVIRONMENT,
        Producer.MODEL,
    ]
    assert (first.turns, second.turns) == (2, 1)
    assert isinstance(first.outcome, Scored)
    assert first.reward_parts == {"chosen": first.outcome.reward}
    # Of the seven tokens of either row, the branches share the first four; "?" was heard by each of them.
    rows, distinct = 7 + 7 + 6, 4 + 3 + 3 + 6
    assert metrics.registry.get_sample_value("trimtab_rollout_prefix_redundancy", {"policy": "both"}) == pytest.approx(
        rows / distinct
    )


class Compacting:
    """Writes a summary, and goes on from it in a conversation of its own; scores one of the two, or both."""

    def __init__(self, *, scores_both: bool) -> None:
        self._scores_both = scores_both

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        long = team.begin()
        long.hear("ab")
        await long.speak()
        long.hear("sum")
        await long.speak()
        short = team.begin()
        short.hear("task")
        short.recall(long.spoken[-1])
        short.hear("on")
        await short.speak()
        scored = [ScoredConversation(one, reward=1.0) for one in ((long, short) if self._scores_both else (short,))]
        return Episode(tuple(scored))


@pytest.mark.parametrize(("both", "producer"), [(True, Producer.ECHO), (False, Producer.ENVIRONMENT)])
async def test_a_summary_is_an_echo_where_it_goes_on_if_the_row_that_it_was_written_in_is_trained(
    both: bool, producer: Producer
) -> None:
    brought = await runner(Compacting(scores_both=both)).run(TASK)
    last = [one for one in brought if one.group_index == 0][-1]
    assert "".join(map(chr, last.token_ids)) == "task" + "mu" + "on" + "no"
    lengths = [(span.producer, span.length) for span in last.spans]
    if both:
        assert lengths == [
            (Producer.PROMPT, 4),
            (producer, 2),
            (Producer.ENVIRONMENT, 2),
            (Producer.MODEL, 2),
        ]
    else:
        assert lengths == [(Producer.PROMPT, 4), (producer, 4), (Producer.MODEL, 2)]


class Rewarding:
    """Gives rewards to turns: as they are spoken, or when they are scored."""

    def __init__(self, *, when_scored: Sequence[float] | None) -> None:
        self._when_scored = when_scored

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        first = team.begin()
        first.hear("ab")
        await first.speak()
        first.reward_turn(0.25)
        second = first.fork()
        for conversation in (second, first):
            conversation.hear("c")
            await conversation.speak()
        first.reward_turn(-1.0)
        return Episode(
            (
                ScoredConversation(first, reward=1.0, turn_rewards=self._when_scored),
                ScoredConversation(second, reward=1.0),
            )
        )


@pytest.mark.parametrize(
    ("when_scored", "expected"),
    [(None, [(0, 2, 0.25), (2, 2, -1.0)]), ((1.0, 2.0), [(0, 2, 1.0), (2, 2, 2.0)])],
)
async def test_turns_are_numbered_as_they_were_asked_for_and_rewarded_where_they_are_trained(
    when_scored: Sequence[float] | None, expected: list[tuple[int, int, float]]
) -> None:
    learner = replace(role(EchoSampler()), credits_turns=True)
    first, second = (await runner(Rewarding(when_scored=when_scored), {"solver": learner}).run(TASK))[:2]
    assert [(turn.number, turn.tokens, turn.reward) for turn in first.turn_rewards] == expected
    assert [(turn.number, turn.tokens, turn.reward) for turn in second.turn_rewards] == [(1, 2, 0.0)]


async def test_a_policy_that_learns_from_outcomes_is_sent_no_rewards_of_turns() -> None:
    rows = await runner(Rewarding(when_scored=None)).run(TASK)
    assert {one.turn_rewards for one in rows} == {()}


class Giving:
    def __init__(self, **scored: object) -> None:
        self._scored = scored

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        conversation = team.begin()
        conversation.hear("ab")
        await conversation.speak()
        return Episode((ScoredConversation(conversation, 1.0, **self._scored),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scored", "reason"),
    [
        ({"turn_rewards": (1.0, 2.0)}, "role solver: 2 turn_rewards for 1 turns; give one for each"),
        ({"turn_rewards": ("1",)}, "that of a turn of role solver, is a str; return a number"),
        ({"turn_rewards": (float("nan"),)}, "that of a turn of role solver, is not a finite number"),
        ({"reward_parts": {"Answer": 1.0}}, "a part of the reward is called 'Answer'; use up to 64 small letters"),
        ({"reward_parts": {"answer": float("inf")}}, "part answer of role solver, is not a finite number"),
        ({"reward_parts": {f"p{n}": 1.0 for n in range(17)}}, "role solver: 17 reward_parts, at most 16"),
    ],
)
async def test_what_cannot_be_sent_fails_with_the_name_of_the_role(scored: dict[str, object], reason: str) -> None:
    with pytest.raises(EpisodeFailed, match=reason):
        await runner(Giving(**scored)).run(TASK)


class Twice:
    async def run(self, assignment: Assignment, team: Team) -> Episode:
        conversation = team.begin()
        conversation.hear("ab")
        await conversation.speak()
        return Episode((ScoredConversation(conversation, 1.0), ScoredConversation(conversation.fork(), 0.0)))


async def test_a_conversation_that_says_nothing_of_its_own_cannot_be_scored_after_another() -> None:
    with pytest.raises(EpisodeFailed, match="all that scored conversation 2 says is in earlier ones already"):
        await runner(Twice()).run(TASK)


async def test_two_executions_of_a_task_are_two_runs() -> None:
    one = runner(TwoCandidates(), {name: role(EchoSampler(), name) for name in ("solver", "selector")})
    first, second = [await one.run(TASK) for _ in range(2)]
    assert [row.trajectory_id for row in first] == [row.trajectory_id for row in second]
    assert {row.message_id for row in first}.isdisjoint(row.message_id for row in second)
