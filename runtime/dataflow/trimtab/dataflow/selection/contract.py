"""What a selection is. Write your own as a class with these methods and name it in `data.selection`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab.dataflow.outcomes import GroupOutcome


@dataclass(frozen=True, kw_only=True)
class Used:
    """A group that the policy has trained on and may train on again."""

    group_id: str
    stream: str
    """The policy whose trajectories these are."""
    uses: int
    last_step: int
    age: int
    """Versions that the policy it comes from has moved on since its oldest trained token."""
    episodes: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What goes into the batch now. `fresh` and `replayed` together fill the places that were offered."""

    fresh: Sequence[str]
    """Groups that wait, of any stream that the policy takes."""
    replayed: Sequence[str] = ()
    """Used groups to train on once more, none of which this very step has already."""
    keep: bool = False
    """Whether the fresh ones may be replayed later. Trajectories that are kept stay in the stream."""
    retired: Sequence[str] = ()
    """Used groups never to be replayed again, the ones chosen now included where this was their last use."""


class Offer(Protocol):
    """What there is to choose from for the next step of a policy, or for the next portion of it."""

    @property
    def policy(self) -> str: ...

    @property
    def step(self) -> int: ...

    @property
    def batch(self) -> int:
        """Groups in a whole step."""

    @property
    def filled(self) -> int:
        """Groups that the step has already, from earlier portions."""

    @property
    def places(self) -> int:
        """Groups to choose now."""

    @property
    def fresh_before(self) -> int:
        """Groups that the policy was ever given for the first time."""

    @property
    def chance(self) -> random.Random:
        """Dice that fall the same whenever this choice is made again."""

    def waiting(self, stream: str) -> int:
        """Groups of a stream that wait and are not too stale."""

    def earliest(self, stream: str, count: int) -> Sequence[str]:
        """Up to `count` of them, the one first that will be too stale first."""

    def used(self) -> Sequence[Used]:
        """In the order of their first use."""

    def outcome(self, group_id: str) -> GroupOutcome:
        """What became of a group that waits or was used."""


class Selection(Protocol):
    """One object chooses for all policies. It keeps no state of its own: everything it may depend on is in the offer,
    and what it chose is recorded.
    """

    def streams(self, policy: str) -> Sequence[str]:
        """Policies whose trajectories this policy's trainer takes."""

    def needs(self, offer: Offer, *, steps: int) -> Mapping[str, int]:
        """Of each stream, how many fresh groups it will take for so many steps, what is filled already not counted.
        So many are asked for from rollout. Say at least what the next choice waits for, or it waits for ever.
        """

    def choose(self, offer: Offer) -> Choice | None:
        """The groups for the places on offer; None to wait for more. Asked often: be quick to say None."""
