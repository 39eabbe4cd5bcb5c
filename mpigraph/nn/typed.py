"""All relations of a graph in one list of edges, and one matrix product for all groups of rows.

The edges are sorted by relation, then by destination. The edges of one relation into one destination are a *cell*: a
layer first adds up within cells, then multiplies each relation's cells with its matrix, then adds up the cells of each
destination. So no product is made for each edge; Python goes through the relations only to join their edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.block import Block
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.graphs.in_memory import InMemoryGraph
from mpigraph.graphs.inedges import InEdges
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.metadata.schema import Relation

__all__ = [
    "TypedEdges",
    "TypedFeatures",
    "TypedGraph",
    "TypedRows",
    "Types",
    "checked_types",
    "grouped_product",
    "is_typed",
    "joined_weights",
    "sides",
]

TypedGraph = HeteroGraph | Block
Types = torch.Tensor | Sequence[int]
EdgeWeights = Mapping[str | Relation, torch.Tensor]
TypedFeatures = Mapping[str, torch.Tensor] | tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]


def is_typed(feat: object) -> bool:
    """Whether features are given by node type."""
    return isinstance(feat, Mapping) or (isinstance(feat, tuple) and all(isinstance(side, Mapping) for side in feat))


def sides(graph: InMemoryGraph, feat: TypedFeatures) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
    """Return the features by type of the sources and of the destinations.

    Args:
        graph: a graph, or a block whose first sources of each type are the destinations.
        feat: node type -> [num_nodes, ...]; or one dict for each side.
    """
    if isinstance(feat, tuple):
        return feat
    if not graph.is_block:
        return feat, feat
    return feat, {t: rows[: graph.num_dst_nodes(t)] for t, rows in feat.items() if t in graph.dsttypes}


def checked_types(types: Types, num_rows: int, num_types: int, what: str, device: torch.device) -> torch.Tensor:
    """Return the types of rows as a tensor on the device of the rows.

    Args:
        types: int[num_rows].
        num_rows: number of rows.
        num_types: number of types.
        what: names the types in the error.
        device: where the rows are.

    Returns:
        int64[num_rows].

    Raises:
        InvalidArgumentError: not one integer for each row, or one that is not in [0, num_types).
    """
    found = torch.as_tensor(types, device=device)
    if found.shape != (num_rows,):
        raise InvalidArgumentError(f"{what} must have shape ({num_rows},) (got {tuple(found.shape)})")
    if num_rows:
        if found.is_floating_point() or found.is_complex():
            raise InvalidArgumentError(f"{what} must be integers (got {found.dtype})")
        low, high = (int(end) for end in torch.aminmax(found))
        if low < 0 or high >= num_types:
            raise InvalidArgumentError(f"{what} must be in [0, {num_types}) (got {low} to {high})")
    return found.to(torch.int64)


@dataclass(frozen=True)
class TypedEdges:
    """Edges sorted by relation, then by destination.

    Attributes:
        cells: the edges by cell, sources numbered over all types.
        cell_dst: int64[num_cells], the destination of each cell, numbered over all types.
        cell_counts: int64[num_rels], the cells of each relation.
        num_dst: number of destinations.
        order: int64[num_edges], for each edge its place in the order in which weights come; None means that order.
    """

    cells: InEdges
    cell_dst: torch.Tensor
    cell_counts: torch.Tensor
    num_dst: int
    order: torch.Tensor | None

    @classmethod
    def of_relations(cls, graph: InMemoryGraph, num_rels: int) -> "TypedEdges":
        """Join the relations of a typed graph, which keeps them; weights of edges come relation by relation.

        Args:
            graph: a graph or a block.
            num_rels: the number of relations that the caller knows.

        Raises:
            InvalidArgumentError: there are more relations.
        """
        relations = graph.canonical_etypes
        if len(relations) > num_rels:
            raise InvalidArgumentError(f"the layer has {num_rels} relations, but the graph has {len(relations)}")
        return graph._once((cls, num_rels), lambda: cls._of_all(graph, num_rels))

    @classmethod
    def _of_all(cls, graph: InMemoryGraph, num_rels: int) -> "TypedEdges":
        relations = graph.canonical_etypes
        parts = [graph._in_edges(relation) for relation in relations]
        device = graph.device
        src_begin, num_src = _begins(graph.srctypes, [graph.num_src_nodes(t) for t in graph.srctypes])
        dst_begin, num_dst = _begins(graph.dsttypes, [graph.num_dst_nodes(t) for t in graph.dsttypes])
        # one row for each relation and destination of its type, of which those with edges are the cells
        rows = torch.tensor([part.num_dst for part in parts], dtype=torch.int64, device=device)
        edges = torch.tensor([part.num_edges for part in parts], dtype=torch.int64, device=device)
        degrees = _joined([part.degrees for part in parts], device)
        full = degrees.nonzero().reshape(-1)
        relation = torch.repeat_interleave(rows)[full]
        shift = torch.tensor([dst_begin[r[2]] for r in relations], dtype=torch.int64, device=device)
        dst = full + (shift - rows.cumsum(0) + rows)[relation]
        begin = torch.tensor([src_begin[r[0]] for r in relations], dtype=torch.int64, device=device)
        src = _joined([part.indices for part in parts], device) + torch.repeat_interleave(begin, edges)
        order = None
        if any(part.perm is not None for part in parts):
            places = [torch.arange(p.num_edges, device=device) if p.perm is None else p.perm for p in parts]
            order = _joined(places, device) + torch.repeat_interleave(edges.cumsum(0) - edges, edges)
        counts = torch.bincount(relation, minlength=num_rels)
        return cls(InEdges.of_degrees(degrees[full], src, num_src), dst, counts, num_dst, order)

    @classmethod
    def of_types(cls, graph: MessagePassing, etypes: Types, num_rels: int) -> "TypedEdges":
        """Sort the edges of a graph of one relation by a type of each edge.

        Args:
            graph: a graph or a block of one relation.
            etypes: int[num_edges], the relation of each edge.
            num_rels: number of relations.

        Raises:
            InvalidArgumentError: not one type for each edge, or one that is not in [0, num_rels).
        """
        in_edges = graph._in_edges(graph.to_canonical_etype(None))
        types = checked_types(etypes, in_edges.num_edges, num_rels, "etypes", graph.device)
        types = in_edges.to_csc_order(types)
        place = torch.argsort(types, stable=True)  # within a type they stay sorted by destination
        key = types[place] * in_edges.num_dst + in_edges.dst[place]
        found, degrees = torch.unique_consecutive(key, return_counts=True)
        width = max(in_edges.num_dst, 1)
        counts = torch.bincount(found // width, minlength=num_rels)
        cells = InEdges.of_degrees(degrees, in_edges.indices[place], in_edges.num_src)
        order = place if in_edges.perm is None else in_edges.perm[place]
        return cls(cells, found % width, counts, in_edges.num_dst, order)

    def renumbered(self, src_place: torch.Tensor, dst_place: torch.Tensor) -> "TypedEdges":
        """Return the same edges between nodes that stand elsewhere.

        Args:
            src_place: int64[num_src], where each source goes.
            dst_place: int64[num_dst], where each destination goes.
        """
        cells = self.cells
        src = src_place.index_select(0, cells.indices).to(cells.indices.dtype)
        return replace(
            self,
            cells=InEdges(cells.indptr, src, cells.num_src),
            cell_dst=dst_place.index_select(0, self.cell_dst),
        )

    def sorted(self, weights: torch.Tensor) -> torch.Tensor:
        """Reorder rows from the order in which weights come to that of the cells."""
        return weights if self.order is None else weights[self.order]

    def to_destinations(self, rows: torch.Tensor) -> torch.Tensor:
        """Add up one row for each cell, [num_cells, ...], to [num_dst, ...]."""
        return rows.new_zeros(self.num_dst, *rows.shape[1:]).index_add(0, self.cell_dst, rows)


@dataclass(frozen=True)
class TypedRows:
    """Features of all node types in one tensor for each side, type by type.

    Attributes:
        src: [num_src, width].
        dst: [num_dst, width].
        src_counts: int64[num_ntypes], how many of the sources are of each type, by type id.
        dst_counts: int64[num_ntypes], likewise of the destinations.
        sizes: destination type -> number of rows.
    """

    src: torch.Tensor
    dst: torch.Tensor
    src_counts: torch.Tensor
    dst_counts: torch.Tensor
    sizes: dict[str, int]

    @classmethod
    def of(cls, graph: InMemoryGraph, feat: TypedFeatures, num_ntypes: int | None = None) -> "TypedRows":
        """Join features given by type.

        Args:
            graph: a graph or a block.
            feat: as in :func:`sides`, [num_nodes, width] by type. A type without nodes may be left out.
            num_ntypes: the number of node types that the caller knows; None means those of the graph.

        Raises:
            InvalidArgumentError: the features of a type are missing, or not one row for each node; there are more
                types.
        """
        ntypes = graph.schema.ntypes
        num_ntypes = len(ntypes) if num_ntypes is None else num_ntypes
        if len(ntypes) > num_ntypes:
            raise InvalidArgumentError(f"the layer has {num_ntypes} node types, but the graph has {len(ntypes)}")
        src_counts = {t: graph.num_src_nodes(t) for t in graph.srctypes}
        dst_counts = {t: graph.num_dst_nodes(t) for t in graph.dsttypes}
        of_src, of_dst = sides(graph, feat)
        src = _join(of_src, src_counts)
        dst = src if of_dst is of_src and dst_counts == src_counts else _join(of_dst, dst_counts)
        more = [0] * (num_ntypes - len(ntypes))

        def by_id(counts: Mapping[str, int]) -> torch.Tensor:
            return torch.tensor([counts.get(t, 0) for t in ntypes] + more, dtype=torch.int64, device=graph.device)

        return cls(src, dst, by_id(src_counts), by_id(dst_counts), dst_counts)

    def by_type(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Cut [num_dst, ...] into the rows of each destination type."""
        return dict(zip(self.sizes, torch.split(rows, list(self.sizes.values())), strict=True))


