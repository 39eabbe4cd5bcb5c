"""The message-flow graph of one layer: edges from a frontier of sources to destinations.

The first ``num_dst`` sources are the destinations themselves, in the same order, so that a layer finds the input of the
destinations at ``h[:block.number_of_dst_nodes()]``. Ids inside are positions; global ids are the features ``NID`` and
``EID``. A block keeps no reference to the graph that it was sampled from.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, SupportsIndex

import numpy as np
import torch

from mpigraph.arrays import I32, I64
from mpigraph.errors import InvalidArgumentError, OutOfRangeError
from mpigraph.graphs import fields
from mpigraph.graphs.aggregate import InEdges
from mpigraph.graphs.face import NodesView, count, node_type, renumbered
from mpigraph.graphs.fields import EID, NID, EdgeType, Frame, Frames, IdsLike, NodeIds
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.metadata.schema import Relation, Schema

Csc = tuple[I64, I32, I64 | None]
_OF_LOADERS = (
    "; name the features that a loader gathers: features=[{name!r}] for blocks[0].srcdata, labels=[{name!r}] for "
    "blocks[-1].dstdata"
)


class Block(MessagePassing):
    """Edges of one layer, by relation, from source positions to destination positions.

    Made by samplers (:meth:`from_csc`) and by :func:`to_block`.

    Args:
        schema: node types and relations.
        structures: relation -> edges.
        frames: features; their lengths are the counts.
        device: where everything lives.
    """

    is_block = True
    lacks_relations = False
    """True if relations without edges were left out: the place of a relation is then not its id."""
    graph_out_degrees: Callable[[Relation], torch.Tensor] | None = None
    """Returns the out-degrees of the sources in the whole graph, int64[num_src]; None: layers use those of the block.
    Set where blocks are whole neighbourhoods: the divisors of layers must not depend on the partitioning."""

    def __init__(
        self, schema: Schema, structures: Mapping[Relation, InEdges], frames: Frames[Frame], device: torch.device
    ) -> None:
        super().__init__(schema, frames, device)
        self._structures = dict(structures)

    @classmethod
    def from_csc(
        cls,
        schema: Schema,
        relations: Mapping[Relation, Csc],
        src_ids: Mapping[str, I64],
        num_dst: Mapping[str, int],
        want_eids: bool = False,
    ) -> "Block":
        """Make a block of a sampler's arrays, without copying them.

        Args:
            schema: node types and relations; what is left out below is empty.
            relations: relation -> (indptr int64[num_dst + 1], indices int32[num_edges] positions in ``src_ids``,
                eids int64[num_edges] global edge ids or None).
            src_ids: node type -> int64[num_src] global ids, destinations first.
            num_dst: node type -> number of destinations.
            want_eids: relations that are left out have edge ids, too.
        """
        ids = {t: fields.as_tensor(src_ids.get(t, np.zeros(0, np.int64))) for t in schema.ntypes}
        frames = _empty_frames(schema, ids, {t: num_dst.get(t, 0) for t in schema.ntypes})
        structures: dict[Relation, InEdges] = {}
        empty: dict[tuple[str, str], InEdges] = {}  # thousands of relations may have no edges
        no_eids = {EID: torch.empty(0, dtype=torch.int64)} if want_eids else {}
        for relation in schema.relations:
            src_type, _, dst_type = relation
            given = relations.get(relation)
            if given is None:
                ends = src_type, dst_type
                if ends not in empty:
                    no_edges = torch.zeros(frames.dst[dst_type].num_rows + 1, dtype=torch.int64)
                    empty[ends] = InEdges(no_edges, torch.empty(0, dtype=torch.int32), len(ids[src_type]))
                structures[relation] = empty[ends]
                frames.edge[relation] = Frame(0, _edges_of(relation), no_eids)
                continue
            begins, indices, eids = given
            # no perm: samplers give the edges destination by destination, so edge ids are CSC positions
            structures[relation] = InEdges(fields.as_tensor(begins), fields.as_tensor(indices), len(ids[src_type]))
            frames.edge[relation] = Frame(len(indices), _edges_of(relation))
            if eids is not None:
                frames.edge[relation][EID] = eids
        return cls(schema, structures, frames, torch.device("cpu"))

    def __repr__(self) -> str:
        if len(self._frames.src) == len(self._frames.dst) == len(self._frames.edge) == 1:
            sizes: list[object] = [self.num_src_nodes(), self.num_dst_nodes(), self.num_edges()]
        else:
            sizes = [{key: frame.num_rows for key, frame in frames.items()} for frames in vars(self._frames).values()]
        return "Block(num_src_nodes={}, num_dst_nodes={}, num_edges={})".format(*sizes)

    @property
    def ntypes(self) -> list[str]:
        """Types of the source side followed by those of the destination side, as in DGL."""
        return self.srctypes + self.dsttypes

    def num_nodes(self, ntype: str | None = None) -> int:
        """Return the number of nodes of a type, of its source side if it has both, or of both sides."""
        if ntype is None:
            return count(self._frames.src, None) + count(self._frames.dst, None)
        return self.nodes[ntype].data.num_rows

    number_of_nodes = num_nodes

    @property
    def nodes(self) -> NodesView[Frame]:
        """View of the nodes; of a type on both sides those of the source side."""
        src, dst = self._frames.src, self._frames.dst
        return NodesView(self, dst | src, lambda ntype: node_type(src if ntype is None else dst | src, ntype))

    def __getitem__(self, etype: EdgeType) -> "Block":
        """Return the block of one relation, which shares the features."""
        relation = self.to_canonical_etype(etype)
        frames = self._frames
        selected = Frames(
            {relation[0]: frames.src[relation[0]]},
            {relation[2]: frames.dst[relation[2]]},
            {relation: frames.edge[relation]},
        )
        schema = Schema(tuple(dict.fromkeys((relation[0], relation[2]))), (relation,))
        return self._told(Block(schema, {relation: self._structures[relation]}, selected, self.device))

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> "Block":
        """Return the block with ``change(tensor)``, on ``device``, in place of every tensor."""
        structures = {relation: in_edges.changed(change) for relation, in_edges in self._structures.items()}
        block = self._told(
            Block(self._schema, structures, self._frames.each(lambda frame: frame.changed(change)), device)
        )
        block.lacks_relations = self.lacks_relations
        return block

    def _told(self, block: "Block") -> "Block":
        block.graph_out_degrees = self.graph_out_degrees
        return block

    def without_empty_relations(self) -> "Block":
        """Return the block, without the relations that have no edges unless none has; it shares nodes and features."""
        frames = self._frames
        edge = {relation: frame for relation, frame in frames.edge.items() if frame.num_rows} or frames.edge
        structures = {relation: self._structures[relation] for relation in edge}
        schema = Schema(self._schema.ntypes, tuple(edge))
        block = self._told(Block(schema, structures, Frames(frames.src, frames.dst, edge), self.device))
        block.lacks_relations = self.lacks_relations or len(edge) < len(frames.edge)
        return block

    def _coo(self, relation: Relation) -> tuple[torch.Tensor, torch.Tensor]:
        return self._structures[relation].coo

    def structure(self, relation: Relation) -> InEdges:
        """Return the in-edges of a relation."""
        return self._structures[relation]


def to_block(g: HeteroGraph, dst_nodes: NodeIds | None = None, include_dst_in_src: bool = True) -> Block:
    """Make a block of a frontier: its destinations, and the sources of their edges in order of first appearance.

    Edges keep their order; ``edata[EID]`` is their position in the frontier. Features are copied row by row.

    Args:
        g: the frontier.
        dst_nodes: ids of the destinations, in the order that they will have, int64[n] (by type, if there are
            several); None means all nodes with an in-edge, sorted.
        include_dst_in_src: begin the sources with the destinations.

    Raises:
        InvalidArgumentError: a node with an in-edge is missing from ``dst_nodes``, or a node is there twice.
        NodeTypeError: a node type does not exist, or there are several and ``dst_nodes`` are not by type.
    """
    columns = {relation: g.all_edges(etype=relation) for relation in g.canonical_etypes}
    src, dst = ({(relation, side): ends[side] for relation, ends in columns.items()} for side in (0, 1))
    dst_ids = _destinations(g, dst_nodes, dst)
    counts = {t: ids.shape[0] for t, ids in dst_ids.items()}
    src_ids, src_places = renumbered(g.ntypes, src, dst_ids if include_dst_in_src else {}, g.device)
    met, dst_places = renumbered(g.ntypes, dst, dst_ids, g.device)
    for ntype, ids in met.items():
        if len(ids) > counts[ntype]:
            node = int(ids[counts[ntype]])
            raise InvalidArgumentError(f"node {node} has an in-edge but is missing from dst_nodes of type {ntype!r}")
    frames = _empty_frames(g.schema, src_ids, counts)
    for ntype in g.ntypes:
        for side, ids in ((frames.src[ntype], src_ids[ntype]), (frames.dst[ntype], dst_ids[ntype])):
            side.update({name: values[ids] for name, values in g.nodes[ntype].data.items()})
            side[NID] = ids
    structures = {}
    for relation in columns:
        sizes = src_ids[relation[0]].shape[0], counts[relation[2]]
        structures[relation] = InEdges.from_coo(src_places[relation, 0], dst_places[relation, 1], *sizes)
        frames.edge[relation] = Frame(g.num_edges(relation), _edges_of(relation))
        frames.edge[relation].update(g.edges[relation].data)
        frames.edge[relation][EID] = torch.arange(g.num_edges(relation), device=g.device)
    return Block(g.schema, structures, frames, g.device)


class Blocks(list[Block]):
    """The blocks of a minibatch, outermost hop first: a list whose IndexError says how many fanouts there were."""

    def __getitem__(self, which: SupportsIndex | slice) -> Any:
        try:
            return super().__getitem__(which)
        except IndexError:
            raise OutOfRangeError(
                f"there is no block {which}: this minibatch has {len(self)}, one for each fanout of the sampler. "
                "Give the sampler a fanout for each layer of the model"
            ) from None

    def explain_missing(self) -> None:
        """Let errors about missing features say how a loader gathers them."""
        for block in self:
            for nodes in (block._frames.src, block._frames.dst):
                for frame in nodes.values():
                    frame.hint = _OF_LOADERS


@cache
def _edges_of(relation: Relation) -> str:
    return f"edges of relation {relation}"


def _empty_frames(schema: Schema, src_ids: Mapping[str, torch.Tensor], num_dst: Mapping[str, int]) -> Frames[Frame]:
    """Make frames of the two sides that hold the ids; the caller adds those of the edges."""
    frames: Frames[Frame] = Frames({}, {}, {})
    for ntype in schema.ntypes:
        ids = src_ids[ntype]
        num = num_dst[ntype]
        frames.src[ntype] = Frame(ids.shape[0], f"source nodes of type {ntype!r}")
        frames.dst[ntype] = Frame(num, f"destination nodes of type {ntype!r}")
        frames.src[ntype][NID] = ids
        if num <= ids.shape[0]:  # not so if to_block() leaves the destinations out of the sources; it sets them itself
            frames.dst[ntype][NID] = ids[:num]
    return frames


def _destinations(
    g: HeteroGraph, dst_nodes: NodeIds | None, columns: Mapping[tuple[Relation, int], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the destinations of each type, int64, without repeats."""
    if dst_nodes is None:
        ends = {t: [dst for (relation, _), dst in columns.items() if relation[2] == t] for t in g.ntypes}
        none = torch.zeros(0, dtype=torch.int64, device=g.device)
        return {t: torch.unique(torch.cat([none, *tensors])) for t, tensors in ends.items()}
    chosen: Mapping[str, IdsLike] = fields.by_ntype(g.schema, dst_nodes, "dst_nodes")
    by_type = {t: fields.as_ids(chosen.get(t, ()), f"dst_nodes of type {t!r}").to(g.device) for t in g.ntypes}
    for ntype, ids in by_type.items():
        values, repeats = torch.unique(ids, return_counts=True)
        if values.shape[0] < ids.shape[0]:
            raise InvalidArgumentError(f"dst_nodes of type {ntype!r} holds {int(values[repeats > 1][0])} twice")
    return by_type
