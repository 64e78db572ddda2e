"""Every group once: of the policy's own stream, of another policy's, or of several in proportion to their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trimtab.dataflow.mixing import MixingSchedule
from trimtab.dataflow.selection.contract import Choice, Offer


class Fresh:
    """Place n of a trainer's line of fresh groups belongs to one stream for good, so that shares hold over batches that
    are too small for them, and a change of weights has no past to make up for. A batch for which one stream has too few
    groups waits: filling up from another would shift the mix towards the quickest.
    """

    def __init__(self, weights: Mapping[str, Mapping[str, float]], *, seed: int) -> None:
        """`weights` has, for each policy that is trained, the weights of the streams it takes."""
        self._schedules = {policy: MixingSchedule(streams, seed=seed) for policy, streams in weights.items()}

    def streams(self, policy: str) -> Sequence[str]:
        return self._schedules[policy].names

    def needs(self, offer: Offer, *, steps: int) -> Mapping[str, int]:
        return self.spread(offer, steps * offer.batch - offer.filled)

    def choose(self, offer: Offer) -> Choice | None:
        chosen = self.choose_fresh(offer, offer.places)
        if chosen is None:
            return None
        # There is no replay now. What an earlier manifest kept for it would hold its trajectories in the stream.
        return Choice(fresh=chosen, retired=[used.group_id for used in offer.used()])

    def spread(self, offer: Offer, groups: int) -> dict[str, int]:
        """The streams of the next so many fresh groups."""
        return self._schedules[offer.policy].spread(offer.fresh_before, max(0, groups))

    def choose_fresh(self, offer: Offer, groups: int) -> list[str] | None:
        """So many, earliest deadline first within each stream; None when one has too few."""
        wanted = self.spread(offer, groups)
        if any(offer.waiting(stream) < count for stream, count in wanted.items()):
            return None
        return [group_id for stream, count in wanted.items() for group_id in offer.earliest(stream, count)]
