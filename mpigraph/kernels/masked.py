"""Choose in-neighbours uniformly among the edges whose mask is set; see ``kernels/sample.py`` first.

The allowed edges can be listed once for all rows (:func:`list_allowed`), or row by row at the draw. A draw is that of
:func:`choose_uniform` in the list.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I64, U32, Array, Mask
from mpigraph.kernels.cache import njit
from mpigraph.kernels.prefetch_hint import prefetch
from mpigraph.kernels.rng import draw_below, mix64
from mpigraph.kernels.sample import Candidates, Destinations, choose_distinct, key_of

_AHEAD = 4  # nodes between the prefetch of a row's list and its use
_LINES = 128  # most entries of a list that are prefetched, 16 in a cache line


@njit(nogil=True, cache=True)
def list_allowed(indptr: I64, mask: Mask, table: U32, num_candidates: Array) -> int:
    """List the edges of each row whose mask is set.

    Args:
        indptr: int64[n + 1].
        mask: bool [nnz].
        table: uint32 [nnz]; the first ``num_candidates[row]`` entries of a row are filled with places in the row.
        num_candidates: int [n], filled.

    Returns:
        -1: no value of a mask is bad (:func:`alias_tables` can find one).
    """
    for row in range(len(indptr) - 1):
        begin, end = indptr[row], indptr[row + 1]
        num_candidates[row] = _list_row(mask[begin:end], table[begin:end])
    return -1


@njit(nogil=True, cache=True)
def _list_row(mask: Mask, table: U32) -> Any:
    """Fill the front of ``table`` (uint32[degree]) with the places in the row whose mask is set; return how many."""
    count = 0
    for t in range(len(mask)):
        if mask[t]:
            table[count] = t
            count += 1
    return count


@njit(nogil=True, cache=True)
def choose_masked(
    dst: Destinations, mask: Mask, prepared: U32, positions: I64, rows: Candidates, offsets: I64, picks: I64
) -> None:
    """Choose among the edges of each node whose mask is set.

    ``prepared`` is [nnz], filled by :func:`list_allowed`, or empty: then a row is listed when it is drawn from; the
    draws are the same. The others are as in :func:`choose_weighted`. A write to the mask may have changed it since the
    edges were counted: the choice then is undefined, but only ever among the edges of the node.
    """
    scratch = np.zeros(1, np.uint32)
    for i in range(len(positions)):
        p = positions[i]
        begin = rows.begins[p]
        degree = rows.degrees[p]
        out = offsets[p]
        k = offsets[p + 1] - out
        if len(prepared) > 0 and i + _AHEAD < len(positions):
            later = positions[i + _AHEAD]
            for e in range(rows.begins[later], rows.begins[later] + min(rows.degrees[later], _LINES), 16):
                prefetch(prepared, e)
        if k == 0:
            continue
        if len(prepared) > 0:
            table = prepared[begin : begin + degree]
        else:
            if degree > len(scratch):
                scratch = np.zeros(2 * degree, np.uint32)
            table = scratch[:degree]
            table[:] = 0  # if the mask changed since the count, entries behind the list must be edges of the row too
            _list_row(mask[begin : begin + degree], table)
        chosen = picks[out : out + k]
        num_candidates = rows.num_candidates[p]
        if dst.fanout < 0 or (k == num_candidates and not dst.replace):
            for j in range(k):
                chosen[j] = begin + np.int64(table[j])
            continue
        node_key = key_of(dst, p)
        if dst.replace:
            for j in range(k):
                chosen[j] = begin + np.int64(table[draw_below(mix64(node_key + np.uint64(j)), num_candidates)])
        else:
            choose_distinct(node_key, 0, num_candidates, chosen)  # places in the list, replaced by edges in place
            for j in range(k):
                chosen[j] = begin + np.int64(table[chosen[j]])
