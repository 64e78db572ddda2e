"""The weights of a host copy as memory: a safetensors file, mapped and shared with the engines that have it open."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trimtab.weights.apply.copy_files import DamagedCopy
from trimtab.weights.layout import Block, InvalidLayout, StateLayout, Tensor


class MappedWeights:
    """Views handed out keep the mapping alive, also past `close`."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError, and DamagedCopy when the file is not what its header says."""
        with path.open("r+b", buffering=0) as file:
            try:
                self.layout = StateLayout.read(file)
            except InvalidLayout as error:
                raise DamagedCopy(f"{path}: {error}") from None
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE)
        self._data: npt.NDArray[np.uint8] | None = np.frombuffer(
            self._map, dtype=np.uint8, offset=len(self.layout.prefix)
        )

    @property
    def closed(self) -> bool:
        return self._data is None

    def view(self, part: Block | Tensor) -> npt.NDArray[np.uint8]:
        """Its bytes, read-only."""
        view = self._writable(part)
        view.flags.writeable = False
        return view

    def elements(self, block: Block) -> npt.NDArray[np.unsignedinteger]:
        """The block as unsigned integers of its element width, to be changed in place."""
        return self._writable(block).view(f"u{block.element.width}")

    def flush(self) -> None:
        """On a disk it makes the changes outlive the machine; in shared memory it does nothing."""
        self._map.flush()

    def close(self) -> None:
        self._data = None
        with contextlib.suppress(BufferError):  # views are still in use; the mapping goes with the last of them
            self._map.close()

    def _writable(self, part: Block | Tensor) -> npt.NDArray[np.uint8]:
        if self._data is None:
            raise ValueError("the host copy is closed")
        return self._data[part.start : part.end]
