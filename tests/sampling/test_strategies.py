"""Another way to choose neighbours is a class of its own: here one that takes the edges of lowest id."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from layouts import SharedJob, everywhere, on_all, rotated
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.arrays import I64
from mpigraph.dataloading import NeighborSampler
from mpigraph.distgraph.sampling_arguments import SamplingArguments
from mpigraph.errors import CollectiveError
from mpigraph.graphs.fields import EID
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.sampling.protocol import SamplingRequest, pack_request, unpack_requests
from mpigraph.sampling.strategies import Draw, HopKeys, OwnedRows, Strategy, Temporal, Uniform
from mpigraph.store.store import Store

SAMPLING_WAYS = ("alltoallv", "sparse", "everywhere")


@dataclass(frozen=True)
class First(Strategy):
    """Take the first edges by id, from number ``skip`` on."""

    tag = 100
    skip: int

    def hop_key(self, keys: HopKeys, src_type: int) -> np.uint64:
        return keys.minibatch

    def prepare(self, store: Store, relation: int) -> Draw:
        return _DrawFirst(self)


class _DrawFirst(Draw):
    def __init__(self, how: First) -> None:
        super().__init__(-1, False, OwnedRows.to_draw)
        self.how = how

    def count(self, rows: OwnedRows, positions: I64, counts: I64) -> None:
        super().count(rows, positions, counts)
        counts[positions] = np.clip(counts[positions] - self.how.skip, 0, self.how.fanout)

    def choose(self, rows: OwnedRows, positions: I64, offsets: I64, picks: I64) -> None:
        for p in positions.tolist():
            begin, end = offsets[p : p + 2]
            edges = rows.scratch.begins[p] + np.arange(rows.scratch.degrees[p])
            picks[begin:end] = np.setdiff1d(edges, rows.excluded)[self.how.skip :][: end - begin]


@dataclass(frozen=True)
class _FirstArguments(SamplingArguments):
    skip: int = 0

    def strategy(self, fanout: int, weights: RowTensor | None, times: int) -> Strategy:
        return First(fanout, self.skip)


class FirstSampler(NeighborSampler):
    """A sampler of the first neighbours, but for the first one."""

    arguments_type = _FirstArguments

    @property
    def arguments(self) -> SamplingArguments:
        return replace(super().arguments, skip=1)


def first_edges(g: dist.DistGraph, nodes: torch.Tensor, fanout: int, skip: int, excluded: Any = ()) -> list[list[int]]:
    """The edges that :class:`First` takes for each of some nodes, in plain Python."""
    _, dst = g.find_edges(torch.arange(g.num_edges()))
    kept = [e for e in range(g.num_edges()) if e not in set(excluded)]
    into: dict[int, list[int]] = {}
    for edge in kept:
        into.setdefault(int(dst[edge]), []).append(edge)
    return [into.get(node, [])[skip : skip + fanout] for node in nodes.tolist()]


@everywhere
@rotated(3)
def test_a_strategy_of_a_test_draws_in_every_layout(job: SharedJob, g: dist.DistGraph) -> None:
    nodes = torch.arange(g.rank(), NUM_NODES, 2)
    excluded = np.arange(0, g.num_edges(), 5)
    for skip, out in ((0, ()), (1, excluded)):
        how = _FirstArguments([3], skip=skip)
        frontier = g.sample_hop(nodes, how, exclude_edges=np.asarray(out, np.int64))
        expected = sum(first_edges(g, nodes, 3, skip, out), [])
        on_all(job.trainers, sorted(frontier.edata[EID].tolist()) == sorted(expected), "sample_neighbors")
    with pytest.raises(CollectiveError, match="no sampling strategy has tag 101 on this rank: import its module"):
        Strategy.of_tag(101)


@everywhere
@rotated(3)
def test_a_sampler_of_a_test_in_a_loader(job: SharedJob, g: dist.DistGraph) -> None:
    loader = dist.DistNodeDataLoader(g, dist.node_split(np.ones(NUM_NODES)), FirstSampler([2, 2]), batch_size=7)
    right = []
    for _, outputs, blocks in loader:
        drawn = blocks[-1].edata[EID].tolist()
        right.append(drawn == sum(first_edges(g, outputs, 2, 1), []))
    on_all(job.trainers, all(right), str(right))
    loader.close()


def test_two_strategies_cannot_have_one_tag() -> None:
    with pytest.raises(TypeError, match="First has tag 100: give another one"):

        class Second(First):
            pass


@pytest.mark.parametrize("by_root", [False, True])
@pytest.mark.parametrize(
    "strategy", [Uniform(-1, True), First(4, 2), Temporal(3, False, 7, 8, True, False, -1, np.arange(5) - 2)]
)
def test_a_strategy_travels_with_its_parameters_and_columns(strategy: Strategy, by_root: bool) -> None:
    ids, at = np.array([9, 7, 5, 3, 1]) + 2**33, np.array([0, 2, 3])
    roots = np.arange(1, 6 if by_root else 1).astype(np.uint64)
    chosen = np.arange(70) % 69 == 0
    tensors = np.arange(2 * len(strategy.tables)).reshape(-1, 2)
    request = SamplingRequest(1, 2, chosen, ids, strategy, True, np.uint64(6), roots, np.array([4, 8]), tensors)
    words = np.concatenate(pack_request(request, ids[at], request.excluded, at))
    (got,) = unpack_requests(words)
    assert isinstance(got, SamplingRequest) and type(got.strategy) is type(strategy)
    assert got.strategy.words() == strategy.words() and got.want_eids
    for name in strategy.columns:
        assert np.array_equal(getattr(got.strategy, name), getattr(strategy, name)[at])
    assert (got.graph, got.dst, got.key) == (1, 2, 6) and np.array_equal(got.chosen, chosen)
    assert np.array_equal(got.roots, roots[at] if by_root else roots) and got.excluded.tolist() == [4, 8]
    assert np.array_equal(got.tensors, tensors)
