"""`python -m benchmarks.sandbox`: what it costs to run a program in the sandbox, and what attacks cost those beside.

Against a plain subprocess, one with limits as most systems have it, and bubblewrap for each run, in the same rounds.
The throughput beside attacks is compared with that beside nothing, and with that beside honest programs that are busy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import psutil

from benchmarks.report import Bar, logs_to_stderr, note, paired_share, report
from benchmarks.sandboxes.peers import Runs, in_sandbox, plainly, with_bubblewrap, with_limits
from tests.support.hostile_programs import FLOODS
from trimtab.rollout.sandbox.contract import Program, ProgramLimits, Sandbox, SandboxFailed
from trimtab.rollout.sandbox.layers import described
from trimtab.rollout.sandbox.local import LocalSandbox

_PROGRAM = "print(sum(range(1000)))"
_AT_ONCE = 4
_ATTACKERS = 2
_ATTACKED = ProgramLimits(
    wall_s=2.0, cpu_s=4.0, memory_bytes=128 << 20, processes=8, disk_bytes=16 << 20, output_bytes=1 << 20
)
# As many processes as an attacker may have, all of them busy: what a slot may take.
_HONEST = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
_COMPANY: dict[str, Sequence[str]] = {"nothing": (), "attacks": tuple(FLOODS.values()), "honest": (_HONEST,)}
_ALIVE_S = 75.0
# As an engine on the processor works: it computes all the time, in one thread.
_WORK = "import sys, time\nuntil, n = time.monotonic() + float(sys.argv[1]), 0\n" + (
    "while time.monotonic() < until:\n    sum(range(1000)); n += 1\nprint(n)"
)


async def latency_ms(runs: Runs) -> float:
    began = time.perf_counter()
    await runs(_PROGRAM)
    return (time.perf_counter() - began) * 1e3


async def rate(runs: Runs, *, seconds: float) -> float:
    """Programs a second, with a few at once."""
    done = 0
    until = time.perf_counter() + seconds
    began = time.perf_counter()

    async def one_after_another() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await runs(_PROGRAM)
            done += 1

    await asyncio.gather(*(one_after_another() for _ in range(_AT_ONCE)))
    return done / (time.perf_counter() - began)


async def compared(contenders: dict[str, Runs], *, rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {name: {"ms": [], "rate": []} for name in contenders}
    for runs in contenders.values():
        await runs(_PROGRAM)
    for turn in range(rounds):
        order = list(contenders) if turn % 2 == 0 else list(reversed(contenders))
        for name in order:
            # One at a time leaves the sandbox the time that it needs to have the next jail ready, as others have none.
            found[name]["ms"].append(statistics.median([await latency_ms(contenders[name]) for _ in range(9)]))
            found[name]["rate"].append(await rate(contenders[name], seconds=seconds))
    return found


@contextlib.asynccontextmanager
async def beside(sandbox: Sandbox, sources: Sequence[str]) -> AsyncIterator[None]:
    """These go on and on, as many at once as there are attackers."""
    endless = itertools.cycle(sources)

    async def attack() -> None:
        while True:
            await sandbox.run(Program(command=("python3", "-c", next(endless)), limits=_ATTACKED))

    attackers = [asyncio.create_task(attack()) for _ in range(_ATTACKERS if sources else 0)]
    try:
        yield
    finally:
        for attacker in attackers:
            attacker.cancel()
        ended = await asyncio.gather(*attackers, return_exceptions=True)
        for one in ended:
            if isinstance(one, SandboxFailed):
                raise one


async def work(*, seconds: float) -> float:
    """What a process outside the sandbox gets done, a second."""
    arguments = ("-c", _WORK, str(seconds))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    return int(told) / seconds


async def work_beside(sandbox: Sandbox, sources: Sequence[str], *, rounds: int, seconds: float) -> float:
    """The share of its work that a process outside gets done beside these. In short turns without, with, with and
    without them: a machine that is faster now and slower then is so for both.
    """
    done = {False: 0.0, True: 0.0}
    for accompanied in (False, True, True, False) * rounds:
        async with beside(sandbox, sources if accompanied else ()):
            done[accompanied] += await work(seconds=seconds)
    return done[True] / done[False]


async def attacked(sandbox: Sandbox, *, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Programs a second, by what runs beside them."""
    runs = in_sandbox(sandbox)
    found: dict[str, list[float]] = {name: [] for name in _COMPANY}
    for turn in range(rounds):
        for name in list(_COMPANY) if turn % 2 == 0 else list(reversed(_COMPANY)):
            async with beside(sandbox, _COMPANY[name]):
                found[name].append(await rate(runs, seconds=seconds))
    return found


