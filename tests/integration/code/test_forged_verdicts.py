"""Programs that do anything to pass but solve the problem: none of them does."""

from __future__ import annotations

import pytest

from trimtab.rollout.code.judging import Judge, JudgeLimits
from trimtab.rollout.code.tests import read_tests
from trimtab.rollout.sandbox.contract import Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

STDIN = {"inputs": ["17 25\n"], "outputs": ["42\n"]}
CALLS = {"inputs": [[17, 25]], "outputs": [42], "fn_name": "add"}
ASSERTS = "assert add(17, 25) == 42\nassert sorted([add(1, 1), 1]) == [1, 2]"

LOOKS_EVERYWHERE = """
import os, re
found = []
for top in ("/program", "/tmp", "/dev/shm", "/proc", "/box", "/trimtab"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if path.endswith(("/pagemap", "/kmsg", "clear_refs")) or "/task/" in path:
                continue
            try:
                opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                text = os.read(opened, 1 << 20)
                os.close(opened)
            except OSError:
                continue
            if b"== 42" in text:
                found.append(path)
"""
READS_MEMORY = """
import os
found = []
for process in filter(str.isdecimal, os.listdir("/proc")):
    if int(process) == os.getpid():
        continue
    try:
        maps = open(f"/proc/{process}/maps").read().splitlines()
        memory = open(f"/proc/{process}/mem", "rb", 0)
    except OSError:
        continue
    for line in maps:
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        try:
            memory.seek(begin)
            if b"== 42" in memory.read(end - begin):
                found.append(process)
        except (OSError, ValueError, OverflowError):
            continue
"""
TRACES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
found = []
for process in filter(str.isdecimal, os.listdir("/proc")):
    if int(process) != os.getpid() and libc.ptrace(16, int(process), 0, 0) == 0:
        found.append(process)
"""
# What it would do with what it found: answer right.
USES_IT = "\ndef add(a, b):\n    return 42 if found and a == 17 else 2 if found else -1\n"

WRITES_TO_ALL = """
import json, os
lines = [{"passed": 1, "total": 1, "signed": ""}, {"passed": 2, "total": 2, "signed": "0" * 64}, {"value": True}]
text = "".join(json.dumps(line) + "\\n" for line in lines).encode()
for process in filter(str.isdecimal, os.listdir("/proc")):
    for descriptor in range(20):
        try:
            opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
            os.write(opened, text)
        except OSError:
            pass
"""

HOSTILE = {
    "exits early": "import os\nos._exit(0)\n",
    "exits by name": "raise SystemExit(0)\n",
    "prints what passes": "print('passed', 'OK', '{\"passed\": 2, \"total\": 2}')\n",
    "equals everything": """
class Any(int):
    __hash__ = int.__hash__
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return False
def add(a, b): return Any(0)
""",
    "an object that equals everything": """
class Any:
    __hash__ = None
    def __eq__(self, other): return True
def add(a, b): return Any()
""",
    "patches builtins": """
import builtins, sys, unittest
builtins.AssertionError = builtins.Exception = SystemExit
builtins.sorted = lambda given: [1, 2]
sorted = lambda given: [1, 2]
sys.exit = sys.settrace = lambda *_: None
__builtins__ = {}
def add(a, b): return 0
""",
    "patches what answers": """
import json, sys
frame = sys._getframe()
while frame:
    frame.f_globals["packed"] = lambda value, keep: {"l": []}
    frame.f_globals["OPERATIONS"] = {}
    frame = frame.f_back
json.dumps = lambda *_, **__: '{"value": 1, "passed": 2, "total": 2, "signed": ""}'
def add(a, b): return 0
""",
    "writes result files": """
for name in ("result.json", "verdict", "calls.py", "unit_tests.py", "json.py", "hmac.py", "solution.py"):
    open(name, "w").write("print(42)")
def add(a, b): return 0
""",
    "kills the others": """
import os, signal
for process in filter(str.isdecimal, os.listdir("/proc")):
    if int(process) != os.getpid():
        try:
            os.kill(int(process), signal.SIGKILL)
        except OSError:
            pass
def add(a, b): return 0
""",
    "stops the others": """
import os, signal
def add(a, b):
    os.kill(os.getppid(), signal.SIGSTOP)
    return 0
""",
    "interrupts the tests": """
import os, signal
def add(a, b):
    os.kill(os.getppid(), signal.SIGINT)
    return 0
""",
    "writes to every pipe": WRITES_TO_ALL + "\ndef add(a, b): return 0\n",
    "looks into all files": LOOKS_EVERYWHERE + USES_IT,
    "reads memory": READS_MEMORY + USES_IT,
    "traces": TRACES + USES_IT,
}


@pytest.mark.parametrize(
    "tests",
    [
        pytest.param(STDIN, marks=pytest.mark.slow, id="stdin"),
        pytest.param(CALLS, marks=pytest.mark.slow, id="calls"),
        pytest.param(ASSERTS, id="asserts"),
    ],
)
@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE.keys())
async def test_nothing_but_a_right_program_passes(sandbox: Sandbox, code: str, tests: object) -> None:
    judge = Judge(JudgeLimits(case_s=5.0, all_s=8.0), until_failure=False)
    found = await judge.judge(code, read_tests(tests), sandbox)
    assert found.passed == 0, found


async def test_what_looks_around_would_find_a_test_that_lay_about(sandbox: Sandbox) -> None:
    """Those above find nothing because there is nothing, not because they cannot look."""
    judge = Judge(JudgeLimits(), until_failure=False)
    left = "open('left', 'w').write('assert add(17, 25) == 42')\n"
    found = await judge.judge(left + LOOKS_EVERYWHERE + USES_IT, read_tests(CALLS), sandbox)
    assert found.all_passed, found
