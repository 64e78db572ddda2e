"""One policy on one engine of a rollout pod, or on an endpoint elsewhere: what samples from it, and what keeps its
weights fresh if anything can.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from pydantic import SecretStr

from trimtab.api.engine import Endpoint
from trimtab.api.policy import Policy
from trimtab.api.pool import JobPool
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.readable import unreadable
from trimtab.fabric.signing import Verifier
from trimtab.fabric.wire.sampling import sampling_fields
from trimtab.rollout.engines.anthropic import AnthropicClient
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import SamplingEngine, SamplingSettings
from trimtab.rollout.engines.messages import MESSAGES
from trimtab.rollout.engines.openai import OpenAIClient
from trimtab.rollout.engines.openai_chat import OpenAIChatClient
from trimtab.rollout.engines.sglang.adapters import AdapterClient
from trimtab.rollout.engines.sparse_file import SparseFile
from trimtab.rollout.policy.freshness import Announcements, VersionLine
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.version_gate import VersionGate
from trimtab.rollout.refresh.fixed import FixedWeights
from trimtab.rollout.refresh.host_copy import HostCopy
from trimtab.rollout.refresh.refresh import RefreshTarget, WeightRefresh
from trimtab.rollout.refresh.swap import SwapMetrics
from trimtab.rollout.refresh.turns import TURN_TIMINGS, PoolCensus, SwapTurns, TurnTimings
from trimtab.rollout.workflows.conversation import Sampler
from trimtab.rollout.workflows.team import Role, Tokenizer
from trimtab.weights.puller import WeightPuller

Engine = TypeVar("Engine", bound=SamplingEngine, covariant=True)
_TURN_FIRST_S = 0.02
_TURN_MAX_S = 0.5
_MAX_REASON = 300


@dataclass(frozen=True, kw_only=True)
class PodResources:
    """What the policies of a pod share."""

    member: str
    pool: JobPool
    folder: Path
    """The job's, which models are found from."""
    scratch: Path
    api_key: SecretStr | None
    """Of the pool's engine, where that is an endpoint."""
    endpoint_keys: Mapping[str, SecretStr] = field(default_factory=dict)
    """By policy, of endpoints in place of an engine; dashes are underscores."""
    store: ObjectStore
    trusted: Verifier
    pointers: KeyValue
    swaps: KeyValue
    census: PoolCensus
    metrics: SwapMetrics
    turn_timings: TurnTimings = TURN_TIMINGS
    resumed: bool = False
    """Policies that learn begin at a checkpoint of another job."""


class ServedPolicy(Generic[Engine]):
    """A policy on its engine."""

    def __init__(self, policy: Policy, engine: Engine, tokenizer: Tokenizer) -> None:
        self.policy = policy
        self.engine = engine
        self.tokenizer = tokenizer
        self.gate = VersionGate()
        self.announcements = Announcements(clock=time.monotonic)
        self.sampler = PolicySampler(engine, self.gate)
        self.refresh: WeightRefresh | FixedWeights

    def role(self, name: str, *, sampler: Sampler | None = None) -> Role:
        """`sampler` is what spreads requests over several engines, where there are."""
        return Role(
            name=name,
            policy=self.policy.name,
            tokenizer=self.tokenizer,
            sampler=sampler or self.sampler,
            frozen=self.policy.frozen,
            sampling=SamplingSettings(**sampling_fields(self.policy.sampling)),
            credits_turns=self.policy.algorithm.credit.type == "Turn",
            context_tokens=None if self.policy.model is None else self.policy.model.max_context_tokens,
        )

    @property
    def line(self) -> VersionLine:
        return VersionLine(served=self.gate, announcements=self.announcements)


async def refreshed_policy(
    policy: Policy, url: str, resources: PodResources, stack: AsyncExitStack, *, copy: HostCopy | None = None
) -> ServedPolicy[EngineClient]:
    """On an engine of ours, or one that speaks its protocol. `copy` is what the policy's other engines are given from,
    where there are any.
    """
    settings = resources.pool.engine
    engine = _client(policy, url, resources)
    await stack.enter_async_context(engine)
    served = ServedPolicy(policy, engine, read_tokenizer(policy, folder=resources.folder))
    served.refresh = WeightRefresh(
        RefreshTarget(
            policy=policy.name,
            base_model=resources.folder / policy.weights.uri,
            engine=engine,
            gate=served.gate,
            sampler=served.sampler,
            announcements=served.announcements,
            copy=copy or await host_copy(policy, resources, stack),
            begins_elsewhere=resources.resumed and not policy.frozen,
        ),
        resources.pointers,
        SwapTurns(
            resources.swaps,
            resources.census,
            pool=resources.pool.name,
            policy=policy.name,
            member=resources.member,
            clock=time.monotonic,
            waits=FullJitter(_TURN_FIRST_S, _TURN_MAX_S),
            timings=resources.turn_timings,
        ),
        resources.metrics,
        engine_start_timeout_s=settings.startup_timeout_seconds,
        clock=time.monotonic,
    )
    return served


