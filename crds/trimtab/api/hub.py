"""The hub that `hf://` names are looked up on."""

from __future__ import annotations

from trimtab.api.model import ApiModel
from trimtab.api.scalars import SecretKey, Url


class Hub(ApiModel):
    """A Hugging Face hub, or a mirror of it."""

    endpoint: Url | None = None
    """Address of a mirror; absent, HF_ENDPOINT with `trimtab run`, else https://huggingface.co."""
    token_secret: SecretKey | None = None
    """A token for models and datasets that are gated or private. Only what fetches them is given it. With
    `trimtab run`, HF_TOKEN and what `hf auth login` left serve as well."""
