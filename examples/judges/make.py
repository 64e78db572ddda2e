"""Makes what solver, judge and verifier begin with: tiny Llamas, and letters to decipher.

Each letter stands for two digits, and a solver names one after the other (`f>1|2`). It begins half taught, so that each
way of scoring its steps has something to work with. The judge is taught what is right, and its adversary says the
opposite.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from examples.tiny_model import let_others_read, make_model, make_tokenizer

DIGITS = "012"
LETTERS = "abcdefghi"
CHARACTERS = f"{LETTERS}{DIGITS}>|?RW "
BEGINS_AT = 0.25
"""Of the solver's outcomes that are right, when it begins."""
_JUDGES_AT = 0.95
_MOST_UPDATES = 500
_RATE = 3e-3
_SCALE = 5.0
"""Of the random weights that are taught: with those of the library, what two tokens say together is found out late."""
_BATCH = 256

Row = tuple[str, str]
"""What is read, and the characters to learn at its end. Between them lies nothing."""


def problems(*, seed: int) -> list[tuple[str, str, str]]:
    """Prompt, first and second digit."""
    pairs = itertools.product(DIGITS, repeat=2)
    rows = [(f"{letter}>", first, second) for letter, (first, second) in zip(LETTERS, pairs, strict=True)]
    random.Random(seed).shuffle(rows)  # noqa: S311 - no secret
    return rows


def solutions(rows: Sequence[tuple[str, str, str]]) -> list[Row]:
    return [(prompt, first) for prompt, first, _ in rows] + [
        (f"{prompt}{first}|", second) for prompt, first, second in rows
    ]


def verdicts(rows: Sequence[tuple[str, str, str]]) -> list[Row]:
    """1 for a right step, 0 for a wrong one, with half of the steps right."""
    found = []
    for prompt, first, second in rows:
        for said in DIGITS:
            judged = [(f"{prompt}|{said}?", "1" if said == first else "0")]
            judged += [(f"{prompt}{said}|{other}?", "1" if other == second else "0") for other in DIGITS]
            for row in judged:
                found += [row] * (2 if row[1] == "1" else 1)
    return found


def words(rows: Sequence[tuple[str, str, str]], *, chance: random.Random) -> list[Row]:
    """A verifier that knows how to answer, and nothing else."""
    return [(read, chance.choice("RW")) for read, _ in verdicts(rows)]


def teach(folder: Path, rows: Sequence[Row], *, seed: int, until: float) -> None:
    """Until the mean probability of what is to be learnt is this."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 2:
                weights.mul_(_SCALE)
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    by_length: dict[int, list[Row]] = {}
    for row in rows:
        by_length.setdefault(len(row[0]), []).append(row)
    batches = [
        (
            torch.tensor([[CHARACTERS.index(c) for c in read] for read, _ in same]),
            torch.tensor([CHARACTERS.index(answer) for _, answer in same]),
        )
        for same in by_length.values()
    ]
    for _ in range(_MOST_UPDATES):
        right = []
        for read, answers in batches:
            drawn = torch.randint(len(answers), (min(_BATCH, len(answers)),))
            logits = model(input_ids=read[drawn]).logits[:, -1]
            loss = torch.nn.functional.cross_entropy(logits, answers[drawn])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right.append(torch.softmax(logits.detach(), -1).gather(1, answers[drawn, None]).mean())
        if torch.stack(right).mean() >= until:
            break
    model.save_pretrained(folder)
    let_others_read(folder)


def turn_round(judge: Path, adversary: Path) -> None:
    """The same model, which says 0 where the judge says 1, and 1 where it says 0."""
    shutil.copytree(judge, adversary, dirs_exist_ok=True)
    model = LlamaForCausalLM.from_pretrained(judge)
    with torch.no_grad():
        rows = [CHARACTERS.index(verdict) for verdict in "01"]
        model.lm_head.weight[rows] = model.lm_head.weight[rows[::-1]].clone()
    model.save_pretrained(adversary)
    let_others_read(adversary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder, seed = arguments.folder, arguments.seed
    rows = problems(seed=seed)
    taught = {
        "solver": (solutions(rows), BEGINS_AT**0.5),
        "judge": (verdicts(rows), _JUDGES_AT),
        "verifier": (words(rows, chance=random.Random(seed)), 0.45),  # noqa: S311 - no secret
    }
    for number, (policy, (learnt, until)) in enumerate(taught.items()):
        model = folder / f"{policy}-model"
        make_tokenizer(model, characters=CHARACTERS)
        make_model(model, characters=CHARACTERS, seed=3 * seed + number)
        teach(model, learnt, seed=seed, until=until)
    turn_round(folder / "judge-model", folder / "adversary-model")
    lines = [json.dumps({"prompt": prompt, "answer": f"{first}\n{second}"}) + "\n" for prompt, first, second in rows]
    (folder / "train.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
