"""What nodes keep in memory goes with them, and with their data folder where they were killed."""

from __future__ import annotations

from pathlib import Path

from trimtab.devcluster.volumes.shared_memory import drop_memory_folder, sweep_shared_memory, take_memory_folder


def test_a_killed_node_s_memory_is_swept_once_its_data_folder_is_gone(tmp_path: Path) -> None:
    gone, kept = tmp_path / "gone", tmp_path / "kept"
    for folder in (gone, kept):
        folder.mkdir()
    left, used = take_memory_folder(gone), take_memory_folder(kept)
    (left / "pod").mkdir()
    assert take_memory_folder(gone) == left, "the next node with the same data folder clears it"
    gone.rmdir()
    sweep_shared_memory()
    assert not left.exists()
    assert used.is_dir()
    drop_memory_folder(used)
    assert list(used.parent.glob(f"{used.name}*")) == []
