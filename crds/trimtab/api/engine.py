"""The inference engine of a rollout pool."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import Rule, only_with
from trimtab.api.scalars import Location, Resources, Seconds, SecretKey, Url

EngineName = Literal["builtin", "sglang", "openai"]


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
    args: Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=128)] | None = None
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
