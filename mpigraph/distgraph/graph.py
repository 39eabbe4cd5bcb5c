"""DistGraph: the user's view of a whole graph whose parts live on the hosts.

Holds no data. Counts and types come from the partition book, rows from :class:`DistTensor`, topology from the hosts'
windows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpigraph.dataloading.sampler import Blocks, Fanout
from mpigraph.distgraph.features import EdgeSpaces, FeatureMap, Features, NodeSpaces, Scheme
from mpigraph.distgraph.ids import as_ids
from mpigraph.distgraph.partition_book import PartitionPolicy, RangePartitionBook
from mpigraph.distgraph.sample_api import has_edges_between, sample_blocks, sample_neighbors
from mpigraph.distgraph.sample_subgraph import sample_subgraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import PartitionError
from mpigraph.graphs.fields import ALL, EID, NID
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import Operation
from mpigraph.sampling.subgraph import Subgraph
from mpigraph.session.context import Session, current
from mpigraph.store.graph_store import LoadedGraph
from mpigraph.store.topology import Topology

__all__ = ["DistGraph", "Scheme"]

Etype = str | Relation | None


class DistGraph:
    """A partitioned graph, opened by all trainers.

    Ids are type-wise global int64 ids after relabelling.

    Collective on the trainers: construction, :meth:`barrier`. One-sided: reading features, degrees and edges.
    """

    def __init__(self, graph_name: str, gpb: Any = None, part_config: str | Path | None = None) -> None:
        """Open a graph: the hosts load its parts, if they have not yet.

        Args:
            graph_name: the name it was partitioned under.
            gpb: accepted for DGL's scripts; the partition book comes from the configuration.
            part_config: path of ``<name>.json``; default ``MPIGRAPH_PART_CONFIG``.

        Raises:
            NotInitializedError: ``initialize()`` was not called.
            PartitionError: the configuration is missing or of another graph; on every rank.
            ShardFormatError: a shard is missing or damaged; on every rank.
        """
        session = current()
        if isinstance(gpb, str | Path) and part_config is None:
            part_config = gpb  # DistGraph(name, config)
        part_config = str(part_config or session.world.config.part_config)
        if not part_config:
            raise PartitionError(f"graph {graph_name!r}: give part_config, or set MPIGRAPH_PART_CONFIG")
        graph = session.control.call(Operation.OPEN_GRAPH, name=graph_name, part_config=part_config)
        self._session, self.graph_name = session, graph_name
        self.loaded: LoadedGraph = graph
        self._topology: Topology = graph.topology
        session.open_main_service()
        self._features: Features = {
            key: DistTensor.of_rows(session, graph_name, session.state.tensors[number])
            for key, number in graph.features.items()
        }
        self._book = RangePartitionBook.from_book(self._topology.config.book, self._my_part())

    def _my_part(self) -> int:
        """The part that is mostly on this trainer's node; trainers of a node take turns."""
        world, parts = self._session.world, self._topology.config.num_parts
        near = np.flatnonzero(world.near)
        middles = ((near + 0.5) * parts / len(world.hosts)).astype(np.int64)
        return int(middles[world.local_trainer * len(near) // world.num_local_trainers % len(middles)])

    # Types and counts

    @property
    def schema(self) -> Schema:
        """Node types and relations."""
        return self._topology.config.schema

    @property
    def ntypes(self) -> list[str]:
        """Node types by id."""
        return list(self.schema.ntypes)

    @property
    def etypes(self) -> list[str]:
        """Relation names by id."""
        return [relation[1] for relation in self.schema.relations]

    @property
    def canonical_etypes(self) -> list[Relation]:
        """Relations ``(src, rel, dst)`` by id."""
        return list(self.schema.relations)

    @property
    def idtype(self) -> torch.dtype:
        """The dtype of ids."""
        return torch.int64

    @property
    def device(self) -> torch.device:
        """Where rows and samples appear."""
        return torch.device("cpu")

    def is_pinned(self) -> bool:
        """Whether the graph is in pinned memory: never."""
        return False

    def to_canonical_etype(self, etype: Etype) -> Relation:
        """The triple of an edge type. Raises EdgeTypeError if unknown or ambiguous."""
        return self.schema.to_canonical(etype)

    def get_ntype_id(self, ntype: str | None) -> int:
        """The id of a node type; None with one type. Raises NodeTypeError."""
        return self.schema.ntype_id(ntype)

    def get_etype_id(self, etype: Etype) -> int:
        """The id of an edge type; None with one type. Raises EdgeTypeError."""
        return self.schema.relation_id(etype)

    def num_nodes(self, ntype: str | None = None) -> int:
        """Number of nodes of a type, or of all types together."""
        types = range(len(self.schema.ntypes)) if ntype is None else [self.schema.ntype_id(ntype)]
        return sum(self._book.book.num_nodes(t) for t in types)

    def num_edges(self, etype: Etype = None) -> int:
        """Number of edges of a type, or of all types together."""
        relations = range(len(self.schema.relations)) if etype is None else [self.schema.relation_id(etype)]
        return sum(self._book.book.num_edges(r) for r in relations)

    number_of_nodes = num_nodes
    number_of_edges = num_edges

    # Features

    @property
    def nodes(self) -> NodeSpaces:
        """``g.nodes[ntype].data[name]``."""
        return NodeSpaces(self.schema, self._features)

    @property
    def edges(self) -> EdgeSpaces:
        """``g.edges[etype].data[name]``."""
        return EdgeSpaces(self.schema, self._features)

    @property
    def ndata(self) -> FeatureMap:
        """Features of the only node type. Raises NodeTypeError if there are several."""
        return self.nodes[self.schema.ntypes[self.schema.ntype_id(None)]].data

    @property
    def edata(self) -> FeatureMap:
        """Features of the only edge type. Raises EdgeTypeError if there are several."""
        return self.edges[self.schema.to_canonical(None)].data

    def node_attr_schemes(self) -> dict[str, Scheme]:
        """Row shape and dtype of each node feature."""
        return {name: Scheme(t.shape[1:], t.dtype) for name, t in self.ndata.items()}

    def edge_attr_schemes(self) -> dict[str, Scheme]:
        """Row shape and dtype of each edge feature."""
        return {name: Scheme(t.shape[1:], t.dtype) for name, t in self.edata.items()}

    # Structure, near or far

    def in_degrees(self, v: Any = ALL, etype: Etype = None) -> torch.Tensor | int:
        """In-degrees of nodes ``v`` in input order: int64[n], or an int for an int.

        Raises:
            OutOfRangeError: a node does not exist.

        One-sided; the target does nothing.
        """
        return self._degrees(v, etype, side=1)

    def out_degrees(self, u: Any = ALL, etype: Etype = None) -> torch.Tensor | int:
        """Out-degrees of nodes ``u`` in input order: int64[n], or an int for an int.

        Raises:
            OutOfRangeError: a node does not exist.

        One-sided; the target does nothing.
        """
        return self._degrees(u, etype, side=0)

    def _degrees(self, nodes: Any, etype: Etype, side: int) -> torch.Tensor | int:
        relation = self.schema.relation_id(etype)
        ntype = self.schema.ends(relation)[side]
        everything = isinstance(nodes, str) and nodes == ALL
        ids = np.arange(self._book.book.num_nodes(ntype)) if everything else as_ids(nodes, "node ids")
        read = self._topology.in_degrees if side else self._topology.out_degrees
        degrees = torch.from_numpy(read(ids, relation))
        return int(degrees[0]) if isinstance(nodes, int) else degrees

    def find_edges(self, edges: Any, etype: Etype = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources and destinations of edges in input order, int64[n] each, type-wise ids.

        Raises:
            OutOfRangeError: an edge does not exist.

        One-sided; the target does nothing.
        """
        relation = self.schema.relation_id(etype)
        src, dst = self._topology.find_edges(as_ids(edges, "edge ids"), relation)
        return torch.from_numpy(src), torch.from_numpy(dst)

    def has_edges_between(self, u: Any, v: Any, etype: Etype = None) -> Any:
        """Whether there are edges ``u[i] -> v[i]``: bool[n], by relation if ``u`` and ``v`` are.

        See :func:`.sampling.has_edges_between`.

        Collective on the trainers when hosts are far; local when all are near.
        """
        return has_edges_between(self, u, v, etype)

    @property
    def local_partition(self) -> HeteroGraph:
        """The in-edges held on this rank (or, without a share of its own, on its node), as an in-memory graph.

        Nodes keep their global ids, so the graph has all nodes of the whole graph; ``edata[EID]`` are global edge ids
        and ``ndata[NID]`` the ids themselves.
        """
        world, book = self._session.world, self._book.book
        hosts = [world.host_index] if world.is_host else [int(h) for h in np.flatnonzero(world.near)]
        edges, eids = {}, {}
        for r, relation in enumerate(self.schema.relations):
            shares = [self._topology.adjacency(r, host) for host in hosts]
            src = np.concatenate([share.indices.astype(np.int64) for share in shares])
            dst = np.concatenate(
                [np.repeat(np.arange(len(s.indptr) - 1) + s.first_node, np.diff(s.indptr)) for s in shares]
            )
            edges[relation] = (torch.from_numpy(src), torch.from_numpy(dst))
            eids[relation] = np.concatenate([np.arange(len(s.indices)) + s.first_edge for s in shares])
        counts = {ntype: book.num_nodes(t) for t, ntype in enumerate(self.schema.ntypes)}
        graph = HeteroGraph(self.schema, edges, counts)
        for ntype in self.schema.ntypes:
            graph.nodes[ntype].data[NID] = torch.arange(counts[ntype])
        for relation, ids in eids.items():
            graph.edges[relation].data[EID] = torch.from_numpy(ids)
        return graph

    # The job

    def rank(self) -> int:
        """This trainer's rank, the same as ``torch.distributed.get_rank()``."""
        return self._session.rank

    def get_partition_book(self) -> RangePartitionBook:
        """The parts, with the one nearest to this trainer as the local one."""
        return self._book

    def get_node_partition_policy(self, ntype: str | None = None) -> PartitionPolicy:
        """The policy of tensors with one row for each node of a type."""
        return PartitionPolicy(f"node~{self.schema.ntypes[self.schema.ntype_id(ntype)]}", self._book)

    def get_edge_partition_policy(self, etype: Etype = None) -> PartitionPolicy:
        """The policy of tensors with one row for each edge of a type."""
        return PartitionPolicy(f"edge~{self.schema.relation_key(self.schema.relation_id(etype))}", self._book)

    def barrier(self) -> None:
        """Wait for all trainers; what was written before is visible to all after. Collective on the trainers."""
        self._session.control.call(Operation.BARRIER)

    @property
    def session(self) -> Session:
        """The job that the graph belongs to."""
        return self._session

    @property
    def service(self) -> NeighborService:
        """The sampling service of the calling thread."""
        return self._session.service

    def sample_neighbors(self, seed_nodes: Any, fanout: Fanout, *args: Any, **options: Any) -> HeteroGraph:
        """See :func:`.sampling.sample_neighbors`. Collective on the trainers if hosts are far, else local."""
        return sample_neighbors(self, seed_nodes, fanout, *args, **options)

    def sample_blocks(self, seed_nodes: Any, fanouts: Sequence[Fanout], **options: Any) -> Blocks:
        """See :func:`.sampling.sample_blocks`. Collective on the trainers if hosts are far, else local."""
        return sample_blocks(self, seed_nodes, fanouts, **options)

    def sample_subgraph(self, seed_nodes: Any, fanouts: Sequence[Fanout], **options: Any) -> Subgraph:
        """See :func:`.subgraph.sample_subgraph`. Collective on the trainers if hosts are far, else local."""
        return sample_subgraph(self, seed_nodes, fanouts, **options)

    def __repr__(self) -> str:
        return f"DistGraph({self.graph_name!r}, num_nodes={self.num_nodes()}, num_edges={self.num_edges()})"
