"""Renumbering the nodes of a minibatch."""

import numpy as np
import pytest
from kernel_rows import I64

from mpigraph.errors import OutOfRangeError
from mpigraph.kernels.compact import LocalIds, TreeIds


def reference_positions(seeds: I64, batches: list[I64]) -> tuple[list[int], list[list[int]]]:
    listed, where = list(seeds), {}
    for i, x in enumerate(listed):
        where.setdefault(x, i)
    result = []
    for batch in batches:
        for x in batch:
            if x not in where:
                where[x] = len(listed)
                listed.append(x)
        result.append([where[x] for x in batch])
    return listed, result


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("seeds", "spread"), [(0, 50), (1, 5), (10, 40), (300, 10**6), (33, 2**31 - 1)])
def test_local_ids(seeds: int, spread: int, dtype: type) -> None:
    rng = np.random.default_rng(seeds)
    first = rng.integers(0, spread, seeds)  # repeated ids occur
    batches = [rng.integers(0, spread, n).astype(dtype) for n in (0, 5, 70, 1, 3000)]  # grows several times
    listed, result = reference_positions(first.tolist(), [b.tolist() for b in batches])
    local = LocalIds(spread)
    for _ in range(3):  # the map is not cleared in between
        local.reset(first)
        assert np.array_equal(local.ids, first)
        for batch, want in zip(batches, result, strict=True):
            got = local.insert(batch)
            assert got.dtype == np.int32
            assert np.array_equal(got, want)
        assert local.count == len(listed) and local.ids.dtype == np.int64
        assert np.array_equal(local.ids, listed)
        local.reset(batches[-1].astype(np.int64)[::-1])


def test_local_ids_do_not_keep_the_callers_array() -> None:
    seeds = np.array([4, 4, 9])
    local = LocalIds(2**40)
    local.reset(seeds)
    seeds[:] = 0
    assert local.insert(np.array([9, 4, 2**40 - 1], np.int64)).tolist() == [2, 0, 3]
    assert local.ids.tolist() == [4, 4, 9, 2**40 - 1]


def test_positions_of_many_minibatches_run_out_of_bits() -> None:
    local = LocalIds(2**50)  # 13 bits are left for positions, of this and of earlier minibatches
    for first in range(0, 50_000, 500):
        local.reset(np.array([first]))
        assert np.array_equal(local.insert(first + np.arange(500)), np.arange(500))
    with pytest.raises(OutOfRangeError, match="50 nodes"):
        local.insert(np.arange(20_000))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("spread", "num_trees"), [(3, 1), (30, 7), (2**31 - 1, 40)])
def test_a_node_has_a_position_in_each_of_its_trees(dtype: type, spread: int, num_trees: int) -> None:
    rng = np.random.default_rng(num_trees)
    nodes = TreeIds()
    for size in (0, 20, 5):  # one list serves all minibatches
        seeds, trees = rng.integers(0, spread, size), rng.integers(0, num_trees, size)  # repeated ones occur
        nodes.reset(seeds, trees, num_trees)
        listed = list(zip(seeds.tolist(), trees.tolist(), strict=True))
        for most in (0, 1, 30):
            counts = rng.integers(0, most + 1, 25)
            offsets, of_dst = np.append(0, np.cumsum(counts)), rng.integers(0, num_trees, 25)  # in no order
            ids = rng.integers(0, spread, offsets[-1]).astype(dtype)
            expected = []
            for pair in zip(ids.tolist(), np.repeat(of_dst, counts).tolist(), strict=True):
                if pair not in listed:
                    listed.append(pair)
                expected.append(listed.index(pair))
            result = nodes.insert(ids, offsets, of_dst)
            assert result.dtype == np.int32 and result.tolist() == expected
        assert nodes.count == len(listed)
        for first in (0, size):
            assert list(zip(*(a.tolist() for a in nodes.listed(first)), strict=True)) == listed[first:]
