"""Rows of in-edges for tests of kernels, and the passes of a draw over them."""

import numpy as np
import numpy.typing as npt

from mpigraph.kernels.sample import (
    Candidates,
    Destinations,
    choose_masked,
    choose_uniform,
    copy_kept,
    copy_neighbours,
    count_uniform,
    list_allowed,
    recount_weighted,
    shorten_rows,
    step_over,
)
from mpigraph.kernels.weighted import alias_tables, choose_weighted, count_weighted

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
        shares: list[I64] | None = None,
        excluded: I64 | None = None,
    ) -> tuple[list[I64], list[I64]]:
        """All passes on one host: sources and edge ids of each row; the frontier in several shares, if given."""
        ids = np.asarray(rows, np.int64) + self.first_id
        dst, counts = Destinations(ids, fanout, replace, np.atleast_1d(key)), np.zeros(len(ids), np.int64)
        shares = [np.arange(len(ids))] if shares is None else shares
        masked = weights is not None and weights.dtype == bool
        table, drawable = np.empty(0, np.uint32 if masked else np.uint64), np.empty(0, np.int32)
        if weights is not None and prepared:
            table, drawable = np.empty(len(weights), table.dtype), np.empty(len(self.degrees), np.int32)
            assert (list_allowed if masked else alias_tables)(self.indptr, weights, table, drawable) == -1
        out = np.empty(0, np.int64) if excluded is None else excluded
        rows, starts = candidates(len(ids)), np.zeros(len(ids), np.int64)
        for share in shares:
            if weights is None:
                count_uniform(dst, self.indptr, self.first_id, share, rows, counts)
            else:
                where = (self.indptr, self.first_id, weights, drawable, share)
                assert count_weighted(dst, *where, rows, counts) == -1
            if excluded is not None:
                shorten_rows(dst, out, share, rows, counts)
            if weights is not None:
                recount_weighted(dst, weights, out, share[rows.num_excluded[share] > 0], rows, counts)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        src, picks = np.full(offsets[-1], -1, self.indices.dtype), np.full(offsets[-1], -1, np.int64)
        for share in reversed(shares):
            if weights is None:
                choose_uniform(dst, share, rows, offsets, picks)
                step_over(out, share, rows.begins, rows, offsets, picks)
            else:
                choose = choose_masked if masked else choose_weighted
                whole, short = (share[(rows.num_excluded[share] > 0) == some] for some in (False, True))
                choose(dst, weights, table, whole, rows, offsets, picks)
                kept = np.empty(rows.degrees[short].sum(), weights.dtype)
                copy_kept(weights, out, short, rows, starts, kept)
                choose(dst, kept, table[:0], short, rows._replace(begins=starts), offsets, picks)
                step_over(out, short, starts, rows, offsets, picks)
            copy_neighbours(self.indices, share, offsets, self.first_eid, picks, src)
        return np.split(src, offsets[1:-1]), np.split(picks, offsets[1:-1])

    def without(self, excluded: I64) -> tuple["Csc", I64]:
        """The rows without some edges, and the edges that are left."""
        kept = np.setdiff1d(np.arange(len(self.indices)), excluded)
        rest = Csc(np.diff(np.searchsorted(kept, self.indptr)).tolist(), first_id=self.first_id)
        rest.indices = self.indices[kept]
        return rest, kept


def candidates(count: int) -> Candidates:
    return Candidates(*(np.zeros(count, np.int64) for _ in Candidates._fields))


def reference_count(alive: int, fanout: int, replace: bool) -> int:
    if fanout < 0 or alive == 0:
        return alive
    return fanout if replace else min(alive, fanout)
