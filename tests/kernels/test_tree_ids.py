"""Renumbering the nodes of trees."""

import numpy as np
import pytest

from mpigraph.kernels.compact import TreeIds


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
