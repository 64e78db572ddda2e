"""Where prompts come from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import exactly_one_of
from trimtab.api.scalars import ColumnName, Location, MemberName, Plugin, Positive
from trimtab.api.source_uri import PROMPT_URI


class PromptFile(ApiModel):
    """A file, or a folder of files, of one format."""

    uri: Annotated[Location, PROMPT_URI]
    """A path in the dataflow pod (beside the manifest with `trimtab run`), `s3://bucket/key` or
    `hf://datasets/org/name@revision/path`."""


class HuggingFaceFolder(ApiModel):
    """A folder written by `datasets.save_to_disk`."""

    uri: Annotated[Location, PROMPT_URI]
    """A path in the dataflow pod, `s3://bucket/prefix` or `hf://datasets/org/name@revision/path`."""
    split: ColumnName = "train"
    """Split to read."""


class PromptInput(ApiModel):
    """One of the ways to read prompts."""

    rules = (exactly_one_of("jsonl", "parquet", "huggingFace", "generator"),)

    jsonl: PromptFile | None = None
    """JSON lines: one object per prompt."""
    parquet: PromptFile | None = None
    """Parquet: one row per prompt."""
    hugging_face: HuggingFaceFolder | None = None
    """A Hugging Face dataset on disk."""
    generator: Plugin | None = None
    """A class that gives prompt number n, for any n, always the same."""
    prompt_column: ColumnName = "prompt"
    """Column with the prompt: a text, or a list of chat messages. The other columns reach the workflow as they are."""


class PromptSource(PromptInput):
    """One source of training prompts."""

    name: MemberName
    """Name of the source, unique in the job; the ids of its prompts begin with it."""
    weight: Positive = Field(default=1.0)
    """How often it is drawn from, relative to the other sources."""
