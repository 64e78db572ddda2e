"""What benchmarks.gateway compares: the same calls, trained in three ways."""

from __future__ import annotations

import pytest

from benchmarks.agents.recorded import compared


@pytest.mark.parametrize("faithful", [True, False])
async def test_every_way_trains_what_was_sampled(faithful: bool) -> None:
    ways = await compared("qwen2.5", sessions=2, steps=4, faithful=faithful)
    assert len({trained.sampled for trained in ways.values()}) == 1
    assert ways["gateway"].rows <= ways["re_templated"].rows <= ways["row_per_call"].rows
    assert ways["gateway"].tokens < ways["row_per_call"].tokens


async def test_histories_that_are_sent_back_as_they_were_take_fewer_rows() -> None:
    ways = await compared("qwen2.5", sessions=2, steps=6, faithful=True)
    assert 2 * ways["gateway"].rows <= ways["row_per_call"].rows == 12
