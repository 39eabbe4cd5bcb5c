"""What loaders of nodes and of edges do with a sampled minibatch: gather features into it, and move it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from mpigraph.dataloading.sampler import Blocks, Names, Nodes
from mpigraph.distgraph.features import named_tensors
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampling_args import as_given, by_type
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.block import Block

__all__ = ["BlockFeatures", "block_batches", "for_output", "moved"]


class BlockFeatures:
    """Node features that come with the blocks of a minibatch.

    One-sided; the target does nothing: :meth:`gather`.
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
            NodeTypeError: a node type that was given with a feature does not exist.
        """
        self._inputs = named_tensors(g.nodes, features, getattr(sampler, "prefetch_node_feats", ()))
        self._outputs = named_tensors(g.nodes, labels, getattr(sampler, "prefetch_labels", ()))

    def gather(self, blocks: list[Block], input_nodes: Nodes, output_nodes: Nodes) -> None:
        """Put the rows of input and output nodes into ``blocks[0].srcnodes`` and ``blocks[-1].dstnodes``.

        Raises:
            InvalidArgumentError: there are features to gather, but no blocks.
        """
        if (self._inputs or self._outputs) and not blocks:
            raise InvalidArgumentError("features and labels come with blocks: the sampler has no layer")
        for (ntype, name), tensor in self._inputs.items():
            blocks[0].srcnodes[ntype].data[name] = tensor[_of_type(input_nodes, ntype)]
        for (ntype, name), tensor in self._outputs.items():
            blocks[-1].dstnodes[ntype].data[name] = tensor[_of_type(output_nodes, ntype)]


def block_batches(
    g: DistGraph, nids: Any, sampler: Any, features: Names, labels: Names
) -> tuple[Any, Callable[[Any], Blocks]]:
    """What a loader of nodes iterates over, and what makes ``(input_nodes, output_nodes, blocks)`` of some of it.

    Args:
        g: the graph.
        nids: int[n], or node type -> int[n].
        sampler: has ``sample_blocks(g, seeds)``.
        features: as in :class:`BlockFeatures`.
        labels: as in :class:`BlockFeatures`.

    Returns:
        The seeds, and a function of some of them.

    Raises:
        FieldNameError: a feature does not exist.
        NodeTypeError: a node type does not exist, or there are several and ``nids`` are not by type.

    The function is collective on the trainers when hosts are far, local when all are near.
    """
    rows = BlockFeatures(g, sampler, features, labels)

    def make(seeds: Any) -> Blocks:
        input_nodes, output_nodes, blocks = sampler.sample_blocks(g, seeds)
        rows.gather(blocks, input_nodes, output_nodes)
        return input_nodes, output_nodes, blocks

    return as_given(g.schema, by_type(g.schema, nids, "nids")), make


def for_output(makers: Mapping[str, Callable[..., Any]], output: str) -> Callable[..., Any]:
    """What makes the minibatches that a loader's ``output`` asks for.

    Raises:
        InvalidArgumentError: nothing does.
    """
    if output not in makers:
        raise InvalidArgumentError(f"output must be {' or '.join(map(repr, makers))} (got {output!r})")
    return makers[output]


def _of_type(nodes: Nodes, ntype: str) -> torch.Tensor:
    return nodes[ntype] if isinstance(nodes, dict) else nodes


def moved(batch: Any, target: torch.device) -> Any:
    """A minibatch of tensors, dicts of them, graphs and a list of blocks on another device; or one of PyG's."""
    if not isinstance(batch, tuple):
        return batch.to(target)
    return tuple(_moved(part, target) for part in batch)


def _moved(part: Any, target: torch.device) -> Any:
    if isinstance(part, list):
        return [block.to(target) for block in part]
    if isinstance(part, dict):
        return {key: ids.to(target) for key, ids in part.items()}
    return part.to(target)
