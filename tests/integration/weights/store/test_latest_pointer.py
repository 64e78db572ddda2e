"""The pointer under many writers, superseded writers, lost answers and a store that goes back in time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from botocore.exceptions import ConnectionClosedError

from tests.support.weights.shelf import POLICY, D, bare_entry
from trimtab.fabric.objects.client import ObjectStore
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.keys import latest_key
from trimtab.weights.store.latest import (
    CatalogueTooLarge,
    InvalidPointer,
    Latest,
    LatestPointer,
    PointerRolledBack,
    SupersededTrainer,
)
from trimtab.weights.store.position import Position

KEY = latest_key(POLICY)


def opened(store: ObjectStore) -> LatestPointer:
    return LatestPointer(store, POLICY)


async def add(pointer: LatestPointer, *entries: Entry, epoch: int = 1) -> Latest:
    return await pointer.update(lambda latest: latest.adding(*entries), epoch=epoch, deadline_s=D)


async def test_eight_writers_at_once_lose_no_entry(store: ObjectStore) -> None:
    await opened(store).claim_epoch(deadline_s=D)
    rounds = 4

    async def write(writer: int) -> None:
        pointer = opened(store)
        for turn in range(rounds):
            await add(pointer, bare_entry(Position(1, turn * 8 + writer)))

    await asyncio.gather(*(write(writer) for writer in range(8)))
    latest = await opened(store).read(deadline_s=D)
    assert latest is not None
    assert {entry.target.version for entry in latest.catalogue} == set(range(8 * rounds))
    assert latest.newest == Position(1, 8 * rounds - 1)


async def test_trainers_that_start_at_once_get_an_epoch_each_and_the_last_one_writes(store: ObjectStore) -> None:
    claims = await asyncio.gather(*(opened(store).claim_epoch(deadline_s=D) for _ in range(8)))
    assert sorted(claim.epoch for claim in claims) == list(range(1, 9))
    outcomes = await asyncio.gather(
        *(add(opened(store), bare_entry(Position(epoch, 1)), epoch=epoch) for epoch in range(1, 9)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [SupersededTrainer] * 7 + [Latest]


async def test_a_superseded_trainer_is_refused_and_what_it_published_stays(store: ObjectStore) -> None:
    assert await opened(store).read(deadline_s=D) is None
    older, newer = opened(store), opened(store)
    await older.claim_epoch(deadline_s=D)
    await add(older, bare_entry(Position(1, 7)))
    claimed = await newer.claim_epoch(deadline_s=D)
    assert (claimed.epoch, claimed.newest, claimed.catalogue) == (2, Position(1, 7), (bare_entry(Position(1, 7)),))
    with pytest.raises(SupersededTrainer, match="epoch 1 of .* superseded by epoch 2"):
        await add(older, bare_entry(Position(1, 8)))
    successor = bare_entry(Position(2, 3), Position(1, 2))
    latest = await add(newer, successor, epoch=2)
    assert latest.newest == Position(2, 3)
    assert latest.catalogue == (bare_entry(Position(1, 7)), successor)


async def test_equal_updates_of_two_writers_have_different_etags(store: ObjectStore) -> None:
    pointer = opened(store)
    await pointer.claim_epoch(deadline_s=D)
    etags = set()
    for _ in range(2):
        await add(pointer, bare_entry(Position(1, 1)), bare_entry(Position(1, 2)))
        etags.add((await store.head(KEY)).etag)
        await pointer.update(lambda latest: latest.keeping([bare_entry(Position(1, 2))]), epoch=1, deadline_s=D)
        etags.add((await store.head(KEY)).etag)
    assert len(etags) == 4


@pytest.mark.parametrize("lost", [1, 3])
async def test_an_update_whose_answer_is_lost_happens_once(store: ObjectStore, lost: int) -> None:
    pointer = opened(store)
    await pointer.claim_epoch(deadline_s=D)
    answers = 0

    def lose_answer(**_: Any) -> None:
        nonlocal answers
        answers += 1
        if answers <= lost:
            raise ConnectionClosedError(endpoint_url="the answer was lost")

    store.s3.meta.events.register("after-call.s3.PutObject", lose_answer)
    latest = await add(pointer, bare_entry(Position(1, 1)))
    store.s3.meta.events.unregister("after-call.s3.PutObject", lose_answer)
    assert answers > lost
    assert await opened(store).read(deadline_s=D) == latest
    before = await store.head(KEY)
    assert await add(pointer, bare_entry(Position(1, 1))) == latest
    assert await store.head(KEY) == before, "what is there already is not written again"


async def test_an_update_goes_neither_back_nor_to_another_epoch(store: ObjectStore) -> None:
    pointer = opened(store)
    await pointer.claim_epoch(deadline_s=D)
    await add(pointer, bare_entry(Position(1, 1)), bare_entry(Position(1, 2)))
    with pytest.raises(ValueError, match="go back from version 2 of epoch 1 to version 1 of epoch 1"):
        await pointer.update(lambda latest: Latest(epoch=1).adding(latest.catalogue[0]), epoch=1, deadline_s=D)
    with pytest.raises(ValueError, match="cannot change the epoch"):
        await pointer.update(lambda latest: msgspec.structs.replace(latest, epoch=5), epoch=1, deadline_s=D)


async def test_a_store_that_goes_back_in_time_is_noticed(store: ObjectStore) -> None:
    pointer = opened(store)
    await pointer.claim_epoch(deadline_s=D)
    await add(pointer, bare_entry(Position(1, 1)))
    backup = (await store.get(KEY, max_bytes=1 << 20)).body
    await add(pointer, bare_entry(Position(1, 2)))
    await store.put(KEY, backup)
    with pytest.raises(PointerRolledBack, match="went back from epoch 1, version 2"):
        await pointer.read(deadline_s=D)
    with pytest.raises(PointerRolledBack):
        await add(pointer, bare_entry(Position(1, 3)))
    await store.delete(KEY)
    with pytest.raises(PointerRolledBack, match="is gone"):
        await pointer.read(deadline_s=D)
    with pytest.raises(PointerRolledBack, match="no longer knows epoch 1"):
        await add(opened(store), bare_entry(Position(1, 3)))


@pytest.mark.parametrize("body", [b"", b"{", b'{"epoch":-1}', b'{"epoch":1,"format":2}', b"\xff"], ids=repr)
async def test_a_malformed_pointer_is_refused(store: ObjectStore, body: bytes) -> None:
    await store.put(KEY, body)
    with pytest.raises(InvalidPointer, match=KEY):
        await opened(store).read(deadline_s=D)
    with pytest.raises(InvalidPointer):
        await opened(store).claim_epoch(deadline_s=D)
    assert (await store.get(KEY, max_bytes=100)).body == body


async def test_a_catalogue_that_would_not_fit_is_not_written(store: ObjectStore) -> None:
    pointer = opened(store)
    claimed = await pointer.claim_epoch(deadline_s=D)
    many = [bare_entry(Position(1, version)) for version in range(5000)]
    with pytest.raises(CatalogueTooLarge, match="with 5000 entries"):
        await add(pointer, *many)
    assert await pointer.read(deadline_s=D) == claimed
    assert len((await add(pointer, *many[:3000])).catalogue) == 3000
