"""A corpus on disk is searched by its words; a line that is no passage is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.rollout.search.bm25 import Bm25Search, read_corpus
from trimtab.rollout.search.opening import open_search
from trimtab.rollout.search.passages import Passage, shown

CORPUS = (
    Passage(title="Ada", text="lives in Rome, on the seventh hill"),
    Passage(title="Bob", text="lives in Oslo"),
    Passage(text="Ada and Bob know each other"),
    Passage(title="Über", text="das Meer"),
)


async def found(query: str, *, results: int = 2) -> list[str]:
    return [passage.title or passage.text for passage in await Bm25Search(CORPUS, results=results).find(query)]


async def test_the_passage_with_the_rarest_words_of_the_query_is_the_first() -> None:
    assert (await found("who lives in OSLO?"))[0] == "Bob"
    assert (await found("ada rome"))[0] == "Ada"
    assert await found("über") == ["Über"]


async def test_a_title_is_searched_too() -> None:
    assert sorted(await found("bob", results=4)) == ["Ada and Bob know each other", "Bob"]


@pytest.mark.parametrize("query", ["", "  ?!", "zebra", "\x00", "<search>"])
async def test_what_is_not_there_is_not_found(query: str) -> None:
    assert await found(query) == []


async def test_more_results_than_passages_are_all_that_fit() -> None:
    assert len(await found("lives", results=50)) == 2


async def test_a_query_without_end_is_searched_by_its_beginning() -> None:
    assert (await found("oslo " + "x" * 100_000))[0] == "Bob"


def test_a_policy_reads_a_line_for_each_passage_and_never_all_of_a_long_one() -> None:
    assert shown(CORPUS[1:3]) == "Bob: lives in Oslo\nAda and Bob know each other"
    assert shown([]) == "Nothing found."
    assert len(shown([Passage(text="x" * 100_000)])) < 5_000


def test_a_corpus_is_read_in_both_layouts(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text(
        '{"id": "0", "contents": "\\"Ada\\"\\nlives in Rome"}\n\n'
        '{"title": "Bob", "text": "lives in Oslo", "url": "x"}\n'
    )
    assert read_corpus(file) == [Passage(title="Ada", text="lives in Rome"), Passage(title="Bob", text="lives in Oslo")]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b'{"text": "a b"}\n{"body": "x"}\n', "line 2: it has body: `text` is needed"),
        (b'{"text": "a b"}\nAda\n', "line 2: no JSON"),
        (b'["a"]\n', "line 1: a list: an object"),
        (b'{"text": 7}\n', "line 1: it has text: `text` is needed"),
        (b"", "has no words"),
        (b'{"text": "..."}', "has no words"),
        (b'{"text": "\xff"}', "cannot be read"),
        (None, "cannot be read: .*No such file"),
    ],
)
def test_what_is_no_corpus_is_named(tmp_path: Path, written: bytes | None, message: str) -> None:
    if written is not None:
        (tmp_path / "corpus.jsonl").write_bytes(written)
    with pytest.raises(ValueError, match=f"corpus.jsonl.*{message}"):
        open_search({"corpus": "corpus.jsonl"}, folder=tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "search needs corpus, .* or url"),
        ({"corpus": "a", "url": "http://a"}, "and not both"),
        ({"corpus": "a", "topk": 3}, "search.topk is unknown; there are corpus, url, results, timeout_s"),
        ({"corpus": "a", "results": 0}, "search.results is 0: a number from 1 to 100"),
        ({"corpus": "a", "results": True}, "search.results is True"),
        ({"corpus": "a", "timeout_s": 3}, "search.timeout_s is for search.url"),
        ({"url": "http://a", "timeout_s": 0}, "search.timeout_s is 0: seconds, more than 0"),
        ({"url": "ftp://a"}, "search.url is 'ftp://a': .* http:// or https://"),
        ({"url": "http://ada:secret@a"}, "search.url has a user or a password"),
    ],
)
def test_what_is_wrong_with_the_settings_is_named_without_what_is_secret(
    tmp_path: Path, given: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        open_search(given, folder=tmp_path)
    assert "secret" not in str(caught.value)
