"""Heterogeneous graph transformer (HGT), with DGL's arguments, parameter names, initialisation and numerics."""

import math

import torch
from torch import nn

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.aggregate import edge_dots, spmm
from mpigraph.graphs.messages import take_rows
from mpigraph.nn.common import source_and_destination
from mpigraph.nn.drop import Dropout
from mpigraph.nn.functional import softmax_rows
from mpigraph.nn.typed import TypedEdges, TypedFeatures, TypedGraph, TypedRows, Types, checked_types, is_typed
from mpigraph.nn.typedlinear import TypedLinear, grouped_product


class HGTConv(nn.Module):
    """Heterogeneous graph transformer: attention over the in-edges of all relations together.

    Keys, queries and values are linear maps by node type; the score of an edge is ``<k_u W_att, q_v> pri / sqrt(d)``
    and its message ``v_u W_msg``, with W_att, W_msg and pri of its relation and head. The sum of the messages, weighted
    by the softmax of the scores, goes through a linear map by node type and is mixed with the destination's input. Hu
    et al., "Heterogeneous graph transformer", WWW 2020.

    The matrices of relations are applied to queries and to sums by destination, since there are fewer of them than
    edges. The layer takes a graph of one relation with a type for each node and edge, as DGL's does, or a graph or
    block of typed relations with features by node type, where types are numbered as in ``ntypes`` and
    ``canonical_etypes``.

    Args:
        in_size: width of the input.
        head_size: width of one head; the output is ``head_size * num_heads`` wide.
        num_heads: number of heads.
        num_ntypes: number of node types.
        num_etypes: number of relations.
        dropout: dropout rate of the aggregate, before it is mixed with the input.
        use_norm: normalise the output.
    """

    def __init__(
        self,
        in_size: int,
        head_size: int,
        num_heads: int,
        num_ntypes: int,
        num_etypes: int,
        dropout: float = 0.2,
        use_norm: bool = False,
    ) -> None:
        super().__init__()
        self.in_size = in_size
        self.head_size = head_size
        self.num_heads = num_heads
        self.num_ntypes = num_ntypes
        self.num_etypes = num_etypes
        width = head_size * num_heads
        self.linear_k = TypedLinear(in_size, width, num_ntypes)
        self.linear_q = TypedLinear(in_size, width, num_ntypes)
        self.linear_v = TypedLinear(in_size, width, num_ntypes)
        self.linear_a = TypedLinear(width, width, num_ntypes)
        self.relation_pri = nn.ParameterList(nn.Parameter(torch.ones(num_etypes)) for _ in range(num_heads))
        self.relation_att = nn.ModuleList(TypedLinear(head_size, head_size, num_etypes) for _ in range(num_heads))
        self.relation_msg = nn.ModuleList(TypedLinear(head_size, head_size, num_etypes) for _ in range(num_heads))
        self.skip = nn.Parameter(torch.ones(num_ntypes))
        self.drop = Dropout(dropout)
        self.norm = nn.LayerNorm(width) if use_norm else None
        if in_size != width:
            self.residual_w = nn.Parameter(torch.empty(in_size, width))
            nn.init.xavier_uniform_(self.residual_w)

    def forward(
        self,
        g: TypedGraph,
        x: torch.Tensor | TypedFeatures,
        ntype: Types | None = None,
        etype: Types | None = None,
        *,
        presorted: bool = False,
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Apply the layer.

        Args:
            g: a graph or block; of one relation, if ``ntype`` and ``etype`` are given.
            x: [num_src, in_size], destinations first in a block; or a dict of them by node type, or a pair of dicts for
                sources and destinations.
            ntype: int[num_src], the type of each node; None with features by node type.
            etype: int[num_edges], the relation of each edge; None with features by node type.
            presorted: ``ntype`` ascends, which saves a sort and copies.

        Returns:
            [num_dst, head_size * num_heads]; with features by node type a dict of them.

        Raises:
            InvalidArgumentError: types are missing, wrong or without meaning; features of a type are missing.
        """
        if isinstance(x, torch.Tensor):
            if ntype is None or etype is None:
                raise InvalidArgumentError("ntype and etype go with features in one tensor")
            return self._of_one_tensor(g, x, ntype, etype, presorted)
        if not is_typed(x) or ntype is not None or etype is not None:
            raise InvalidArgumentError("features are one tensor, or go by node type without ntype and etype")
        rows = TypedRows.of(g, x, self.num_ntypes)
        return rows.by_type(self._convolved(TypedEdges.of_relations(g, self.num_etypes), rows))

    def _of_one_tensor(
        self, g: TypedGraph, x: torch.Tensor, ntype: Types, etype: Types, presorted: bool
    ) -> torch.Tensor:
        """Sort the nodes by type, once for all linear maps, and renumber the ends of the edges."""
        src, dst = source_and_destination(g, x)
        types = checked_types(ntype, src.shape[0], self.num_ntypes, "ntype", src.device)
        edges = TypedEdges.of_types(g, etype, self.num_etypes)
        dst_types = types[: dst.shape[0]]
        src_counts, dst_counts = (torch.bincount(t, minlength=self.num_ntypes) for t in (types, dst_types))
        if presorted:
            return self._convolved(edges, TypedRows(src, dst, src_counts, dst_counts, {}))
        order = torch.argsort(types, stable=True)
        dst_order = torch.argsort(dst_types, stable=True) if g.is_block else order
        sorted_src = src.index_select(0, order)
        sorted_dst = dst.index_select(0, dst_order) if g.is_block else sorted_src
        place = _inverse(dst_order)
        edges = edges.renumbered(_inverse(order), place)
        rows = TypedRows(sorted_src, sorted_dst, src_counts, dst_counts, {})
        return self._convolved(edges, rows).index_select(0, place)

    def _convolved(self, edges: TypedEdges, rows: TypedRows) -> torch.Tensor:
        """Apply the layer to joined types: [num_dst, head_size * num_heads]."""
        keys = self._by_head(self.linear_k.of_groups(rows.src, rows.src_counts))
        values = self._by_head(self.linear_v.of_groups(rows.src, rows.src_counts))
        # <k_u W_att, q_v> = <k_u, q_v W_att^T>: the matrix meets one query for each cell, not one key for each edge
        queries = take_rows(self.linear_q.of_groups(rows.dst, rows.dst_counts), edges.cell_dst)
        queries = self._by_head(grouped_product(queries, self._scoring(), edges.cell_counts))
        scores = edge_dots(edges.cells, keys, queries)
        # over all edges into a destination, whatever their relation
        attention = softmax_rows(scores, edges.cell_dst.index_select(0, edges.cells.dst), edges.num_dst)
        # W_msg too is applied after the sum within cells, since it is linear
        sums = spmm(edges.cells, values, attention).flatten(1)
        h = edges.to_destinations(grouped_product(sums, _by_relation(self.relation_msg), edges.cell_counts))
        h = self.drop(self.linear_a.of_groups(h, rows.dst_counts))
        own = rows.dst if self.in_size == h.shape[1] else rows.dst @ self.residual_w
        gate = torch.repeat_interleave(torch.sigmoid(self.skip), rows.dst_counts, output_size=h.shape[0])
        dtype = torch.promote_types(own.dtype, h.dtype)  # under autocast they differ, which lerp refuses
        h = own.to(dtype).lerp(h.to(dtype), gate.unsqueeze(-1).to(dtype))
        return h if self.norm is None else torch.as_tensor(self.norm(h))

    def _by_head(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(-1, self.num_heads, self.head_size)

    def _scoring(self) -> torch.Tensor:
        """Return W_att^T * pri / sqrt(d), [num_etypes, num_heads, d, d], to be applied to queries."""
        scale = torch.stack(list(self.relation_pri), 1) / math.sqrt(self.head_size)
        return _by_relation(self.relation_att).transpose(2, 3) * scale[:, :, None, None]


def _inverse(order: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(order).index_copy(0, order, torch.arange(order.shape[0], device=order.device))


def _by_relation(heads: nn.ModuleList) -> torch.Tensor:
    """Return the matrices of all heads, [num_etypes, num_heads, d, d]."""
    return torch.stack([torch.as_tensor(head.W) for head in heads], 1)
