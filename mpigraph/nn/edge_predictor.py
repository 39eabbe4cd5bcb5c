"""Scores of pairs of nodes, with the arguments and numerics of ``dgl.nn.EdgePredictor``, and DistMult."""

import torch
from torch import nn
from torch.nn import functional as F

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.messages import rounded, take_rows, widened

_OPS = ("dot", "cos", "ele", "cat", "distmult")


class EdgePredictor(nn.Module):
    """Combine the representations of two nodes into a score, or into features of the pair.

    * dot: ``<h_src, h_dst>``
    * cos: the cosine of the angle between them
    * ele: ``h_src * h_dst``
    * cat: ``h_src || h_dst``
    * distmult: ``<h_src, w_r, h_dst>`` with a learned vector ``w_r`` for each relation (Yang et al., "Embedding
      entities and relations for learning and inference in knowledge bases", ICLR 2015)

    With ``out_feats`` a linear map follows.

    Args:
        op: one of these.
        in_feats: width of the representations; needed with ``out_feats`` and for "distmult".
        out_feats: width of the output of the linear map; None for no map.
        bias: add a bias to the linear map.
        num_rels: number of relations, for "distmult".

    Raises:
        InvalidArgumentError: another ``op``, or ``in_feats`` or ``num_rels`` missing or where it has no meaning.
    """

    linear: nn.Linear | None
    w_relation: nn.Parameter | None

    def __init__(
        self,
        op: str,
        in_feats: int | None = None,
        out_feats: int | None = None,
        bias: bool = False,
        num_rels: int | None = None,
    ) -> None:
        super().__init__()
        if op not in _OPS:
            raise InvalidArgumentError(f"op must be one of {_OPS} (got {op!r})")
        if (num_rels is not None) != (op == "distmult"):
            raise InvalidArgumentError(f"num_rels goes with op 'distmult' alone (got op {op!r}, num_rels {num_rels})")
        if in_feats is None and (out_feats is not None or op == "distmult"):
            raise InvalidArgumentError(f"in_feats must be given with out_feats and for 'distmult' (op {op!r})")
        self.op = op
        self.w_relation = None
        if in_feats is not None and num_rels is not None:
            self.w_relation = nn.Parameter(torch.empty(num_rels, in_feats))
        self.linear = None
        if in_feats is not None and out_feats is not None:
            width = {"ele": in_feats, "cat": 2 * in_feats}.get(op, 1)
            self.linear = nn.Linear(width, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise: the linear map as torch does, the relations' vectors Glorot uniform."""
        if self.linear is not None:
            self.linear.reset_parameters()
        if self.w_relation is not None:
            nn.init.xavier_uniform_(self.w_relation)

    def forward(
        self, h_src: torch.Tensor, h_dst: torch.Tensor, etypes: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Score pairs.

        Args:
            h_src: [n, in_feats], representations of the sources.
            h_dst: [n, in_feats], of the destinations.
            etypes: int64[n], the relation of each pair, or one relation of all; for "distmult" with several relations.

        Returns:
            [n, out_feats] with a linear map; else [n, in_feats] for "ele", [n, 2 * in_feats] for "cat" and [n, 1] for
            the others.

        Raises:
            InvalidArgumentError: the two shapes differ, or ``etypes`` is missing or without meaning.
        """
        if h_src.shape != h_dst.shape:
            raise InvalidArgumentError(
                f"h_src and h_dst must have one shape (got {tuple(h_src.shape)} and {tuple(h_dst.shape)})"
            )
        if etypes is not None and self.w_relation is None:
            raise InvalidArgumentError(f"etypes goes with op 'distmult' alone (op is {self.op!r})")
        h = self._combined(h_src, h_dst, etypes)
        return h if self.linear is None else torch.as_tensor(self.linear(h))

    def _combined(self, h_src: torch.Tensor, h_dst: torch.Tensor, etypes: torch.Tensor | int | None) -> torch.Tensor:
        if self.op == "cos":
            return F.cosine_similarity(h_src, h_dst, dim=-1).unsqueeze(-1)
        if self.op == "ele":
            return h_src * h_dst
        if self.op == "cat":
            return torch.cat([h_src, h_dst], dim=-1)
        dtype, left = h_src.dtype, widened(h_src)
        if self.w_relation is not None:
            if etypes is None and len(self.w_relation) > 1:
                raise InvalidArgumentError(f"etypes must be given, since there are {len(self.w_relation)} relations")
            w = take_rows(self.w_relation, etypes) if isinstance(etypes, torch.Tensor) else self.w_relation[etypes or 0]
            dtype, left = torch.promote_types(dtype, w.dtype), left * w
        return rounded((left * widened(h_dst)).sum(-1, keepdim=True), dtype)
