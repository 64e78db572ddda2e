"""What can go wrong on the bus. Callers catch BusError or one of these; nothing from nats-py gets past this package."""

# named after what happened, as callers read them in an except clause

from __future__ import annotations

from collections.abc import Sequence


class BusError(Exception):
    """Root of everything trimtab.fabric.bus raises."""


class BusTimeout(BusError):
    """The deadline passed. The outcome is unknown: the other side may have acted."""


class BusUnavailable(BusError):
    """The call could not be served just now: no connection, no responder, no JetStream. Trying later may help."""


class NoResponders(BusUnavailable):
    """The server is there and no responder listens on the subject."""


class StreamFull(BusUnavailable):
    """A stream that never discards, its account or its server has no room for more; readers have to catch up first."""


class BusClosed(BusError):
    """This side closed the connection; the call can never succeed."""


class BusUnauthenticated(BusError):
    """The server refused our credentials, or we refused its certificate."""


class BusNotFound(BusError):
    """The stream, consumer, bucket, key or message does not exist."""

    def __init__(self, message: str, *, sequences: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.sequences = tuple(sequences)


class StreamRewound(BusError):
    """A stream has lost messages that were read before, as by a loss of power: others will get their numbers."""


class BusConflict(BusError):
    """A compare-and-swap lost. `revision` is the one present now, 0 when the key does not exist."""

    def __init__(self, message: str, *, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class PayloadTooLarge(BusError):
    """The message exceeds what the server, the stream or the byte bound lets through."""

    def __init__(self, message: str, *, size: int, limit: int) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class InvalidName(BusError, ValueError):
    """A subject, key, name or header the protocol cannot carry."""


class TopologyMismatch(BusError):
    """A stream or consumer exists with a setting that cannot be changed in place."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class BusRefused(BusError):
    """JetStream refused the request for a reason that has no type of its own."""

    def __init__(self, message: str, *, code: int, err_code: int) -> None:
        super().__init__(message)
        self.code = code
        self.err_code = err_code


class RemoteError(BusError):
    """A responder's failure: raised by its handler, carried in reply headers, raised again at the requester."""

    def __init__(self, message: str, *, kind: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.retryable = retryable
