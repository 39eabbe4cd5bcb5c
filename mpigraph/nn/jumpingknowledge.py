"""Jumping knowledge, an aggregate of the outputs of all layers, with DGL's arguments, parameter names and numerics."""

from collections.abc import Sequence

import torch
from torch import nn

from mpigraph.errors import InvalidArgumentError

_MODES = ("cat", "max", "lstm")


class JumpingKnowledge(nn.Module):
    """Aggregates the outputs of several layers for the same nodes.

    Xu et al., "Representation learning on graphs with jumping knowledge networks", ICML 2018. "cat": side by side;
    "max": the largest, entry by entry; "lstm": weighted by an attention that a bidirectional LSTM computes for each
    node.

    Args:
        mode: "cat", "max" or "lstm".
        in_feats: width of each layer's output; for "lstm".
        num_layers: number of layers; for "lstm".

    Raises:
        InvalidArgumentError: another mode, or "lstm" without ``in_feats`` or ``num_layers``.
    """

    def __init__(self, mode: str = "cat", in_feats: int | None = None, num_layers: int | None = None) -> None:
        super().__init__()
        if mode not in _MODES:
            raise InvalidArgumentError(f"mode must be one of {_MODES} (got {mode!r})")
        self.mode = mode
        if mode == "lstm":
            if in_feats is None or num_layers is None:
                raise InvalidArgumentError("mode 'lstm' needs in_feats and num_layers")
            hidden = num_layers * in_feats // 2
            self.lstm = nn.LSTM(in_feats, hidden, bidirectional=True, batch_first=True)
            self.att = nn.Linear(2 * hidden, 1)

    def reset_parameters(self) -> None:
        """Reinitialise the weights of "lstm", as torch does; the other modes have none."""
        if self.mode == "lstm":
            self.lstm.reset_parameters()
            self.att.reset_parameters()

    def forward(self, feat_list: Sequence[torch.Tensor]) -> torch.Tensor:
        """Aggregate.

        Args:
            feat_list: [n, width] of each layer; of one width, except for "cat".

        Returns:
            [n, width]; for "cat" [n, sum of the widths].
        """
        if self.mode == "cat":
            return torch.cat(tuple(feat_list), -1)
        if self.mode == "max":
            return torch.stack(tuple(feat_list), -1).amax(-1)
        layers = torch.stack(tuple(feat_list), 1)
        scores = self.att(self.lstm(layers)[0]).squeeze(-1)
        return (layers * torch.softmax(scores, -1).unsqueeze(-1)).sum(1)
