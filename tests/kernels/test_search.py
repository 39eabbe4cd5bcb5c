"""Edges are found by their ends."""

import numpy as np
import pytest

from mpigraph.kernels.csr import find_in_rows


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_edges_are_found_by_their_ends(dtype: str) -> None:
    rng, n = np.random.default_rng(3), 40
    degrees = rng.integers(0, 9, n)
    degrees[[0, 5, 39]] = [0, 500, 3]
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    rows = [np.sort(rng.integers(0, 60, d)) for d in degrees]  # parallel edges occur
    indices = np.concatenate(rows).astype(dtype)
    src, dst = (x.reshape(-1) for x in np.meshgrid(np.arange(-1, 62), np.arange(n)))
    want = np.array([u in rows[v] for u, v in zip(src, dst, strict=True)])
    result = np.zeros(len(src), np.bool_)
    for positions in np.array_split(rng.permutation(len(src)), 3):
        find_in_rows(indptr, indices, 1000, src, dst + 1000, positions, result)
    assert np.array_equal(result, want) and 0 < want.sum() < len(want)
    find_in_rows(indptr, indices, 0, src, dst, np.empty(0, np.int64), result)
