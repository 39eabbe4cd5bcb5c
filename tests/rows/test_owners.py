"""Rows by host and by owner: one split serves all who ask."""

from types import SimpleNamespace

import numpy as np
import pytest

from mpigraph.kernels.row_ops import split_by_range
from mpigraph.rows.owners import RowOwners


@pytest.mark.parametrize("offsets", [[0, 10], [0, 4, 10], [0, 0, 7, 7, 10], [0, 3, 3, 3, 9, 10, 10]])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_positions_are_split_by_range(offsets: list[int], count: int) -> None:
    ids = np.random.default_rng(count).integers(0, 10, count)
    found = split_by_range(ids, np.array(offsets))
    ranges = [which for which, _ in found]
    assert ranges == sorted(set(ranges)) and all(len(positions) for _, positions in found)
    for which, positions in found:
        assert np.array_equal(positions, np.flatnonzero((offsets[which] <= ids) & (ids < offsets[which + 1])))
    assert sum(len(positions) for _, positions in found) == count


def test_positions_are_routed_to_owners_in_order() -> None:
    """Two nodes with a server and two trainers each, ranks in turn, so that trainers of a node are not adjacent."""
    world = SimpleNamespace(
        trainer_ranks=np.array([2, 3, 4, 5]),
        rank=4,
        hosts=np.array([0, 1]),
        trainers_of_host=lambda host: [[2, 4], [3, 5]][host],
    )
    owners = RowOwners(world, np.array([0, 10, 30]))
    assert owners.bounds.tolist() == [0, 5, 10, 20, 30] and owners.trainers.tolist() == [0, 2, 1, 3]
    ids = np.random.default_rng(0).integers(0, 30, 200)
    order, counts = owners.route(ids)
    owner = owners.trainers[np.searchsorted(owners.bounds, ids, side="right") - 1]
    assert np.array_equal(order, np.argsort(owner, kind="stable"))
    assert np.array_equal(counts, np.bincount(owner, minlength=4))
    assert [len(part) for part in owners.route(ids[:0])] == [0, 4]
    assert [(owned.host, owned.first, owned.last, owned.rows) for owned in owners.ranges()] == [
        (0, 5, 10, slice(5, 10))
    ]
    assert [(owned.host, owned.rows) for owned in owners.ranges(3)] == [(1, slice(10, 20))]
