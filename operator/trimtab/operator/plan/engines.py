"""The engines of a rollout pod: which processes there are for each policy, and how the worker finds them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from trimtab.api.engine import EngineArgs, PolicyEngines
from trimtab.api.policy import Policy
from trimtab.api.pool import PoolSettings
from trimtab.api.scalars import SecretKey
from trimtab.api.source_uri import place_below
from trimtab.operator.plan.pods import ContainerPlan


@dataclass(frozen=True, kw_only=True)
class _Seat:
    """One engine of a policy; the first has number 1."""

    policy: Policy
    number: int
    args: EngineArgs

    @property
    def container(self) -> str:
        """Names of policies begin with a letter, so `engine-2-a` is no policy's first engine."""
        return f"engine-{self._name}"

    @property
    def port(self) -> str:
        return f"ENGINE_PORT_{self._name.upper().replace('-', '_')}"

    @property
    def _name(self) -> str:
        return self.policy.name if self.number == 1 else f"{self.number}-{self.policy.name}"


def engine_containers(
    pool: PoolSettings,
    policies: Sequence[Policy],
    *,
    others: Sequence[Policy] = (),
    valued: Collection[str | None] = (),
) -> list[ContainerPlan]:
    """Of policies that the pool's pods ask; none for what the manifest says is served elsewhere. `others` are all of
    the job's. Those that are `valued` are asked for what their value heads say.
    """
    if pool.engine.url is not None:
        return []
    return [
        ContainerPlan(
            name=seat.container,
            command=_launched(
                pool, seat, rounded=_is_rounded(seat.policy, others), value_head=seat.policy.name in valued
            ),
            sidecar=True,
            ports=(seat.port,),
            resources=pool.engine.resources,
        )
        for seat in _seats(pool, policies)
    ]


def engine_urls(pool: PoolSettings, policies: Sequence[Policy]) -> str:
    """As the worker reads them: policy=url pairs with commas between them, one for each engine."""
    return ",".join(
        f"{seat.policy.name}={pool.engine.url or f'http://127.0.0.1:$({seat.port})'}" for seat in _seats(pool, policies)
    )


def engine_secrets(pool: PoolSettings) -> dict[str, SecretKey]:
    """By the variable that the worker reads each in."""
    secrets = {} if pool.engine.api_key_secret is None else {"TRIMTAB_ENGINE__API_KEY": pool.engine.api_key_secret}
    for engines in pool.engines:
        if engines.endpoint is not None and engines.endpoint.api_key_secret is not None:
            variable = f"TRIMTAB_ENDPOINT_KEYS__{engines.policy.upper().replace('-', '_')}"
            secrets[variable] = engines.endpoint.api_key_secret
    return secrets


def _seats(pool: PoolSettings, policies: Sequence[Policy]) -> Iterator[_Seat]:
    said = {engines.policy: engines for engines in pool.engines}
    for policy in policies:
        engines = said.get(policy.name, PolicyEngines(policy=policy.name))
        if engines.endpoint is None:
            args = (*(pool.engine.args or ()), *(engines.args or ()))
            yield from (_Seat(policy=policy, number=number + 1, args=args) for number in range(engines.replicas))


def _launched(pool: PoolSettings, seat: _Seat, *, rounded: bool, value_head: bool) -> tuple[str, ...]:
    engine = pool.engine
    model = seat.policy.weights
    tokenizer = () if model.tokenizer is None else (f"--tokenizer-path={_beside_the_manifest(model.tokenizer)}",)
    serve = (f"--model-path={_beside_the_manifest(model.uri)}", *tokenizer, f"--port=$({seat.port})")
    lora = seat.policy.lora
    # What an engine that is given adapters must have room for when it starts.
    adapters = () if lora is None else (f"--lora-rank={lora.rank}", f"--lora-targets={','.join(lora.targets)}")
    if engine.name == "builtin":
        scaled = () if lora is None else (f"--lora-alpha={lora.full_alpha:g}",)
        valued = ("--value-head",) if value_head else ()
        rounds = ("--rounded-to=bfloat16",) if rounded else ()
        # The last word is ours.
        return (
            "python", "-m", "trimtab.rollout.engines.builtin", *seat.args, *serve, *rounds, *adapters, *scaled, *valued,
        )  # fmt: skip
    return (
        "python", "-m", "trimtab.rollout.engines.sglang", *serve, *adapters,
        f"--startup-timeout-seconds={engine.startup_timeout_seconds}",
        *(() if engine.interpreter is None else (f"--interpreter={_beside_the_manifest(engine.interpreter)}",)),
        "--", *seat.args,
    )  # fmt: skip


def _is_rounded(policy: Policy, others: Sequence[Policy]) -> bool:
    """Trainer and engine score the same weights from the first version on, whatever the model's files are in. A frozen
    policy with the files of one that learns is what that one begins as: a reference, from which it has no distance yet.
    """
    if policy.frozen:
        return any(_is_published_rounded(other) and other.weights.uri == policy.weights.uri for other in others)
    return _is_published_rounded(policy)


def _is_published_rounded(policy: Policy) -> bool:
    """Of a policy with adapters the files' own weights are never published."""
    return not policy.frozen and policy.lora is None and policy.trainer.published_dtype == "bfloat16"


def _beside_the_manifest(path: str) -> str:
    """Relative paths in a manifest are relative to its folder; what is no path has been fetched."""
    fetched = place_below(path)
    if fetched is not None:
        return f"$(FETCHED)/{fetched}"
    return path if path.startswith("/") else f"$(JOB_FOLDER)/{path}"
