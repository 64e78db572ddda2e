"""What every message is made of: frozen structs that keep the fields of newer writers.

A reader of minor version n gives back, when it re-encodes a message, the fields that version n+1 added, at every level:
they wait in `newer`, which is flattened into its struct's own map on the wire and therefore a name no field may have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec
import msgspec.inspect
import msgspec.structs

from trimtab.fabric.wire.errors import InvalidField, Malformed, TooDeep, WireError
from trimtab.fabric.wire.values import check_plain

MAX_NEWER_FIELDS = 256
_KEPT = "newer"


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A struct inside a message."""

    newer: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.newer:
            if len(self.newer) > MAX_NEWER_FIELDS:
                raise InvalidField(f"more than {MAX_NEWER_FIELDS} unknown fields", field=_KEPT)
            for name in self.newer:
                if name in self.__struct_fields__:
                    raise InvalidField(f"{name} is a known field", field=_KEPT)
            check_plain(self.newer, field=_KEPT)


class Message(Part, frozen=True, kw_only=True):
    """A struct that travels in a frame of its own. Kinds are never reused; a change old readers cannot survive is a new major."""

    KIND: ClassVar[int]
    MAJOR: ClassVar[int] = 1
    MINOR: ClassVar[int] = 0
    MAX_BYTES: ClassVar[int] = 1 << 20
    COMPRESSED: ClassVar[bool] = True

    @classmethod
    def enc_hook(cls, value: Any) -> Any:
        """How a field that MessagePack has no type for is written."""
        raise TypeError(f"{type(value).__name__} values cannot be sent")

    @classmethod
    def dec_hook(cls, kind: Any, value: Any) -> Any:
        """How it is read."""
        raise TypeError(f"no field of {cls.__name__} has the type {kind}")


M = TypeVar("M", bound=Message)


def to_body(message: Message) -> bytes:
    """The MessagePack body of a message, refused here when a reader would refuse it."""
    cls = type(message)
    try:
        keeps_newer = _check(message, cls.dec_hook, "$")
        tree: object = _flattened(message) if keeps_newer else message
        return msgspec.msgpack.encode(tree, enc_hook=cls.enc_hook)
    except RecursionError:
        raise TooDeep("nested too deeply to encode") from None
    except WireError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidField(f"cannot be encoded: {error}") from None


def from_body(body: bytes, cls: type[M]) -> M:
    """The message in a MessagePack body, with the fields of newer writers kept."""
    try:
        try:
            return _decoder(cls).decode(body)
        except msgspec.ValidationError:
            # Either wrong, or written by a newer minor version: only the slow way can tell.
            tree = msgspec.msgpack.decode(body)
            return msgspec.convert(_lifted(tree, msgspec.inspect.type_info(cls)), cls, dec_hook=cls.dec_hook)
    except msgspec.ValidationError as error:
        raise _as_invalid_field(error) from None
    except RecursionError:
        raise TooDeep("nested too deeply to decode") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(str(error)) from None


@cache
def _decoder(cls: type[M]) -> msgspec.msgpack.Decoder[M]:
    return msgspec.msgpack.Decoder(cls, dec_hook=cls.dec_hook)


def _as_invalid_field(error: msgspec.ValidationError) -> InvalidField:
    text, _, path = str(error).partition(" - at ")
    path = path.replace("`", "") or "$"
    if isinstance(error.__cause__, WireError):
        inner = error.__cause__.field
        return InvalidField(error.__cause__.detail, field=path if inner == "$" else f"{path}.{inner}")
    return InvalidField(text, field=path)


def _check(value: msgspec.Struct, dec_hook: Callable[[Any, Any], Any], path: str) -> bool:
    """Check a struct and those in it field by field, because msgspec checks only what it decodes. True if any keeps newer fields."""
    cls = type(value)
    keeps_newer = isinstance(value, Part) and bool(value.newer)
    fields = {name: getattr(value, name) for name in cls.__struct_fields__}
    try:
        msgspec.convert(list(fields.values()) if cls.__struct_config__.array_like else fields, cls, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        refused = _as_invalid_field(error)
        raise InvalidField(refused.detail, field=path + refused.field.removeprefix("$")) from None
    for name, inner in fields.items():
        if isinstance(inner, msgspec.Struct):
            keeps_newer |= _check(inner, dec_hook, f"{path}.{name}")
        elif isinstance(inner, tuple):
            for position, item in enumerate(inner):
                if isinstance(item, msgspec.Struct):
                    keeps_newer |= _check(item, dec_hook, f"{path}.{name}[{position}]")
    return keeps_newer


def _flattened(value: Any) -> Any:
    """A struct as the map it is on the wire, its newer fields among its own."""
    if isinstance(value, Part):
        config = value.__struct_config__
        tree = {} if config.tag is None else {config.tag_field: config.tag}
        for field in msgspec.structs.fields(value):
            inner = getattr(value, field.name)
            if field.name != _KEPT and not (inner is field.default or inner in ((), {}) and not field.required):
                tree[field.encode_name] = _flattened(inner)
        return tree | value.newer
    if isinstance(value, tuple):
        return [_flattened(item) for item in value]
    return value


def _lifted(tree: Any, kind: msgspec.inspect.Type) -> Any:
    """A decoded map with the keys that its struct does not know moved into `newer`, at every level."""
    if isinstance(kind, msgspec.inspect.UnionType):
        return _lifted_union(tree, kind)
    if isinstance(kind, msgspec.inspect.VarTupleType) and isinstance(tree, list):
        return [_lifted(item, kind.item_type) for item in tree]
    if not (isinstance(kind, msgspec.inspect.StructType) and isinstance(tree, dict) and issubclass(kind.cls, Part)):
        return tree
    known = {field.encode_name: field.type for field in kind.fields}
    own: dict[Any, Any] = {}
    newer: dict[Any, Any] = {}
    for key, value in tree.items():
        if key in known and key != _KEPT:
            own[key] = _lifted(value, known[key])
        elif key == kind.tag_field:
            own[key] = value
        else:
            newer[key] = value
    if newer:
        own[_KEPT] = newer
    return own


def _lifted_union(tree: Any, kind: msgspec.inspect.UnionType) -> Any:
    for choice in kind.types:
        if isinstance(choice, msgspec.inspect.StructType) and isinstance(tree, dict):
            if choice.tag_field is None or tree.get(choice.tag_field) == choice.tag:
                return _lifted(tree, choice)
        elif isinstance(choice, msgspec.inspect.VarTupleType) and isinstance(tree, list):
            return _lifted(tree, choice)
    return tree
