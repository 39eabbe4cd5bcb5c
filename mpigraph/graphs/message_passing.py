"""Message passing on any graph: ``update_all``, ``apply_edges``, ``multi_update_all``."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs import messages as kinds
from mpigraph.graphs.aggregate import InEdges, aggregate, reduce_rows
from mpigraph.graphs.face import check_range, node_type
from mpigraph.graphs.fields import ALL, EdgeType, Frame, IdsLike
from mpigraph.graphs.in_memory import InMemoryGraph
from mpigraph.metadata.schema import Relation

MessageFunction: TypeAlias = kinds.Message | kinds.EdgeFunction
"""Built in, or a function of a batch of edges."""
ReduceFunction: TypeAlias = kinds.Reduce | kinds.NodeFunction
"""Built in, or a function of a batch of nodes with a mailbox."""
_CROSS_REDUCERS = ("sum", "mean", "max", "min", "stack")

_NEUTRAL = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}
"""The reduction of no message; a relation without edges into a node then changes nothing."""


class MessagePassing(InMemoryGraph):
    """A graph or block with DGL's message-passing methods."""

    def update_all(
        self,
        message_func: MessageFunction,
        reduce_func: ReduceFunction,
        apply_node_func: kinds.NodeFunction | None = None,
        etype: EdgeType = None,
    ) -> None:
        """Send messages along the edges and reduce them at the destinations.

        A destination without in-edges gets 0. Without ``etype`` and with several relations, all relations into one type
        are reduced together, which only built-in functions can.

        Both can be user functions. A message function gets all edges (``edges.src``, ``edges.dst``, ``edges.data``) and
        returns name -> tensor, a row for each edge. A reduce function is called once for all destinations of one
        in-degree, with their messages in ``nodes.mailbox[name]``, [n, degree, ...] in the order of edge ids, and
        returns name -> tensor, a row for each node. User functions are slower than built-in ones.

        Args:
            message_func: from :mod:`mpigraph.function`, or a function of a batch of edges.
            reduce_func: from :mod:`mpigraph.function`, or a function of a batch of nodes.
            apply_node_func: takes a batch of nodes (``nodes.data``) and returns new features for them.
            etype: the relation.

        Raises:
            InvalidArgumentError: an argument is no function, a function returned something else, or "mean" or user
                functions over several relations.
            FieldNameError: a field does not exist.
        """
        kinds.check_functions(message_func, reduce_func)
        relations = self.canonical_etypes
        # one relation needs no second reduction over relations, and may use "mean" and any function
        if etype is not None or len(relations) == 1:
            relation = self.to_canonical_etype(etype)
            self._frames.dst[relation[2]].update(self._reduced(relation, message_func, reduce_func))
            self._apply_to(apply_node_func, {relation[2]})
            return
        if not isinstance(message_func, kinds.Message) or not isinstance(reduce_func, kinds.Reduce):
            raise InvalidArgumentError(
                "functions of your own over several relations need an etype, or multi_update_all with a pair for each"
            )
        if reduce_func.op not in _NEUTRAL:
            raise InvalidArgumentError(f"{reduce_func.op!r} over several relations needs an etype")
        neutral = _NEUTRAL[reduce_func.op]
        by_type: dict[str, list[Relation]] = {}
        for relation in relations:
            by_type.setdefault(relation[2], []).append(relation)
        totals = {}
        for ntype, group in by_type.items():
            reduced = [self._aggregated(relation, message_func, reduce_func, neutral) for relation in group]
            zero_in_degree = sum(self.structure(relation).degrees for relation in group) == 0
            totals[ntype] = combine(reduced, reduce_func.op)
            totals[ntype][zero_in_degree] = 0  # not the neutral element, as in DGL
        # stored only now: the output may have the name of an input that another relation still reads
        for ntype, total in totals.items():
            self._frames.dst[ntype][reduce_func.out] = total
        self._apply_to(apply_node_func, set(by_type))

    def multi_update_all(
        self,
        etype_dict: Mapping[
            str | Relation,
            tuple[MessageFunction, ReduceFunction] | tuple[MessageFunction, ReduceFunction, kinds.NodeFunction | None],
        ],
        cross_reducer: str | Callable[[list[torch.Tensor]], torch.Tensor],
        apply_node_func: kinds.NodeFunction | None = None,
    ) -> None:
        """Send and reduce messages relation by relation, then reduce the results across relations.

        Args:
            etype_dict: relation -> (message function, reduce function), each as in :meth:`update_all`; a third function
                of a batch of nodes, which sees the reduced messages in ``nodes.data``, may return their replacements,
                name -> tensor.
            cross_reducer: "sum", "mean", "max", "min" or "stack" (along a new second dimension); or a function of the
                list of tensors of one name, which returns one tensor.
            apply_node_func: as in :meth:`update_all`.

        Raises:
            InvalidArgumentError: another ``cross_reducer``, no functions, or not two or three of them.
        """
        if not callable(cross_reducer) and cross_reducer not in _CROSS_REDUCERS:
            raise InvalidArgumentError(f"cross_reducer must be sum, mean, max, min or stack (got {cross_reducer!r})")
        by_output: dict[tuple[str, str], list[torch.Tensor]] = {}
        for etype, functions in etype_dict.items():
            relation = self.to_canonical_etype(etype)
            if not isinstance(functions, tuple | list) or len(functions) not in (2, 3):
                needs = "(message function, reduce function[, function of nodes])"
                raise InvalidArgumentError(f"relation {relation} needs {needs} (got {functions!r})")
            message, reduce, apply = functions if len(functions) == 3 else (*functions, None)
            kinds.check_functions(message, reduce)
            results: Mapping[str, torch.Tensor] = self._reduced(relation, message, reduce)
            if apply is not None:
                frame = self._frames.dst[relation[2]].copy()
                frame.update(results)
                results = apply(kinds.NodeBatch.of(frame, relation[2], self.device))
            for name, values in results.items():
                by_output.setdefault((relation[2], name), []).append(values)
        for (ntype, out), tensors in by_output.items():
            if not callable(cross_reducer):
                self._frames.dst[ntype][out] = combine(tensors, cross_reducer)
            else:  # one result needs no reduction, and the function may count on two, as in DGL
                self._frames.dst[ntype][out] = cross_reducer(tensors) if len(tensors) > 1 else tensors[0]
        self._apply_to(apply_node_func, {ntype for ntype, _ in by_output})

    def apply_edges(self, func: MessageFunction, edges: IdsLike | str = ALL, etype: EdgeType = None) -> None:
        """Compute new edge features, such as ``fn.u_dot_v("h", "h", "score")``.

        Args:
            func: a message function, or a function of a batch of edges (``edges.src``, ``edges.dst``,
                ``edges.data``) that returns name -> tensor.
            edges: int[n], the edges to compute them for; all by default. The others keep theirs, or get 0.
            etype: the relation; None means the only one.

        Raises:
            OutOfRangeError: an edge does not exist.
            InvalidArgumentError: the function returned something else, or ids that are not integers.
        """
        relation = self.to_canonical_etype(etype)
        frames = self._frames_of(relation)
        src, dst = self._coo(relation)
        chosen = self._chosen(edges, "edge ids", "relation is etype=")
        if chosen is not None:
            check_range(chosen, frames[2].num_rows, f"edge id of relation {relation}")
            src, dst = src[chosen], dst[chosen]
        batch = kinds.EdgeBatch.of(frames, src, dst, chosen, relation)
        if isinstance(func, kinds.Message):
            results = {func.out: kinds.edge_values(func, batch)}
        else:
            results = kinds.check_rows(func(batch), len(batch), "the function of edges")
        _store(frames[2], results, chosen)

    def apply_nodes(self, func: kinds.NodeFunction, v: IdsLike | str = ALL, ntype: str | None = None) -> None:
        """Compute new node features.

        Args:
            func: takes a batch of nodes (``nodes.data``) and returns name -> tensor.
            v: int[n], the nodes to compute them for; all by default. The others keep theirs, or get 0.
            ntype: their type; None means the only one. Of a block, a type of destinations.

        Raises:
            OutOfRangeError: a node does not exist.
            InvalidArgumentError: the function returned something else, or ids that are not integers.
        """
        name = node_type(self._frames.dst, ntype)
        frame = self._frames.dst[name]
        chosen = self._chosen(v, "node ids", "type is ntype=")
        if chosen is not None:
            check_range(chosen, frame.num_rows, f"node id of type {name!r}")
        batch = kinds.NodeBatch.of(frame, name, self.device, chosen)
        _store(frame, kinds.check_rows(func(batch), len(batch), "the function of nodes"), chosen)

    def _reduced(
        self, relation: Relation, message: MessageFunction, reduce: ReduceFunction
    ) -> Mapping[str, torch.Tensor]:
        if isinstance(message, kinds.Message) and isinstance(reduce, kinds.Reduce):
            return {reduce.out: self._aggregated(relation, message, reduce)}
        in_edges = self.structure(relation)
        if isinstance(message, kinds.Message):
            edges = kinds.EdgeBatch.of(self._frames_of(relation), in_edges.indices, in_edges.dst, in_edges.perm)
            messages = {message.out: kinds.edge_values(message, edges)}
        else:
            batch = kinds.EdgeBatch.of(self._frames_of(relation), *self._coo(relation), etype=relation)
            values = kinds.check_rows(message(batch), len(batch), "the message function")
            messages = {name: in_edges.to_csc_order(rows) for name, rows in values.items()}
        if not isinstance(reduce, kinds.Reduce):
            return _reduce_by_degree(in_edges, messages, self._frames.dst[relation[2]], relation[2], reduce)
        if reduce.msg not in messages:
            raise InvalidArgumentError(f"the messages are called {list(messages)} but {reduce.msg!r} is reduced")
        return {reduce.out: reduce_rows(in_edges, messages[reduce.msg], reduce.op)}

    def _aggregated(
        self, relation: Relation, message: kinds.Message, reduce: kinds.Reduce, empty: float = 0.0
    ) -> torch.Tensor:
        return aggregate(self.structure(relation), self._frames_of(relation), message, reduce, empty)

    def _apply_to(self, func: kinds.NodeFunction | None, ntypes: set[str]) -> None:
        if func is not None:
            for ntype in sorted(ntypes):
                self.apply_nodes(func, ntype=ntype)


