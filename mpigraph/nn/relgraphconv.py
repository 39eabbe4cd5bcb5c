"""Relational graph convolution (RGCN), with DGL's arguments, parameter names, initialisation and numerics."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.aggregate import spmm
from mpigraph.metadata.schema import Relation
from mpigraph.nn.common import source_and_destination
from mpigraph.nn.drop import Dropout
from mpigraph.nn.typed import TypedEdges, TypedGraph, TypedRows, Types, is_typed
from mpigraph.nn.typedlinear import TypedLinear


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
        self.linear_r = TypedLinear(in_feat, out_feat, num_rels, regularizer, num_bases)
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
        self, g: TypedGraph, feat: Any, etypes: Types | None = None, norm: Any = None, *, presorted: bool = False
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
        if is_typed(feat) != (etypes is None):
            raise InvalidArgumentError("etypes go with features in one tensor, and not with features by node type")
        if etypes is None:
            rows = TypedRows.of(g, feat)
            weights = None if norm is None else _joined_weights(g, norm, rows.src)
            edges = TypedEdges.of_relations(g, num_rels)
            return rows.by_type(self._convolved(edges, rows.src, rows.dst, weights))
        src, dst = source_and_destination(g, feat)
        return self._convolved(TypedEdges.of_types(g, etypes, num_rels), src, dst, norm)

    def _convolved(
        self, edges: TypedEdges, src: torch.Tensor, dst: torch.Tensor, norm: torch.Tensor | None
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
    graph: TypedGraph, weights: Mapping[str | Relation, torch.Tensor], like: torch.Tensor
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
