"""The inference engines of a rollout pool: how each is launched, how many a policy has, and endpoints elsewhere."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import Rule, only_with
from trimtab.api.scalars import Location, MemberName, PositiveSeconds, Resources, Seconds, SecretKey, Url

EngineName = Literal["builtin", "sglang", "openai"]
EngineArgs = Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=128)]


class Engine(ApiModel):
    """What samples tokens. All engines answer SGLang's HTTP endpoints, except openai, which takes no weight updates."""

    rules = (
        Rule("self.name != 'openai' || has(self.url)", "url is required with engine openai", ".url"),
        only_with("url", condition="self.name != 'builtin'", when="with engines sglang and openai"),
        only_with(
            "args",
            condition="(self.name != 'openai' && !has(self.url))",
            when="where the pool launches the engine (no url, not openai)",
        ),
        only_with(
            "interpreter",
            condition="(self.name == 'sglang' && !has(self.url))",
            when="with engine sglang, where the pool launches it (no url)",
        ),
        only_with("apiKeySecret", condition="has(self.url)", when="together with url"),
        only_with("model", condition="self.name == 'openai'", when="with engine openai"),
        Rule("self.name != 'openai' || has(self.model)", "model is required with engine openai", ".model"),
    )

    name: EngineName = "builtin"
    """builtin is ours (torch, CPU or GPU, small models); sglang is launched in the pod or reached by url;
    openai is any OpenAI-compatible endpoint, whose weights stay as they are."""
    args: EngineArgs | None = None
    """Command-line arguments added to those Trimtab sets, such as `--tp-size=4` of sglang or `--device=cpu` of
    builtin."""
    interpreter: Location | None = None
    """Python that has the engine installed; absent, the image's own. SGLang pins its own torch, so it often has its
    own."""
    url: Url | None = None
    """A server that already runs; absent, the pool launches one in each pod."""
    model: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Model name the endpoint knows."""
    api_key_secret: SecretKey | None = None
    """Secret key with the endpoint's API key."""
    resources: Resources = Resources()
    """Compute resources of the engine's container."""
    startup_timeout_seconds: Seconds = 1800
    """Seconds an engine may take to load before its pod counts as failed."""
    request_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """Seconds one generation may take; after that it is a failure, never an empty answer."""


class Endpoint(ApiModel):
    """A model behind somebody's API, which is asked with messages and answers with text. It serves frozen policies."""

    name: Literal["openai", "anthropic"]
    """The protocol: openai is POST /v1/chat/completions, anthropic is POST /v1/messages."""
    url: Url
    """Base of the endpoint, with or without the final /v1."""
    model: Annotated[str, Field(min_length=1, max_length=256)]
    """Model name the endpoint knows."""
    api_key_secret: SecretKey | None = None
    """Secret key with the endpoint's API key."""
    request_timeout_seconds: PositiveSeconds = 300
    """Seconds one answer may take; after that it is a failure, never an empty answer."""


class PolicyEngines(ApiModel):
    """What samples the tokens of one policy in a pod."""

    rules = (
        Rule(
            "!has(self.endpoint) || (self.replicas == 1 && !has(self.args))",
            "replicas and args apply only without endpoint: an endpoint is not launched here",
            ".endpoint",
        ),
    )

    policy: MemberName
    """Name of the policy."""
    replicas: Annotated[int, Field(ge=1, le=16)] = 1
    """Engines of this policy in each pod. Requests are spread over them; those that share a beginning go to the same
    one."""
    args: EngineArgs | None = None
    """Command-line arguments of these engines, added to those of `engine`."""
    endpoint: Endpoint | None = None
    """For a frozen policy: an endpoint to ask in place of an engine in the pod."""
