"""Evaluate a model on all nodes of a graph: one layer at a time, each node and each remote row once per layer.

The layers of the user's model become steps; its parameters tell the dtype, and it is in evaluation mode meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import nn

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import dtype_name
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampled_graph import SampledGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError, TensorMismatchError, check_integer
from mpigraph.graphs.aggregate import TableRows
from mpigraph.graphs.block import Block
from mpigraph.graphs.in_memory import exact_device
from mpigraph.inference.neighbourhoods import Neighbourhoods, Ranges, alike, in_step, kind_of, rows_of_kind
from mpigraph.log import get_logger
from mpigraph.mpi.agree import everywhere
from mpigraph.mpi.world import World
from mpigraph.rows.owners import RowOwners
from mpigraph.trace import clock

_Rows: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
"""Rows of the nodes of the only type, or by node type."""
_Step: TypeAlias = Callable[[Block, tuple[_Rows, _Rows]], _Rows]
"""One layer: a block, rows of its sources and of its destinations -> new rows of the destinations."""
_NO_ROWS = "NoneType"  # the kind of rows that a layer does not give

NodeTensors = TypeVar("NodeTensors", DistTensor, Mapping[str, DistTensor])


@collective("trainers")
def layerwise(
    g: DistGraph,
    model_or_layers: Any,
    x: NodeTensors,
    *,
    batch_size: int,
    device: torch.device | str = "cpu",
) -> NodeTensors:
    """Compute the rows of all nodes by a model, as a tensor over the hosts.

    Layers run one at a time over all nodes, so that no node is computed twice in a layer. Each trainer computes nodes
    of its machine, batch by batch. Before a layer the rows of other trainers' nodes that it reads come, each once. So a
    trainer holds one table, of its own rows and those that it reads; the new rows; and one batch.

    Sums over neighbours read float32 rows in place, which is several times as fast as to gather them for each block:
    ``h_src`` is a :class:`.TableRows`, a tensor that is gathered when a layer does something else with it (give modules
    of ``torch.compile(..., fullgraph=True)`` ``h_src.clone()``).

    Args:
        g: the graph.
        model_or_layers: maps rows of one layer to the next:

            * a list of layers, each called as ``layer(block, (h_src, h_dst)) -> h_dst``, such as those of
              :mod:`mpigraph.nn` and the user's functions; nothing happens between them. A layer may write to both in
              place: neither shares memory with the other, or with ``x``;
            * a module with ``layers`` and a method ``forward_layer(i, block, h) -> h_dst``, where ``h`` are the rows of
              the sources, the destinations first. It does what belongs between layers: activation, dropout,
              normalisation; ``forward`` can be a loop over it;
            * a module with ``layers`` and no ``forward`` of its own: as the list of them. With a ``forward`` but
              without ``forward_layer`` it is refused, as the library cannot know the steps between its layers.

            On typed graphs rows are dicts by node type. Modules are in evaluation mode meanwhile, without gradients; a
            function that uses other modules sets their mode itself.
        x: the input rows, or node type -> rows; nodes of types that are left out have no rows in any layer. Floats are
            converted to the dtype of the model's parameters, if it has any.
        batch_size: most nodes of a block. Blocks are taken from each part of the graph, wherever its nodes lie.
        device: where to compute.

    For one ``batch_size`` the results are the same bits on any number of trainers, with or without servers, unless a
    part of the graph lies on several nodes, where blocks end. In other blocks they are, too, where torch's products of
    matrices round a row alike however many rows there are: on the CPUs tried, with at least 16 columns and 8 rows.

    Blocks have ``edata[EID]``, by which a layer reads features of edges, which are local. Out-degrees that
    :class:`.GraphConv` divides by are those of the graph, not those of the block. A node without in-edges is given to
    layers as it is; whether they take it is theirs to say (``allow_zero_in_degree``).

    Returns:
        [num_nodes, ...], or by node type on graphs with several: of the types that the last layer gives rows of.

    Raises:
        InvalidArgumentError: an argument is not what it says above, or a layer gives something else than a row for each
            destination.
        TensorMismatchError: ``x`` are not rows of the nodes of ``g``, or trainers' layers give rows of different
            shapes, or trainers give different arguments or numbers of layers.
        MPIGraphError: what a layer raises, by the name of the class; names the layer and the trainers.

    All of these are raised on every trainer, whichever has the reason. A layer must not call what all trainers have to
    call, since they have different numbers of blocks.

    Example:
        >>> layers = [mpigraph.nn.SAGEConv(16, 4, "mean")]
        >>> scores = mpigraph.inference.layerwise(g, layers, g.ndata["feat"], batch_size=1000)
    """
    return cast(NodeTensors, Inference(g, model_or_layers, batch_size, device).run(x))


class Inference:
    """One evaluation of a model on all nodes."""

    @collective("trainers")
    def __init__(self, g: DistGraph, model_or_layers: Any, batch_size: int, device: torch.device | str) -> None:
        """Check the arguments, which are those of :func:`layerwise`."""
        if not isinstance(g, SampledGraph):
            raise everywhere(InvalidArgumentError(f"g must be a DistGraph (got {type(g).__name__})"))
        self._g, self._world, self._typed = g, g.session.world, len(g.ntypes) > 1

        def check() -> tuple[list[_Step], Any]:
            check_integer("batch_size", batch_size, 1)
            self._device = exact_device(device)
            steps = steps_of(model_or_layers)
            return steps, {"number of layers": len(steps), "batch_size": batch_size}

        self._steps, words = in_step(self._world, "inference", check)
        alike("arguments of inference", words)
        self._model, self._input_dtype = model_or_layers, _input_dtype(model_or_layers)
        topology = g.loaded.topology
        parts, hosts = topology.config.book.node_offsets, topology.hosts.node_offsets
        ranges = {ntype: _batches(self._world, parts[t], hosts[t], batch_size) for t, ntype in enumerate(g.ntypes)}
        self._nodes = Neighbourhoods(g, ranges)

    @collective("trainers")
    def run(self, x: DistTensor | Mapping[str, DistTensor]) -> DistTensor | dict[str, DistTensor]:
        """Evaluate; see :func:`layerwise`."""

        def check() -> tuple[dict[str, DistTensor], Any]:
            inputs = self._checked(x)
            return inputs, {"x": {ntype: tensor.rows.number for ntype, tensor in inputs.items()}}

        inputs, words = in_step(self._world, "inference", check)
        alike("arguments of inference", words)
        self._g.barrier()  # what was written before counts, and no row of x is unknown to any rank
        self._nodes.plan(self._nodes.sources())
        halos, tables = self._nodes.halos, dict[str, torch.Tensor]()
        with self._world.together("reading the input of inference"):
            for ntype, tensor in inputs.items():
                tables[ntype] = self._input(tensor[torch.cat([halos[ntype].own, halos[ntype].ids])])
        modules = (module for top in modules_of(self._model) for module in top.modules())
        with in_modes([(module, False) for module in modules]), torch.no_grad():
            for number in range(len(self._steps)):
                what = f"layer {number + 1} of {len(self._steps)} of inference"
                rows = self._layer(number, what, tables)
                tables = {}
                if number < len(self._steps) - 1:
                    with self._world.meeting(f"{what}: exchanging rows"):
                        for ntype in [*rows]:
                            tables[ntype] = halos[ntype].table(self._input(rows.pop(ntype)), what)
        return self._stored(rows)

    def _checked(self, x: DistTensor | Mapping[str, DistTensor]) -> dict[str, DistTensor]:
        g = self._g
        if self._typed and not isinstance(x, Mapping):
            raise InvalidArgumentError(f"x must be a dict by node type, since there are {g.ntypes}")
        by_ntype = dict(x) if isinstance(x, Mapping) else {g.ntypes[0]: x}
        for ntype, tensor in by_ntype.items():
            policy = g.get_node_partition_policy(ntype)
            if not isinstance(tensor, DistTensor):
                raise InvalidArgumentError(f"x of {ntype!r} must be a DistTensor (got {type(tensor).__name__})")
            rows = tensor.rows.policy
            if tensor.graph_name != g.graph_name or (rows.is_node, rows.type_id) != (True, policy.type_id):
                raise TensorMismatchError(f"x: the rows of tensor {tensor.name!r} are not nodes of type {ntype!r}")
            if len(tensor.shape) < 2:
                raise InvalidArgumentError(f"x of {ntype!r} must have rows of numbers (got shape {tensor.shape})")
        return {ntype: by_ntype[ntype] for ntype in g.ntypes if ntype in by_ntype}  # in the same order on every trainer

    @collective("trainers")
    def _layer(self, number: int, what: str, tables: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the new rows of this trainer's nodes by type, of the types that the layer gives rows of."""
        begin = clock()

        def run() -> tuple[dict[str, torch.Tensor | None], Any]:
            rows: dict[str, torch.Tensor | None] = {}
            for ntype in tables:
                rows |= self._of_type(number, ntype, tables)
            return rows, {ntype: kind_of(of, 1) for ntype, of in rows.items()}

        rows, words = in_step(self._world, what, run)
        kinds, outputs = alike(f"{what}, rows of all nodes", words) or {}, {}
        for ntype in self._g.ntypes:
            if kinds.get(ntype, _NO_ROWS) != _NO_ROWS:
                own = rows.get(ntype)
                outputs[ntype] = rows_of_kind(kinds[ntype]) if own is None else own
        if not outputs:
            raise everywhere(InvalidArgumentError(f"{what} gives no rows"))
        get_logger().info("%s: %.1f s", what, clock() - begin)
        return outputs

    def _of_type(self, number: int, ntype: str, tables: dict[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
        """Compute the rows of this trainer's nodes of a type; nothing if it has no batch, None without nodes."""
        batches = self._nodes.ranges[ntype].of(self._world.trainers.rank)
        rows: torch.Tensor | None = None
        at = 0
        for first, last in batches:
            output = self._computed(number, ntype, np.arange(first, last), tables)
            if at == 0 and output is not None:
                dtype_name(output.dtype)
                rows = output.new_empty((len(self._nodes.own[ntype]), *output.shape[1:]))
            if kind_of(output, 1) != kind_of(rows, 1):
                raise InvalidArgumentError(f"a layer gives rows of {kind_of(output, 1)} and of {kind_of(rows, 1)}")
            if rows is not None and output is not None:
                rows[at : at + last - first] = output
            at += last - first
        return {ntype: rows} if batches else {}

    def _computed(self, number: int, ntype: str, nodes: I64, tables: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """Return the new rows of nodes of a type, on the CPU; None if the layer returns no rows of it."""
        block, sources = self._nodes.block({ntype: nodes}, near=True)
        at = self._nodes.places(block, sources)
        h_src = {t: self._gathered(table, at[t]) for t, table in tables.items()}
        h_dst = {t: _own_rows(h, block.num_dst_nodes(t)) for t, h in h_src.items()}
        block, step = block.to(self._device), self._steps[number]
        if self._typed:
            output: Any = step(block, (h_src, h_dst))
            if not isinstance(output, Mapping):
                raise InvalidArgumentError(f"a layer must return rows by node type (got {type(output).__name__})")
            output = output.get(ntype)
            if output is None:
                return None
        else:
            output = step(block, (h_src[ntype], h_dst[ntype]))
        if not isinstance(output, torch.Tensor) or output.dim() < 1 or len(output) != len(nodes):
            raise InvalidArgumentError(
                f"a layer must return a row for each of {len(nodes)} destinations (got {kind_of(output)})"
            )
        return output.detach().cpu()

    def _input(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows in the dtype that layers take them in."""
        return rows.to(self._input_dtype) if self._input_dtype and rows.dtype.is_floating_point else rows

    def _gathered(self, table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return rows of a table; sums over neighbours read float32 rows in place."""
        if (table.dtype, self._device.type) == (torch.float32, "cpu"):
            return TableRows(table, at)
        return table.index_select(0, at).to(self._device)

    @collective("trainers")
    def _stored(self, rows: dict[str, torch.Tensor]) -> DistTensor | dict[str, DistTensor]:
        """Return rows as tensors over the hosts."""
        g, outputs = self._g, {}
        for ntype, own in rows.items():
            full, policy = (g.num_nodes(ntype), *own.shape[1:]), g.get_node_partition_policy(ntype)
            out = outputs[ntype] = DistTensor.filled(full, own.dtype, None, "result of inference", policy)
            with self._world.together("storing the result of inference"):
                at = 0
                for first, last in self._nodes.ranges[ntype].of(self._world.trainers.rank):
                    out[first:last] = own[at : at + last - first]
                    at += last - first
        g.barrier()
        return outputs if self._typed else outputs[g.ntypes[0]]


def _own_rows(h: torch.Tensor, n: int) -> torch.Tensor:
    """Copy the first ``n`` rows, so that a layer that writes to its sources in place leaves its destinations alone."""
    return h.first(n) if isinstance(h, TableRows) else h[:n].clone()


def _batches(world: World, parts: I64, hosts: I64, batch_size: int) -> Ranges:
    """Divide the nodes of a type into batches; each is of the trainer that updates its first node.

    The last bits of a row of a matrix product may depend on the number of rows and on its place among them. So blocks
    must be the same on any number of trainers: each part of the graph is divided from its first node on, evenly, as
    products of a few rows round differently. A batch ends where another machine begins, so that all its nodes are
    local. ``parts`` and ``hosts`` have the first node of each part and host, and last the number of nodes.
    """
    sizes = np.diff(parts)
    batches = -(-sizes // batch_size)
    part = np.repeat(np.arange(len(sizes)), batches)
    number = np.arange(len(part)) - np.repeat(np.cumsum(batches) - batches, batches)
    elsewhere = hosts[np.flatnonzero(np.diff(world.nodes_of_hosts)) + 1]
    bounds = np.unique(np.concatenate([parts[part] + sizes[part] * number // batches[part], elsewhere, parts[-1:]]))
    if len(bounds) == 1:  # no node: an empty batch shows the shape of rows
        bounds = np.append(bounds, bounds)
    owners = RowOwners(world, hosts)
    which = np.searchsorted(owners.bounds, bounds[:-1], "right") - 1
    return Ranges(bounds, owners.trainers.take(which, mode="clip"))


def steps_of(model: object) -> list[_Step]:
    """Return the layers of a model, ``model_or_layers`` of :func:`.layerwise`, in their order.

    Raises InvalidArgumentError if it is neither a module with layers nor a list of them, or has no layer.
    """
    model = _bare(model)
    kinds = (Sequence, nn.ModuleList, nn.Sequential)
    layers: Any = model if isinstance(model, kinds) else getattr(model, "layers", None)
    if not isinstance(layers, kinds) or isinstance(layers, str) or not len(layers):
        name = type(model).__name__
        raise InvalidArgumentError(f"{name} has no layers: give a module with .layers, or a list of layers")
    forward = getattr(model, "forward_layer", None)
    if callable(forward):

        def step(number: int) -> _Step:
            return lambda block, h: forward(number, block, h[0])

        return [step(number) for number in range(len(layers))]
    if layers is not model and type(model).forward is not nn.Module.forward:  # type: ignore[attr-defined]
        raise InvalidArgumentError(
            f"the steps of {type(model).__name__}.forward between its layers are not known: give the model a method "
            "forward_layer(i, block, h), or pass model.layers if there is nothing between them"
        )
    return [_bare(layer) for layer in layers]


def _bare(model: Any) -> Any:
    """Return a module without DDP's wrapper: trainers call it as often as each has blocks, so not in step."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _input_dtype(model: object) -> torch.dtype | None:
    """Return the dtype of the model's first floating parameter, in which layers take rows; None without one."""
    for module in modules_of(model):
        for parameter in module.parameters():
            if parameter.dtype.is_floating_point:
                return parameter.dtype
    return None


def modules_of(model: object) -> list[nn.Module]:
    """Return the modules of a model, or of a list of layers."""
    if isinstance(model, nn.Module):
        return [model]
    return [layer for layer in model if isinstance(layer, nn.Module)] if isinstance(model, Sequence) else []


@contextmanager
def in_modes(modes: list[tuple[nn.Module, bool]]) -> Iterator[None]:
    """Have modules in training mode, or not, while the block runs."""
    before = [(module, module.training) for module, _ in modes]
    try:
        for module, training in modes:
            module.training = training
        yield
    finally:
        for module, training in before:
            module.training = training
