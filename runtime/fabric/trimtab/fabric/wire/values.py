"""The scalar vocabulary of the wire: bounds that every reader and writer checks.

Time is unix seconds as a float everywhere (what time.time() and Prometheus speak); the upper bound refuses milliseconds
and nanoseconds sent by mistake. Durations are seconds. Messages never look at a clock: times are passed in,
and never compared where two clocks, or one that was set back, may have made them.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

from msgspec import Meta

from trimtab.fabric.wire.errors import DepthError, InvalidFieldError

MAX_DEPTH = 24
_LARGEST = sys.float_info.max
_MAX_TOKEN = 200
_PRINTABLE = r"\A[!-~]+\Z"

Identifier = Annotated[str, Meta(min_length=1, max_length=256)]
"""An id chosen by a person or a data set; any text."""

Token = Annotated[str, Meta(min_length=1, max_length=_MAX_TOKEN, pattern=_PRINTABLE)]
"""An id we make ourselves: printable ASCII without spaces, so that it can be a NATS header value or an object key."""

RunId = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[!-\-/-~]+\Z")]
"""Names one execution of a task: as a Token, and without dots, which set it off in the id of a message."""

Name = Annotated[str, Meta(min_length=1, max_length=253)]
"""The name of a job, policy, pool, role, pod."""

Slug = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[a-z][a-z0-9_.-]*\Z")]
"""A machine-readable type, such as the kind of a failure. Open ended, because new kinds must not break old readers."""

Text = Annotated[str, Meta(max_length=4096)]
"""A sentence for people."""

Label = Annotated[str, Meta(max_length=64)]
"""What kind of prompt something came of, in the words of the data set; empty where nobody said."""

Digest = Annotated[str, Meta(max_length=160, pattern=r"\A[a-z0-9]+:[0-9a-f]{16,128}\Z")]
"""algorithm:hex, for instance sha256:…"""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Version = Annotated[int, Meta(ge=0, le=2**53)]
"""The version of a policy's weights: 0 is the model the job began with."""

Finite = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
"""Neither NaN (which no comparison admits) nor infinite."""

UnixSeconds = Annotated[float, Meta(ge=0, le=1e11)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Rate = Annotated[float, Meta(ge=0, le=1e15)]
Fraction = Annotated[float, Meta(ge=0, le=1)]

Versions = Annotated[dict[Name, Version], Meta(max_length=256)]
Tally = Annotated[dict[Slug, Count], Meta(max_length=256)]


def is_token(text: str) -> bool:
    """Whether the text is a Token, for ids that do not arrive in a struct."""
    return 0 < len(text) <= _MAX_TOKEN and text.isascii() and text.isprintable() and " " not in text


def check_plain(value: object, *, field: str) -> None:
    """Refuse all but nested null, bool, int, float, str, bytes, list and str-keyed maps: what any reader can hold."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                if not all(type(key) is str for key in item):
                    raise InvalidFieldError("map keys must be strings", field=field)
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
            elif item is not None and not isinstance(item, bool | int | float | str | bytes):
                raise InvalidFieldError(f"{type(item).__name__} values cannot be sent", field=field)
        if not below:
            return
        level = below
    raise DepthError(f"nested deeper than {MAX_DEPTH} levels", field=field)
