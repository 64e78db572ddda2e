"""The openai package of JavaScript asks the gateway, as it is from npm."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gateway.serving import KEY, served
from tests.support.gateway.talkers import session_of, talking_role
from tests.support.gateway.trained import check_trained
from trimtab.rollout.gateway.tally import Counted

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent.parent.parent / "support" / "gateway" / "javascript"
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"place": "Bern", "days": 1.0}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"place": "Basel", "days": 2.0}}\n</tool_call>'
)
SAID = (
    "Good day.",
    "Good day, and welcome.",
    CALLS,
    "Cold.",
    CALLS,
    "So it is.",
    "So it is, and will be.",
    '{"right": true, "why": "so"}',
)


@pytest.fixture(scope="module")
def installed() -> Path:
    """The package as the lock file has it, in the cache folder."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    lock = hashlib.sha256((SCRIPTS / "package-lock.json").read_bytes()).hexdigest()[:12]
    folder = cache / "trimtab" / f"openai-javascript-{lock}"
    if not (folder / "node_modules" / ".package-lock.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SCRIPTS / name, folder)
        install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    shutil.copy(SCRIPTS / "talk.mjs", folder)
    return folder


async def test_everything_that_it_offers(installed: Path) -> None:
    role, talker = talking_role("qwen2.5", lambda number: SAID[number], name="planner")
    session = session_of(role)
    async with served(session) as gateway:
        process = await asyncio.create_subprocess_exec(
            "node",
            "talk.mjs",
            cwd=installed,
            env={"PATH": os.environ["PATH"], "OPENAI_BASE_URL": f"{gateway.url}/v1", "OPENAI_API_KEY": KEY},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(240):
            output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    told = json.loads(output)
    called = [["weather", {"place": "Bern", "days": 1}], ["weather", {"place": "Basel", "days": 2}]]
    assert told["whole"]["said"] == "Good day."
    assert told["whole"]["usage"]["completion_tokens"] == len(talker.requests[0].completion.token_ids)
    assert told["streamed"] == "Good day, and welcome."
    assert (told["calls"], told["finish"], told["after"]) == (called, "tool_calls", "Cold.")
    assert told["streamedCalls"] == called
    assert told["response"] == "So it is."
    assert told["responseStreamed"] == told["responseCompleted"] == "So it is, and will be."
    assert told["structured"] == {"right": True, "why": "so"}
    assert told["unknownModel"][:2] == ["NotFoundError", 404]
    assert "planner" in told["unknownModel"][2]
    assert told["badField"][:2] == ["BadRequestError", 400]
    assert "logprobs" in told["badField"][2]
    assert told["wrongKey"][:2] == ["AuthenticationError", 401]
    assert session.counts[Counted.ECHOED] == 1, "the calls came back as JavaScript writes them"
    assert session.counts[Counted.UNMATCHED] == 0
    check_trained(session, talker, role="planner")
