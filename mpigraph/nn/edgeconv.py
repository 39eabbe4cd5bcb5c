"""Layer of dynamic graph CNNs, with DGL's arguments, parameter names and numerics."""

import torch
from torch import nn
from torch.nn import functional as F

import mpigraph.function as fn
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.nn.common import ChecksInDegrees, Features, source_and_destination


class EdgeConv(ChecksInDegrees):
    """Edge convolution: the maximum over in-neighbours u of ``theta(h_v - h_u) + phi(h_v)``.

    Wang et al., "Dynamic graph CNN for learning on point clouds", ACM TOG 2019. The sign of the difference is that of
    DGL's layer, so that its parameters can be loaded.

    Args:
        in_feat: width of the input.
        out_feat: width of the output.
        batch_norm: normalise the messages, over all edges.
        allow_zero_in_degree: accept destinations without in-edges (they get 0).
    """

    def __init__(
        self, in_feat: int, out_feat: int, batch_norm: bool = False, allow_zero_in_degree: bool = False
    ) -> None:
        super().__init__()
        self._allow_zero_in_degree = allow_zero_in_degree
        self.batch_norm = batch_norm
        self.theta = nn.Linear(in_feat, out_feat)
        self.phi = nn.Linear(in_feat, out_feat)
        if batch_norm:
            self.bn = nn.BatchNorm1d(out_feat)

    def forward(self, g: MessagePassing, feat: Features) -> torch.Tensor:
        """Apply the layer; arguments and errors are those of :meth:`.GATConv.forward`. Returns [num_dst, out_feat]."""
        self._check_in_degrees(g)
        src, dst = source_and_destination(g, feat)
        with g.local_scope():
            # theta is linear: one product for each node instead of each edge, and its bias once
            g.srcdata["theta"] = src @ self.theta.weight.T
            g.dstdata["own"] = self.theta(dst) + self.phi(dst)
            g.apply_edges(fn.v_sub_u("own", "theta", "m"))
            if self.batch_norm:
                g.edata["m"] = self._normalised(g.edata["m"])
            g.update_all(fn.copy_e("m", "m"), fn.max("m", "x"))
            return torch.as_tensor(g.dstdata["x"])

    def _normalised(self, messages: torch.Tensor) -> torch.Tensor:
        """Normalise the messages; one alone has no variance, so the running statistics serve for fewer than two."""
        if messages.shape[0] > 1:
            return torch.as_tensor(self.bn(messages))
        bn = self.bn
        return F.batch_norm(messages, bn.running_mean, bn.running_var, bn.weight, bn.bias, eps=bn.eps)
