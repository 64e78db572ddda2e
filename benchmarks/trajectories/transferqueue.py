"""TransferQueue beside us: an environment of its own, made once, and a process in it that runs rounds when asked.

Its dependencies (Ray, tensordict, another torch) never meet ours. It keeps rows in memory where our stream writes them
to disk, so what it is asked for is its best.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import note

VERSION = "0.1.11"
_REQUIREMENTS = (f"TransferQueue=={VERSION}", "ray==2.60.0", "tensordict==0.15.3", "torch==2.15.0")
_SCRIPT = Path(__file__).parent / "transferqueue_peer.py"
_INSTALL_S = 1800.0
_START_S = 180.0
_ROUND_S = 120.0
_END_S = 20.0


class PeerFailed(RuntimeError):
    """TransferQueue cannot be installed, or its process ended or hangs: the message says which."""


@dataclass(frozen=True, kw_only=True)
class PeerRound:
    """`put_rows` at a time are written, up to `puts_in_flight` puts at once, and `batch_rows` at a time are read. With
    `stage_rows` a stage reads so many at a time and adds a column, as many at once.
    """

    row_bytes: int
    rows: int
    put_rows: int
    puts_in_flight: int
    batch_rows: int
    stage_rows: int = 0


class TransferQueue:
    """The process in the other environment."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def rows_per_second(self, question: PeerRound) -> float:
        """From the first put to the last row in the process that reads."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(question)).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed("TransferQueue's process is gone; its last words are above") from None
        answer = self.heard(deadline_s=_ROUND_S)
        if "error" in answer:
            raise PeerFailed(str(answer["error"]))
        return float(str(answer["rows_per_s"]))

    def heard(self, *, deadline_s: float) -> dict[str, object]:
        output = self._process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], deadline_s)
        line = output.readline() if ready else b""
        if not line:
            state = "ended; its last words are above" if ready else f"gave no answer within {deadline_s:.0f} s"
            raise PeerFailed(f"TransferQueue's process {state}")
        answer: dict[str, object] = json.loads(line)
        return answer


@contextmanager
def transferqueue(folder: Path) -> Iterator[TransferQueue]:
    """Ray with TransferQueue on top, all of it gone at the end. `folder` is for Ray's sockets and logs."""
    python = _environment()
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [str(python), str(_SCRIPT), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ray makes its workers nice, which on a busy machine would favour us.
        env={**environ, "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "TQ_LOGGING_LEVEL": "ERROR"},
        start_new_session=True,
    )
    try:
        peer = TransferQueue(process)
        peer.heard(deadline_s=_START_S)
        yield peer
    finally:
        assert process.stdin is not None
        process.stdin.close()  # it ends Ray and itself
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _environment() -> Path:
    """The interpreter of an environment that has TransferQueue. The marker comes last: half of one is made anew."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "trimtab" / f"transferqueue-{VERSION}"
    python = folder / "bin" / "python"
    marker = folder / "requirements.txt"
    wanted = "\n".join(_REQUIREMENTS)
    if marker.is_file() and marker.read_text() == wanted:
        return python
    note(f"installing {', '.join(_REQUIREMENTS)} into the cache, once (torch and Ray: minutes)")
    uv = [sys.executable, "-m", "uv"]
    for arguments in (
        [*uv, "venv", "--clear", "--python", sys.executable, str(folder)],
        [*uv, "pip", "install", "--python", str(python), *_REQUIREMENTS],
    ):
        # Its progress goes to standard error by itself; standard output is for our one line.
        completed = subprocess.run(arguments, stdout=sys.stderr, timeout=_INSTALL_S)
        if completed.returncode != 0:
            raise PeerFailed(f"`{' '.join(arguments[2:4])}` failed: TransferQueue needs PyPI the first time")
    marker.write_text(wanted)
    return python
