"""A publication and a collection in one process never meet at a key."""

from __future__ import annotations

import asyncio

from tests.support.polling import within
from trimtab.weights.store.in_flight import InFlight


async def test_a_claim_waits_for_the_deletion_under_way() -> None:
    in_flight, deleted = InFlight(), asyncio.Event()

    async def delete() -> None:
        with in_flight.deleting("key"):
            with in_flight.deleting("key"):
                await asyncio.sleep(0)
            await deleted.wait()

    deletion = asyncio.create_task(delete())
    await asyncio.sleep(0)
    with in_flight.publication() as publication, in_flight.watched() as claimed:
        await within(publication.claim("other"), 1)
        claim = asyncio.create_task(publication.claim("key"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not claim.done()
        assert claimed == {"other", "key"}
        deleted.set()
        await within(claim, 1)
        await deletion


async def test_what_was_claimed_while_watched_is_seen_even_after_its_release() -> None:
    in_flight = InFlight()
    with in_flight.publication() as earlier:
        await earlier.claim("before")
        with in_flight.watched() as claimed, in_flight.watched() as other:
            with in_flight.publication() as publication:
                await publication.claim("during")
                await publication.claim("during")
            assert claimed == other == {"before", "during"}
        with in_flight.watched() as later:
            assert later == {"before"}
    with in_flight.watched() as at_last:
        assert at_last == set()


async def test_a_key_stays_claimed_until_its_last_publication_is_over() -> None:
    in_flight = InFlight()
    with in_flight.publication() as first:
        await first.claim("key")
        with in_flight.publication() as second:
            await second.claim("key")
        with in_flight.watched() as claimed:
            assert claimed == {"key"}
