"""Layers on several relations, with DGL's arguments, parameter names, initialisation and numerics.

One module for each relation (``HeteroGraphConv``), relational graph convolution (RGCN), and the heterogeneous graph
transformer (HGT).
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from mpigraph.errors import EdgeTypeError, InvalidArgumentError
from mpigraph.graphs.aggregate import edge_dots, spmm
from mpigraph.graphs.message_passing import combine
from mpigraph.graphs.messages import take_rows
from mpigraph.metadata.schema import Relation, escape
from mpigraph.nn import typed
from mpigraph.nn.drop import Dropout
from mpigraph.nn.functional import softmax_rows
from mpigraph.nn.layers import source_and_destination

Aggregate = Callable[[list[torch.Tensor], str], torch.Tensor]

_OPS = ("sum", "mean", "max", "min", "stack")

_TAKEN = frozenset(dir(nn.ModuleDict()))
"""Names that no key of a ModuleDict may have."""


class HeteroGraphConv(nn.Module):
    """Apply a module to each relation, then combine the outputs for the same destination type.

    A module is called with the graph or block of its relation and a pair of features, of the sources and of the
    destinations, even if the relation has no edge. Modules and inputs that a minibatch does not need get gradients of
    0, so that every rank of a job has gradients of the same parameters. ``set_allow_zero_in_degree(True)`` is called on
    modules that have it.

    Args:
        mods: module by relation, a triple or the name alone; a triple takes precedence over a name.
        aggregate: "sum", "mean", "max", "min", "stack" (along a new second dimension, the relations in the order of
            ``canonical_etypes``), or a function of the list of tensors and the destination type.

    Raises:
        InvalidArgumentError: another ``aggregate``.
    """

    def __init__(self, mods: Mapping[Any, nn.Module], aggregate: str | Aggregate = "sum") -> None:
        super().__init__()
        if isinstance(aggregate, str) and aggregate not in _OPS:
            raise InvalidArgumentError(f"aggregate must be one of {_OPS} or a function (got {aggregate!r})")
        self.mods = nn.ModuleDict({_key(etype): module for etype, module in mods.items()})
        self._aggregate = partial(_combined, aggregate) if isinstance(aggregate, str) else aggregate
        for module in self.mods.values():
            # a node may have edges of one relation and none of another
            allow = getattr(module, "set_allow_zero_in_degree", None)
            if callable(allow):
                allow(True)

    def forward(
        self,
        g: typed.TypedGraph,
        inputs: typed.TypedFeatures,
        mod_args: Mapping[Any, tuple[Any, ...]] | None = None,
        mod_kwargs: Mapping[Any, Mapping[str, Any]] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Apply the modules.

        Args:
            g: a graph, or a block whose first sources of each type are the destinations.
            inputs: node type -> [num_nodes, ...]; or a pair of dicts for sources and destinations. A relation is
                skipped if the type of one of its ends is missing.
            mod_args: relation (triple or name) -> more arguments of its module.
            mod_kwargs: relation (triple or name) -> named arguments of its module.

        Returns:
            Destination type -> the combined outputs of its relations. Types without relations are left out.

        Raises:
            EdgeTypeError: there is no module for a relation.
        """
        src_inputs, dst_inputs = typed.sides(g, inputs)
        by_type: dict[str, list[torch.Tensor]] = {ntype: [] for ntype in g.dsttypes}
        idle = dict(self.mods.items())
        unread = dict(src_inputs)
        for relation in g.canonical_etypes:
            src, _, dst = relation
            if src in src_inputs and dst in dst_inputs:
                key = self._key_of(relation)
                idle.pop(key, None)
                unread.pop(src, None)
                args = _of(relation, mod_args, ())
                kwargs = _of(relation, mod_kwargs, {})
                pair = src_inputs[src], dst_inputs[dst]
                by_type[dst].append(self.mods[key](g[relation], pair, *args, **kwargs))
        results = {ntype: self._aggregate(outputs, ntype) for ntype, outputs in by_type.items() if outputs}
        nothing = _sum_of_none([p for module in idle.values() for p in module.parameters()] + list(unread.values()))
        return results if nothing is None else {ntype: rows + nothing for ntype, rows in results.items()}

    def _key_of(self, relation: Relation) -> str:
        for key in (_key(relation), _key(relation[1])):
            if key in self.mods:
                return key
        raise EdgeTypeError(f"there is no module for relation {relation} (have {list(self.mods)})")


