"""A real step pair: SmolLM2-135M after a few steps of policy gradient on its own samples, on the CPU.

Forward and backward passes run in bf16 and AdamW on fp32 masters, as in mixed-precision training. The reward is a plain
function of the text (short words are better): what matters here is that gradients are those of a real model.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from benchmarks.report import note
from benchmarks.weights.simulation import WARM_UP_STEPS, StepPair
from benchmarks.weights.sizes import measure
from examples.pretrained_model import load
from trimtab.weights.codec.change import Bytes
from trimtab.weights.layout import StateLayout

_RATES = (1e-6, 1e-5)
_GROUP = 8
_NEW_TOKENS = 48
_CLIP = 1.0
_SEED = 7
_PROMPTS = (
    "Once upon a time there was a",
    "The best way to learn a language is",
    "When the train finally arrived, everybody",
    "Water boils faster in the mountains because",
    "My grandmother always used to say that",
    "To bake a loaf of bread you need",
)


def measure_real() -> dict[str, object]:
    """All sizes of the step after the warm-up, for every learning rate."""
    # Sums depend on how work is split over threads, and threads that wait for one another crawl on a busy machine.
    torch.set_num_threads(1)
    loaded = load()
    figures: dict[str, object] = {
        "model": "SmolLM2-135M-Instruct, from Q4_1 with noise in place of its rounding error",
        "loss": "policy gradient, advantages normalised in a group of samples",
        "tokens_per_step": _GROUP * _NEW_TOKENS,
    }
    for rate in _RATES:
        model = copy.deepcopy(loaded.model).bfloat16()
        layout = StateLayout.of({name: ("BF16", tuple(tensor.shape)) for name, tensor in model.named_parameters()})
        sizes = measure(_train(model, loaded.tokenizer, layout, rate), layout)
        figures[f"rate_{rate:g}"] = {
            "parameters": sizes.tally.weights,
            "blocks": len(layout.blocks),
            "sparsity": round(sizes.tally.sparsity, 5),
            "auto_modes": dict(sizes.modes),
            "bytes": {name: round(size) for name, size in sizes.by_format.items()},
            "scaled_mb": sizes.scaled_mb(),
        }
        note(f"SmolLM2-135M at {rate:g}: {figures[f'rate_{rate:g}']}")
    return figures


def _train(model: LlamaForCausalLM, tokenizer: Tokenizer, layout: StateLayout, rate: float) -> StepPair:
    torch.manual_seed(_SEED)
    parameters = list(model.parameters())
    masters = [torch.nn.Parameter(parameter.detach().float()) for parameter in parameters]
    optimizer = torch.optim.AdamW(masters, lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / WARM_UP_STEPS, 1.0))
    base = _content(model, layout)
    for step in range(WARM_UP_STEPS + 1):
        started = time.monotonic()
        base = _content(model, layout)
        loss = _policy_gradient(model, tokenizer, _PROMPTS[step % len(_PROMPTS)])
        for master, parameter in zip(masters, parameters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        norm = float(torch.nn.utils.clip_grad_norm_(masters, _CLIP))
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for master, parameter in zip(masters, parameters, strict=True):
                parameter.copy_(master)
        note(f"rate {rate:g} step {step}: loss {loss:.3f}, gradient {norm:.2f}, {time.monotonic() - started:.1f} s")
    return StepPair(base, _content(model, layout))


def _policy_gradient(model: LlamaForCausalLM, tokenizer: Tokenizer, prompt: str) -> float:
    """Samples a group of completions and leaves the gradient of their advantage-weighted log-probabilities."""
    ids = torch.tensor([tokenizer.encode(prompt).ids] * _GROUP)
    samples = model.generate(  # type: ignore[misc]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=_NEW_TOKENS, min_new_tokens=_NEW_TOKENS, do_sample=True
    )
    rewards = torch.tensor(_rewards(tokenizer, samples[:, ids.shape[1] :].tolist()))
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    logits = model(input_ids=samples).logits[:, ids.shape[1] - 1 : -1].float()
    losses = cross_entropy(logits.flatten(0, 1), samples[:, ids.shape[1] :].flatten(), reduction="none")
    loss = (losses.view(_GROUP, -1).mean(1) * advantages).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def _rewards(tokenizer: Tokenizer, samples: Sequence[list[int]]) -> list[float]:
    words = [tokenizer.decode(sample).split() for sample in samples]
    return [-sum(map(len, text)) / max(len(text), 1) for text in words]


def _content(model: LlamaForCausalLM, layout: StateLayout) -> Bytes:
    """The weights as they lie in a file of that layout."""
    content = np.empty(layout.data_bytes, dtype=np.uint8)
    parameters = dict(model.named_parameters())
    for tensor in layout.tensors:
        parameter = parameters[tensor.name].detach().contiguous()
        content[tensor.start : tensor.end] = parameter.view(torch.uint8).numpy().ravel()
    return content
