"""Arrays of rows that are made when they are asked for, so that an input need not be held dense or converted as a
whole.
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError

__all__ = ["CastRows", "RowArray", "SparseRows"]


class RowArray(Protocol):
    """What partitioning needs of a feature: numpy arrays, memory maps and the classes below have it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Full shape, first dimension the rows."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Storage dtype."""

    @property
    def nbytes(self) -> int:
        """Bytes of what the rows are made from."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class CastRows:
    """Rows of an array in another dtype.

    Attributes:
        base: the array, as a view of it would have it: a memory map shows through.
    """

    def __init__(self, values: Array, dtype: npt.DTypeLike) -> None:
        self.base = values
        self.shape: tuple[int, ...] = values.shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.nbytes: int = values.nbytes

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: npt.NDArray[np.integer]) -> Array:
        cast: Array = self.base[rows].astype(self.dtype)
        return cast


class SparseRows:
    """Dense float32 rows of a CSR matrix.

    Args:
        indptr: int[n + 1].
        indices: int[nnz], columns.
        data: [nnz], values.
        shape: (n, columns).
    """

    def __init__(self, indptr: Array, indices: Array, data: Array, shape: tuple[int, ...]) -> None:
        if len(shape) != 2 or len(indptr) != shape[0] + 1 or len(indices) != len(data):
            raise GraphDataError(f"sparse features are no CSR matrix of shape {shape}")
        self._indptr, self._indices, self._data = indptr.astype(np.int64), indices, data
        self.shape: tuple[int, ...] = shape
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self.nbytes: int = self._indptr.nbytes + indices.nbytes + data.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: npt.NDArray[np.integer]) -> Array:
        begins, lengths = self._indptr[rows], self._indptr[rows + 1] - self._indptr[rows]
        row = np.repeat(np.arange(len(rows)), lengths)
        ends = np.cumsum(lengths)
        position = np.arange(len(row)) - np.repeat(ends - lengths, lengths) + np.repeat(begins, lengths)
        dense = np.zeros((len(rows), self.shape[1]), np.float32)
        dense[row, self._indices[position]] = self._data[position]
        return dense
