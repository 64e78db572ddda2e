from __future__ import annotations

import stat
from pathlib import Path

import pytest

from trimtab.operator.autoscale.agent.transcripts import TranscriptFolder


def keep(folder: TranscriptFolder, number: int, *, job: str = "math", at: float | None = None) -> str:
    when = float(number) if at is None else at
    return folder.keep(namespace="team", job=job, decision_id=f"d-{number}", at=when, document=b'{"n": %d}' % number)


def test_the_newest_of_each_job_are_kept(tmp_path: Path) -> None:
    folder = TranscriptFolder(tmp_path, newest=3)

    names = [keep(folder, number) for number in range(5)]
    other = keep(folder, 0, job="code")

    assert names[4] == "team/math/19700101T000004Z-d-4.json"
    assert (tmp_path / names[4]).read_bytes() == b'{"n": 4}'
    assert sorted(path.name for path in (tmp_path / "team/math").iterdir()) == [Path(name).name for name in names[2:]]
    assert (tmp_path / other).exists()


def test_a_clock_set_back_does_not_cost_the_new_one(tmp_path: Path) -> None:
    folder = TranscriptFolder(tmp_path, newest=1)
    keep(folder, 100)

    name = keep(folder, 5)

    assert [path.name for path in (tmp_path / "team/math").iterdir()] == [Path(name).name]


def test_only_the_operator_reads_them_and_half_written_ones_go(tmp_path: Path) -> None:
    folder = TranscriptFolder(tmp_path, newest=3)
    half = tmp_path / "team/math/19700101T000000Z-d-0.partial"
    half.parent.mkdir(parents=True)
    half.write_text('{"n":')

    name = keep(folder, 1)

    assert not half.exists()
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_none_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="newest: at least one"):
        TranscriptFolder(tmp_path, newest=0)


def test_all_together_are_bounded_and_the_largest_namespace_makes_room(tmp_path: Path) -> None:
    folder = TranscriptFolder(tmp_path, newest=50, most_bytes=10_000)
    folder.keep(namespace="good", job="job", decision_id="mine", at=0.0, document=b"x" * 1000)
    for number in range(100):
        folder.keep(namespace="hostile", job=f"job-{number}", decision_id="d", at=1000.0 + number, document=b"x" * 3000)
    kept = sorted(path.relative_to(tmp_path).parts[:2] for path in tmp_path.rglob("*.json"))
    assert kept == [("good", "job"), ("hostile", "job-97"), ("hostile", "job-98"), ("hostile", "job-99")]