async def host_copy(policy: Policy, resources: PodResources, stack: AsyncExitStack) -> HostCopy:
    scratch = resources.scratch / policy.name
    puller = WeightPuller(
        resources.store,
        policy.name,
        resources.trusted,
        folder=scratch / "copy",
        spool=scratch / "spool",
        member=resources.member,
    )
    await puller.open()
    stack.push_async_callback(puller.close)
    engine = resources.pool.engine.name
    if policy.lora is not None and engine == "sglang":
        # Adapters are so small that it takes them whole.
        return HostCopy(puller, None)
    return HostCopy(puller, _sparse_carrier(engine)(scratch / "sparse.safetensors"))


def _client(policy: Policy, url: str, resources: PodResources) -> EngineClient:
    settings = resources.pool.engine
    timeout_s = settings.request_timeout_seconds
    if settings.name != "sglang":
        return EngineClient(url, request_timeout_s=timeout_s)
    if policy.lora is None:
        vocabulary = _vocabulary(resources.folder / policy.weights.uri)
        return EngineClient(
            url, request_timeout_s=timeout_s, salt_prefixes=True, whole_logprobs=True, vocabulary=vocabulary
        )
    # Each engine of the policy has its own: one may still need what another has done with.
    folder = resources.scratch / policy.name / "adapters" / re.sub("[^0-9a-z]+", "-", url)
    return AdapterClient(url, request_timeout_s=timeout_s, folder=folder)


def _vocabulary(model: Path) -> int | None:
    """Of a model; None where its configuration does not say, or says it in a place of its own."""
    file = model / "config.json"
    config = msgspec.json.decode(file.read_bytes()) if file.is_file() else None
    return config.get("vocab_size") if isinstance(config, dict) else None


async def fixed_policy(
    policy: Policy, url: str, resources: PodResources, stack: AsyncExitStack
) -> ServedPolicy[OpenAIClient]:
    """On an endpoint that takes no weights."""
    settings = resources.pool.engine
    assert settings.model is not None, "the manifest's rules ask for it"
    tokenizer = read_tokenizer(policy, folder=resources.folder)
    endpoint = OpenAIClient(
        url,
        model=settings.model,
        api_key=resources.api_key,
        tokenizer=tokenizer,
        request_timeout_s=settings.request_timeout_seconds,
        clock=time.monotonic,
    )
    await stack.enter_async_context(endpoint)
    served = ServedPolicy(policy, endpoint, tokenizer)
    served.refresh = FixedWeights(endpoint, resources.pointers, served.announcements, policy=policy.name)
    return served


async def endpoint_policy(
    policy: Policy, settings: Endpoint, resources: PodResources, stack: AsyncExitStack
) -> ServedPolicy[AnthropicClient | OpenAIChatClient]:
    """A frozen policy on an endpoint that is asked with messages."""
    make = AnthropicClient if settings.name == "anthropic" else OpenAIChatClient
    endpoint = make(
        settings.url,
        model=settings.model,
        api_key=resources.endpoint_keys.get(policy.name.replace("-", "_")),
        field=f"pools[{resources.pool.name}].engines[{policy.name}].endpoint",
        request_timeout_s=settings.request_timeout_seconds,
        clock=time.monotonic,
    )
    await stack.enter_async_context(endpoint)
    served = ServedPolicy(policy, endpoint, MESSAGES)
    served.refresh = FixedWeights(endpoint, resources.pointers, served.announcements, policy=policy.name)
    return served


def read_tokenizer(policy: Policy, *, folder: Path) -> Tokenizer:
    """The tokenizer that lies with the policy's model, unless it has one of its own. Raises JobMisconfigured when it
    cannot be had."""
    model = policy.weights
    named = "uri" if model.tokenizer is None else "tokenizer"
    field, path = f"policies[{policy.name}].model.{named}", folder / (model.tokenizer or model.uri)
    if why := unreadable(path):
        raise JobMisconfigured(f"{field}: {why}")
    # The library raises anything for files that it cannot use.
    try:
        return Tokenizer.read(path)
    except Exception as error:
        said = " ".join(str(error).split())[:_MAX_REASON]
        raise JobMisconfigured(f"{field}: {path} has no usable tokenizer: {said}") from error


def _sparse_carrier(engine: str) -> type[SparseFile]:
    if engine == "builtin":
        return SparseFile
    # It brings torch, which no other worker needs and which takes seconds to import.
    from trimtab.rollout.engines.sglang.sparse_update import SglangSparseFile

    return SglangSparseFile
