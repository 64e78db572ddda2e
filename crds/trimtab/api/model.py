"""What every API type shares: camelCase on the wire and snake_case in Python, attribute docstrings as the user
documentation, immutable values, and CEL rules that travel into the schema.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from trimtab.api.rules import Rule, rules_schema

GROUP = "rl.trimtab.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class ApiModel(BaseModel):
    """Base of all API types.

    Unknown fields are ignored here, so that an operator reads objects written for a newer CRD. Code that
    accepts a manifest from a person calls trimtab.api.validation, which reports them.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
        frozen=True,
        extra="ignore",
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core))
        schema.update(rules_schema(cls.rules))
        return schema


class OwnerReference(ApiModel):
    """The object that owns this one; when it goes, this one goes."""

    api_version: str
    """Group and version of the owner."""
    kind: str
    """Kind of the owner."""
    name: str
    """Name of the owner, in the same namespace."""
    uid: str
    """Unique id of the owner; a new object of the same name is another owner."""
    controller: bool | None = None
    """True for the one owner that manages this object."""
    block_owner_deletion: bool | None = None
    """True to keep the owner, in a foreground deletion, until this object is gone."""


class ObjectMeta(ApiModel):
    """The part of Kubernetes object metadata that Trimtab reads or writes."""

    name: str = ""
    """Name of the object, unique in its namespace for its kind."""
    generate_name: str | None = None
    """Prefix from which the server makes a unique name when `name` is empty."""
    namespace: str | None = None
    """Namespace of the object; absent in a manifest, the one kubectl points at."""
    uid: str | None = None
    """Unique id, given by the server."""
    resource_version: str | None = None
    """Opaque version of the stored object, for optimistic concurrency."""
    generation: int | None = None
    """Counts the changes of the spec."""
    creation_timestamp: datetime | None = None
    """When the server stored the object first."""
    deletion_timestamp: datetime | None = None
    """When deletion was asked for; set while finalizers run."""
    deletion_grace_period_seconds: int | None = None
    """Seconds allowed for a graceful deletion."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels, to select objects by."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations, for people and tools."""
    finalizers: tuple[str, ...] = ()
    """Who must clean up before the object may go."""
    owner_references: tuple[OwnerReference, ...] = ()
    """Owners of the object."""
    managed_fields: Annotated[
        tuple[dict[str, Any], ...],
        WithJsonSchema({"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}),
    ] = ()
    """Who set which field, kept by the server."""
