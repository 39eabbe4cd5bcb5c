"""Relations together: their edges in one list, the rows of all node types in one tensor, and matrices by type.

The edges are sorted by relation, then by destination. The edges of one relation into one destination are a *cell*: a
layer first adds up within cells, then multiplies each relation's cells with its matrix (:func:`grouped_product`), then
adds up the cells of each destination. So no product is made for each edge, and the number of torch calls does not grow
with the number of relations, except to join their edges.

Matrices by type are plain or composed of fewer parameters, as in ``dgl.nn.TypedLinear`` and ``WeightBasis``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import nn
from torch.nn import functional as F

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.aggregate import InEdges, group_sums
from mpigraph.graphs.block import Block
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.graphs.in_memory import InMemoryGraph
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.graphs.messages import rounded, take_rows

TypedGraph = HeteroGraph | Block
Types = torch.Tensor | Sequence[int]
TypedFeatures = Mapping[str, torch.Tensor] | tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]
_REGULARIZERS = (None, "basis", "bdd")


def is_typed(feat: object) -> bool:
    """Return whether features are dicts by node type."""
    return isinstance(feat, Mapping) or (isinstance(feat, tuple) and all(isinstance(side, Mapping) for side in feat))


def sides(graph: InMemoryGraph, feat: TypedFeatures) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
    """Return the features by type of the sources and of the destinations, which come first among those of a block."""
    if isinstance(feat, tuple):
        return feat
    if not graph.is_block:
        return feat, feat
    return feat, {t: rows[: graph.num_dst_nodes(t)] for t, rows in feat.items() if t in graph.dsttypes}


def checked_types(types: Types, num_rows: int, num_types: int, what: str, device: torch.device) -> torch.Tensor:
    """Return the types of rows as int64[num_rows] on ``device``; InvalidArgumentError calls them ``what``."""
    checked = torch.as_tensor(types, device=device)
    if checked.shape != (num_rows,):
        raise InvalidArgumentError(f"{what} must have shape ({num_rows},) (got {tuple(checked.shape)})")
    if num_rows:
        if checked.is_floating_point() or checked.is_complex():
            raise InvalidArgumentError(f"{what} must be integers (got {checked.dtype})")
        low, high = (int(end) for end in torch.aminmax(checked))
        if low < 0 or high >= num_types:
            raise InvalidArgumentError(f"{what} must be in [0, {num_types}) (got {low} to {high})")
    return checked.to(torch.int64)


@dataclass(frozen=True)
class TypedEdges:
    """Edges sorted by relation, then by destination."""

    cells: InEdges  # the edges by cell, sources numbered over all types
    cell_dst: torch.Tensor  # int64[num_cells], the destination of each cell, numbered over all types
    cell_counts: torch.Tensor  # int64[num_rels], the cells of each relation
    num_dst: int
    order: torch.Tensor | None  # int64[num_edges], each edge's place in the users' order of weights; None: the same

    @classmethod
    def of_relations(cls, graph: InMemoryGraph, num_rels: int) -> "TypedEdges":
        """Join the relations of a typed graph, which caches the result; edge weights come relation by relation.

        Raises:
            InvalidArgumentError: there are more relations than ``num_rels``, or a sampler has left some out, so that
                their ids are unknown.
        """
        relations = graph.canonical_etypes
        if isinstance(graph, Block) and graph.lacks_relations:
            raise InvalidArgumentError(
                "the layer numbers relations by their place, and this block lacks relations without edges: "
                "give the sampler empty_relations=True"
            )
        if len(relations) > num_rels:
            raise InvalidArgumentError(f"the layer has {num_rels} relations, but the graph has {len(relations)}")
        return graph._once((cls, num_rels), lambda: cls._of_all(graph, num_rels))

    @classmethod
    def _of_all(cls, graph: InMemoryGraph, num_rels: int) -> "TypedEdges":
        relations = graph.canonical_etypes
        by_relation = [graph.structure(relation) for relation in relations]
        device = graph.device
        src_begin, num_src = _begins(graph.srctypes, [graph.num_src_nodes(t) for t in graph.srctypes])
        dst_begin, num_dst = _begins(graph.dsttypes, [graph.num_dst_nodes(t) for t in graph.dsttypes])
        # one candidate for each relation and each destination of its type; those with edges are the cells
        rows = torch.tensor([one.num_dst for one in by_relation], dtype=torch.int64, device=device)
        edges = torch.tensor([one.num_edges for one in by_relation], dtype=torch.int64, device=device)
        degrees = _joined([one.degrees for one in by_relation], device)
        full = degrees.nonzero().reshape(-1)
        relation = torch.repeat_interleave(rows)[full]
        # candidate c of a relation whose candidates begin at b is destination c - b of its type
        shift = torch.tensor([dst_begin[r[2]] for r in relations], dtype=torch.int64, device=device)
        dst = full + (shift - rows.cumsum(0) + rows)[relation]
        begin = torch.tensor([src_begin[r[0]] for r in relations], dtype=torch.int64, device=device)
        src = _joined([one.indices for one in by_relation], device) + torch.repeat_interleave(begin, edges)
        order = None
        if any(one.perm is not None for one in by_relation):
            places = [torch.arange(p.num_edges, device=device) if p.perm is None else p.perm for p in by_relation]
            order = _joined(places, device) + torch.repeat_interleave(edges.cumsum(0) - edges, edges)
        counts = torch.bincount(relation, minlength=num_rels)
        return cls(InEdges.of_degrees(degrees[full], src, num_src), dst, counts, num_dst, order)

    @classmethod
    def of_types(cls, graph: MessagePassing, etypes: Types, num_rels: int) -> "TypedEdges":
        """Sort the edges of a graph of one relation by ``etypes``, int[num_edges]; errors as in checked_types."""
        in_edges = graph.structure(graph.to_canonical_etype(None))
        types = checked_types(etypes, in_edges.num_edges, num_rels, "etypes", graph.device)
        types = in_edges.to_csc_order(types)
        place = torch.argsort(types, stable=True)  # within a type they stay sorted by destination
        # relation and destination in one number: each run of equal ones is a cell
        key = types[place] * in_edges.num_dst + in_edges.dst[place]
        cell_keys, degrees = torch.unique_consecutive(key, return_counts=True)
        width = max(in_edges.num_dst, 1)
        counts = torch.bincount(cell_keys // width, minlength=num_rels)
        cells = InEdges.of_degrees(degrees, in_edges.indices[place], in_edges.num_src)
        order = place if in_edges.perm is None else in_edges.perm[place]
        return cls(cells, cell_keys % width, counts, in_edges.num_dst, order)

    def renumbered(self, src_place: torch.Tensor, dst_place: torch.Tensor) -> "TypedEdges":
        """Return the edges with sources and destinations renumbered by int64[num_src] and int64[num_dst]."""
        cells = self.cells
        src = src_place.index_select(0, cells.indices).to(cells.indices.dtype)
        return replace(
            self, cells=InEdges(cells.indptr, src, cells.num_src), cell_dst=dst_place.index_select(0, self.cell_dst)
        )

    def sorted(self, weights: torch.Tensor) -> torch.Tensor:
        """Reorder edge weights from the users' order to that of the cells."""
        return weights if self.order is None else weights[self.order]

    def to_destinations(self, rows: torch.Tensor) -> torch.Tensor:
        """Add up one row for each cell, [num_cells, ...], to [num_dst, ...]."""
        return rounded(group_sums(rows, self.cell_dst, self.num_dst), rows.dtype)


