"""How an agent wants tokens to be drawn, and how they are. A policy that learns is scored under its own settings, so
they stand; a frozen one takes what the agent asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.exchange import Ask, Refused
from trimtab.rollout.workflows.conversation import Role

_BOUNDS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 1_000_000),
    "min_p": (0.0, 1.0),
}
_WHOLE = ("top_k", "seed")
_SEEDS = 2**31
_MOST_STOPS = 16
_MOST_ANSWERS = 128


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The settings of one request."""

    sampling: SamplingSettings
    seed: int | None
    """None: it follows from the episode's."""
    overridden: tuple[str, ...]
    """What the agent wanted otherwise, by name."""


def drawing(role: Role, ask: Ask) -> Drawing:
    """Raises Refused, which names the field, for what cannot be followed."""
    if ask.max_tokens is not None and ask.max_tokens < 1:
        raise Refused(f"max_tokens is {ask.max_tokens}; ask for 1 at least")
    if not 1 <= ask.count <= _MOST_ANSWERS:
        raise Refused(f"n is {ask.count}; ask for 1 to {_MOST_ANSWERS}")
    if len(ask.stop) > _MOST_STOPS or not all(ask.stop):
        raise Refused(f"stop: give up to {_MOST_STOPS} texts, none of them empty")
    own = role.sampling
    most = own.max_new_tokens if ask.max_tokens is None else min(own.max_new_tokens, ask.max_tokens)
    sampling = replace(own, max_new_tokens=most, stop=tuple(dict.fromkeys((*own.stop, *ask.stop))))
    wanted = {name: value for name, value in ask.wishes.items() if value is not None}
    if not role.frozen:
        return Drawing(sampling=sampling, seed=None, overridden=tuple(sorted(_otherwise(wanted, own))))
    unknown = [name for name in _otherwise(wanted, own) if name not in _BOUNDS and name != "seed"]
    if unknown:
        known = ", ".join((*_BOUNDS, "seed"))
        raise Refused(f"{unknown[0]}: role {role.name} cannot follow it; there are {known}")
    numbers = {name: _number(name, wanted[name]) for name in (*_BOUNDS, "seed") if name in wanted}
    seed = numbers.pop("seed", None)
    return Drawing(
        sampling=replace(sampling, **numbers), seed=None if seed is None else int(seed) % _SEEDS, overridden=()
    )


def _otherwise(wanted: Mapping[str, Any], own: SamplingSettings) -> list[str]:
    """What is wanted differently from what is done anyway. Wishes we do not know are none where they are empty or
    zero, as SDKs send them.
    """
    return [
        name for name, value in wanted.items() if (value != getattr(own, name) if name in _BOUNDS else bool(value))
    ] + [name for name, value in wanted.items() if name == "seed" and not value]


def _number(name: str, value: object) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or (name in _WHOLE and value != int(value)):
        raise Refused(f"{name} is {value!r:.80}; give a number")
    lowest, highest = _BOUNDS.get(name, (value, value))
    if not lowest <= value <= highest or (name == "top_p" and value == 0):
        raise Refused(f"{name} is {value}; give one from {lowest:g} to {highest:g}")
    return int(value) if name in _WHOLE else float(value)
