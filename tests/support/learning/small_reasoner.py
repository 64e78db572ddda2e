"""A tiny Llama that has seen chains being worked out, with many of the results wrong: it has the form of an answer, and
is right often enough to learn from its rewards.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from examples.tiny_model import let_others_read
from tests.support.learning.digit_chains import Chain, chain

CHARACTERS = "0123456789+-=\n>$"
ASKED, END = ">", "$"
"""Behind a problem, and behind an answer."""
STEPS = 6
"""Of a chain: answers of 35 characters, a token each, and one more for the end."""
_WIDTH = 64
_TAUGHT = 500
_TOGETHER = 32
_RATE = 3e-3
_WARM_UP = 50
_WRONG = 0.3
"""Of the results it is shown."""


def make_reasoner(folder: Path, *, seed: int) -> None:
    """In bfloat16, as pretrained models come."""
    _make_tokenizer(folder)
    model = _taught(seed)
    model.to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]
    let_others_read(folder)


def _make_tokenizer(folder: Path) -> None:
    vocabulary = {character: number for number, character in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, clean_up_tokenization_spaces=False
    ).save_pretrained(folder)


def _taught(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    chance = random.Random(seed)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS),
        hidden_size=_WIDTH,
        intermediate_size=4 * _WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=CHARACTERS.index(END),
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    for step in range(_TAUGHT):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, (step + 1) / _WARM_UP) * (1 - step / _TAUGHT)
        shown = [chain(steps=STEPS, chance=chance) for _ in range(_TOGETHER)]
        texts = [f"{one.problem}{ASKED}{_with_mistakes(one, chance)}{END}" for one in shown]
        ids = torch.tensor([[CHARACTERS.index(character) for character in text] for text in texts])
        labels = ids.clone()
        labels[:, : len(shown[0].problem) + 1] = -100
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
    return model


def _with_mistakes(shown: Chain, chance: random.Random) -> str:
    lines = shown.working.splitlines()
    return "\n".join(f"{line[:-1]}{chance.randint(0, 9)}" if chance.random() < _WRONG else line for line in lines)
