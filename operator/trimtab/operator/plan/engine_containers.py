"""The engines of a rollout pod: one beside the worker for each policy, or a server elsewhere that only has a URL."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.api.policy import Policy
from trimtab.api.pool import PoolSettings
from trimtab.operator.plan.pods import ContainerPlan


def engine_containers(pool: PoolSettings, policies: Sequence[Policy]) -> list[ContainerPlan]:
    """None where the manifest names a server that runs already."""
    if pool.engine.url is not None:
        return []
    return [
        ContainerPlan(
            name=f"engine-{policy.name}",
            command=_launched(pool, policy),
            sidecar=True,
            ports=(_port(policy),),
            resources=pool.engine.resources,
        )
        for policy in policies
    ]


def engine_urls(pool: PoolSettings, policies: Sequence[Policy]) -> str:
    """As the worker reads them: policy=url pairs with commas between them."""
    return ",".join(f"{policy.name}={pool.engine.url or f'http://127.0.0.1:$({_port(policy)})'}" for policy in policies)


def _launched(pool: PoolSettings, policy: Policy) -> tuple[str, ...]:
    engine = pool.engine
    serve = (f"--model-path={_beside_the_manifest(policy.model.uri)}", f"--port=$({_port(policy)})")
    if engine.name == "builtin":
        # The last word is ours.
        return ("python", "-m", "trimtab.rollout.engines.builtin", *(engine.args or ()), *serve)
    return (
        "python", "-m", "trimtab.rollout.engines.sglang", *serve,
        f"--startup-timeout-seconds={engine.startup_timeout_seconds}",
        *(() if engine.interpreter is None else (f"--interpreter={_beside_the_manifest(engine.interpreter)}",)),
        "--", *(engine.args or ()),
    )  # fmt: skip


def _beside_the_manifest(path: str) -> str:
    """Relative paths in a manifest are relative to its folder."""
    return path if path.startswith("/") else f"$(JOB_FOLDER)/{path}"


def _port(policy: Policy) -> str:
    return f"ENGINE_PORT_{policy.name.upper().replace('-', '_')}"
