"""TRL beside us: an environment of its own, made once, and a process in it that makes a step when asked."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.report import note
from benchmarks.training.step_data import (
    CLIP,
    GROUP_SIZE,
    LEARNING_RATE,
    MICRO_BATCH_ROWS,
    NEVER_CLIPPED,
    prompt_tokens,
)
from trimtab.trainer.batch import Row

VERSION = "1.16.0"
_REQUIREMENTS = (f"trl=={VERSION}", "torch==2.15.0", "transformers==5.22.2")
_SCRIPT = Path(__file__).parent / "trl_peer.py"
_INSTALL_S = 1800.0
_START_S = 180.0
_STEP_S = 300.0
_END_S = 20.0


class PeerFailed(RuntimeError):
    """TRL cannot be installed, or its process ended or hangs: the message says which."""


class Trl:
    """The process in the other environment."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._folder = folder

    def step(self) -> float:
        """Seconds of one optimiser step."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed("TRL's process is gone; its last words are above") from None
        return float(str(self.heard(deadline_s=_STEP_S)["seconds"]))

    def first_gradients(self) -> dict[str, torch.Tensor]:
        """Of the first step, by the names of parameters."""
        return load_file(self._folder / "gradients.safetensors")

    def heard(self, *, deadline_s: float) -> dict[str, object]:
        output = self._process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], deadline_s)
        line = output.readline() if ready else b""
        if not line:
            state = "ended; its last words are above" if ready else f"gave no answer within {deadline_s:.0f} s"
            raise PeerFailed(f"TRL's process {state}")
        answer: dict[str, object] = json.loads(line)
        return answer


@contextmanager
def trl_steps(rows: Sequence[Row], *, model_path: Path, folder: Path, threads: int) -> Iterator[Trl]:
    """`GRPOTrainer` on these rows, gone at the end. `folder` is for what the two processes tell each other."""
    python = _environment()
    folder.mkdir()
    _write(rows, folder / "completions.npz")
    settings = {
        "folder": str(folder),
        "model": str(model_path),
        "threads": threads,
        "micro_batch_rows": MICRO_BATCH_ROWS,
        "group_size": GROUP_SIZE,
        "clip": CLIP,
        "learning_rate": LEARNING_RATE,
        "max_grad_norm": NEVER_CLIPPED,
    }
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [str(python), str(_SCRIPT), json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": str(threads)},
    )
    try:
        peer = Trl(process, folder)
        peer.heard(deadline_s=_START_S)
        yield peer
    finally:
        process.kill()
        process.wait(_END_S)


def _write(rows: Sequence[Row], path: Path) -> None:
    prompts = [row.token_ids[: prompt_tokens(row)].astype(np.int64) for row in rows]
    answers = [row.token_ids[prompt_tokens(row) :].astype(np.int64) for row in rows]
    logprobs = [row.logprobs[prompt_tokens(row) :] for row in rows]
    arrays = {"advantages": np.array([row.advantages[-1] for row in rows], dtype=np.float32)}
    for name, parts in (("prompts", prompts), ("answers", answers), ("logprobs", logprobs)):
        arrays[name] = np.concatenate(parts)
        arrays[f"{name}_ends"] = np.cumsum([len(part) for part in parts])[:-1]
    np.savez(path, allow_pickle=False, **arrays)


def _environment() -> Path:
    """The interpreter of an environment that has TRL. The marker comes last: half of one is made anew."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "trimtab" / f"trl-{VERSION}"
    python = folder / "bin" / "python"
    marker = folder / "requirements.txt"
    wanted = "\n".join(_REQUIREMENTS)
    if marker.is_file() and marker.read_text() == wanted:
        return python
    note(f"installing {', '.join(_REQUIREMENTS)} into the cache, once (torch: minutes)")
    uv = [sys.executable, "-m", "uv"]
    for arguments in (
        [*uv, "venv", "--clear", "--python", sys.executable, str(folder)],
        [*uv, "pip", "install", "--python", str(python), *_REQUIREMENTS],
    ):
        # Its progress goes to standard error by itself; standard output is for our one line.
        completed = subprocess.run(arguments, stdout=sys.stderr, timeout=_INSTALL_S)
        if completed.returncode != 0:
            raise PeerFailed(f"`{' '.join(arguments[2:4])}` failed: TRL needs PyPI the first time")
    marker.write_text(wanted)
    return python
