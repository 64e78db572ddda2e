"""Which GPUs containers see."""

from __future__ import annotations

from trimtab.devcluster.container.gpus import GpuBook, host_gpus


def test_gpus_are_handed_out_once() -> None:
    book = GpuBook(host_gpus({"CUDA_VISIBLE_DEVICES": "2,5,7"}))
    two = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    assert book.take(two, uid="a") == {"CUDA_VISIBLE_DEVICES": "2,5"}
    assert book.take(two, uid="a") == {"CUDA_VISIBLE_DEVICES": "2,5"}
    assert book.take({"name": "main"}, uid="b") == {"CUDA_VISIBLE_DEVICES": ""}
    book.release(uid="a")
    assert book.take(two, uid="c") == {"CUDA_VISIBLE_DEVICES": "2,5"}
