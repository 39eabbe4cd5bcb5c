"""Message passing on any graph: ``update_all``, ``apply_edges``, ``multi_update_all``."""

from collections.abc import Callable, Mapping

import torch

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.aggregate import aggregate
from mpigraph.graphs.fields import EdgeType
from mpigraph.graphs.frame import Frame
from mpigraph.graphs.in_memory import InMemoryGraph
from mpigraph.graphs.messages import (
    EdgeBatch,
    EdgeFunction,
    Message,
    NodeBatch,
    NodeFunction,
    Reduce,
    check_builtin,
    edge_values,
)
from mpigraph.metadata.schema import Relation

__all__ = ["MessagePassing", "combine"]

_NEUTRAL = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}
"""The reduction of no message; a relation without edges into a node then changes nothing."""


class MessagePassing(InMemoryGraph):
    """A graph or block with DGL's message-passing methods."""

    def update_all(
        self,
        message_func: Message,
        reduce_func: Reduce,
        apply_node_func: NodeFunction | None = None,
        etype: EdgeType = None,
    ) -> None:
        """Send messages along the edges and reduce them at the destinations.

        A destination without in-edges gets 0. Without ``etype`` and with several relations, all relations into one
        type are reduced together.

        Args:
            message_func: what travels, from :mod:`mpigraph.function`.
            reduce_func: how it is reduced, from :mod:`mpigraph.function`.
            apply_node_func: takes a batch of nodes (``nodes.data``) and returns new features for them.
            etype: the relation.

        Raises:
            InvalidArgumentError: not built-in functions, or "mean" over several relations.
            FieldNameError: a field does not exist.
        """
        check_builtin(message_func, reduce_func)
        relations = self.canonical_etypes
        # one relation needs no second reduction over relations, and may use "mean"
        if etype is not None or len(relations) == 1:
            relation = self.to_canonical_etype(etype)
            self._dst_frame(relation)[reduce_func.out] = self._reduced(relation, message_func, reduce_func)
            self._apply_nodes(apply_node_func, {relation[2]})
            return
        if reduce_func.op not in _NEUTRAL:
            raise InvalidArgumentError(f"{reduce_func.op!r} over several relations needs an etype")
        neutral = _NEUTRAL[reduce_func.op]
        by_type: dict[str, list[Relation]] = {}
        for relation in relations:
            by_type.setdefault(relation[2], []).append(relation)
        totals = {}
        for ntype, group in by_type.items():
            reduced = [self._reduced(relation, message_func, reduce_func, neutral) for relation in group]
            zero_in_degree = sum(self._in_edges(relation).degrees for relation in group) == 0
            totals[ntype] = combine(reduced, reduce_func.op)
            totals[ntype][zero_in_degree] = 0  # not the neutral element, as in DGL
        # stored only now: the output may have the name of an input that another relation still reads
        for ntype, total in totals.items():
            self._frames.dst[ntype][reduce_func.out] = total
        self._apply_nodes(apply_node_func, set(by_type))

    def multi_update_all(
        self,
        etype_dict: Mapping[str | Relation, tuple[Message, Reduce] | tuple[Message, Reduce, NodeFunction | None]],
        cross_reducer: str,
        apply_node_func: NodeFunction | None = None,
    ) -> None:
        """Send and reduce messages relation by relation, then reduce the results across relations.

        Args:
            etype_dict: relation -> (message function, reduce function), or with a third function, of a batch of nodes
                that also has the reduced messages (``nodes.data``): what it returns, name -> tensor, takes the place
                of the reduced messages of this relation.
            cross_reducer: "sum", "mean", "max", "min" or "stack" (along a new second dimension).
            apply_node_func: as in :meth:`update_all`.

        Raises:
            InvalidArgumentError: another ``cross_reducer``, not built-in functions, or not two or three of them.
        """
        if cross_reducer not in ("sum", "mean", "max", "min", "stack"):
            raise InvalidArgumentError(f"cross_reducer must be sum, mean, max, min or stack (got {cross_reducer!r})")
        found: dict[tuple[str, str], list[torch.Tensor]] = {}
        for etype, functions in etype_dict.items():
            relation = self.to_canonical_etype(etype)
            if not isinstance(functions, tuple | list) or len(functions) not in (2, 3):
                raise InvalidArgumentError(
                    f"relation {relation} needs (message function, reduce function[, function of nodes]) "
                    f"(got {functions!r})"
                )
            message, reduce = functions[:2]
            apply = functions[2] if len(functions) == 3 else None
            check_builtin(message, reduce)
            results: Mapping[str, torch.Tensor] = {reduce.out: self._reduced(relation, message, reduce)}
            if apply is not None:
                results = apply(NodeBatch({**self._dst_frame(relation), **results}))
            for name, values in results.items():
                found.setdefault((relation[2], name), []).append(values)
        for (ntype, out), tensors in found.items():
            self._frames.dst[ntype][out] = combine(tensors, cross_reducer)
        self._apply_nodes(apply_node_func, {ntype for ntype, _ in found})

    def apply_edges(self, func: Message | EdgeFunction, etype: EdgeType = None) -> None:
        """Compute new edge features, such as ``fn.u_dot_v("h", "h", "score")``.

        Args:
            func: a message function, or a function of a batch of edges (``edges.src``, ``edges.dst``,
                ``edges.data``) that returns name -> tensor.
            etype: the relation; None means the only one.
        """
        relation = self.to_canonical_etype(etype)
        frames = self._frames_of(relation)
        batch = EdgeBatch.of(frames, *self._coo(relation))
        frames[2].update({func.out: edge_values(func, batch)} if isinstance(func, Message) else func(batch))

    def _reduced(self, relation: Relation, message: Message, reduce: Reduce, empty: float = 0.0) -> torch.Tensor:
        return aggregate(self._in_edges(relation), self._frames_of(relation), message, reduce, empty)

    def _frames_of(self, relation: Relation) -> tuple[Frame, Frame, Frame]:
        return self._frames.src[relation[0]], self._dst_frame(relation), self._frames.edge[relation]

    def _dst_frame(self, relation: Relation) -> Frame:
        return self._frames.dst[relation[2]]

    def _apply_nodes(self, func: NodeFunction | None, ntypes: set[str]) -> None:
        if func is not None:
            for ntype in sorted(ntypes):
                frame = self._frames.dst[ntype]
                frame.update(func(NodeBatch(frame)))


def combine(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """Reduce k tensors of one shape to one.

    Args:
        tensors: each [n, ...].
        op: "sum", "mean", "max" or "min" for [n, ...], "stack" for [n, k, ...].
    """
    stacked = torch.stack(tensors, 1)
    if op == "stack":
        return stacked
    reducers: Mapping[str, Callable[..., torch.Tensor]] = {
        "sum": torch.sum,
        "mean": torch.mean,
        "max": torch.amax,
        "min": torch.amin,
    }
    return reducers[op](stacked, 1)
