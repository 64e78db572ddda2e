"""The contract suite that the built-in engine passes, asked of a real SGLang; and its numbers, against transformers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.support.contract.engine import Engine, tokens_of
from tests.support.contract.model import make_long_winded_model
from tests.support.contract.transformers_reference import assert_logprobs, greedy
from tests.support.sglang.launched import LaunchedSGLang

_SUITE = tuple(f"tests/contract/test_{name}.py" for name in ("generate", "stream", "control", "score"))
_SUITE_S = 900.0
_TEXTS = ("The capital of France is", "def fibonacci(n):", "Water boils faster in the mountains because the air")
_COUNT = 16


async def test_the_contract_suite_passes(interpreter: Path, tmp_path: Path) -> None:
    make_long_winded_model(tmp_path / "model")
    launched = LaunchedSGLang(tmp_path / "model", interpreter=interpreter, folder=tmp_path)
    try:
        await launched.wait_ready()
        command = [sys.executable, "-m", "pytest", "-q", *_SUITE]
        environment = os.environ | {"TRIMTAB_ENGINE_URL": launched.url}
        suite = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, timeout=_SUITE_S
        )
    finally:
        launched.stop()
    assert suite.returncode == 0, suite.stdout
    # Seeds repeat tokens only with kernels that a CPU does not have; everything else must have run.
    assert "1 skipped" in suite.stdout


async def test_greedy_is_transformers_token_for_token_and_logprobs_agree(engine: Engine, smollm2_folder: Path) -> None:
    torch.set_num_threads(1)  # threads that wait for one another crawl on a busy machine
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    prompts = [list(tokenizer.encode(text).ids) for text in _TEXTS]
    answers = await asyncio.gather(
        *(engine.generate(prompt, max_new_tokens=_COUNT, temperature=0) for prompt in prompts)
    )
    for prompt, answer in zip(prompts, answers, strict=True):
        assert tokens_of(answer) == greedy(model, prompt, count=_COUNT)
        assert_logprobs(model, prompt, answer)