def _store(frame: Frame, results: Mapping[str, torch.Tensor], rows: torch.Tensor | None) -> None:
    """Set fields of a frame; of some rows (int64[n]) if they are given: the others keep theirs, or get 0."""
    if rows is None:
        frame.update(results)
        return
    for name, values in results.items():
        old = frame[name] if name in frame else values.new_zeros(frame.num_rows, *values.shape[1:])
        frame[name] = old.index_copy(0, rows, values)


def combine(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """Reduce k tensors [n, ...] to [n, ...] by "sum", "mean", "max" or "min", or "stack" them to [n, k, ...].

    As in :func:`.spmm`, sums of integers are int64 and their means float32.
    """
    stacked = torch.stack(tensors, 1)
    if op == "stack":
        return stacked
    if op == "mean" and not (stacked.is_floating_point() or stacked.is_complex()):
        stacked = stacked.float()
    reducer: Callable[..., torch.Tensor] = getattr(torch, {"max": "amax", "min": "amin"}.get(op, op))
    return reducer(stacked, 1)


def _reduce_by_degree(
    in_edges: InEdges, messages: Mapping[str, torch.Tensor], frame: Frame, ntype: str, func: kinds.NodeFunction
) -> dict[str, torch.Tensor]:
    """Call a reduce function once for all destinations of each in-degree above 0; those without in-edges get 0.

    This is DGL's degree bucketing. The result is empty if there are no edges, since the names are not known then.
    """
    parts: list[dict[str, torch.Tensor]] = []
    order = torch.argsort(in_edges.degrees, stable=True)
    degrees, counts = torch.unique_consecutive(in_edges.degrees[order], return_counts=True)
    buckets = torch.split(order, counts.tolist())
    for degree, nodes in zip(degrees.tolist(), buckets, strict=True):
        if degree > 0:
            parts.append(_bucket(in_edges, messages, frame, ntype, func, nodes, degree))
            if parts[-1].keys() != parts[0].keys():
                needs = "the same names for each degree"
                got = f"{list(parts[0])}, then {list(parts[-1])} for degree {degree}"
                raise InvalidArgumentError(f"the reduce function must return {needs} (got {got})")
    zero_in_degree = int((in_edges.degrees == 0).sum())
    return {name: _in_place(order, zero_in_degree, [part[name] for part in parts]) for name in (parts or [{}])[0]}


def _bucket(
    in_edges: InEdges,
    messages: Mapping[str, torch.Tensor],
    frame: Frame,
    ntype: str,
    func: kinds.NodeFunction,
    nodes: torch.Tensor,
    degree: int,
) -> dict[str, torch.Tensor]:
    """Reduce the messages of destinations ``nodes``, int64[n], which all have ``degree`` in-edges."""
    edges = (in_edges.indptr[nodes].unsqueeze(1) + torch.arange(degree, device=nodes.device)).reshape(-1)
    mailbox = {
        name: values.index_select(0, edges).reshape(len(nodes), degree, *values.shape[1:])
        for name, values in messages.items()
    }
    batch = kinds.NodeBatch(kinds.Gathered(frame, nodes), kinds.node_ids(frame, nodes, nodes.device), mailbox, ntype)
    return kinds.check_rows(func(batch), len(nodes), "the reduce function")


def _in_place(order: torch.Tensor, zero_in_degree: int, parts: list[torch.Tensor]) -> torch.Tensor:
    """Put the results of the buckets, which follow one another in ``order`` after those of no edge, in their rows."""
    try:
        values = torch.cat(parts)
    except RuntimeError as error:
        shapes = [tuple(part.shape[1:]) for part in parts]
        raise InvalidArgumentError(f"the reduce function must return rows of one shape (got {shapes})") from error
    rows = order[zero_in_degree:]
    return values.new_zeros(order.shape[0], *values.shape[1:]).index_copy(0, rows, values)
