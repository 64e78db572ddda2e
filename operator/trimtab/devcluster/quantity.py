"""Kubernetes quantities such as 500m, 2Gi or 1e3 as exact numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i))?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = "KMGTPE"


class InvalidQuantity(ValueError):
    """A text that is no quantity."""


def quantity(text: str | int) -> Decimal:
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise InvalidQuantity(f"{text!r} is no quantity such as 500m, 2 or 4Gi")
    number, exponent, suffix = match.groups()
    if exponent:
        return Decimal(number + exponent)
    if not suffix:
        return Decimal(number)
    if suffix.endswith("i"):
        return Decimal(number) * Decimal(1024) ** (_BINARY.index(suffix[0]) + 1)
    return Decimal(number).scaleb(_DECIMAL[suffix])


def parsed_capacity(entries: Iterable[str]) -> dict[str, str]:
    """RESOURCE=QUANTITY as given on a command line."""
    capacity = {}
    for entry in entries:
        name, separator, amount = entry.partition("=")
        if not (name and separator):
            raise InvalidQuantity(f"{entry!r} is not of the form RESOURCE=QUANTITY, such as cpu=64")
        quantity(amount)
        capacity[name] = amount
    return capacity
