"""Lists of edges that a user gives, checked before a graph is made of them."""

from collections.abc import Mapping, MutableMapping

import torch

from mpigraph.errors import EdgeTypeError, GraphDataError, InvalidArgumentError
from mpigraph.graphs.fields import IdsLike, as_ids
from mpigraph.metadata.schema import Relation

__all__ = ["EdgeList", "checked_edges"]

EdgeList = tuple[IdsLike, IdsLike]


def checked_edges(
    lists: Mapping[Relation, EdgeList], num_nodes: Mapping[str, int]
) -> tuple[dict[Relation, tuple[torch.Tensor, torch.Tensor]], dict[str, int]]:
    """Return the edges of each relation, by name, and the number of nodes of each type.

    Arguments and errors are those of :func:`.heterograph`.
    """
    for relation in lists:
        if not isinstance(relation, tuple) or len(relation) != 3:
            raise EdgeTypeError(f"an edge type is a triple (src_type, rel, dst_type) (got {relation!r})")
    edges = {relation: _columns(relation, lists[relation]) for relation in sorted(lists)}
    counts = dict(num_nodes)
    for ntype, num in counts.items():
        if num < 0:
            raise InvalidArgumentError(f"number of nodes of type {ntype!r} must be >= 0 (got {num})")
    _check_or_infer(edges, counts)
    return edges, counts


def _columns(relation: Relation, edges: EdgeList) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn one relation's edge list into two int64 tensors of one length."""
    try:
        src, dst = edges
    except (TypeError, ValueError):
        raise GraphDataError(f"edges of {relation} must be a pair (src, dst)") from None
    src = as_ids(src, f"sources of {relation}")
    dst = as_ids(dst, f"destinations of {relation}")
    if src.shape != dst.shape:
        raise GraphDataError(f"relation {relation} has {len(src)} sources but {len(dst)} destinations")
    return src, dst


def _check_or_infer(
    edges: Mapping[Relation, tuple[torch.Tensor, torch.Tensor]], counts: MutableMapping[str, int]
) -> None:
    """Check endpoints against ``counts``; add the missing counts to it."""
    fixed = set(counts)
    for relation, columns in edges.items():
        for what, ntype, ids in zip(("source", "destination"), relation[::2], columns, strict=True):
            low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, -1)
            # without a count only negative endpoints are wrong
            limit = counts[ntype] if ntype in fixed else max(high + 1, 0)
            if low < 0 or high >= limit:
                edge = int(((ids < 0) | (ids >= limit)).nonzero()[0])
                wrong = f"is not in [0, {limit})" if ntype in fixed else "is negative"
                raise GraphDataError(f"relation {relation}, edge {edge}: {what} {int(ids[edge])} {wrong}")
            if ntype not in fixed:
                counts[ntype] = max(counts.get(ntype, 0), limit)