def joined_weights(graph: TypedGraph, weights: EdgeWeights, like: torch.Tensor) -> torch.Tensor:
    """Join one number for each edge, [num_edges] by relation, relation by relation; 1 where there are none.

    Raises:
        EdgeTypeError: a relation does not exist.
        InvalidArgumentError: not numbers by relation, or not one for each edge.
    """
    if not isinstance(weights, Mapping):
        kind = type(weights).__name__
        raise InvalidArgumentError(f"with features by node type, numbers of edges go by relation (got {kind})")
    given = {graph.to_canonical_etype(etype): numbers.reshape(-1) for etype, numbers in weights.items()}
    parts = []
    for relation in graph.canonical_etypes:
        num = graph.num_edges(relation)
        parts.append(given[relation] if relation in given else like.new_ones(num))
        if parts[-1].shape[0] != num:
            raise InvalidArgumentError(f"{relation} has {num} edges, but {parts[-1].shape[0]} numbers are given")
    return torch.cat(parts)


def grouped_product(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Multiply the rows of each group with the group's matrix, which may be block-diagonal.

    No Python loop over groups, and no matrix for each row.

    Args:
        x: [n, blocks * width], rows sorted by group.
        weight: [groups, blocks, width, out].
        counts: int64[groups], rows of each group.

    Returns:
        [n, blocks * out].
    """
    if _has_kernel(x, weight):
        ends = counts.cumsum(0).to(torch.int32)
        product: torch.Tensor = F.grouped_mm(x.contiguous(), weight.squeeze(1).contiguous(), offs=ends)
        if product.requires_grad:
            # the kernel refuses the expanded gradient of a sum
            product.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
        return product
    return _product_of_pieces(x, weight, counts)


def _has_kernel(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether torch can do it: on CPU in float32, with rows of whole 16 bytes, from torch 2.10 on."""
    _, blocks, width, out = weight.shape
    plain = (
        hasattr(F, "grouped_mm") and blocks == 1 and x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    )
    return plain and width % 4 == 0 and out % 4 == 0 and x.shape[0] > 0


def _product_of_pieces(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Cut the groups into pieces of one size, filled up with zeros, for one batched product."""
    num_groups, blocks, width, out = weight.shape
    size = _piece(x.shape[0], num_groups)
    pieces = (counts + (size - 1)) // size
    group = torch.repeat_interleave(pieces)
    # row i of a group that begins at row b and at piece p goes to row p * size + i - b
    shift = (pieces.cumsum(0) - pieces) * size - counts.cumsum(0) + counts
    place = torch.arange(x.shape[0], device=x.device) + torch.repeat_interleave(shift, counts, output_size=x.shape[0])
    filled = x.new_zeros(group.shape[0] * size, x.shape[1]).index_copy(0, place, x)
    left = filled.reshape(-1, size, blocks, width).transpose(1, 2)
    product = torch.matmul(left, weight.index_select(0, group))
    return product.transpose(1, 2).reshape(-1, blocks * out).index_select(0, place)


def _piece(num_rows: int, num_groups: int) -> int:
    """Rows of a piece: few enough that filling up costs little, many enough for matrix products."""
    return min(max(num_rows // max(2 * num_groups, 1), 8), 512)


def _begins(names: list[str], counts: list[int]) -> tuple[dict[str, int], int]:
    """Return where each type begins if they follow one another, and where the last one ends."""
    begins, end = {}, 0
    for name, count in zip(names, counts, strict=True):
        begins[name] = end
        end += count
    return begins, end


def _joined(parts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Concatenate integers, of which there may be none, as int64."""
    return torch.cat([torch.zeros(0, dtype=torch.int64, device=device), *parts])


def _join(feat: Mapping[str, torch.Tensor], counts: Mapping[str, int]) -> torch.Tensor:
    for ntype, count in counts.items():
        rows = feat[ntype].shape[0] if ntype in feat else 0
        if rows != count:
            raise InvalidArgumentError(f"there are {count} nodes of type {ntype!r}, but features of {rows}")
    parts = [feat[ntype] for ntype in counts if ntype in feat]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
