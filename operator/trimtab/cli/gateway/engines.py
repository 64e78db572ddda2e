"""The engines that answer while an agent is tried: one for each policy, started here or running already."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from trimtab.api.policy import Policy
from trimtab.cli.gateway.models import Model
from trimtab.embedded.child import Child, Command, log_tail
from trimtab.embedded.ports import free_ports
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import EngineError
from trimtab.rollout.policy.version_gate import label_of, position_of
from trimtab.rollout.worker.served_policy import ServedPolicy, read_tokenizer
from trimtab.rollout.workflows.conversation import Role

_REQUEST_TIMEOUT_S = 600.0
_ANSWER_S = 30.0
_POLL_S = 0.2
_STOP_S = 5.0


class EngineUnusable(RuntimeError):
    """It does not start, or has ended; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A policy on its engine. `child` is ours."""

    policy: Policy
    served: ServedPolicy[EngineClient]
    told: str
    model: Model | None = None
    child: Child | None = None
    log_file: Path | None = None

    def role(self, name: str) -> Role:
        return self.served.role(name)

    def check(self) -> None:
        """Raises EngineUnusable when it has ended."""
        if self.child is not None and self.log_file is not None and not self.child.alive:
            raise EngineUnusable(
                f"the engine of policy {self.policy.name} ended with {self.child.exit_code}:\n{log_tail(self.log_file)}"
            )


class Engines:
    """All that was started ends with the stack."""

    def __init__(self, *, scratch: Path, stack: AsyncExitStack) -> None:
        self._scratch = scratch
        self._stack = stack
        self._seats: list[Seat] = []

    def running(self, policy: Policy, url: str, *, folder: Path) -> Seat:
        return self._seat(policy, url, folder=folder, told=f"{policy.name} at {url}")

    def started(self, policy: Policy, model: Model, *, folder: Path) -> Seat:
        (port,) = free_ports(1)
        log_file = self._scratch / f"engine-{policy.name}.log"
        command = [sys.executable, "-m", "trimtab.rollout.engines.builtin", f"--model-path={model.folder}"]
        child = Child(
            Command(
                arguments=[*command, f"--port={port}"],
                environment={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
                log_file=log_file,
                folder=self._scratch,
            )
        )
        self._stack.callback(child.stop, grace_s=_STOP_S)
        return self._seat(
            policy,
            f"http://127.0.0.1:{port}",
            folder=folder,
            told=f"{policy.name} with {model.told}",
            model=model,
            child=child,
            log_file=log_file,
        )

    def _seat(
        self,
        policy: Policy,
        url: str,
        *,
        folder: Path,
        told: str,
        model: Model | None = None,
        child: Child | None = None,
        log_file: Path | None = None,
    ) -> Seat:
        engine = EngineClient(url, request_timeout_s=_REQUEST_TIMEOUT_S)
        served = ServedPolicy(policy, engine, read_tokenizer(policy, folder=folder))
        return Seat(policy=policy, served=served, told=told, model=model, child=child, log_file=log_file)

    async def serve(self, seats: Sequence[Seat], stopping: asyncio.Event) -> bool:
        """Whether all answer; not, where it is to stop before that. Raises EngineUnusable for one that does not."""
        self._seats = list(seats)
        for seat in seats:
            await self._stack.enter_async_context(seat.served.engine)
            while not await self._answers(seat):
                seat.check()
                if await _set_within(stopping, _POLL_S):
                    return False
        return True

    async def _answers(self, seat: Seat) -> bool:
        engine = seat.served.engine
        try:
            await engine.check_health(timeout_s=_ANSWER_S)
            if seat.model is not None:
                await engine.rename_weights(label_of(seat.model.position), timeout_s=_ANSWER_S)
            served = position_of((await engine.model_info(timeout_s=_ANSWER_S)).weight_version)
        except EngineError as error:
            if seat.child is None:
                raise EngineUnusable(f"--engine: {seat.told}: {error}; start it first") from None
            return False
        if served is not None:
            seat.served.gate.begin(served)
            seat.served.gate.settle(served)
        return True

    async def until_one_ends(self, stopping: asyncio.Event) -> None:
        """Or until it is to stop."""
        while not await _set_within(stopping, _POLL_S):
            for seat in self._seats:
                seat.check()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
