"""DistGraph: the user's view of a whole graph whose parts live on the hosts.

Holds no data. Counts and types come from the partition book, rows from :class:`DistTensor`, topology from the hosts'
windows.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from mpigraph.collective import collective
from mpigraph.config import check_choice
from mpigraph.distgraph.dtypes import GivenDtype, feat_dtype_names
from mpigraph.distgraph.features import Scheme
from mpigraph.distgraph.partition_book import PartitionPolicy, RangePartitionBook, local_part
from mpigraph.distgraph.sampled_graph import SampledGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError, PartitionError
from mpigraph.graphs.fields import NID, EdgeType
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.schema import Relation
from mpigraph.session.context import current
from mpigraph.session.control import Operation
from mpigraph.store.store import LoadedGraph

_LINES = 30  # of a graph's text


class DistGraph(SampledGraph):
    """A partitioned graph, opened by all trainers.

    Ids are type-wise global int64 ids after relabelling.

    One-sided: reading features, degrees and edges.

    Example:
        >>> g = mpigraph.distributed.DistGraph("S", part_config="parts/S/S.json")
        >>> rows = g.ndata["feat"][[0, 1]]
    """

    @collective("trainers")
    def __init__(
        self,
        graph_name: str,
        gpb: RangePartitionBook | str | Path | None = None,
        part_config: str | Path | None = None,
        feat_dtype: GivenDtype = None,
        upcast: bool = True,
        storage: None = None,
        topology: str | None = None,
    ) -> None:
        """Open a graph: the hosts load its parts, if they have not yet.

        Args:
            graph_name: the name it was partitioned under.
            gpb: accepted for DGL's scripts; the partition book comes from the configuration.
            part_config: path of ``<name>.json``; default ``MPIGRAPH_PART_CONFIG``.
            feat_dtype: ``torch.float16`` or ``torch.bfloat16``, or the name of one: hosts keep features so, to which
                they are rounded while they are read from the shards, as ``feat_dtype`` of :func:`.partition_graph`
                stores them: all float32 and float64 features with rows of one or more dimensions, or by name,
                feature -> dtype. What the shards have so stays as it is.
            upcast: give rows of such features in the dtype that they had before; False gives them as they are stored,
                to be widened where they are used, as by ``.float()``.
            storage: must be None: features lie in the hosts' memory.
            topology: which nodes have the in-edges in memory: ``"owners"`` of their destinations, ``"everywhere"``, so
                that drawing by edges alone asks no other node, or ``"auto"``: everywhere where they take at most a
                fifth of each node's free memory. Default ``MPIGRAPH_TOPOLOGY``. Results are the same.

        Raises:
            NotInitializedError: ``initialize()`` was not called.
            PartitionError: the configuration is missing or of another graph, or the graph is open with features in
                other dtypes than ``feat_dtype`` asks for, or with another ``topology``; on every rank.
            ShardFormatError: a shard is missing or damaged; on every rank.
            InvalidArgumentError: ``feat_dtype`` is no such dtype, or names a feature that has no floats; ``storage``
                is given, or another ``topology``; on every rank.
            SharedMemoryError: a node cannot hold its part, or what is to be everywhere; on every rank.
            FieldNameError: ``feat_dtype`` names a feature that does not exist; on every rank.
            GraphDataError: a number does not fit, as for :func:`.partition_graph`; on every rank.
        """
        session = current()
        if isinstance(gpb, str | Path) and part_config is None:
            part_config = gpb  # DistGraph(name, config)
        part_config = str(part_config or session.world.config.part_config)
        if not part_config:
            raise PartitionError(f"graph {graph_name!r}: give part_config, or set MPIGRAPH_PART_CONFIG")
        opening = partial(session.control.call, Operation.OPEN_GRAPH, doing=f"opening graph {graph_name!r}")
        try:
            names = feat_dtype_names(feat_dtype)
            _refuse_storage(storage)
            if topology is not None:
                check_choice("topology", topology)
        except InvalidArgumentError as error:
            opening(error=error)
            raise
        graph: LoadedGraph = opening(
            name=graph_name, part_config=part_config, feat_dtype=names, topology=topology or ""
        )
        features = {
            key: DistTensor.of_rows(session, graph_name, session.store.tensors[number], upcast)
            for key, number in graph.features.items()
        }
        super().__init__(session, graph, features)
        self.graph_name = graph_name
        self._topology = graph.topology
        self._book = RangePartitionBook(
            self._topology.config.book, local_part(session.world, self._topology.config.num_parts)
        )

    # Types and features

    @property
    def identity(self) -> str:
        """The identity of this partitioning; nodes and edges have other ids in another one."""
        return self._topology.config.identity

    def is_pinned(self) -> bool:
        """Return False: the graph is never in pinned memory."""
        return False

    def metadata(self) -> tuple[list[str], list[Relation]]:
        """Node types and relations, in the form in which PyG's models take them."""
        return self.ntypes, self.canonical_etypes

    def node_attr_schemes(self, ntype: str | None = None) -> dict[str, Scheme]:
        """Row shape and dtype of each feature of a node type."""
        return {name: Scheme(t.shape[1:], t.dtype) for name, t in self.nodes[ntype].data.items()}

    def edge_attr_schemes(self, etype: EdgeType = None) -> dict[str, Scheme]:
        """Row shape and dtype of each feature of a relation."""
        return {name: Scheme(t.shape[1:], t.dtype) for name, t in self.edges[etype].data.items()}

    @property
    def local_partition(self) -> HeteroGraph:
        """The local part, ``pb.partid`` of the partition book: the in-edges of its nodes, as an in-memory graph.

        Nodes keep their global ids, so the graph has all nodes of the whole graph; ``edata[EID]`` are global edge ids
        and ``ndata[NID]`` the ids themselves; ``ndata["inner_node"]`` and ``edata["inner_edge"]`` (uint8) say what the
        part owns. One-sided.
        """
        book = self._book.book
        own = {r: torch.arange(*book.edge_range(self._book.partid, i)) for i, r in enumerate(self.schema.relations)}
        graph: HeteroGraph = self.edge_subgraph(own, relabel_nodes=False)
        for t, ntype in enumerate(self.schema.ntypes):
            data = graph.nodes[ntype].data
            data[NID] = graph.nodes(ntype)
            data["inner_node"] = torch.zeros(len(data[NID]), dtype=torch.uint8)
            data["inner_node"][slice(*book.node_range(self._book.partid, t))] = 1
        for relation, ids in own.items():
            graph.edges[relation].data["inner_edge"] = torch.ones(len(ids), dtype=torch.uint8)
        return graph

    # The job

    def rank(self) -> int:
        """This trainer's rank, the same as ``torch.distributed.get_rank()``."""
        return self.session.rank

    def get_partition_book(self) -> RangePartitionBook:
        """The parts, with the one nearest to this trainer as the local one."""
        return self._book

    def get_node_partition_policy(self, ntype: str | None = None) -> PartitionPolicy:
        """The policy of tensors with one row for each node of a type."""
        return PartitionPolicy.of(self._book, True, self.schema.ntype_id(ntype))

    def get_edge_partition_policy(self, etype: EdgeType = None) -> PartitionPolicy:
        """The policy of tensors with one row for each edge of a type."""
        return PartitionPolicy.of(self._book, False, self.schema.relation_id(etype))

    def add_edge_attribute(self, name: str, padding: float = 1.0) -> None:
        """Accepted for DGL's scripts, whose partitions for GraphBolt need it: sampling reads ``prob`` from ``edata``.

        Args:
            name: the edge feature that ``prob=name`` draws by.
            padding: the chance of edges of the relations that lack it. Only a number above 0: those are drawn from
                uniformly, as relations are drawn from one by one.

        Raises:
            InvalidArgumentError: ``padding`` is not above 0.
        """
        if not padding > 0:
            raise InvalidArgumentError(
                f"padding must be above 0 (got {padding!r}): give the relation a fanout of 0, in a dict by edge type"
            )

    @collective("trainers")
    def barrier(self) -> None:
        """Wait for all trainers; earlier writes are then visible to all."""
        self.session.control.call(Operation.BARRIER)

    @property
    def _client(self) -> "DistGraph":
        """The graph itself: DGL's scripts call ``g._client.barrier()``."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled, as for a spawned process."""
        raise InvalidArgumentError(
            "a DistGraph cannot be pickled: it is a part of its job, as a spawned process is not. A forked one "
            "(multiprocessing_context='fork') reads rows and neighbours of its own node"
        )

    def __repr__(self) -> str:
        lines = [f"DistGraph({self.graph_name!r}, num_nodes={self.num_nodes()}, num_edges={self.num_edges()})"]
        for ntype in self.ntypes:
            lines.append(f"{ntype}: {self.num_nodes(ntype)} nodes{_listed(self.node_attr_schemes(ntype))}")
        for relation in self.canonical_etypes:
            schemes = _listed(self.edge_attr_schemes(relation))
            lines.append(f"{', '.join(relation)}: {self.num_edges(relation)} edges{schemes}")
        left = len(lines) - _LINES
        return "\n  ".join(lines[:_LINES] + ([f"... and {left} more types"] if left > 0 else []))


def _listed(schemes: dict[str, Scheme]) -> str:
    """Return features as text, such as "; feat float32[64], label int64"."""
    texts = [
        f"{name} {str(scheme.dtype).removeprefix('torch.')}{list(scheme.shape) or ''}"
        for name, scheme in schemes.items()
    ]
    return "; " + ", ".join(texts) if texts else ""


def _refuse_storage(storage: object) -> None:
    if storage is not None:
        raise InvalidArgumentError(
            f"storage={storage!r}: features lie in the hosts' memory; where that is too small, keep them in 16 bits "
            "(feat_dtype=torch.float16) or use more nodes"
        )
