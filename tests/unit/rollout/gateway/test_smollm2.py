"""A tokenizer that people use: what is appended turn by turn is what the whole conversation is encoded as."""

from __future__ import annotations

import itertools
import random

import pytest
from transformers import PreTrainedTokenizerFast

from tests.support.gateway.agents import Agent, sayings
from tests.support.gateway.talkers import Talker, session_of
from tests.support.gateway.tokenizers import FOLDER
from tests.support.gateway.trained import check_trained
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.exchange import Ask, Said
from trimtab.rollout.tokenizer import Tokenizer
from trimtab.rollout.workflows.team import Role

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pretrained() -> PreTrainedTokenizerFast:
    from examples.pretrained_model import load_tokenizer

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=load_tokenizer(), clean_up_tokenization_spaces=False)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    return tokenizer


def speaker(pretrained: PreTrainedTokenizerFast, template: str) -> tuple[Tokenizer, int]:
    pretrained.chat_template = (FOLDER / f"{template}.jinja").read_text(encoding="utf-8")
    return Tokenizer.of(pretrained), pretrained.eos_token_id


@pytest.mark.parametrize("template", ["smollm2", "qwen2.5"])
async def test_turns_that_are_spelt_as_the_encoder_does_make_the_tokens_of_the_whole(
    pretrained: PreTrainedTokenizerFast, template: str
) -> None:
    tokenizer, end = speaker(pretrained, template)
    assert tokenizer.render is not None
    # None begins with a space: the encoder would join it to the line break before it, which nobody sampled.
    says = ("The harbour was quiet.", "Two  spaces, 1234 digits\n\nand lines", "é and 漢字")
    talker = Talker(tokenizer, lambda number: says[number], end=end, misspelt=0.0)
    session = session_of(Role("solver", "solver", tokenizer, talker, SamplingSettings(max_new_tokens=200)))
    history: list[Said] = []
    for number in range(len(says)):
        history.append(Said(speaker="user", text=f"Question {number}?"))
        (answer,) = await session.ask(Ask(role="solver", messages=tuple(history)))
        assert answer.said.text == says[number]
        shown = tokenizer.render([{"role": one.speaker, "content": one.text} for one in history], {})
        assert list(talker.requests[-1].prompt) == tokenizer.encode(shown)
        history.append(answer.said)
    assert len(session.scored(1.0)) == 1
    check_trained(session, talker)


@pytest.mark.parametrize("template", ["smollm2", "qwen2.5"])
async def test_an_answer_that_begins_with_spaces_is_sent_back_as_it_was_sampled(
    pretrained: PreTrainedTokenizerFast, template: str
) -> None:
    tokenizer, end = speaker(pretrained, template)
    assert tokenizer.render is not None
    says = ("  Two spaces, 1234 digits\n\nand lines", "so")
    talker = Talker(tokenizer, lambda number: says[number], end=end, misspelt=0.0)
    session = session_of(Role("solver", "solver", tokenizer, talker, SamplingSettings(max_new_tokens=200)))
    history = [Said(speaker="user", text="Question?")]
    (answer,) = await session.ask(Ask(role="solver", messages=tuple(history)))
    history += [answer.said, Said(speaker="user", text="And?")]
    await session.ask(Ask(role="solver", messages=tuple(history)))
    first, second = talker.requests
    begun = first.prompt + first.completion.token_ids
    assert second.prompt[: len(begun)] == begun, "and not as the encoder would write the whole"
    shown = tokenizer.render([{"role": one.speaker, "content": one.text} for one in history], {})
    assert pretrained.decode(list(second.prompt)) == shown
    assert len(session.scored(1.0)) == 1
    check_trained(session, talker)


@pytest.mark.parametrize(("template", "seed"), list(itertools.product(["smollm2", "qwen2.5", "qwen3"], range(5))))
async def test_every_sampled_token_is_trained_once_as_it_was_sampled(
    pretrained: PreTrainedTokenizerFast, template: str, seed: int
) -> None:
    tokenizer, end = speaker(pretrained, template)
    talker = Talker(tokenizer, sayings(template, random.Random(seed)), end=end, seed=seed)
    session = session_of(Role("solver", "solver", tokenizer, talker, SamplingSettings(max_new_tokens=200)))
    await Agent(session, "solver", seed=seed, faithful=False, tools=template != "smollm2").run(15)
    check_trained(session, talker)
