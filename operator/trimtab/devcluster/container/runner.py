"""One container over its whole life: started, probed, ended, started again by its policy, stopped in good order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.devcluster.container.command import CannotRun
from trimtab.devcluster.container.environment import SourceMissing
from trimtab.devcluster.container.log import LogWriter, forget_older_instances, instance_file, tail
from trimtab.devcluster.container.probes import ProbeCounter, Prober, ProbeTiming
from trimtab.devcluster.container.process import CapturedOutput, ContainerProcess, Launch, StartError, memory_limit
from trimtab.devcluster.container.restarts import BACKOFF, RestartPolicy, restarts_of
from trimtab.devcluster.container.sandbox import Sandbox
from trimtab.devcluster.container.state import ContainerState, Running, Terminated, Waiting, end_of
from trimtab.devcluster.pod.spec import UnknownField
from trimtab.devcluster.volumes.pod_volumes import VolumeRefused
from trimtab.kube.errors import KubeError
from trimtab.kube.events import EventType

_START_FAILED = 128
_MESSAGE_BYTES = 4096
_FALLBACK_BYTES, _FALLBACK_LINES = 2048, 80


@dataclass(frozen=True, kw_only=True)
class ContainerSite:
    """What a container is given by its pod and its node."""

    launch: Callable[[], Awaitable[Launch]]
    """Made anew for each instance, because what it refers to may have changed."""
    sandbox: Sandbox | None
    prober: Prober
    log_folder: Path
    message_file: Path
    grace_s: float
    record: Callable[[EventType, str, str], None]
    clock: Callable[[], float]


class ContainerRunner:
    def __init__(
        self,
        container: Mapping[str, Any],
        *,
        policy: RestartPolicy,
        site: ContainerSite,
        state: ContainerState,
        changed: Callable[[], None],
    ) -> None:
        self.name = str(container["name"])
        self._container = container
        self._policy = policy
        self._site = site
        self._state = state
        self._changed = changed
        self._restarts = state.restarts
        self.instance: int | None = None
        """The number of the instance that is being started or runs: while it is set, its log may grow."""
        self._process: ContainerProcess | None = None
        self._last_launch: Launch | None = None
        self._starting = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._started = asyncio.Event()

    @property
    def state(self) -> ContainerState:
        return self._state

    async def run(self) -> None:
        """Until it has ended for good or is stopped."""
        if self._state.ended is not None:
            return
        crashes, restarts = 0, restarts_of(self._policy)
        while not self._stopping.is_set():
            launch = await self._launch_when_possible()
            end = None if launch is None else await self._one_instance(launch)
            if end is None:
                break
            now, lived_s = self._site.clock(), end.finished_at - end.started_at
            again = restarts.after(crashes, exit_code=end.exit_code, lived_s=lived_s, now=now)
            if self._stopping.is_set() or again is None:
                self._set(state=end, ready=False, started=False)
                return
            crashes, delay = again.crashes, again.wait_s(now)
            self._set(
                state=Waiting(
                    reason="CrashLoopBackOff",
                    message=f"back-off {delay:.1f}s restarting {self.name}, which exited with {end.exit_code}",
                ),
                last=end,
                ready=False,
                started=False,
            )
            self._site.record("Warning", "BackOff", f"Back-off restarting container {self.name}")
            await self._pause(delay)
        if self._state.last is not None and not self._state.running:
            # Stopped while it waited to be started again: its last end is its end.
            self._set(state=self._state.last)

    async def started(self) -> None:
        """Returns when it has been started, its startup probe included, or is being stopped."""
        waits = [asyncio.create_task(self._started.wait()), asyncio.create_task(self._stopping.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def stop(self, *, deadline: float) -> None:
        """preStop, SIGTERM, and SIGKILL when the loop's time is `deadline`; it is gone on return."""
        self._stopping.set()
        async with self._starting:
            process = self._process
        if process is not None and process.alive:
            self._site.record("Normal", "Killing", f"Stopping container {self.name}")
            await self._pre_stop(deadline)
            await self._end(process, deadline=deadline)
        await self._idle.wait()

    def kill(self) -> None:
        """At once, while another task waits in `stop`."""
        if self._process is not None:
            self._process.kill()

    async def _launch_when_possible(self) -> Launch | None:
        """None: it was stopped while something that it needs was missing."""
        attempt = 0
        while not self._stopping.is_set():
            try:
                return await self._site.launch()
            except (SourceMissing, CannotRun, UnknownField, VolumeRefused) as error:
                message = str(error)
            except KubeError as error:
                message = f"what it refers to cannot be read: {error}"
            except OSError as error:
                message = f"its folders cannot be made: {error}"
            waiting = Waiting(reason="CreateContainerConfigError", message=message)
            if waiting != self._state.state:
                self._set(state=waiting)
                self._site.record("Warning", "Failed", f"Error: {message}")
            await self._pause(BACKOFF.delay_s(attempt))
            attempt += 1
        return None

    async def _one_instance(self, launch: Launch) -> Terminated | None:
        """How it ended; None: it was stopped before it began."""
        self.instance = self._restarts
        try:
            return await self._from_start_to_end(launch, number=self.instance)
        finally:
            self.instance = None

    async def _from_start_to_end(self, launch: Launch, *, number: int) -> Terminated | None:
        forget_older_instances(self._site.log_folder, restarts=number)
        self._site.message_file.write_bytes(b"")
        log = LogWriter(instance_file(self._site.log_folder, number), clock=self._site.clock)
        began = self._site.clock()
        async with self._starting:
            if self._stopping.is_set():
                log.close()
                return None
            self._restarts = number + 1
            self._last_launch = launch
            try:
                process = await ContainerProcess.start(launch, sandbox=self._site.sandbox, output=log)
            except StartError as error:
                log.write(f"{error}\n".encode())
                log.close()
                self._site.record("Warning", "Failed", f"Error: {error}")
                self._set(state=self._state.state, restarts=number)
                return Terminated(
                    exit_code=_START_FAILED,
                    reason="StartError",
                    message=str(error),
                    started_at=began,
                    finished_at=self._site.clock(),
                )
            self._process = process
            self._idle.clear()
        probing = asyncio.create_task(self._probe(process))
        limit = memory_limit(self._container)
        held = None if limit is None else asyncio.create_task(process.kill_beyond(limit))
        self._set(state=Running(started_at=began), restarts=number, started=False, ready=False)
        self._site.record("Normal", "Started", f"Started container {self.name}")
        try:
            code = await process.wait()
        finally:
            probing.cancel()
            out_of_memory = held is not None and held.done()
            if held is not None:
                held.cancel()
            self._process = None
            self._idle.set()
        return end_of(
            exit_code=code,
            started_at=began,
            finished_at=self._site.clock(),
            message=self._last_words(code, number),
            out_of_memory=out_of_memory,
        )

    async def _probe(self, process: ContainerProcess) -> None:
        """First the startup probe alone; then readiness and liveness side by side."""
        startup, readiness, liveness = (
            self._container.get(f"{kind}Probe") for kind in ("startup", "readiness", "liveness")
        )
        if startup is not None:
            counter = ProbeCounter(ProbeTiming.of(startup), verdict=False)
            await self._probe_until(startup, counter, kind="Startup", over=lambda: True)
            if not counter.verdict:
                await self._end_by_probe(process, startup, kind="startup")
                return
        self._started.set()
        self._set(started=True, ready=readiness is None)
        tasks = []
        if readiness is not None:
            tasks.append(asyncio.create_task(self._watch_readiness(readiness)))
        if liveness is not None:
            tasks.append(asyncio.create_task(self._watch_liveness(process, liveness)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _watch_readiness(self, probe: Mapping[str, Any]) -> None:
        counter = ProbeCounter(ProbeTiming.of(probe), verdict=False)

        def publish() -> bool:
            if counter.verdict != self._state.ready:
                self._set(ready=counter.verdict)
            return False

        await self._probe_until(probe, counter, kind="Readiness", over=publish)

    async def _watch_liveness(self, process: ContainerProcess, probe: Mapping[str, Any]) -> None:
        counter = ProbeCounter(ProbeTiming.of(probe), verdict=True)
        await self._probe_until(probe, counter, kind="Liveness", over=lambda: not counter.verdict)
        await self._end_by_probe(process, probe, kind="liveness")

    async def _probe_until(
        self, probe: Mapping[str, Any], counter: ProbeCounter, *, kind: str, over: Callable[[], bool]
    ) -> None:
        timing = ProbeTiming.of(probe)
        await asyncio.sleep(timing.initial_delay_s)
        while True:
            problem = await self._site.prober.attempt(probe, timeout_s=timing.timeout_s, execute=self._execute)
            if problem is not None:
                self._site.record("Warning", "Unhealthy", f"{kind} probe of {self.name} failed: {problem}")
            if counter.count(problem is None) and over():
                return
            await asyncio.sleep(timing.period_s)

    async def _end_by_probe(self, process: ContainerProcess, probe: Mapping[str, Any], *, kind: str) -> None:
        self._site.record("Normal", "Killing", f"Container {self.name} failed {kind} probe, will be restarted")
        grace_s = float(probe.get("terminationGracePeriodSeconds") or self._site.grace_s)
        await self._end(process, deadline=asyncio.get_running_loop().time() + grace_s)

    async def _pre_stop(self, deadline: float) -> None:
        hook = (self._container.get("lifecycle") or {}).get("preStop")
        left = deadline - asyncio.get_running_loop().time()
        if not hook or left <= 0:
            return
        if "sleep" in hook:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, float(hook["sleep"]["seconds"]))):
                    await self._idle.wait()
            return
        problem = await self._site.prober.attempt(hook, timeout_s=left, execute=self._execute)
        if problem is not None:
            self._site.record("Warning", "FailedPreStopHook", f"preStop of {self.name} failed: {problem}")

    async def _end(self, process: ContainerProcess, *, deadline: float) -> None:
        process.terminate()
        left = deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, left)):
                await self._idle.wait()
        except TimeoutError:
            process.kill()

    async def _execute(self, command: Sequence[str]) -> tuple[int, str]:
        """A command in the container's view, but with processes of its own: it does not see the container's."""
        assert self._last_launch is not None
        output = CapturedOutput()
        launch = replace(self._last_launch, command=list(command))
        try:
            process = await ContainerProcess.start(launch, sandbox=self._site.sandbox, output=output)
        except StartError as error:
            return _START_FAILED, str(error)
        try:
            code = await process.wait()
        finally:
            process.kill()
        return code, output.text

    def _last_words(self, code: int, number: int) -> str:
        written = self._site.message_file.read_bytes()[:_MESSAGE_BYTES].decode(errors="replace")
        if written or code == 0 or self._container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return written
        log = instance_file(self._site.log_folder, number)
        return tail(log, lines=_FALLBACK_LINES, limit=_FALLBACK_BYTES)

    async def _pause(self, seconds: float) -> None:
        """Cut short when it is stopped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _set(self, **fields: Any) -> None:
        self._state = replace(self._state, **fields)
        self._changed()
