"""Rows of in-edges for tests of kernels, and the passes of a draw over them."""

import numpy as np
import numpy.typing as npt

from mpigraph.kernels.sample import Candidates, Destinations, Edges, choose, copy_neighbours, count, list_allowed
from mpigraph.kernels.weighted import alias_tables

I64 = npt.NDArray[np.int64]
WEIGHTS = ["float32", "float64", "bool"]


class Csc:
    """Rows of the degrees given; source of edge e is ``7 * e + 1``, so a source names its edge."""

    def __init__(self, degrees: list[int], dtype: str = "int64", first_id: int = 0, first_eid: int = 0) -> None:
        self.degrees = np.array(degrees, np.int64)
        self.indptr = np.concatenate([[0], np.cumsum(self.degrees)]).astype(np.int64)
        self.indices = (7 * np.arange(self.indptr[-1]) + 1).astype(dtype)
        self.first_id, self.first_eid = first_id, first_eid

    def sample(
        self,
        rows: I64,
        fanout: int,
        replace: bool,
        key: np.uint64,
        weights: np.ndarray | None = None,
        *,
        prepared: bool = False,
        excluded: I64 | None = None,
    ) -> tuple[list[I64], list[I64]]:
        """All passes on one host: sources and edge ids of each row."""
        ids = np.asarray(rows, np.int64) + self.first_id
        dst, counts = Destinations(ids, ids, fanout, replace, np.atleast_1d(key)), np.zeros(len(ids), np.int64)
        edges = self.edges(weights, prepared=prepared, excluded=excluded)
        every, rows = np.arange(len(ids)), candidates(len(ids))
        assert count(dst, edges, every, rows, counts) == -1
        offsets = np.concatenate([[0], np.cumsum(counts)])
        src, picks = np.full(offsets[-1], -1, self.indices.dtype), np.full(offsets[-1], -1, np.int64)
        choose(dst, edges, every, rows, offsets, picks)
        copy_neighbours(self.indices, every, offsets, self.first_eid, picks, src)
        return np.split(src, offsets[1:-1]), np.split(picks, offsets[1:-1])

    def edges(self, weights: np.ndarray | None, *, prepared: bool = False, excluded: I64 | None = None) -> Edges:
        """What kernels know of the rows; ``weights`` may be a mask."""
        edges = Edges(self.indptr, self.first_id)
        if excluded is not None:
            edges = edges._replace(excluded=excluded)
        if weights is None:
            return edges
        masked, size = weights.dtype == bool, len(weights) * prepared
        table = np.empty(size, np.uint32 if masked else np.uint64)
        drawable = np.empty(len(self.degrees) * prepared, np.int32)
        if prepared:
            assert (list_allowed if masked else alias_tables)(self.indptr, weights, table, drawable) == -1
        if masked:
            return edges._replace(drawable=drawable, order=table) if prepared else edges._replace(mask=weights)
        return edges._replace(weights=weights, drawable=drawable, table=table)


def candidates(count: int) -> Candidates:
    return Candidates(*(np.zeros(count, np.int64) for _ in Candidates._fields))


def reference_count(alive: int, fanout: int, replace: bool) -> int:
    if fanout < 0 or alive == 0:
        return alive
    return fanout if replace else min(alive, fanout)
