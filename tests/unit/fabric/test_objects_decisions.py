"""The object store's pure parts: keys, ranges, part sizes, checksums and which faults are repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError
from hypothesis import given
from hypothesis import strategies as st
from urllib3.exceptions import ProtocolError

from trimtab.fabric.objects.checksums import digest_of, digest_of_file, verify
from trimtab.fabric.objects.client import MAX_KEY_BYTES, checked_key, full_key, relative_key
from trimtab.fabric.objects.download import RangeBook
from trimtab.fabric.objects.errors import (
    ChecksumMismatch,
    InvalidKey,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    StoreFault,
    StoreRefused,
    StoreUnauthorized,
    StoreUnavailable,
    translated,
)
from trimtab.fabric.objects.upload import MAX_PARTS, MIN_PART_BYTES, UploadShape


@given(st.text(max_size=40), st.text(max_size=20))
def test_a_key_is_refused_or_means_one_object_below_the_prefix(key: str, prefix: str) -> None:
    try:
        whole = full_key(prefix, key)
    except InvalidKey:
        return
    assert len(whole.encode()) <= MAX_KEY_BYTES
    assert whole.isprintable()
    assert not {"", ".", ".."} & set(whole.split("/"))
    assert whole.startswith(prefix.strip("/"))
    assert relative_key(prefix, whole) == key


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "empty"),
        ("/a", "slash"),
        ("a/", "slash"),
        ("a//b", "slash"),
        ("a/../b", "segment"),
        ("./a", "segment"),
        ("a\nb", "control"),
        ("\ud800", "unprintable"),
        ("x" * 1025, "1024"),
    ],
)
def test_bad_keys_are_named_with_the_reason(key: str, reason: str) -> None:
    with pytest.raises(InvalidKey, match=reason):
        checked_key(key)


@given(st.integers(0, 1000), st.integers(1, 100), st.data())
def test_a_range_book_survives_its_file(size: int, range_bytes: int, data: st.DataObject) -> None:
    book = RangeBook(etag="e", size=size, range_bytes=range_bytes)
    starts = book.unfinished()
    assert sum(map(book.length, starts)) == size
    for start in starts:
        book.received[start] = data.draw(st.integers(0, book.length(start)))
    assert set(book.unfinished()) == {s for s in starts if book.received[s] < book.length(s)}
    assert book.received_bytes == sum(book.received.values())


def test_a_book_of_another_version_or_with_nonsense_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "ranges"

    def load(etag: str = "e") -> RangeBook | None:
        return RangeBook.load(path, etag=etag, size=100, range_bytes=30)

    assert load() is None
    path.write_bytes(RangeBook(etag="e", size=100, range_bytes=30, received={0: 30, 90: 4}).dump())
    assert load() == RangeBook(etag="e", size=100, range_bytes=30, received={0: 30, 90: 4})
    assert load(etag="other") is None
    for received in ({1: 1}, {90: 11}, {0: -1}):
        path.write_bytes(RangeBook(etag="e", size=100, range_bytes=30, received=received).dump())
        assert load() is None
    path.write_bytes(b"{torn")
    assert load() is None


@given(st.integers(0, 1 << 43), st.integers(1, 1 << 30), st.integers(1, 1 << 32))
def test_parts_fit_the_limits_of_s3(size: int, part_bytes: int, in_flight: int) -> None:
    shape = UploadShape(part_bytes=part_bytes, max_bytes_in_flight=in_flight)
    part = shape.part_bytes_for(size)
    assert part >= MIN_PART_BYTES
    assert -(-size // part) <= MAX_PARTS
    parallel = shape.parallel_for(size)
    assert parallel == 1 or parallel * part <= in_flight


@given(st.binary(max_size=2000))
def test_file_and_memory_have_the_same_digest(tmp_path_factory: pytest.TempPathFactory, body: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "digested"
    path.write_bytes(body)
    assert digest_of(body) == digest_of_file(path) == digest_of(memoryview(body))


def test_verifying() -> None:
    verify("aa", expected="aa", where="s3://b/k")
    verify("aa", expected=None, where="s3://b/k")
    with pytest.raises(ChecksumMismatch, match="s3://b/k"):
        verify("aa", expected="bb", where="s3://b/k")


MAY_NOT = "User: x is not authorized to perform"


def answer(status: int, code: str, message: str = "") -> ClientError:
    error = {"Code": code, "Message": message}
    return ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}}, "Op")  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (answer(404, "NoSuchKey"), ObjectNotFound),
        (answer(404, "404"), ObjectNotFound),
        (answer(404, "NoSuchBucket"), StoreRefused),
        (answer(412, "PreconditionFailed"), PreconditionFailed),
        (answer(409, "ConditionalRequestConflict"), StoreUnavailable),
        (answer(403, "SignatureDoesNotMatch"), StoreUnauthorized),
        (
            answer(403, "AccessDenied", f"{MAY_NOT}: s3:GetObject on resource"),
            StoreUnauthorized,
        ),
        (
            answer(403, "AccessDenied", f"{MAY_NOT}: s3:ListBucket on resource"),
            ObjectNotFound,
        ),
        (answer(400, "BadDigest"), ChecksumMismatch),
        (answer(503, "SlowDown"), StoreUnavailable),
        (answer(500, "InternalError"), StoreUnavailable),
        (answer(400, "InvalidRequest"), StoreRefused),
        (EndpointConnectionError(endpoint_url="http://x"), StoreUnavailable),
        (ReadTimeoutError(endpoint_url="http://x"), StoreUnavailable),
        (ProtocolError("cut"), StoreUnavailable),
        (ConnectionResetError(), StoreUnavailable),
        (NoCredentialsError(), StoreUnauthorized),
    ],
)
def test_faults_get_types(fault: StoreFault, expected: type[ObjectStoreError]) -> None:
    error = translated(fault, doing="get s3://b/k")
    assert type(error) is expected
    assert "s3://b/k" in str(error)
