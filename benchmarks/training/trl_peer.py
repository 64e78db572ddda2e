"""Runs inside TRL's own environment: `GRPOTrainer.train`, one optimiser step for every line on standard input.

Only the generation is replaced, by completions from a file: shuffling, splitting, `compute_loss`, `backward`, clipping
and the optimiser are TRL's and transformers'. A step is timed from the callback before it to the one after it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found, unused-ignore]
from trl.trainer.utils import pad  # type: ignore[import-not-found, unused-ignore]


class FromFile(GRPOTrainer):  # type: ignore[misc]
    """Completions as an engine gave them, padded as TRL pads what it generates."""

    completions: dict[str, Any]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        return dict(self.completions)


class Turns(TrainerCallback):
    """Waits for a line before each step and answers with its seconds."""

    def __init__(self, answers: Any, gradients: Path) -> None:
        self._answers = answers
        self._gradients = gradients
        self._began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not sys.stdin.readline():
            control.should_training_stop = True
        self._began = time.perf_counter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            parameters = kwargs["model"].named_parameters()
            save_file({name: tensor.grad for name, tensor in parameters}, self._gradients)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        print(json.dumps({"seconds": time.perf_counter() - self._began}), file=self._answers)


def completions(path: Path) -> dict[str, torch.Tensor]:
    stored = np.load(path)

    def rows(name: str) -> list[torch.Tensor]:
        return [torch.from_numpy(part) for part in np.split(stored[name], stored[f"{name}_ends"])]

    prompts, answers, logprobs = rows("prompts"), rows("answers"), rows("logprobs")
    return {
        "prompt_ids": pad(prompts, padding_value=0, padding_side="left"),
        "prompt_mask": pad([torch.ones_like(row) for row in prompts], padding_value=0, padding_side="left"),
        "completion_ids": pad(answers, padding_value=0, padding_side="right"),
        "completion_mask": pad([torch.ones_like(row) for row in answers], padding_value=0, padding_side="right"),
        "old_per_token_logps": pad(logprobs, padding_value=0.0, padding_side="right"),
        "advantages": torch.from_numpy(stored["advantages"]),
        "num_items_in_batch": torch.tensor(sum(map(len, answers))),
    }


def main() -> None:
    # Whatever libraries print goes to standard error: standard output is for answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    settings = json.loads(sys.argv[1])
    folder = Path(settings["folder"])
    torch.set_num_threads(settings["threads"])
    injected = completions(folder / "completions.npz")
    count = len(injected["advantages"])
    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=settings["micro_batch_rows"],
        gradient_accumulation_steps=count // settings["micro_batch_rows"],
        num_generations=settings["group_size"],
        max_completion_length=injected["completion_ids"].shape[1],
        loss_type="grpo",
        beta=0.0,
        epsilon=settings["clip"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=settings["max_grad_norm"],
        max_steps=1_000_000,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = FromFile(
        model=AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["w3"] * count}),
        callbacks=[Turns(answers, folder / "gradients.safetensors")],
    )
    trainer.completions = injected
    print(json.dumps({"ready": True}), file=answers)
    trainer.train()


if __name__ == "__main__":
    main()
