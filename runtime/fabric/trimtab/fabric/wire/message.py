"""What every message is made of: frozen structs that keep the fields of newer writers.

A reader of minor version n gives back, when it re-encodes a message, the fields that version n+1 added, at every level:
they wait in `newer`, which is flattened into its struct's own map on the wire and therefore a name no field may have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import msgspec.inspect

from trimtab.fabric.wire.compression import Buffer
from trimtab.fabric.wire.errors import DepthError, InvalidFieldError, MalformedError, OversizeError, WireError
from trimtab.fabric.wire.values import check_plain

MAX_NEWER_FIELDS = 256
_BINARY_CODES = frozenset((0xC4, 0xC5, 0xC6))
_RawFields = Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=2 * MAX_NEWER_FIELDS)]
_KEPT = "newer"


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A struct inside a message."""

    newer: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.newer:
            if len(self.newer) > MAX_NEWER_FIELDS:
                raise InvalidFieldError(f"more than {MAX_NEWER_FIELDS} unknown fields", field=_KEPT)
            for name in self.newer:
                if name in self.__struct_fields__:
                    raise InvalidFieldError(f"{name} is a known field", field=_KEPT)
            check_plain(self.newer, field=_KEPT)


class Message(Part, frozen=True, kw_only=True):
    """A struct with a frame of its own. Kinds are never reused; what old readers cannot survive is a new major."""

    KIND: ClassVar[int]
    MAJOR: ClassVar[int] = 1
    MINOR: ClassVar[int] = 0
    MAX_BYTES: ClassVar[int] = 1 << 20
    COMPRESS_TO: ClassVar[int] = 1 << 32
    MAX_PLAIN_BYTES: ClassVar[int] = 4 << 20
    """Outside arrays, which stay what they are: one byte of MessagePack can become a Python object of a hundred."""

    @classmethod
    def enc_hook(cls, value: Any) -> Any:
        """How a field that MessagePack has no type for is written."""
        raise TypeError(f"{type(value).__name__} values cannot be sent")

    @classmethod
    def dec_hook(cls, kind: Any, value: Any) -> Any:
        """How it is read."""
        raise TypeError(f"no field of {cls.__name__} has the type {kind}")

    def own_value(self, kind: Any, value: Any) -> Any:
        """Reads such a field when this very message is checked before it is sent: its own value will do."""
        return self.dec_hook(kind, value)


M = TypeVar("M", bound=Message)


def to_body(message: Message) -> bytes:
    """The MessagePack body of a message, read once to refuse what a reader would: msgspec checks only then."""
    cls = type(message)
    try:
        tree: object = _flattened(message) if _keeps_newer(message) else message
        body = msgspec.msgpack.encode(tree, enc_hook=cls.enc_hook)
    except RecursionError:
        raise DepthError("nested too deeply to encode") from None
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, WireError):
            raise
        raise InvalidFieldError(f"cannot be encoded: {error}") from None
    _read(body, cls, message.own_value)
    return body


def from_body(body: Buffer, cls: type[M]) -> M:
    """The message in a MessagePack body, with the fields of newer writers kept."""
    return _read(body, cls, cls.dec_hook)


def _read(body: Buffer, cls: type[M], dec_hook: Callable[[Any, Any], Any]) -> M:
    try:
        if len(body) > cls.MAX_PLAIN_BYTES:
            _check_plain_bytes(body, limit=cls.MAX_PLAIN_BYTES)
        try:
            return msgspec.msgpack.decode(body, type=cls, dec_hook=dec_hook)
        except msgspec.ValidationError:
            # Either wrong, or written by a newer minor version: only the slow way can tell.
            tree = msgspec.msgpack.decode(body)
            return msgspec.convert(_lifted(tree, _type_info(cls)), cls, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        raise as_invalid_field(error) from None
    except RecursionError:
        raise DepthError("nested too deeply to decode") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedError(str(error)) from None


def _check_plain_bytes(body: Buffer, *, limit: int) -> None:
    """Refuse more than `limit` outside binary fields. Of a repeated key only the last counts as binary."""
    fields = msgspec.msgpack.decode(body, type=_RawFields)
    plain = len(body) - sum(len(memoryview(raw)) for raw in fields.values() if memoryview(raw)[0] in _BINARY_CODES)
    if plain > limit:
        raise OversizeError(f"{plain} bytes outside arrays, at most {limit} are accepted")


@cache
def _type_info(cls: type[Message]) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(cls)


def as_invalid_field(error: msgspec.ValidationError, *, root: str = "$") -> InvalidFieldError:
    """The refusal that msgspec's message amounts to, with the path it names."""
    text, _, path = str(error).partition(" - at ")
    path = root + path.replace("`", "").removeprefix("$")
    if isinstance(error.__cause__, WireError):
        inner = error.__cause__.field
        return InvalidFieldError(error.__cause__.detail, field=path if inner == "$" else f"{path}.{inner}")
    return InvalidFieldError(text, field=path)


@cache
def _fields_with_parts(cls: type[Part]) -> tuple[str, ...]:
    """The fields in which other structs may be: directly, or as a tuple of them."""

    def holds_part(kind: msgspec.inspect.Type) -> bool:
        if isinstance(kind, msgspec.inspect.UnionType):
            return any(holds_part(choice) for choice in kind.types)
        if isinstance(kind, msgspec.inspect.VarTupleType):
            return holds_part(kind.item_type)
        return isinstance(kind, msgspec.inspect.StructType) and issubclass(kind.cls, Part)

    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    return tuple(field.name for field in info.fields if holds_part(field.type))


def _keeps_newer(value: Part) -> bool:
    if value.newer:
        return True
    for name in _fields_with_parts(type(value)):
        inner = getattr(value, name)
        for part in inner if isinstance(inner, tuple) else (inner,):
            if isinstance(part, Part) and _keeps_newer(part):
                return True
    return False


def _flattened(value: Any) -> Any:
    """A struct as the map it is on the wire, its newer fields among its own."""
    if isinstance(value, Part):
        config = value.__struct_config__
        tree = {} if config.tag is None else {config.tag_field: config.tag}
        for name, written in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            if name != _KEPT:
                tree[written] = _flattened(getattr(value, name))
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