@dataclass(frozen=True)
class TypedRows:
    """Features of all node types in one tensor for each side, type by type."""

    src: torch.Tensor  # [num_src, width]
    dst: torch.Tensor  # [num_dst, width]
    src_counts: torch.Tensor  # int64[num_ntypes], number of sources of each type, by type id
    dst_counts: torch.Tensor  # int64[num_ntypes], likewise of the destinations
    sizes: dict[str, int]  # destination type -> number of rows

    @classmethod
    def of(cls, graph: InMemoryGraph, feat: TypedFeatures, num_ntypes: int | None = None) -> "TypedRows":
        """Join features by type, [num_nodes, width]; a type without nodes may be left out.

        Raises:
            InvalidArgumentError: the features of a type are missing, or not one row for each node; there are more
                types than ``num_ntypes``.
        """
        ntypes = graph.schema.ntypes
        num_ntypes = len(ntypes) if num_ntypes is None else num_ntypes
        if len(ntypes) > num_ntypes:
            raise InvalidArgumentError(f"the layer has {num_ntypes} node types, but the graph has {len(ntypes)}")
        src_counts = {t: graph.num_src_nodes(t) for t in graph.srctypes}
        dst_counts = {t: graph.num_dst_nodes(t) for t in graph.dsttypes}
        of_src, of_dst = sides(graph, feat)
        src = _join(of_src, src_counts)
        # on a graph both sides are one tensor, which then is neither joined twice nor moved twice
        dst = src if of_dst is of_src and dst_counts == src_counts else _join(of_dst, dst_counts)
        more = [0] * (num_ntypes - len(ntypes))

        def by_id(counts: Mapping[str, int]) -> torch.Tensor:
            return torch.tensor([counts.get(t, 0) for t in ntypes] + more, dtype=torch.int64, device=graph.device)

        return cls(src, dst, by_id(src_counts), by_id(dst_counts), dst_counts)

    def by_type(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Split [num_dst, ...] into the rows of each destination type."""
        return dict(zip(self.sizes, torch.split(rows, list(self.sizes.values())), strict=True))


def _begins(names: list[str], counts: list[int]) -> tuple[dict[str, int], int]:
    """Return the first number of each type if all are numbered type by type, and the total."""
    ends = list(accumulate(counts, initial=0))
    return dict(zip(names, ends[:-1], strict=True)), ends[-1]


def _joined(tensors: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Concatenate integers as int64; there may be no tensor at all."""
    return torch.cat([torch.zeros(0, dtype=torch.int64, device=device), *tensors])


def _join(feat: Mapping[str, torch.Tensor], counts: Mapping[str, int]) -> torch.Tensor:
    """Concatenate features type by type, after a check of their numbers of rows."""
    for ntype, count in counts.items():
        rows = feat[ntype].shape[0] if ntype in feat else 0
        if rows != count:
            raise InvalidArgumentError(f"there are {count} nodes of type {ntype!r}, but features of {rows}")
    tensors = [feat[ntype] for ntype in counts if ntype in feat]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


class WeightBasis(nn.Module):
    """Weights that are linear combinations of a few bases: ``W_o = sum over b of a_ob V_b``.

    Schlichtkrull et al., "Modeling relational data with graph convolutional networks", ESWC 2018.

    Args:
        shape: of one weight.
        num_bases: number of bases.
        num_outputs: number of weights.
    """

    def __init__(self, shape: tuple[int, ...], num_bases: int, num_outputs: int) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.num_bases = num_bases
        self.num_outputs = num_outputs
        self.weight = nn.Parameter(torch.empty(num_bases, *self.shape))
        self.w_comp = nn.Parameter(torch.empty(num_outputs, num_bases))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise bases and coefficients: Glorot uniform with the gain of ReLU."""
        for parameter in (self.weight, self.w_comp):
            nn.init.xavier_uniform_(parameter, gain=nn.init.calculate_gain("relu"))

    def forward(self) -> torch.Tensor:
        """Return all weights, [num_outputs, *shape]."""
        return torch.as_tensor(torch.tensordot(self.w_comp, self.weight, 1))


class TypedLinear(nn.Module):
    """A linear map for each type: ``y = x W_t`` where t is the type of the row x.

    * None: a matrix for each type.
    * basis: matrices that are linear combinations of ``num_bases`` ones.
    * bdd: block-diagonal matrices of ``num_bases`` blocks.

    Both from Schlichtkrull et al., "Modeling relational data with graph convolutional networks", ESWC 2018.

    Args:
        in_size: width of the input.
        out_size: width of the output.
        num_types: number of types.
        regularizer: None, "basis" or "bdd".
        num_bases: for "basis" and "bdd".

    Raises:
        InvalidArgumentError: another regularizer, ``num_bases`` missing or less than 1, or, for "bdd", a width that is
            no multiple of it.
    """

    def __init__(
        self, in_size: int, out_size: int, num_types: int, regularizer: str | None = None, num_bases: int | None = None
    ) -> None:
        super().__init__()
        if regularizer not in _REGULARIZERS:
            raise InvalidArgumentError(f"regularizer must be one of {_REGULARIZERS} (got {regularizer!r})")
        if regularizer is not None and (num_bases is None or num_bases < 1):
            raise InvalidArgumentError(f"num_bases must be at least 1 for {regularizer!r} (got {num_bases})")
        self.in_size = in_size
        self.out_size = out_size
        self.num_types = num_types
        self.regularizer = regularizer
        self.num_bases = num_bases
        blocks = num_bases if regularizer == "bdd" and num_bases is not None else 1
        if in_size % blocks or out_size % blocks:
            raise InvalidArgumentError(f"widths {in_size} and {out_size} must be multiples of num_bases {num_bases}")
        self._shape = num_types, blocks, in_size // blocks, out_size // blocks
        if regularizer == "bdd":
            self.W = nn.Parameter(torch.empty(num_types, in_size * out_size // blocks))
        elif regularizer == "basis" and num_bases is not None:
            self.W = nn.Parameter(torch.empty(num_bases, in_size, out_size))
            self.coeff = nn.Parameter(torch.empty(num_types, num_bases))
        else:
            self.W = nn.Parameter(torch.empty(num_types, in_size, out_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise: weights uniform, as torch does for a linear map; coefficients Glorot uniform."""
        bound = 1 / math.sqrt(self._shape[2])  # the fan-in of an output, which in "bdd" is the width of a block
        nn.init.uniform_(self.W, -bound, bound)
        if self.regularizer == "basis":
            nn.init.xavier_uniform_(self.coeff, gain=nn.init.calculate_gain("relu"))

    def get_weight(self) -> torch.Tensor:
        """Return the matrices: [num_types, in_size, out_size], or the blocks of "bdd", a row for each type."""
        return torch.tensordot(self.coeff, self.W, 1) if self.regularizer == "basis" else self.W

    def of_groups(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Map [n, in_size] to [n, out_size]; the rows are sorted by type, and int64[num_types] counts their types."""
        return grouped_product(x, self.get_weight().reshape(self._shape), counts)

    def forward(self, x: torch.Tensor, x_type: Types, sorted_by_type: bool = False) -> torch.Tensor:
        """Map each row by the matrix of its type.

        Args:
            x: [n, in_size].
            x_type: int[n], in [0, num_types).
            sorted_by_type: the types ascend, which saves a sort.

        Returns:
            [n, out_size].

        Raises:
            InvalidArgumentError: not one type for each row, or one that is not in [0, num_types).
        """
        types = checked_types(x_type, x.shape[0], self.num_types, "x_type", x.device)
        counts = torch.bincount(types, minlength=self.num_types)
        if sorted_by_type:
            return self.of_groups(x, counts)
        order = torch.argsort(types, stable=True)
        rows = self.of_groups(x.index_select(0, order), counts)
        return torch.empty_like(rows).index_copy(0, order, rows)

    def extra_repr(self) -> str:
        """Describe the shape."""
        shape = f"{self.in_size}, {self.out_size}, num_types={self.num_types}"
        return f"{shape}, regularizer={self.regularizer!r}, num_bases={self.num_bases}"


def grouped_product(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Multiply the rows of each group with the group's matrix, which may be block-diagonal: [n, blocks * out].

    There is no Python loop over groups, and no matrix is copied for each row.

    Args:
        x: [n, blocks * width], rows sorted by group.
        weight: [groups, blocks, width, out].
        counts: int64[groups], rows of each group.
    """
    if _has_kernel(x, weight):
        ends = counts.cumsum(0).to(torch.int32)
        product: torch.Tensor = F.grouped_mm(x.contiguous(), weight.squeeze(1).contiguous(), offs=ends)
        if product.requires_grad:
            # the backward kernel refuses expanded tensors, such as the gradient of a sum
            product.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
        return product
    return _batched_product(x, weight, counts)


def _has_kernel(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether torch has a kernel: on CPU in float32, with rows of whole 16 bytes, from torch 2.10 on.

    Its rounding of a row depends on the size of the group. So it is for training only, and evaluation gives a node the
    same bits in any block.
    """
    _, blocks, width, out = weight.shape
    plain = (
        hasattr(F, "grouped_mm") and blocks == 1 and x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    )
    return plain and torch.is_grad_enabled() and width % 4 == 0 and out % 4 == 0 and x.shape[0] > 0


def _batched_product(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Split the groups into tiles of one size, padded with zeros, for one batched product."""
    num_groups, blocks, width, out = weight.shape
    # few rows in a tile, so that padding, at most one tile for each group, costs little: half as many as there are,
    # unless groups are tiny; many enough for matrix products
    size = min(max(x.shape[0] // max(2 * num_groups, 1), 8), 512)
    tiles = (counts + (size - 1)) // size
    group = torch.repeat_interleave(tiles)
    # row i of a group that begins at row b and at tile t goes to row t * size + i - b
    shift = (tiles.cumsum(0) - tiles) * size - counts.cumsum(0) + counts
    place = torch.arange(x.shape[0], device=x.device) + torch.repeat_interleave(shift, counts, output_size=x.shape[0])
    padded = x.new_zeros(group.shape[0] * size, x.shape[1]).index_copy(0, place, x)
    left = padded.reshape(-1, size, blocks, width).transpose(1, 2)
    product = torch.matmul(left, take_rows(weight, group))
    return product.transpose(1, 2).reshape(-1, blocks * out).index_select(0, place)
