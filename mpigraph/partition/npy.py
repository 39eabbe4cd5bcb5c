"""Write a ``.npy`` file in chunks of rows at any position, without mapping it into memory."""

import os
from types import TracebackType

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array

__all__ = ["NpyWriter"]


class NpyWriter:
    """A ``.npy`` file of known shape and dtype, filled by :meth:`write`; a context manager.

    Args:
        path: the file, replaced if it exists.
        shape: full shape, first dimension the rows.
        dtype: dtype of the values.
    """

    def __init__(self, path: str | os.PathLike[str], shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._row_bytes = self._dtype.itemsize * int(np.prod(shape[1:]))
        self._file = open(path, "wb")
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._begin = self._file.tell()
        self._file.truncate(self._begin + shape[0] * self._row_bytes)

    def write(self, rows: Array, at: int) -> None:
        """Write rows from row number ``at`` on."""
        self._file.seek(self._begin + at * self._row_bytes)
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "NpyWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
