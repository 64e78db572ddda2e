"""Part of each batch is groups that were trained on before: fewer rollouts for the same number of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trimtab.api.data import Replay as ReplaySettings
from trimtab.dataflow.selection.contract import Choice, Offer, Used
from trimtab.dataflow.selection.fresh import Fresh


class Replay:
    """`ratio` of the places go to used groups drawn at random, as far as there are any that are young enough and not
    used up; the rest is fresh. The latest groups are kept, of `size` episodes at most.
    """

    def __init__(self, settings: ReplaySettings, fresh: Fresh) -> None:
        self._settings = settings
        self._fresh = fresh

    def streams(self, policy: str) -> Sequence[str]:
        return self._fresh.streams(policy)

    def needs(self, offer: Offer, *, steps: int) -> Mapping[str, int]:
        left = offer.batch - offer.filled
        now = left - min(self._quota(offer.filled, left), len(self._eligible(offer.used(), step=offer.step)))
        later = offer.batch - self._quota(0, offer.batch)
        return self._fresh.spread(offer, now + (steps - 1) * later)

    def choose(self, offer: Offer) -> Choice | None:
        pool = offer.used()
        eligible = self._eligible(pool, step=offer.step)
        count = min(self._quota(offer.filled, offer.places), len(eligible))
        fresh = self._fresh.choose_fresh(offer, offer.places - count)
        if fresh is None:
            return None
        replayed = offer.chance.sample(eligible, count)
        return Choice(
            fresh=fresh,
            replayed=[used.group_id for used in replayed],
            keep=True,
            retired=self._retired(offer, pool, fresh=fresh, replayed={used.group_id for used in replayed}),
        )

    def _quota(self, filled: int, places: int) -> int:
        """Replayed groups among these places of a batch; over its portions they add up to the share of the whole."""
        ratio = self._settings.ratio
        return round((filled + places) * ratio) - round(filled * ratio)

    def _eligible(self, pool: Sequence[Used], *, step: int) -> list[Used]:
        # Not those that an earlier portion of this very step has: a step learns from a group once.
        return [used for used in pool if self._usable(used) and used.last_step < step]

    def _usable(self, used: Used) -> bool:
        return used.uses < self._settings.max_uses and used.age <= self._settings.max_age

    def _retired(self, offer: Offer, pool: Sequence[Used], *, fresh: Sequence[str], replayed: set[str]) -> list[str]:
        """Used up, too old, or among the oldest when there are more than the pool may hold."""
        retired: list[Used] = []
        kept: list[Used] = []
        for used in pool:
            last_use = used.group_id in replayed and used.uses + 1 >= self._settings.max_uses
            (kept if self._usable(used) and not last_use else retired).append(used)
        held = sum(len(offer.outcome(group_id).episodes) for group_id in fresh) + sum(used.episodes for used in kept)
        for used in kept:
            if held <= self._settings.size:
                break
            retired.append(used)
            held -= used.episodes
        return [used.group_id for used in retired]
