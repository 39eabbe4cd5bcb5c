"""The topology on every node: what it takes, when it is copied, and that draws by edges alone then ask nobody.

That results are those of owners is shown by the tests of sampling, whose jobs rotate through both.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from layouts import Job, Layout, own_on_layouts
from oracle import NAME, NUM_NODES
from worlds import counted

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.errors import InvalidArgumentError, PartitionError, SharedMemoryError
from mpigraph.mpi.world import World
from mpigraph.rows import segments
from mpigraph.session.context import current
from mpigraph.store import store

SAMPLING_WAYS = ("sparse", "alltoallv")
remote = own_on_layouts([Layout(2, 0, 1), Layout(3, 0, 2), Layout(4, 1, 2)])  # of unequal nodes, and with servers


def opened(oracle: Callable[..., str], **options: object) -> dist.DistGraph:
    return dist.DistGraph(NAME, part_config=oracle(3), **options)


def asked(work: Callable[[], object]) -> int:
    """Return how many requests for rows, and how many times for neighbours, a call has made."""
    service = current().service
    before = counted("requests") + service.rounds
    work()
    return counted("requests") + service.rounds - before


@remote
def test_draws_by_edges_ask_no_other_node(layout: Job, oracle: Callable[..., str]) -> None:
    def body() -> None:
        g = opened(oracle, topology="everywhere")
        nodes = torch.arange(NUM_NODES)

        def by_edges() -> None:
            for sampler in (mg.dataloading.NeighborSampler([3, 3]), mg.dataloading.LaborSampler([3, 3])):
                sampler.sample_blocks(g, nodes)
            g.in_degrees(nodes)
            g.find_edges(torch.arange(g.num_edges()))
            g.has_edges_between(nodes, nodes)
            dist.sample_neighbors(g, nodes, -1)

        assert asked(by_edges) == 0
        by_weight = mg.dataloading.NeighborSampler([3], prob="weight")
        assert asked(lambda: by_weight.sample_blocks(g, nodes)) > 0  # tables lie with the owners

    layout.run(body)


@remote
def test_auto_is_by_the_tightest_node(layout: Job, oracle: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks decide alike, though one node alone has little memory; what was asked for is an error of its node."""
    limits = segments.tightest_limits
    free = [1 << 40]

    def tight(world: World) -> np.ndarray:
        known = limits(world)
        known[-1, 0] = free[0]
        return known

    monkeypatch.setattr(store, "tightest_limits", tight)

    def body(everywhere: bool) -> list[torch.Tensor]:
        g = opened(oracle, topology="auto")
        assert g.loaded.topology.everywhere == everywhere
        free[0] = 5 * int(g.loaded.topology.bytes_elsewhere()[-1]) - everywhere
        with pytest.raises(InvalidArgumentError, match="topology must be auto, owners or everywhere"):
            opened(oracle, topology="nowhere" if g.rank() == 0 else None)
        there, other = ("everywhere", "owners")[:: 1 if everywhere else -1]
        assert opened(oracle, topology=there).num_nodes() == NUM_NODES
        with pytest.raises(PartitionError, match=f"with topology '{there}' .not '{other}'"):
            opened(oracle, topology=other)
        return [*dist.sample_neighbors(g, torch.arange(NUM_NODES), 3, seed=1).edges()]

    enough = layout.run(lambda: body(True))
    free = layout.share(free)
    short = layout.run(lambda: body(False))
    assert enough is None or all(map(torch.equal, enough, short))


@remote
def test_what_a_node_cannot_hold_is_its_error(
    layout: Job, oracle: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = segments.check_shared_memory
    monkeypatch.setattr(
        segments, "check_shared_memory", lambda world, n, what: check(world, n << 40 * ("copy" in what), what)
    )

    def body() -> None:
        with pytest.raises(
            SharedMemoryError, match=r"a copy of the topology of graph 'oracle' on each node: node 0 \(.*\) needs"
        ):
            opened(oracle, topology="everywhere")
        assert not current().store.graphs
        assert opened(oracle, topology="owners").num_nodes() == NUM_NODES  # the job goes on

    layout.run(body)