async def many(programs: int) -> dict[str, float]:
    """So many alive at once, each with little to do: memory of all processes together, as the kernel shares it out."""
    limits = ProgramLimits(wall_s=_ALIVE_S * 4, cpu_s=10.0)
    async with LocalSandbox(limits=limits, concurrency=programs, spare=8) as sandbox:
        before = await asyncio.to_thread(_tree_mib)
        program = Program(command=("sleep", str(_ALIVE_S)), limits=limits)
        running = [asyncio.create_task(sandbox.run(program)) for _ in range(programs)]
        most, alive = before, 0
        while not all(task.done() for task in running):
            await asyncio.sleep(2.0)
            count = await asyncio.to_thread(_sleepers)
            if count > alive:
                alive = count
                most = max(most, await asyncio.to_thread(_tree_mib))
        ended = [task.result() for task in running]
        after = await asyncio.to_thread(_tree_mib)
    return {
        "programs": programs,
        "alive_at_once": alive,
        "succeeded": sum(one.succeeded for one in ended) / programs,
        "mib_per_program": (most - before) / max(alive, 1),
        "mib_at_most": most,
        "mib_left": after - before,
    }


def _tree() -> list[psutil.Process]:
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def _sleepers() -> int:
    found = 0
    for process in _tree():
        with contextlib.suppress(psutil.Error):
            found += process.name() == "sleep"
    return found


def _tree_mib() -> float:
    total = 0
    for process in _tree():
        with contextlib.suppress(OSError, psutil.Error):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


async def main(arguments: argparse.Namespace) -> None:
    async with LocalSandbox(concurrency=_AT_ONCE + _ATTACKERS, spare=_AT_ONCE) as sandbox:
        note(f"layers: {described(sandbox.layers)}")
        contenders = {
            "plain": plainly(),
            "limits": with_limits(),
            "bubblewrap": with_bubblewrap(),
            "sandbox": in_sandbox(sandbox),
        }
        found = await compared(contenders, rounds=arguments.rounds, seconds=arguments.seconds)
        for name, figures in found.items():
            ms, per_s = statistics.median(figures["ms"]), statistics.median(figures["rate"])
            note(f"{name:>10}: {ms:6.1f} ms, {per_s:6.1f} programs/s")
        company = await attacked(sandbox, rounds=arguments.rounds, seconds=arguments.seconds * 2)
        for name, rates in company.items():
            note(f"beside {name}: {statistics.median(rates):.1f} programs/s")
        work_share = {
            name: await work_beside(sandbox, sources, rounds=arguments.rounds, seconds=arguments.seconds / 2)
            for name, sources in _COMPANY.items()
        }
        note(f"work beside them: {work_share}")
        layers = described(sandbox.layers)
    crowd = await many(arguments.programs)
    note(f"{crowd}")
    overhead = statistics.median(
        ours - plain for ours, plain in zip(found["sandbox"]["ms"], found["plain"]["ms"], strict=True)
    )
    report(
        "sandbox",
        {
            "layers": layers,
            "ms": {name: round(statistics.median(figures["ms"]), 2) for name, figures in found.items()},
            "programs_per_s": {name: round(statistics.median(figures["rate"]), 1) for name, figures in found.items()},
            "share_of_plain_rate": round(paired_share(found["sandbox"]["rate"], found["plain"]["rate"]), 3),
            "beside_per_s": {name: round(statistics.median(rates), 1) for name, rates in company.items()},
            "beside_attacks_over_beside_honest": round(paired_share(company["attacks"], company["honest"]), 3),
            "work_beside": {name: round(share, 3) for name, share in work_share.items()},
            "crowd": {name: round(value, 2) for name, value in crowd.items()},
        },
        {
            "overhead_ms": Bar(overhead, 20.0, at_most=True),
            "rate_over_bubblewrap": Bar(paired_share(found["sandbox"]["rate"], found["bubblewrap"]["rate"]), 1.0),
            "work_beside_attacks": Bar(work_share["attacks"], 0.9),
            "rate_beside_attacks": Bar(paired_share(company["attacks"], company["nothing"]), 0.9),
            "crowd_alive_at_once": Bar(crowd["alive_at_once"], float(arguments.programs)),
            "crowd_mib_per_program": Bar(crowd["mib_per_program"], 8.0, at_most=True),
        },
    )


if __name__ == "__main__":
    logs_to_stderr()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement of a rate")
    parser.add_argument("--programs", type=int, default=1000, help="alive at once")
    asyncio.run(main(parser.parse_args()))
