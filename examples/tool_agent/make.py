"""Makes what the agent learns from: a tiny Llama with random weights, a tokenizer whose chat template knows tools, and
boxes to open.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from examples.largest_digit import write_rows
from examples.tiny_model import make_model

BOXES = 4
MARKS = ("<end>", "<user>", "<assistant>", "<tool>", "<tools>")
CALL = '<tool_call>{"name": "open", "arguments": {"box": '
ENDS = tuple(f"{box}}}}}</tool_call>" for box in range(BOXES))
"""A call is two tokens, as tokenizers have one for what is often said."""
PIECES = (*MARKS, CALL, *ENDS, *map(str, range(BOXES)), "?")
TEMPLATE = """\
{%- if tools %}<tools>{% endif %}
{%- for message in messages %}<{{ message.role }}>{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}<end>
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
_HELD_OUT = 25


def make_tokenizer(folder: Path) -> None:
    """A token for every piece; anything else is the last."""
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, PIECES[-1]))
    longest = "|".join(map(re.escape, (CALL, *ENDS)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{longest}|."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    end, *others = MARKS
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        additional_special_tokens=others,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def make_prompts(folder: Path, *, seed: int) -> None:
    """A box to look into, and what is in all of them, which only the tool tells."""
    insides = ["".join(map(str, drawn)) for drawn in itertools.product(range(BOXES), repeat=BOXES)]
    chance = random.Random(seed)  # noqa: S311 - no secret
    chance.shuffle(insides)
    rows = [{"prompt": str(number % BOXES), "boxes": boxes} for number, boxes in enumerate(insides)]
    write_rows(rows[:_HELD_OUT], folder / "held-out.jsonl")
    write_rows(rows[_HELD_OUT:], folder / "train.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make_tokenizer(arguments.folder / "model")
    make_model(arguments.folder / "model", characters=PIECES, end=PIECES.index(MARKS[0]), seed=arguments.seed)
    make_prompts(arguments.folder, seed=arguments.seed)


if __name__ == "__main__":
    main()
