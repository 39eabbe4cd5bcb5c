"""A graph in memory that samplers of edges take for a distributed one, for tests of several relations."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from mpigraph.distgraph.sampled_graph import SampledGraph
from mpigraph.graphs.face import Graph, Pair
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Relation
from mpigraph.sampling.minibatch import RandomContext

SEED, EPOCH = 5, 3


class InMemory(SampledGraph):
    """Has what samplers of edges need; nothing is remote, and an error is raised where it is found."""

    def __init__(self, graph: HeteroGraph, seed: int = SEED, epoch: int = EPOCH) -> None:
        self.graph = graph
        Graph.__init__(self, graph.schema, graph._frames, graph.device)
        self.session = SimpleNamespace(
            next_context=lambda: RandomContext(seed, epoch),
            world=SimpleNamespace(is_local=[True, False], local_trainer=0, num_local_trainers=1),
        )
        self.loaded = SimpleNamespace(topology=SimpleNamespace(hosts=self._hosts()))
        self.raised_everywhere = nullcontext
        self.asked: list[Any] = []

    def _edge_ends(self, relation: Relation, eids: torch.Tensor | None) -> Pair:
        return self.graph._edge_ends(relation, eids)

    def has_edges_between(self, u: dict[Any, torch.Tensor], v: dict[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
        self.asked.append({relation: len(src) for relation, src in u.items()})
        found = {}
        for relation, src in u.items():
            pairs = set(zip(*(ends.tolist() for ends in self.graph.all_edges(etype=relation)), strict=True))
            ends = zip(src.tolist(), v[relation].tolist(), strict=True)
            found[relation] = torch.tensor([pair in pairs for pair in ends], dtype=torch.bool)
        return found

    def _hosts(self) -> RangeBook:
        """Two hosts, of which the local one has no node."""
        nodes = tuple([0, 0, self.graph.num_nodes(ntype)] for ntype in self.schema.ntypes)
        edges = tuple([0, 0, self.graph.num_edges(relation)] for relation in self.schema.relations)
        return RangeBook(self.schema, nodes, edges)
