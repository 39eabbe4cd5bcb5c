"""Scores of pairs of nodes, with the arguments and numerics of ``dgl.nn.EdgePredictor``."""

import torch
from torch import nn

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.messages import rounded, widened

_OPS = ("dot", "ele", "cat")


class EdgePredictor(nn.Module):
    """Combine the representations of two nodes into a score, or into features of the pair.

    * dot: ``<h_src, h_dst>``
    * ele: ``h_src * h_dst``
    * cat: ``h_src || h_dst``

    With ``out_feats`` a linear map follows.

    Args:
        op: one of these.
        in_feats: width of the representations; needed with ``out_feats``.
        out_feats: width of the output of the linear map; None for no map.
        bias: add a bias to the linear map.

    Raises:
        InvalidArgumentError: another ``op``, or ``in_feats`` is missing.
    """

    linear: nn.Linear | None

    def __init__(self, op: str, in_feats: int | None = None, out_feats: int | None = None, bias: bool = False) -> None:
        super().__init__()
        if op not in _OPS:
            raise InvalidArgumentError(
                f"op must be one of {_OPS} (got {op!r}): for 'cos' normalise rows and take 'dot', for 'distmult' "
                "multiply the sources by the relations' rows, as in examples/knowledge_graph.py"
            )
        self.op = op
        self.linear = None
        if out_feats is not None:
            if in_feats is None:
                raise InvalidArgumentError(f"in_feats must be given with out_feats (op {op!r})")
            width = {"ele": in_feats, "cat": 2 * in_feats}.get(op, 1)
            self.linear = nn.Linear(width, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the linear map as torch does."""
        if self.linear is not None:
            self.linear.reset_parameters()

    def forward(self, h_src: torch.Tensor, h_dst: torch.Tensor) -> torch.Tensor:
        """Score pairs.

        Args:
            h_src: [n, in_feats], representations of the sources.
            h_dst: [n, in_feats], of the destinations.

        Returns:
            [n, out_feats] with a linear map; else [n, in_feats] for "ele", [n, 2 * in_feats] for "cat" and [n, 1] for
            "dot".

        Raises:
            InvalidArgumentError: the two shapes differ.
        """
        if h_src.shape != h_dst.shape:
            raise InvalidArgumentError(
                f"h_src and h_dst must have one shape (got {tuple(h_src.shape)} and {tuple(h_dst.shape)})"
            )
        h = self._combined(h_src, h_dst)
        return h if self.linear is None else torch.as_tensor(self.linear(h))

    def _combined(self, h_src: torch.Tensor, h_dst: torch.Tensor) -> torch.Tensor:
        if self.op == "ele":
            return h_src * h_dst
        if self.op == "cat":
            return torch.cat([h_src, h_dst], dim=-1)
        return rounded((widened(h_src) * widened(h_dst)).sum(-1, keepdim=True), h_src.dtype)
