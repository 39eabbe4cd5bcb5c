"""What loaders of nodes and of edges do with a sampled minibatch: gather features into it, and move it."""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from mpigraph.block import Block
from mpigraph.distributed.graph import DistGraph
from mpigraph.distributed.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError

__all__ = ["BlockFeatures", "moved", "named_tensors"]

Names = str | Sequence[str]


class BlockFeatures:
    """Node features that come with the blocks of a minibatch.

    One-sided; the target does nothing: :meth:`gather`. Local; no communication: construction.
    """

    def __init__(self, g: DistGraph, sampler: Any, features: Names, labels: Names) -> None:
        """Look the features up.

        Args:
            g: the graph.
            sampler: may name more, as ``prefetch_node_feats`` and ``prefetch_labels``.
            features: names of what to gather for the input nodes.
            labels: names of what to gather for the output nodes.

        Raises:
            FieldNameError: a feature does not exist.
        """
        self._inputs = named_tensors(g, "ndata", features, getattr(sampler, "prefetch_node_feats", ()))
        self._outputs = named_tensors(g, "ndata", labels, getattr(sampler, "prefetch_labels", ()))

    def gather(self, blocks: list[Block], input_nodes: torch.Tensor, output_nodes: torch.Tensor) -> None:
        """Put the rows of int64[n] input and output nodes into ``blocks[0].srcdata`` and ``blocks[-1].dstdata``.

        Raises:
            InvalidArgumentError: there are features to gather, but no blocks.
        """
        if (self._inputs or self._outputs) and not blocks:
            raise InvalidArgumentError("features and labels come with blocks: the sampler has no layer")
        for name, tensor in self._inputs.items():
            blocks[0].srcdata[name] = tensor[input_nodes]
        for name, tensor in self._outputs.items():
            blocks[-1].dstdata[name] = tensor[output_nodes]


def named_tensors(g: DistGraph, side: Literal["ndata", "edata"], *names: Names) -> dict[str, DistTensor]:
    """Features of the only node or edge type by name, each once. Local; no communication.

    Raises:
        FieldNameError: a feature does not exist.
    """
    lists = [[some] if isinstance(some, str) else list(some) for some in names]
    return {name: getattr(g, side)[name] for some in lists for name in some}


def moved(batch: tuple[Any, ...], target: torch.device) -> tuple[Any, ...]:
    """A minibatch of tensors, graphs and a list of blocks on another device. Local; no communication."""
    return tuple([block.to(target) for block in x] if isinstance(x, list) else x.to(target) for x in batch)
