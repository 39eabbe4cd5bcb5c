"""Random walks along out-edges, on distributed graphs and on graphs in memory."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from mpigraph.arrays import F64
from mpigraph.collective import collective
from mpigraph.dataloading.memory_sampling import sampled
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.typed_ids import FeatureName, id_array
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, MPIGraphError, check_integer
from mpigraph.graphs.fields import EdgeType, IdsLike
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.schema import Schema
from mpigraph.sampling.walks import WalkPlan, walk

_MOST_STEPS = 2**20

Ends = float | Sequence[float] | torch.Tensor
"""The probability that a walk ends before a step: one for all steps, or [steps]."""


@collective("trainers", "on a DistGraph when hosts are remote, and at its first use of an edge type; else local")
def random_walk(
    g: HeteroGraph | DistGraph,
    nodes: IdsLike,
    *,
    metapath: Sequence[EdgeType] | None = None,
    length: int | None = None,
    prob: FeatureName | None = None,
    restart_prob: Ends | None = None,
    return_eids: bool = False,
    seed: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """Walk at random along out-edges, from each of some nodes.

    Each step is one request to the owners of the nodes that the walks have reached. It is drawn by a hash of the root,
    the number of the walk among those of its root, and the number of the step: walks from one node that is given
    several times are independent of each other, and results are the same on any number of ranks.

    Parts hold the in-edges of their nodes. The first walk on a DistGraph has the hosts hold the out-edges, too, and is
    then a collective call; see :meth:`.DistGraph.prepare_walks`.

    Args:
        g: the graph.
        nodes: int[n], the nodes where the walks begin, of the type from which the first edge type leads.
        metapath: the edge type of each step.
        length: the number of steps, in place of ``metapath`` where the graph has one edge type.
        prob: name of an edge feature with a weight for each edge, or a mask, as in
            :meth:`.DistGraph.sample_neighbors`. A walk ends at a node whose out-edges all have the weight 0.
        restart_prob: the probability that a walk ends before each step, or [steps], one for each.
        return_eids: also return the edges.
        seed: makes the walks a function of the arguments alone. By default two calls differ.

    Returns:
        The nodes of each walk, int64[n, steps + 1], beginning with ``nodes`` and -1 from where it ended; with
        ``return_eids`` the edges, int64[n, steps], also -1; and the ids of the types of the nodes, int64[steps + 1].

    Raises:
        OutOfRangeError: a node does not exist.
        EdgeTypeError: an edge type does not exist, or does not begin where the one before it ends; or ``metapath`` is
            missing on a graph with several.
        FieldNameError: there is no edge feature ``prob``.
        InvalidArgumentError: ``metapath`` and ``length`` together, or neither; a probability outside of [0, 1] or
            another number of them; ids that are not integers.
        GraphDataError: an edge weight is negative, infinite or NaN.
        SharedMemoryError: a node's shared memory cannot hold the out-edges; on every rank.
    """
    graph = sampled(g)
    try:
        relations = _relations(graph.schema, metapath, length)
        weights = graph.out_weights(set(relations), prob)
    except MPIGraphError as error:
        graph.refuse_walk(error)
    edges = graph.out_edges(set(relations), weights)
    ntype = graph.schema.ends(relations[0])[0] if relations else 0
    try:  # behind what all trainers prepare: they have other nodes each
        ends = _probabilities(restart_prob, len(relations))
        roots = id_array(nodes, "nodes")
        graph.check_nodes(roots, ntype)
    except MPIGraphError as error:
        graph.refuse_walk(error)
    plan = WalkPlan(edges.number, relations, edges.strategies, roots, ntype, ends, bool(return_eids))
    context = graph.session.next_context(seed)
    with edges.session.sampling() as service:
        traces, picks = walk(service, plan, context)
    types = [ntype, *(graph.schema.ends(relation)[1] for relation in relations)]
    walked = torch.from_numpy(traces), torch.tensor(types)
    if not return_eids:
        return walked
    for step, relation in enumerate(relations):
        walked_on = picks[:, step] >= 0
        picks[walked_on, step] = edges.eids(relation, picks[walked_on, step])
    return walked[0], torch.from_numpy(picks), walked[1]


def pack_traces(
    traces: torch.Tensor, types: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lay walks one after the other, without -1.

    Args:
        traces: int64[n, steps + 1], as :func:`random_walk` returns them.
        types: int64[steps + 1], likewise.

    Returns:
        The nodes of all walks and the types of these nodes, int64[nodes] each; the number of nodes of each walk, and
        the place of its first one, int64[n] each.
    """
    reached = traces >= 0
    lengths = reached.sum(1)
    return traces[reached], types.expand(traces.shape)[reached], lengths, lengths.cumsum(0) - lengths


def _relations(schema: Schema, metapath: Sequence[EdgeType] | None, length: int | None) -> list[int]:
    if (metapath is None) == (length is None):
        raise InvalidArgumentError(f"give metapath or length (got metapath={metapath!r}, length={length!r})")
    if metapath is None:
        relation = schema.relation_id(None)
        src, dst = schema.ends(relation)
        if src != dst:
            raise EdgeTypeError(f"walks of a length need an edge type within one node type (got {schema.relations[0]})")
        return [relation] * check_integer("length", length, 0, _MOST_STEPS)
    if isinstance(metapath, str) or not metapath:
        raise InvalidArgumentError(f"metapath must be a list of one or more edge types (got {metapath!r})")
    relations = [schema.relation_id(etype) for etype in metapath]
    for step, (before, after) in enumerate(pairwise(relations), 1):
        if schema.ends(before)[1] != schema.ends(after)[0]:
            raise EdgeTypeError(
                f"metapath must be a path: edge type {schema.relations[after]} at position {step} does not begin where "
                f"{schema.relations[before]} ends"
            )
    return relations


def _probabilities(given: Ends | None, steps: int) -> F64:
    """Return float64[steps], the probability that a walk ends before each step."""
    try:
        probabilities = np.asarray(0.0 if given is None else given, np.float64)
    except (TypeError, ValueError):
        probabilities = np.full(1, np.nan)
    if probabilities.ndim == 0:
        probabilities = np.full(steps, probabilities)
    if probabilities.shape != (steps,) or not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise InvalidArgumentError(
            f"restart_prob must be a probability, or one for each of {steps} steps (got {given!r})"
        )
    return probabilities
