"""What a step is timed on: a small model with a real vocabulary, and answers of long-tailed lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import Episode, Group
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch import Row, sole_row
from trimtab.trainer.row_rewards import RowRewards

POLICY = "solver"
VOCABULARY = 32_000
GROUP_SIZE = 8
CLIP = 0.2
LEARNING_RATE = 1e-6
NEVER_CLIPPED = 1e6
"""A limit on the gradient's norm that is computed and never reached, so that gradients can be compared."""
MICRO_BATCH_ROWS = 8
_PROMPT_TOKENS = 16
_DRIFT = 0.1
"""How far the logprobs of the policy that sampled are from the present one's: some ratios are beyond the clip."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Of answers: lognormal, cut off at `longest`."""

    median: int = 24
    spread: float = 1.25
    longest: int = 512

    def draw(self, count: int, *, seed: int) -> list[int]:
        drawn = np.random.default_rng(seed).lognormal(np.log(self.median), self.spread, count)
        return [int(length) for length in np.clip(drawn.round(), 1, self.longest)]


def make_model(folder: Path, *, seed: int) -> None:
    """23 million weights, of which half are the embeddings, with a tokenizer that only TRL asks for."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer(models.WordLevel(words, "w2")), pad_token="w0", eos_token="w1", unk_token="w2"
    )
    tokenizer.save_pretrained(folder)


def grpo_policy(*, micro_batch_tokens: int, dtype: str = "bfloat16") -> Policy:
    return Policy.model_validate(
        {
            "name": POLICY,
            "model": {"uri": "model"},
            "algorithm": {
                "name": "grpo",
                "clip": {"low": CLIP, "high": CLIP},
                "optimizer": {"learningRate": LEARNING_RATE, "beta2": 0.999, "maxGradNorm": NEVER_CLIPPED},
            },
            "trainer": {
                "dtype": dtype,
                "microBatchTokens": micro_batch_tokens,
                "gradientCheckpointing": False,
                "checkpoint": {"everySteps": 1_000_000},
            },
        }
    )


def make_rows(model_path: Path, *, count: int, lengths: Lengths, seed: int) -> list[Row]:
    """In the order of their arrival: groups of one prompt, rewards at random."""
    model = LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    chance = np.random.default_rng(seed)
    rule = AdvantageRule(longest_answer=lengths.longest)
    answers = lengths.draw(count, seed=seed)
    rows: list[Row] = []
    for first in range(0, count, GROUP_SIZE):
        prompt = chance.integers(3, VOCABULARY, _PROMPT_TOKENS)
        rewards = tuple(chance.random(GROUP_SIZE).tolist())
        episodes = tuple(
            Episode(reward=reward, trained_tokens=answers[first + place]) for place, reward in enumerate(rewards)
        )
        group = rule.group(Group(group_id=f"g{first}", prompt_id=f"p{first}", episodes=episodes))
        for place, episode in enumerate(episodes):
            ids = np.concatenate([prompt, chance.integers(3, VOCABULARY, answers[first + place])]).astype(np.int32)
            mask = np.arange(len(ids)) >= _PROMPT_TOKENS
            noise = chance.normal(0.0, _DRIFT, len(ids))
            advantages = np.zeros(len(ids), dtype=np.float32)
            advantages[mask] = group.of(
                RowRewards(reward=episode.reward, episode=episode, trained_tokens=episode.trained_tokens)
            )
            rows.append(
                Row(
                    key=first + place,
                    episode=sole_row(first + place, mask),
                    token_ids=ids,
                    logprobs=np.where(mask, np.minimum(_logprobs(model, ids) + noise, 0.0), 0.0).astype(np.float32),
                    mask=mask,
                    versions=np.where(mask, 0, -1),
                    advantages=advantages,
                )
            )
    return rows


def prompt_tokens(row: Row) -> int:
    return len(row.token_ids) - row.trained_tokens


def max_over_mean(rows: Sequence[Row]) -> float:
    """Of the lengths of answers."""
    tokens = [row.trained_tokens for row in rows]
    return max(tokens) / (sum(tokens) / len(tokens))


@torch.no_grad()
def _logprobs(
    model: LlamaForCausalLM, ids: np.ndarray[tuple[int], np.dtype[np.int32]]
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    tokens = torch.from_numpy(ids.astype(np.int64))
    logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
    chosen = torch.log_softmax(logits, dim=-1).gather(-1, tokens[1:, None])[:, 0]
    return np.concatenate([[0.0], chosen.numpy()]).astype(np.float32)
