"""Arrays that a thread uses again and again: fresh pages cost more than what is written to them."""

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array

__all__ = ["Buffers"]


class Buffers:
    """Scratch arrays by name, for one thread."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def take(self, name: str, count: int, dtype: npt.DTypeLike = np.int64) -> Array:
        """[count] with undefined contents; the next call with this name gives the same memory."""
        array = self._arrays.get(name)
        if array is None or len(array) < count or array.dtype != dtype:
            array = self._arrays[name] = np.empty(count + count // 2, dtype)
        return array[:count]

    def arange(self, count: int) -> I64:
        """int64[count]: 0, 1, ...; not to be written to."""
        array = self._arrays.get("arange")
        if array is None or len(array) < count:
            array = self._arrays["arange"] = np.arange(count + count // 2)
        return array[:count]
