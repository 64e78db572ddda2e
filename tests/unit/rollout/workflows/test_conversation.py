"""Conversations: every token with its producer, limits that become a finish, forks, and chats that only append."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.polling import within
from tests.support.rollout.speakers import (
    END_OF_TURN,
    EchoSampler,
    alone,
    assignment,
    chat_tokenizer,
    role,
)
from trimtab.fabric.wire.spans import Producer, Span, model_span
from trimtab.fabric.wire.trajectory import Finish
from trimtab.rollout.engines.contract import EngineOverloaded, SamplingSettings
from trimtab.rollout.policy.sampler import Completion, Listener, PolicySampler
from trimtab.rollout.workflows.conversation import Sampler
from trimtab.rollout.workflows.rehearsal import Script
from trimtab.rollout.workflows.team import Conversation, NoRoom, Team, Tokenizer, WorkflowError

CHAT = Tokenizer.of(chat_tokenizer())


def begin(sampler: Sampler, **limits: Any) -> Conversation:
    return Team({"solver": role(sampler)}, assignment()).begin(**limits)


def begin_chat(sampler: Sampler, *, max_new_tokens: int = 40, **limits: Any) -> Conversation:
    named = role(sampler, tokenizer=CHAT, max_new_tokens=max_new_tokens)
    return Team({"solver": named}, assignment()).begin(**limits)


def text_of(conversation: Conversation) -> str:
    return "".join(map(chr, conversation.token_ids))


async def test_a_conversation_remembers_every_token_with_its_producer() -> None:
    sampler = EchoSampler()
    conversation = begin(sampler)
    conversation.hear("ab")
    assert await conversation.speak() == "ba"
    conversation.hear("c")
    sampler.version = 4
    assert await conversation.speak() == "ca"
    assert conversation.token_ids == [97, 98, 98, 97, 99, 99, 97]
    assert alone(conversation).logprobs == [-0.5] * 4
    assert conversation.turns == 2
    assert alone(conversation).spans == (
        Span(2, Producer.PROMPT),
        model_span(2, version=3),
        Span(1, Producer.ENVIRONMENT),
        model_span(2, version=4),
    )
    assert len({settings.seed for settings in sampler.asked}) == 2


async def test_what_nobody_answered_is_no_part_of_the_trajectory() -> None:
    conversation = begin(EchoSampler())
    conversation.hear("ab")
    await conversation.speak()
    conversation.hear("never answered")
    assert len(conversation.token_ids) == 4
    assert conversation.finish is Finish.STOP


async def test_speaking_before_anything_was_heard_is_named_by_role_and_turn() -> None:
    conversation = begin(EchoSampler())
    conversation.hear("")
    with pytest.raises(WorkflowError, match="role solver, turn 1: nothing to answer"):
        await conversation.speak()


async def test_an_engine_that_fails_is_named_by_role_and_turn_and_leaves_no_trace() -> None:
    conversation = begin(EchoSampler(fails=EngineOverloaded("full")))
    conversation.hear("ab")
    with pytest.raises(EngineOverloaded, match="role solver, turn 1: full"):
        await conversation.speak()
    assert (conversation.turns, conversation.token_ids) == (0, [])


async def test_at_its_last_turn_a_conversation_that_hears_more_has_finished_by_turns() -> None:
    conversation = begin(EchoSampler(), max_turns=2)
    conversation.hear("ab")
    await conversation.speak()
    conversation.hear("c")
    assert (conversation.over, conversation.finish) == (False, Finish.STOP)
    await conversation.speak()
    assert (conversation.over, conversation.finish) == (True, Finish.STOP)
    conversation.hear("d")
    assert conversation.finish is Finish.TURNS
    with pytest.raises(NoRoom, match="role solver, turn 3: .* at most 2 turns"):
        await conversation.speak()


@pytest.mark.parametrize(("asked", "tokens"), [(None, 10), (7, 7), (12, 10)])
async def test_no_conversation_is_longer_than_its_policy_reads(asked: int | None, tokens: int) -> None:
    sampler = Script("abcdefghij")
    reader = replace(role(sampler, max_new_tokens=20), context_tokens=10)
    limits: dict[str, Any] = {} if asked is None else {"max_tokens": asked}
    conversation = Team({"solver": reader}, assignment()).begin(**limits)
    conversation.hear("1234")
    await conversation.speak()
    assert len(conversation.token_ids) == tokens
    assert (conversation.over, conversation.finish) == (True, Finish.LENGTH)


async def test_the_token_budget_cuts_the_last_words_and_then_ends_the_conversation() -> None:
    sampler = Script("abc", "defgh")
    conversation = begin(sampler, max_tokens=10)
    conversation.hear("1234")
    await conversation.speak()
    conversation.hear("5")
    assert await conversation.speak() == "de"
    assert [settings.max_new_tokens for settings in sampler.asked] == [6, 2]
    assert len(conversation.token_ids) == 10
    assert (conversation.over, conversation.finish) == (True, Finish.LENGTH)


async def test_words_that_leave_no_room_for_an_answer_end_the_conversation_by_length() -> None:
    conversation = begin(Script("ab"), max_tokens=10)
    conversation.hear("1234")
    await conversation.speak()
    conversation.hear("5678")
    assert (conversation.over, conversation.finish) == (True, Finish.LENGTH)
    with pytest.raises(NoRoom, match="10 tokens"):
        await conversation.speak()


@pytest.mark.parametrize("limits", [{"max_turns": 0}, {"max_tokens": -1}])
def test_a_limit_below_one_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(WorkflowError, match="at least 1"):
        begin(EchoSampler(), **limits)


async def test_forks_share_the_beginning_and_draw_their_own_words() -> None:
    sampler = Script("ab", "cd", "ef")
    trunk = begin(sampler)
    trunk.hear("1")
    await trunk.speak()
    trunk.hear("2")
    branch = trunk.fork()
    assert (await trunk.speak(), await branch.speak()) == ("cd", "ef")
    assert sampler.heard == ["1", "1ab2", "1ab2"]
    assert text_of(trunk) == "1ab2cd"
    assert text_of(branch) == "1ab2ef"
    assert (alone(trunk).spans, alone(trunk).logprobs) == (alone(branch).spans, alone(branch).logprobs)
    assert len({settings.seed for settings in sampler.asked}) == 3
    assert len(set(sampler.request_ids)) == 3


async def test_what_a_fork_hears_is_not_heard_by_the_other() -> None:
    sampler = Script("a", "b")
    trunk = begin(sampler)
    trunk.hear("1")
    branch = trunk.fork()
    branch.hear("2")
    await trunk.speak()
    await branch.speak()
    assert sampler.heard == ["1", "12"]


async def test_two_conversations_of_a_role_draw_different_words() -> None:
    sampler = Script("a", "b")
    team = Team({"solver": role(sampler)}, assignment())
    for conversation in (team.begin(), team.begin()):
        conversation.hear("same")
        await conversation.speak()
    assert len({settings.seed for settings in sampler.asked}) == 2
    assert len(set(sampler.request_ids)) == 2


class HeldSampler(PolicySampler):
    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def complete(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        deadline_s: float,
        listener: Listener | None = None,
    ) -> Completion:
        self.asked.set()
        await within(self.go_on.wait(), 10.0)
        return Completion(token_ids=(7,), logprobs=(-0.5,), spans=(model_span(1, version=0),), finish="stop")


async def test_while_it_speaks_nothing_else_can_be_said_or_heard() -> None:
    sampler = HeldSampler()
    conversation = begin(sampler)
    conversation.hear("ab")
    first = asyncio.create_task(conversation.speak())
    await within(sampler.asked.wait(), 10.0)
    with pytest.raises(WorkflowError, match="still speaking"):
        await conversation.speak()
    with pytest.raises(WorkflowError, match="still speaking"):
        conversation.hear("c")
    branch = conversation.fork()
    sampler.go_on.set()
    await first
    await branch.speak()
    assert conversation.token_ids == branch.token_ids == [97, 98, 7]


async def test_a_chat_is_what_its_template_writes_token_for_token() -> None:
    sampler = Script(f"four{END_OF_TURN}", f"six{END_OF_TURN}", tokenizer=CHAT)
    chat = begin_chat(sampler)
    chat.hear([{"role": "system", "content": "Be brief."}])
    chat.hear("2+2?")
    assert await chat.speak() == "four"
    chat.hear("3+3?")
    assert await chat.speak() == "six"
    whole = chat_tokenizer().apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "four"},
            {"role": "user", "content": "3+3?"},
            {"role": "assistant", "content": "six"},
        ],
        tokenize=False,
    )
    assert chat.token_ids == CHAT.encode(str(whole).rstrip("\n"))
    producers = [span.producer for span in alone(chat).spans]
    assert producers == [Producer.PROMPT, Producer.MODEL, Producer.ENVIRONMENT, Producer.MODEL]
    model_tokens = [span.length for span in alone(chat).spans if span.producer is Producer.MODEL]
    assert model_tokens == [len("four") + 1, len("six") + 1]


async def test_in_a_chat_what_was_sampled_stays_though_the_template_would_drop_it() -> None:
    sampler = Script(f"<think>hm</think>four{END_OF_TURN}", f"six{END_OF_TURN}", tokenizer=CHAT)
    chat = begin_chat(sampler)
    chat.hear("2+2?")
    await chat.speak()
    before = list(chat.token_ids)
    chat.hear("3+3?")
    await chat.speak()
    assert sampler.prompts[1][: len(before)] == before
    assert chat_tokenizer().decode(sampler.prompts[1]).count("<think>hm</think>four<|im_end|>\n<|im_start|>user") == 1


async def test_in_a_chat_a_turn_that_was_cut_is_closed_by_the_environment() -> None:
    sampler = Script(f"four{END_OF_TURN}", f"six{END_OF_TURN}", tokenizer=CHAT)
    chat = begin_chat(sampler, max_new_tokens=3)
    chat.hear("2+2?")
    assert await chat.speak() == "fou"
    chat.hear("3+3?")
    await chat.speak()
    assert "fou<|im_end|>\n<|im_start|>user\n3+3?<|im_end|>" in chat_tokenizer().decode(chat.token_ids)
    assert alone(chat).spans[1] == model_span(3, version=0)


async def test_a_turn_may_end_at_a_text_of_its_own_and_go_on() -> None:
    sampler = Script(f"<think>hm</think>four{END_OF_TURN}", f" is it.{END_OF_TURN}", "six", tokenizer=CHAT)
    chat = begin_chat(sampler)
    chat.hear("two and two?")
    assert await chat.speak(stop="</think>") == "<think>hm</think>"
    assert await chat.speak(stop=["never"], max_tokens=4) == " is "
    assert chat.finish is Finish.LENGTH, "it was cut"
    assert [(asked.stop, asked.max_new_tokens) for asked in sampler.asked] == [(("</think>",), 40), (("never",), 4)]
    chat.hear("and six?")
    assert await chat.speak() == "six"
    assert sampler.asked[-1].stop == ()
    with pytest.raises(WorkflowError, match=r"nothing to answer; call hear\(\)"):
        await chat.speak()
    row = alone(chat)
    producers = [Producer.PROMPT, Producer.MODEL, Producer.ENVIRONMENT, Producer.MODEL]
    assert [span.producer for span in row.spans] == producers, "both turns without a word of others between them"
    for wrong in ({"stop": ""}, {"max_tokens": 0}):
        with pytest.raises(WorkflowError, match=r"texts to stop at and at least 1 token"):
            await chat.speak(**wrong)


async def test_in_a_chat_an_empty_message_is_a_message() -> None:
    chat = begin_chat(Script(f"four{END_OF_TURN}", f"six{END_OF_TURN}", tokenizer=CHAT))
    chat.hear("2+2?")
    await chat.speak()
    chat.hear("")
    await chat.speak()
    assert "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\nsix" in chat_tokenizer().decode(chat.token_ids)


async def test_a_chat_does_not_go_on_after_its_own_end() -> None:
    chat = begin_chat(Script(f"four{END_OF_TURN}", tokenizer=CHAT))
    chat.hear("2+2?")
    await chat.speak()
    with pytest.raises(WorkflowError, match="role solver, turn 2: nothing to answer"):
        await chat.speak()


async def test_the_token_budget_of_a_chat_counts_what_the_template_adds() -> None:
    chat = begin_chat(Script(f"four{END_OF_TURN}", tokenizer=CHAT), max_tokens=40)
    chat.hear("2+2?")
    assert not chat.over
    await chat.speak()
    chat.hear("3+3?")
    assert (chat.over, chat.finish) == (True, Finish.LENGTH)


def test_without_a_template_messages_are_refused() -> None:
    with pytest.raises(WorkflowError, match="policy solver has no chat template"):
        begin(EchoSampler(), chat=True)
    with pytest.raises(WorkflowError, match="role solver, turn 1: messages need a chat"):
        begin(EchoSampler()).hear([{"role": "user", "content": "a"}])


async def test_with_a_template_plain_text_can_still_be_had() -> None:
    sampler = Script("b", tokenizer=CHAT)
    conversation = begin_chat(sampler, chat=False)
    conversation.hear("a")
    await conversation.speak()
    assert sampler.heard == ["a"]


async def test_a_template_that_forgets_what_the_assistant_said_is_refused() -> None:
    forgetful = Tokenizer.of(chat_tokenizer("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"))
    sampler = Script("b", tokenizer=forgetful)
    chat = Team({"solver": role(sampler, tokenizer=forgetful)}, assignment()).begin()
    chat.hear("a")
    await chat.speak()
    chat.hear("c")
    with pytest.raises(WorkflowError, match="does not repeat what the assistant said"):
        await chat.speak()


async def test_in_a_chat_a_recalled_turn_is_an_answer_token_for_token() -> None:
    sampler = Script(f"<think>long</think>sum{END_OF_TURN}", f"six{END_OF_TURN}", tokenizer=CHAT)
    team = Team({"solver": role(sampler, tokenizer=CHAT, max_new_tokens=40)}, assignment())
    long = team.begin()
    long.hear("Sum it up.")
    await long.speak()
    short = team.begin()
    with pytest.raises(WorkflowError, match="call hear\\(\\) before recall\\(\\)"):
        short.recall(long.spoken[-1])
    short.hear("The task.")
    short.recall(long.spoken[-1])
    short.hear("Go on.")
    assert await short.speak() == "six"
    assert chat_tokenizer().decode(short.token_ids) == (
        "<|im_start|>user\nThe task.<|im_end|>\n<|im_start|>assistant\n<think>long</think>sum<|im_end|>\n"
        "<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\nsix<|im_end|>"
    )
    assert (short.turns, len(short.spoken)) == (1, 1)


async def test_what_another_role_said_cannot_be_recalled() -> None:
    team = Team({name: role(EchoSampler(), name) for name in ("solver", "critic")}, assignment())
    critic, solver = team.begin("critic"), team.begin("solver")
    critic.hear("ab")
    await critic.speak()
    with pytest.raises(WorkflowError, match="a turn of role critic cannot be recalled; hear"):
        solver.recall(critic.spoken[0])


def test_what_was_not_said_cannot_be_rewarded() -> None:
    with pytest.raises(WorkflowError, match="there is no turn to reward"):
        begin(EchoSampler()).reward_turn(1.0)


async def test_a_conversation_may_be_forked_after_any_of_its_turns() -> None:
    sampler = Script("ab", "cd", "ef")
    trunk = begin(sampler)
    for words in ("1", "2"):
        trunk.hear(words)
        await trunk.speak()
    branch = trunk.fork_after(trunk.spoken[0])
    assert (text_of(branch), branch.turns, branch.spoken) == ("1ab", 1, trunk.spoken[:1])
    turn = await branch.speak_after([51], sampling=branch.role.sampling)
    assert (text_of(branch), text_of(trunk)) == ("1ab3ef", "1ab2cd")
    assert branch.spoken == (trunk.spoken[0], turn)
    seeds = [settings.seed for settings in sampler.asked]
    assert len(set(seeds)) == 3


async def test_tokens_may_be_heard_with_other_settings_and_another_seed() -> None:
    sampler = Script("abcdef", "gh")
    conversation = begin(sampler, max_tokens=8)
    await conversation.speak_after([49, 50], sampling=SamplingSettings(max_new_tokens=3, temperature=0.5), seed=7)
    assert (sampler.asked[0].max_new_tokens, sampler.asked[0].temperature, sampler.asked[0].seed) == (3, 0.5, 7)
    with pytest.raises(NoRoom, match="8 tokens"):
        await conversation.speak_after([49, 50, 51], sampling=conversation.role.sampling)
    conversation.hear("not answered")
    with pytest.raises(WorkflowError, match="has heard words that it did not answer"):
        await conversation.speak_after([49], sampling=conversation.role.sampling)
    with pytest.raises(WorkflowError, match="needs the tokens of a prompt"):
        await begin(Script("a")).speak_after([], sampling=conversation.role.sampling)