def _key(etype: str | Relation) -> str:
    """Return a key that a ModuleDict takes: no dot, and not the name of an attribute of it ("to", "items")."""
    name = escape(str(etype), ".", "%")
    return f"{name}%" if name in _TAKEN else name


def _of(relation: Relation, by_etype: Mapping[Any, Any] | None, default: Any) -> Any:
    """Look a relation up by its triple, then by its name."""
    by_etype = by_etype or {}
    return by_etype.get(relation, by_etype.get(relation[1], default))


def _combined(op: str, outputs: list[torch.Tensor], ntype: str) -> torch.Tensor:
    """Reduce by a built-in operation, as a function like those that users give."""
    return outputs[0] if len(outputs) == 1 and op != "stack" else combine(outputs, op)


def _sum_of_none(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """Return 0 as the sum of no element of each tensor, which gives each a gradient of 0; None if none needs one."""
    sums = [tensor.flatten()[:0].sum() for tensor in tensors if tensor.requires_grad]
    return torch.stack(sums).sum() if sums and torch.is_grad_enabled() else None


class RelGraphConv(nn.Module):
    """Relational graph convolution: ``sum over relations r and in-neighbours u by r of h_u W_r + h W_0 + bias``.

    Schlichtkrull et al., "Modeling relational data with graph convolutional networks", ESWC 2018. It takes a graph of
    one relation with a type for each edge, as DGL's layer does, or a graph or block of typed relations with features
    by node type, where the relations are numbered as in ``canonical_etypes``.

    Args:
        in_feat: width of the input.
        out_feat: width of the output.
        num_rels: number of relations.
        regularizer: None; "basis": the W_r are linear combinations of ``num_bases`` matrices; "bdd": they are
            block-diagonal, of ``num_bases`` blocks.
        num_bases: ``num_rels`` by default.
        bias: add a learnable bias.
        activation: applied to the output.
        self_loop: add ``h W_0``.
        dropout: dropout rate of the output.
        layer_norm: normalise the sum over relations.

    Raises:
        InvalidArgumentError: another regularizer, or widths that "bdd" cannot divide into ``num_bases`` blocks.
    """

    h_bias: nn.Parameter | None
    loop_weight: nn.Parameter | None

    def __init__(
        self,
        in_feat: int,
        out_feat: int,
        num_rels: int,
        regularizer: str | None = None,
        num_bases: int | None = None,
        bias: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        self_loop: bool = True,
        dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        if regularizer is not None and num_bases is None:
            num_bases = num_rels
        self.linear_r = typed.TypedLinear(in_feat, out_feat, num_rels, regularizer, num_bases)
        self.activation = activation
        self.register_parameter("h_bias", nn.Parameter(torch.zeros(out_feat)) if bias else None)
        self.layer_norm_weight = nn.LayerNorm(out_feat) if layer_norm else None
        self.register_parameter("loop_weight", nn.Parameter(torch.empty(in_feat, out_feat)) if self_loop else None)
        self.dropout = Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise: weights of relations uniform, that of the self loop Glorot uniform; the bias is 0."""
        self.linear_r.reset_parameters()
        if self.layer_norm_weight is not None:
            self.layer_norm_weight.reset_parameters()
        if self.h_bias is not None:
            nn.init.zeros_(self.h_bias)
        if self.loop_weight is not None:
            nn.init.xavier_uniform_(self.loop_weight, gain=nn.init.calculate_gain("relu"))

    def forward(
        self,
        g: typed.TypedGraph,
        feat: Any,
        etypes: typed.Types | None = None,
        norm: Any = None,
        *,
        presorted: bool = False,
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Apply the layer.

        Args:
            g: a graph or block; of one relation, if ``etypes`` are given.
            feat: [num_src, in_feat], destinations first in a block; or a dict of them by node type, or a pair of dicts
                for sources and destinations.
            etypes: int[num_edges], the relation of each edge; None with features by node type.
            norm: [num_edges] or [num_edges, 1], multiplied with the messages; a dict by relation with features by node
                type.
            presorted: accepted for DGL's scripts; edges are grouped by relation in any case.

        Returns:
            [num_dst, out_feat]; with features by node type a dict of them.

        Raises:
            InvalidArgumentError: ``etypes`` is missing, wrong or without meaning; features of a type are missing.
        """
        num_rels = self.linear_r.num_types
        if typed.is_typed(feat) != (etypes is None):
            raise InvalidArgumentError("etypes go with features in one tensor, and not with features by node type")
        if etypes is None:
            rows = typed.TypedRows.of(g, feat)
            weights = None if norm is None else _joined_weights(g, norm, rows.src)
            edges = typed.TypedEdges.of_relations(g, num_rels)
            return rows.by_type(self._convolved(edges, rows.src, rows.dst, weights))
        src, dst = source_and_destination(g, feat)
        return self._convolved(typed.TypedEdges.of_types(g, etypes, num_rels), src, dst, norm)

    def _convolved(
        self, edges: typed.TypedEdges, src: torch.Tensor, dst: torch.Tensor, norm: torch.Tensor | None
    ) -> torch.Tensor:
        num_edges = edges.cells.num_edges
        if norm is not None and norm.numel() != num_edges:
            raise InvalidArgumentError(f"norm must hold {num_edges} numbers (got shape {tuple(norm.shape)})")
        weights = None if norm is None else edges.sorted(norm.reshape(-1))
        # W_r is linear, so it is applied to the sum of a cell, not to each message
        h = edges.to_destinations(self.linear_r.of_groups(spmm(edges.cells, src, weights), edges.cell_counts))
        if self.layer_norm_weight is not None:
            h = self.layer_norm_weight(h)
        if self.h_bias is not None:
            h = h + self.h_bias
        if self.loop_weight is not None:
            h = h + dst @ self.loop_weight
        if self.activation is not None:
            h = self.activation(h)
        return torch.as_tensor(self.dropout(h))


def _joined_weights(
    graph: typed.TypedGraph, weights: Mapping[str | Relation, torch.Tensor], like: torch.Tensor
) -> torch.Tensor:
    """Concatenate edge weights, [num_edges] by relation, relation by relation; 1 where none are given.

    Raises:
        EdgeTypeError: a relation does not exist.
        InvalidArgumentError: not numbers by relation, or not one for each edge.
    """
    if not isinstance(weights, Mapping):
        kind = type(weights).__name__
        raise InvalidArgumentError(f"with features by node type, numbers of edges go by relation (got {kind})")
    by_relation = {graph.to_canonical_etype(etype): numbers.reshape(-1) for etype, numbers in weights.items()}
    joined = []
    for relation in graph.canonical_etypes:
        num = graph.num_edges(relation)
        numbers = by_relation[relation] if relation in by_relation else like.new_ones(num)
        if numbers.shape[0] != num:
            raise InvalidArgumentError(f"{relation} has {num} edges, but {numbers.shape[0]} numbers are given")
        joined.append(numbers)
    return torch.cat(joined)


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
        self.linear_k = typed.TypedLinear(in_size, width, num_ntypes)
        self.linear_q = typed.TypedLinear(in_size, width, num_ntypes)
        self.linear_v = typed.TypedLinear(in_size, width, num_ntypes)
        self.linear_a = typed.TypedLinear(width, width, num_ntypes)
        self.relation_pri = nn.ParameterList(nn.Parameter(torch.ones(num_etypes)) for _ in range(num_heads))
        self.relation_att = nn.ModuleList(typed.TypedLinear(head_size, head_size, num_etypes) for _ in range(num_heads))
        self.relation_msg = nn.ModuleList(typed.TypedLinear(head_size, head_size, num_etypes) for _ in range(num_heads))
        self.skip = nn.Parameter(torch.ones(num_ntypes))
        self.drop = Dropout(dropout)
        self.norm = nn.LayerNorm(width) if use_norm else None
        if in_size != width:
            self.residual_w = nn.Parameter(torch.empty(in_size, width))
            nn.init.xavier_uniform_(self.residual_w)

    def forward(
        self,
        g: typed.TypedGraph,
        x: torch.Tensor | typed.TypedFeatures,
        ntype: typed.Types | None = None,
        etype: typed.Types | None = None,
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
        if not typed.is_typed(x) or ntype is not None or etype is not None:
            raise InvalidArgumentError("features are one tensor, or go by node type without ntype and etype")
        rows = typed.TypedRows.of(g, x, self.num_ntypes)
        return rows.by_type(self._convolved(typed.TypedEdges.of_relations(g, self.num_etypes), rows))

    def _of_one_tensor(
        self, g: typed.TypedGraph, x: torch.Tensor, ntype: typed.Types, etype: typed.Types, presorted: bool
    ) -> torch.Tensor:
        """Sort the nodes by type, once for all linear maps, and renumber the ends of the edges."""
        src, dst = source_and_destination(g, x)
        types = typed.checked_types(ntype, src.shape[0], self.num_ntypes, "ntype", src.device)
        edges = typed.TypedEdges.of_types(g, etype, self.num_etypes)
        dst_types = types[: dst.shape[0]]
        src_counts, dst_counts = (torch.bincount(t, minlength=self.num_ntypes) for t in (types, dst_types))
        if presorted:
            return self._convolved(edges, typed.TypedRows(src, dst, src_counts, dst_counts, {}))
        order = torch.argsort(types, stable=True)
        dst_order = torch.argsort(dst_types, stable=True) if g.is_block else order
        sorted_src = src.index_select(0, order)
        sorted_dst = dst.index_select(0, dst_order) if g.is_block else sorted_src
        place = _inverse(dst_order)
        edges = edges.renumbered(_inverse(order), place)
        rows = typed.TypedRows(sorted_src, sorted_dst, src_counts, dst_counts, {})
        return self._convolved(edges, rows).index_select(0, place)

    def _convolved(self, edges: typed.TypedEdges, rows: typed.TypedRows) -> torch.Tensor:
        """Apply the layer to joined types: [num_dst, head_size * num_heads]."""
        keys = self._by_head(self.linear_k.of_groups(rows.src, rows.src_counts))
        values = self._by_head(self.linear_v.of_groups(rows.src, rows.src_counts))
        # <k_u W_att, q_v> = <k_u, q_v W_att^T>: the matrix meets one query for each cell, not one key for each edge
        queries = take_rows(self.linear_q.of_groups(rows.dst, rows.dst_counts), edges.cell_dst)
        queries = self._by_head(typed.grouped_product(queries, self._scoring(), edges.cell_counts))
        scores = edge_dots(edges.cells, keys, queries)
        # over all edges into a destination, whatever their relation
        attention = softmax_rows(scores, edges.cell_dst.index_select(0, edges.cells.dst), edges.num_dst)
        # W_msg too is applied after the sum within cells, since it is linear
        sums = spmm(edges.cells, values, attention).flatten(1)
        h = edges.to_destinations(typed.grouped_product(sums, _by_relation(self.relation_msg), edges.cell_counts))
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
