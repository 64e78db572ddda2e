"""What the API has fields for and this version does not do yet. Both executors refuse a job by these names, so that
nothing in a manifest is ever ignored in silence.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from trimtab.api.engine import EngineName
from trimtab.api.job import RLJobSpec
from trimtab.api.placement import policies_of, stages_of
from trimtab.api.pod_template import only_commands
from trimtab.api.policy import Policy
from trimtab.api.pool import JobPool

# Field names with dots; lists are looked into element by element. What is at its default is not asked for.
_JOB = ("data.shards",)
SGLANG_TOP_K = 64
"""From so many likeliest tokens the logprobs of what was drawn from can be had of SGLang."""
# What only Kubernetes has: pods of one machine are processes that share all of it.
_CLUSTER_JOB = (
    "data.template",
    "pools.cluster",
    "pools.engine.resources",
    "pools.resources",
    "pools.template",
    "policies.trainer.resources",
    "ttl_seconds_after_finished",
    "managed_by",
)


def unsupported(spec: RLJobSpec) -> list[str]:
    """Fields of the spec that ask for more than this version does, as Kubernetes writes paths."""
    found = list(_asked(spec, _JOB, above="spec"))
    engines = {pool.engine.name for pool in spec.pools}
    for number, pool in enumerate(spec.pools):
        found += [f"spec.pools[{number}].engine.{field}" for field in _unsupported_in_engine(spec, pool)]
    for number, policy in enumerate(spec.policies):
        found += [f"spec.policies[{number}].{field}" for field in unsupported_in_policy(policy)]
        found += [f"spec.policies[{number}].{field}" for field in _unlike_scores(spec, policy)]
        found += [f"spec.policies[{number}].{field}" for field in _inexact_sampling(policy, engines)]
        if _is_set(policy.sampling, "min_p") and "anthropic" in _endpoints(spec, policy):
            found.append(f"spec.policies[{number}].sampling.minP")
    return found


def without_meaning_here(spec: RLJobSpec) -> list[str]:
    """Fields that are set and change nothing on one machine; the same manifest runs there nevertheless."""
    found = list(_asked(spec, _CLUSTER_JOB, above="spec"))
    for number, policy in enumerate(spec.policies):
        if not only_commands(policy.trainer.template, container="trainer"):
            found.append(f"spec.policies[{number}].trainer.template")
    return found


def unsupported_in_policy(policy: Policy) -> list[str]:
    """The same for one policy, as paths below it."""
    # Greedy samples of a prompt are all the same and teach nothing.
    return ["sampling.temperature"] if policy.sampling.temperature == 0 and not policy.frozen else []


def _inexact_sampling(policy: Policy, engines: set[EngineName]) -> list[str]:
    """Settings that leave tokens out where an engine that serves the policy does not tell the logprobs of the rest."""
    if policy.frozen:
        return []
    sampling = policy.sampling
    asked = [field for field in ("top_p", "top_k", "min_p") if _is_set(sampling, field)]
    inexact: set[str] = set()
    if "openai" in engines:
        inexact |= set(asked)
    if "sglang" in engines:
        if not 0 < sampling.top_k <= SGLANG_TOP_K:
            inexact |= set(asked)
        elif sampling.top_p < 1.0:
            # With min-p SGLang cuts top-p off what top-k has left, or off all of it: that depends on its backend.
            inexact |= {"min_p"} & set(asked)
    return [f"sampling.{to_camel(field)}" for field in asked if field in inexact]


def _unlike_scores(spec: RLJobSpec, policy: Policy) -> list[str]:
    """Settings with which the logprobs of given tokens are not those of sampled ones: with no temperature there are
    none, SGLang tells them without one, and what leaves tokens out would leave out given ones."""
    asking = [stage for stage in spec.stages if stage.computes == "Logprobs" and stage.policy == policy.name]
    if not asking:
        return []
    engines = {
        pool.engine.name
        for pool in spec.pools
        if any(stage in stages_of(spec, pool, name=pool.name) for stage in asking)
    }
    fields = [field for field in ("top_p", "top_k", "min_p") if _is_set(policy.sampling, field)]
    temperature = policy.sampling.temperature
    if (temperature == 0 and policy.frozen) or (temperature not in (0, 1) and "sglang" in engines):
        fields.insert(0, "temperature")
    return [f"sampling.{to_camel(field)}" for field in fields]


def _endpoints(spec: RLJobSpec, policy: Policy) -> set[str]:
    """Protocols of the endpoints that a frozen policy is asked at."""
    engines = (one for pool in spec.pools for one in pool.engines if one.policy == policy.name)
    return {one.endpoint.name for one in engines if one.endpoint is not None}


def _unsupported_in_engine(spec: RLJobSpec, pool: JobPool) -> list[str]:
    engine = pool.engine
    found = []
    if engine.name == "sglang":
        if engine.api_key_secret is not None:
            found.append("apiKeySecret")
        endpoints = {engines.policy for engines in pool.engines if engines.endpoint is not None}
        needed = {policy.name for policy in policies_of(spec, pool, name=pool.name)}
        if engine.url is not None and len(needed - endpoints) > 1:
            # One server holds one set of weights; each policy would overwrite the other's.
            found.append("url")
    return found


def _asked(model: BaseModel, fields: tuple[str, ...], *, above: str) -> Iterator[str]:
    for field in fields:
        yield from _differing(model, field.split("."), above=above)


def _differing(model: BaseModel, path: list[str], *, above: str) -> Iterator[str]:
    name, rest = path[0], path[1:]
    value = getattr(model, name)
    here = f"{above}.{to_camel(name)}" if above else to_camel(name)
    if not rest:
        if _is_set(model, name):
            yield here
    elif isinstance(value, tuple):
        for number, element in enumerate(value):
            yield from _differing(element, rest, above=f"{here}[{number}]")
    elif value is not None:
        yield from _differing(value, rest, above=here)


def _is_set(model: BaseModel, name: str) -> bool:
    default = type(model).model_fields[name].get_default(call_default_factory=True)
    return bool(getattr(model, name) != default)
