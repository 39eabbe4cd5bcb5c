"""Generated graphs in memory, with labels, features and masks, for experiments."""

import torch

from mpigraph.graphs.hetero import HeteroGraph, graph
from mpigraph.namespaces import attach
from mpigraph.partition import generate as generator

__all__ = ["generate"]


def generate(
    num_nodes: int,
    num_edges: int,
    *,
    feat_dim: int = generator.Recipe.feat_dim,
    num_classes: int = generator.Recipe.num_classes,
    homophily: float = generator.Recipe.homophily,
    seed: int = 0,
) -> HeteroGraph:
    """Generate the graph that ``python -m mpigraph generate`` writes, in memory.

    Args:
        num_nodes: number of nodes.
        num_edges: number of directed edges; both directions of each are in the graph. The second half of the edges are
            the reverses of the first half, in the same order.
        feat_dim: length of a feature row; rows correlate weakly with labels.
        num_classes: number of labels.
        homophily: probability that an edge is drawn inside a class.
        seed: equal seeds give equal graphs.

    Returns:
        A graph with ``ndata``: feat float32[n, feat_dim]; label int64[n]; train_mask, val_mask, test_mask bool[n].

    Raises:
        InvalidArgumentError: an argument is out of range.
    """
    recipe = generator.Recipe(
        num_nodes, num_edges, feat_dim=feat_dim, num_classes=num_classes, homophily=homophily, seed=seed
    )
    arrays = generator.generate_graph(recipe)
    g = graph((arrays.pop("edge_src"), arrays.pop("edge_dst")), num_nodes=num_nodes)
    for name, values in arrays.items():
        g.ndata[name] = torch.from_numpy(values)
    return g


attach(__name__)
