"""Message passing on any graph: ``update_all``, ``apply_edges``, ``multi_update_all``."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs import messages as kinds
from mpigraph.graphs.aggregate import InEdges, aggregate, reduce_rows
from mpigraph.graphs.face import node_type
from mpigraph.graphs.fields import EdgeType, Frame
from mpigraph.graphs.in_memory import InMemoryGraph
from mpigraph.metadata.schema import Relation

MessageFunction: TypeAlias = kinds.Message | kinds.EdgeFunction
"""Built in, or a function of a batch of edges."""
ReduceFunction: TypeAlias = kinds.Reduce | kinds.NodeFunction
"""Built in, or a function of a batch of nodes with a mailbox."""
_CROSS_REDUCERS = ("sum", "mean", "max", "min", "stack")


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

        A destination without in-edges gets 0. :meth:`multi_update_all` takes several relations together.

        Both functions can be user functions. A message function gets all edges (``edges.src``, ``edges.dst``,
        ``edges.data``) and returns name -> tensor, a row for each edge. A reduce function is called once for all
        destinations of one in-degree, with their messages in ``nodes.mailbox[name]``, [n, degree, ...] in the order of
        edge ids, and returns name -> tensor, a row for each node. User functions are slower than built-in ones.

        Args:
            message_func: from :mod:`mpigraph.function`, or a function of a batch of edges.
            reduce_func: from :mod:`mpigraph.function`, or a function of a batch of nodes.
            apply_node_func: takes a batch of nodes (``nodes.data``) and returns new features for them.
            etype: the relation; None means the only one.

        Raises:
            EdgeTypeError: the relation does not exist, or there are several and none is named.
            InvalidArgumentError: an argument is no function, or a function returned something else.
            FieldNameError: a field does not exist.
        """
        kinds.check_functions(message_func, reduce_func)
        relation = self.to_canonical_etype(etype)
        self._frames.dst[relation[2]].update(self._reduced(relation, message_func, reduce_func))
        self._apply_to(apply_node_func, {relation[2]})

    def multi_update_all(
        self,
        etype_dict: Mapping[str | Relation, tuple[MessageFunction, ReduceFunction]],
        cross_reducer: str | Callable[[list[torch.Tensor]], torch.Tensor],
        apply_node_func: kinds.NodeFunction | None = None,
    ) -> None:
        """Send and reduce messages relation by relation, then reduce the results across relations.

        Args:
            etype_dict: relation -> (message function, reduce function), each as in :meth:`update_all`.
            cross_reducer: "sum", "mean", "max", "min" or "stack" (along a new second dimension); or a function of the
                list of tensors of one name, which returns one tensor.
            apply_node_func: as in :meth:`update_all`.

        Raises:
            InvalidArgumentError: another ``cross_reducer``, no functions, or not two of them.
        """
        if not callable(cross_reducer) and cross_reducer not in _CROSS_REDUCERS:
            raise InvalidArgumentError(f"cross_reducer must be sum, mean, max, min or stack (got {cross_reducer!r})")
        by_output: dict[tuple[str, str], list[torch.Tensor]] = {}
        for etype, functions in etype_dict.items():
            relation = self.to_canonical_etype(etype)
            if not isinstance(functions, tuple | list) or len(functions) != 2:
                needs = "(message function, reduce function)"
                raise InvalidArgumentError(f"relation {relation} needs {needs} (got {functions!r})")
            kinds.check_functions(*functions)
            for name, values in self._reduced(relation, *functions).items():
                by_output.setdefault((relation[2], name), []).append(values)
        for (ntype, out), tensors in by_output.items():
            if not callable(cross_reducer):
                self._frames.dst[ntype][out] = combine(tensors, cross_reducer)
            else:  # one result needs no reduction, and the function may count on two, as in DGL
                self._frames.dst[ntype][out] = cross_reducer(tensors) if len(tensors) > 1 else tensors[0]
        self._apply_to(apply_node_func, {ntype for ntype, _ in by_output})

    def apply_edges(self, func: MessageFunction, etype: EdgeType = None) -> None:
        """Compute new edge features, such as ``fn.u_dot_v("h", "h", "score")``.

        Args:
            func: a message function, or a function of a batch of edges (``edges.src``, ``edges.dst``,
                ``edges.data``) that returns name -> tensor.
            etype: the relation; None means the only one.

        Raises:
            InvalidArgumentError: the function returned something else.
        """
        relation = self.to_canonical_etype(etype)
        frames = self._frames_of(relation)
        batch = kinds.EdgeBatch.of(frames, *self._coo(relation), etype=relation)
        if isinstance(func, kinds.Message):
            frames[2][func.out] = kinds.edge_values(func, batch)
        else:
            frames[2].update(kinds.check_rows(func(batch), len(batch), "the function of edges"))

    def apply_nodes(self, func: kinds.NodeFunction, ntype: str | None = None) -> None:
        """Compute new node features.

        Args:
            func: takes a batch of nodes (``nodes.data``) and returns name -> tensor.
            ntype: their type; None means the only one. Of a block, a type of destinations.

        Raises:
            InvalidArgumentError: the function returned something else.
        """
        name = node_type(self._frames.dst, ntype)
        frame = self._frames.dst[name]
        nodes = torch.arange(frame.num_rows, device=self.device)
        batch = kinds.NodeBatch.of(frame, nodes, name)
        frame.update(kinds.check_rows(func(batch), len(batch), "the function of nodes"))

    def _reduced(
        self, relation: Relation, message: MessageFunction, reduce: ReduceFunction
    ) -> Mapping[str, torch.Tensor]:
        if isinstance(message, kinds.Message) and isinstance(reduce, kinds.Reduce):
            return {reduce.out: aggregate(self.structure(relation), self._frames_of(relation), message, reduce)}
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

    def _apply_to(self, func: kinds.NodeFunction | None, ntypes: set[str]) -> None:
        if func is not None:
            for ntype in sorted(ntypes):
                self.apply_nodes(func, ntype=ntype)


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
    batch = kinds.NodeBatch.of(frame, nodes, ntype, mailbox)
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
