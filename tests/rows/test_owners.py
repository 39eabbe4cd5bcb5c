"""Rows by host and by owner: one split serves all who ask."""

import numpy as np
import pytest
from worlds import calls_of, simulated_world

from mpigraph.kernels.row_ops import split_by_range
from mpigraph.rows import segments
from mpigraph.rows.owners import RowOwners
from mpigraph.rows.segments import check_shared_memory
from mpigraph.store.host_ranges import cut_offsets


@pytest.mark.parametrize("offsets", [[0, 10], [0, 4, 10], [0, 0, 7, 7, 10], [0, 3, 3, 3, 9, 10, 10]])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_positions_are_split_by_range(offsets: list[int], count: int) -> None:
    ids = np.random.default_rng(count).integers(0, 10, count)
    pieces = split_by_range(ids, np.array(offsets))
    ranges = [which for which, _ in pieces]
    assert ranges == sorted(set(ranges)) and all(len(positions) for _, positions in pieces)
    for which, positions in pieces:
        assert np.array_equal(positions, np.flatnonzero((offsets[which] <= ids) & (ids < offsets[which + 1])))
    assert sum(len(positions) for _, positions in pieces) == count


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("servers", [0, 1, 3])
def test_owners_are_local_and_own_as_much_as_the_others(servers: int, in_turn: bool) -> None:
    """Also where ranks lie on the nodes in turn, so that those of a node are not adjacent; ids reach their owners."""
    world = simulated_world(5, 7, servers, rank=9)
    if in_turn:
        world.node_of = np.arange(world.size) % 5
        world.assign_roles(servers)
    hosts = len(world.hosts)
    offsets = np.append(0, np.cumsum(np.random.default_rng(1).integers(0, 60, hosts)))
    owners = RowOwners(world, offsets)
    begin = 0
    for host in range(hosts):
        on_its_node = world.nodes_of_trainers == world.nodes_of_hosts[host]
        local = [world.hosts[host]] if servers == 0 else world.trainer_ranks[on_its_node].tolist()
        rows = int(offsets[host + 1] - offsets[host])
        for k, rank in enumerate(local):
            assert owners.bounds[begin + k] == offsets[host] + rows * k // len(local)
            assert world.trainer_ranks[owners.trainers[begin + k]] == rank
        begin += len(local)
    assert owners.bounds[-1] == offsets[-1] and len(owners.bounds) == begin + 1
    pieces = [owned for trainer in range(len(world.trainer_ranks)) for owned in owners.ranges(trainer)]
    assert sum(owned.last - owned.first for owned in pieces) == offsets[-1]
    assert all(offsets[owned.host] + owned.rows.start == owned.first for owned in pieces)
    own = int(np.searchsorted(world.trainer_ranks, world.rank))
    assert owners.ranges() == (owners.ranges(own) if world.is_trainer else [])
    ids = np.random.default_rng(0).integers(0, offsets[-1], 200)
    order, counts = owners.route(ids)
    piece = np.searchsorted(owners.bounds, ids, side="right") - 1
    owner = owners.trainers[piece]
    assert np.array_equal(order, np.lexsort((piece, owner)))
    assert np.array_equal(counts, np.bincount(owner, minlength=len(world.trainer_ranks)))


@pytest.mark.parametrize("servers", [0, 1])
def test_python_does_not_loop_over_thousands_of_ranks(servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 64 nodes of 128 ranks, where a call for each would be thousands."""

    class Gathering:
        def Allgather(self, own: np.ndarray, known: np.ndarray) -> None:
            known[:] = 0, 1 << 40, 1 << 41, 0
            known[:, 0] = np.arange(len(known)) // 128

    monkeypatch.setattr(segments, "free_and_size", lambda world: (1 << 40, 1 << 41, 0))
    world = simulated_world(64, 128, servers)
    world.comm = Gathering()
    hosts = len(world.hosts)
    offsets = np.arange(hosts + 1) * 1000
    owners = RowOwners(world, offsets)
    ids = np.random.default_rng(0).integers(0, 64_000, 1000)
    owners.route(ids)  # compiled
    works = [
        lambda: RowOwners(world, offsets),
        lambda: owners.ranges(77),
        lambda: owners.route(np.sort(ids)) if servers == 0 else None,
        lambda: world.neighbourhood(77),
        lambda: world.first_hosts(),
        lambda: check_shared_memory(world, np.full(hosts, 1 << 20), "rows"),
        lambda: cut_offsets(np.arange(65) * 10**6, hosts),
    ]
    assert all(calls_of(work) < 150 for work in works), [calls_of(work) for work in works]
