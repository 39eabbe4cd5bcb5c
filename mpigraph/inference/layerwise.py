"""Evaluate a model on all nodes of a graph: one layer at a time, each node and each remote row once per layer.

The layers of the user's model become steps; its parameters tell the dtype, and it is in evaluation mode meanwhile.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.dataloading.fetcher import cache_size
from mpigraph.distgraph.dtypes import convert, dtype_name, to_storage
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampled_graph import SampledGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import Fanout, FeatureName
from mpigraph.errors import InvalidArgumentError, TensorMismatchError, check_integer
from mpigraph.graphs.aggregate import TableRows
from mpigraph.graphs.block import Block
from mpigraph.graphs.in_memory import exact_device
from mpigraph.inference.neighbourhoods import HaloReader, Neighbourhoods, open_readers, remote_sources
from mpigraph.log import get_logger
from mpigraph.mpi.agree import allgather_bytes, everywhere, same
from mpigraph.mpi.world import World
from mpigraph.rows.owners import RowOwners
from mpigraph.trace import clock

_Rows: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
"""Rows of the nodes of the only type, or by node type."""
_Step: TypeAlias = Callable[[Block, tuple[_Rows, _Rows]], _Rows]
"""One layer: a block, rows of its sources and of its destinations -> new rows of the destinations."""
_SECONDS_IN_LOG = 10.0

NodeTensors = DistTensor | Mapping[str, DistTensor]


class _Batch(NamedTuple):
    """Consecutive nodes of one type: from ``first`` on, ``last`` is one behind them."""

    first: int
    last: int


@collective("trainers")
def layerwise(
    g: DistGraph,
    model_or_layers: Any,
    x: NodeTensors,
    *,
    batch_size: int,
    device: torch.device | str = "cpu",
    fanout: Fanout = -1,
    edge_mask: FeatureName | None = None,
    dtype: torch.dtype | None = None,
    cache: int | str | None = "auto",
    progress_bar: bool = False,
) -> DistTensor | dict[str, DistTensor]:
    """Compute the rows of all nodes by a model, as a tensor over the hosts.

    Layers run one at a time over all nodes, so that no node is computed twice in a layer. The trainers on a host's node
    compute its nodes. In each layer a remote row comes once to a node (machine), into a cache that its trainers share,
    if it fits; rows of ``x`` that the user may write meanwhile, through :attr:`.DistTensor.local_partition`, come anew
    for each block. Besides ``x`` and these caches there are two tensors, the input and the output of the layer.

    Where the node's own rows fit the cache, too, sums over neighbours read float32 rows in place, which is several
    times as fast as to gather them for each block. ``h_src`` is a :class:`.TableRows` then, a tensor that is gathered
    when a layer does something else with it (give modules of ``torch.compile(..., fullgraph=True)`` ``h_src.clone()``);
    and the output of the layer before is freed, once it is copied.

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
        fanout: most neighbours of a node in each relation, drawn from the job's seed and the node, whatever the batch;
            -1: all. Or edge type -> most neighbours.
        edge_mask: name of an edge feature of bool or uint8, or edge type -> name; edges where it is 0 are left out.
        dtype: of the result; by default that of the last layer's output.
        cache: memory on each node for copies of the rows that it reads: a size, such as "2GiB"; None for no cache;
            "auto" for all of them, up to half of the free memory. If not all fit, remote rows go first; blocks fetch
            those that do not fit.
        progress_bar: show the progress of trainer 0.

    For one ``batch_size`` the results are the same bits on any number of trainers, with or without servers, unless a
    part of the graph lies on several nodes, where blocks end. In other blocks they are, too, where torch's products of
    matrices round a row alike however many rows there are: on the CPUs tried, with at least 16 columns and 8 rows.

    Blocks have ``edata[EID]``, by which a layer reads features of edges, which are local. Out-degrees that
    :class:`.GraphConv` divides by are those of the graph, or of what ``edge_mask`` leaves of it, not those of the
    block, also where ``fanout`` draws some of the edges. A node without in-edges is given to layers as it is; whether
    they take it is theirs to say (``allow_zero_in_degree``).

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
    return Inference(g, model_or_layers, batch_size, device, fanout, edge_mask, dtype, cache, progress_bar).run(x)


class LayerCounts(NamedTuple):
    """The rows that one layer read on this trainer."""

    halo_rows: int  # this trainer's share of the remote rows of its node
    fetched_rows: int  # remote rows that it fetched
    seconds: float


class Inference:
    """One evaluation of a model on all nodes; ``counts`` has those of each layer that was done."""

    @collective("trainers")
    def __init__(
        self,
        g: DistGraph,
        model_or_layers: Any,
        batch_size: int,
        device: torch.device | str,
        fanout: Fanout,
        edge_mask: FeatureName | None,
        dtype: torch.dtype | None,
        cache: int | str | None,
        progress_bar: bool,
    ) -> None:
        """Check the arguments, which are those of :func:`layerwise`."""
        if not isinstance(g, SampledGraph):
            raise everywhere(InvalidArgumentError(f"g must be a DistGraph (got {type(g).__name__})"))
        self._g = g
        self._world = g.session.world
        self.counts = list[LayerCounts]()
        with self._world.together("inference"):
            self._batch_size = check_integer("batch_size", batch_size, 1)
            self._device = exact_device(device)
            self._steps = steps_of(model_or_layers)
            self._model = model_or_layers
            self._input_dtype = _input_dtype(model_or_layers)
            self._dtype = dtype
            self._cache = None if cache == "auto" else cache_size(0 if cache is None else cache)
            if dtype is not None:
                dtype_name(dtype)
        self._bar = bool(progress_bar) and g.session.rank == 0
        self._neighbourhoods = Neighbourhoods(g, fanout, edge_mask)
        self._agree(
            {
                "number of layers": len(self._steps),
                "batch_size": self._batch_size,
                "fanout": self._neighbourhoods.fanouts,
                "edge_mask": self._neighbourhoods.masks,
                "dtype": str(dtype),
                "cache": "auto" if self._cache is None else self._cache,
            }
        )
        self._neighbourhoods.prepare()
        self._typed = len(g.ntypes) > 1
        offsets = g.loaded.topology.hosts.node_offsets
        parts = g.loaded.topology.config.book.node_offsets
        self._batches = {
            ntype: _batches_of(self._world, parts[t], offsets[t], self._batch_size) for t, ntype in enumerate(g.ntypes)
        }

    @collective("trainers")
    def run(self, x: NodeTensors) -> DistTensor | dict[str, DistTensor]:
        """Evaluate; see :func:`layerwise`."""
        self.counts = []
        with self._world.together("inference"):
            rows = self._checked(x)
        self._agree({"x": {ntype: tensor.rows.number for ntype, tensor in rows.items()}})
        self._g.barrier()  # what was written before counts, and no row of x is unknown to any rank
        inputs = list(rows.values())
        shares = remote_sources(self._g)
        last = len(self._steps) - 1
        with _evaluating(self._model):
            for number, step in enumerate(self._steps):
                out = self._layer(number, step, rows, shares, self._dtype if number == last else None)
                for tensor in rows.values():
                    if not any(tensor is one for one in inputs):
                        tensor.close()
                rows = out
        return rows if self._typed else rows[self._g.ntypes[0]]

    def _checked(self, x: NodeTensors) -> dict[str, DistTensor]:
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
        if not by_ntype:
            raise InvalidArgumentError("x is empty: no node type has rows")
        return {ntype: by_ntype[ntype] for ntype in g.ntypes if ntype in by_ntype}  # in the same order on every trainer

    @collective("trainers")
    def _agree(self, arguments: dict[str, Any]) -> None:
        """Raise TensorMismatchError on every trainer unless all have the same arguments."""
        with self._world.meeting("comparing the arguments of inference"):
            what = "trainers give inference different arguments"
            same(self._world.trainers, what, arguments, TensorMismatchError, "trainer")

    @collective("trainers")
    def _layer(
        self, number: int, step: _Step, rows: dict[str, DistTensor], shares: dict[int, I64], dtype: torch.dtype | None
    ) -> dict[str, DistTensor]:
        world = self._world
        name = f"layer {number + 1} of {len(self._steps)} of inference"
        begin = clock()
        readers = open_readers(self._g, rows, shares, self._cache)
        try:
            with world.together(f"fetching rows for {name}"):
                for reader in readers.values():
                    reader.fill()
            held = all(reader.holds_all for reader in readers.values())
            if number and world.allreduce_minmax(held, False):  # the input is in the caches
                for tensor in rows.values():
                    tensor.close()
            first: dict[str, torch.Tensor | None] = {}
            with world.together(name), world.forbid_meetings("a layer"):
                for ntype in rows:
                    if self._batches[ntype]:
                        ids = np.arange(*self._batches[ntype][0])
                    elif self._g.num_nodes(ntype) == 0:
                        ids = np.empty(0, np.int64)  # no trainer has a node: an empty block shows the shape of rows
                    else:
                        continue
                    output = self._computed(step, readers, ntype, *self._block(number, ntype, ids))
                    if output is not None:
                        dtype_name(output.dtype)
                        output = output.clone() if len(rows) > 1 else output  # a layer may reuse its memory
                    first[ntype] = output
            out = self._create(number, first, dtype)
            with world.together(name), world.forbid_meetings("a layer"):
                for ntype, tensor in out.items():
                    self._all(number, step, readers, ntype, tensor, first.get(ntype))
            self._g.barrier()
        finally:
            for reader in readers.values():
                reader.close(self._g)
        halo = sum(len(shares[self._g.schema.ntype_id(ntype)]) for ntype in rows)
        fetched = sum(reader.fetched_rows for reader in readers.values())
        self.counts.append(LayerCounts(halo, fetched, clock() - begin))
        get_logger().info(
            "%s: %d rows fetched, %d of them remote, %.1f s", name, fetched, halo, self.counts[-1].seconds
        )
        return out

    def _all(
        self,
        number: int,
        step: _Step,
        readers: dict[str, HaloReader],
        ntype: str,
        out: DistTensor,
        first: torch.Tensor | None,
    ) -> None:
        """Compute and write this trainer's rows of a type; those of the first batch are known."""
        total = sum(batch.last - batch.first for batch in self._batches[ntype])
        what = f"layer {number + 1}/{len(self._steps)}" + (f" {ntype}" if self._typed else "")
        seconds = 0.1 if sys.stderr.isatty() else _SECONDS_IN_LOG
        options = {"unit": "node", "unit_scale": True, "mininterval": seconds, "disable": not self._bar}
        with tqdm(total=total, desc=what, **options) as bar:
            for batch in self._batches[ntype]:
                output, first = first, None
                if output is None:
                    output = self._computed(step, readers, ntype, *self._block(number, ntype, np.arange(*batch)))
                if output is None or tuple(output.shape[1:]) != out.shape[1:]:
                    shape = None if output is None else tuple(output.shape[1:])
                    raise InvalidArgumentError(f"a layer gives rows of shape {shape} and of {out.shape[1:]}")
                values = convert(output, out.dtype, f"rows of {ntype!r}").contiguous()
                _write(out, batch, to_storage(values, out.rows.dtype))
                bar.update(len(values))

    def _block(self, number: int, ntype: str, ids: I64) -> tuple[Block, dict[str, I64]]:
        """Return the block of nodes of a type and the ids of its sources."""
        return self._neighbourhoods.block({self._g.schema.ntype_id(ntype): ids}, number)

    def _computed(
        self, step: _Step, readers: dict[str, HaloReader], ntype: str, block: Block, src_ids: dict[str, I64]
    ) -> torch.Tensor | None:
        """Return the new rows of a block's nodes of a type, on the CPU; None if the layer returns no rows of it."""
        num_nodes = block.num_dst_nodes(ntype)
        h_src = {t: self._input(reader.read(src_ids[t])) for t, reader in readers.items()}
        h_dst = {t: _own_rows(h, block.num_dst_nodes(t)) for t, h in h_src.items()}
        block = block.to(self._device)
        if self._typed:
            output: Any = step(block, (h_src, h_dst))
            if not isinstance(output, Mapping):
                raise InvalidArgumentError(f"a layer must return rows by node type (got {type(output).__name__})")
            output = output.get(ntype)
            if output is None:
                return None
        else:
            output = step(block, (h_src[ntype], h_dst[ntype]))
        if not isinstance(output, torch.Tensor) or output.dim() < 1 or output.shape[0] != num_nodes:
            got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
            raise InvalidArgumentError(f"a layer must return a row for each of {num_nodes} destinations (got {got})")
        return output.detach().cpu()

    def _input(self, rows: torch.Tensor) -> torch.Tensor:
        dtype = rows.dtype
        if dtype.is_floating_point and self._input_dtype is not None:
            dtype = self._input_dtype
        if isinstance(rows, TableRows) and (dtype, self._device.type) == (rows.dtype, "cpu"):
            return rows
        return rows.to(self._device, dtype)

    @collective("trainers")
    def _create(
        self, number: int, first: dict[str, torch.Tensor | None], dtype: torch.dtype | None
    ) -> dict[str, DistTensor]:
        """Create tensors for a layer's output, of the shape on the trainers with nodes, which must be the same."""
        kinds = {
            ntype: None if rows is None else [list(rows.shape[1:]), dtype_name(rows.dtype)]
            for ntype, rows in first.items()
        }
        with self._world.meeting("agreeing on the rows of a layer"):
            said = [json.loads(text) for text in allgather_bytes(self._world.trainers, json.dumps(kinds).encode())]
        g, outputs = self._g, {}
        for ntype in g.ntypes:
            seen = [(trainer, one[ntype]) for trainer, one in enumerate(said) if ntype in one]
            for trainer, kind in seen:
                if kind != seen[0][1]:
                    raise everywhere(
                        TensorMismatchError(
                            f"layer {number + 1} of inference gives rows of {ntype!r} of {seen[0][1]} on trainer "
                            f"{seen[0][0]}, and of {kind} on trainer {trainer}"
                        )
                    )
            if seen and seen[0][1] is not None:
                shape, name = seen[0][1]
                stored = getattr(torch, name) if dtype is None else dtype
                policy = g.get_node_partition_policy(ntype)
                full = (g.num_nodes(ntype), *shape)
                outputs[ntype] = DistTensor.filled(full, stored, None, f"layer {number + 1} of inference", policy)
        if not outputs:
            raise everywhere(InvalidArgumentError(f"layer {number + 1} of inference gives no rows"))
        return outputs


def _own_rows(h: torch.Tensor, n: int) -> torch.Tensor:
    """Copy the first ``n`` rows, so that a layer that writes to its sources in place leaves its destinations alone."""
    return h.first(n) if isinstance(h, TableRows) else h[:n].clone()


def _write(out: DistTensor, batch: _Batch, values: Array) -> None:
    """Write the rows of a batch to the local hosts that hold them; no other trainer writes them: no lock."""
    offsets = out.rows.offsets
    first = batch.first
    while first < batch.last:
        host = int(np.searchsorted(offsets, first, "right")) - 1
        last = min(batch.last, int(offsets[host + 1]))
        with out.rows.writing(host) as rows:
            rows[first - offsets[host] : last - offsets[host]] = values[first - batch.first : last - batch.first]
        first = last


def _batches_of(world: World, parts: I64, hosts: I64, batch_size: int) -> list[_Batch]:
    """Return the batches of nodes of one type that this trainer computes, ascending on each host.

    The last bits of a row of a matrix product may depend on the number of rows and on its place among them. So blocks
    must be the same on any number of trainers: each part of the graph is divided from its first node on. The trainer
    that owns a block's first node computes it. A block ends where another machine begins, so that all its nodes are
    local. The blocks of a part are about equally large, as products of a few rows round differently. ``parts`` and
    ``hosts`` have the first node of each part and host, and last the number of nodes.
    """
    elsewhere = np.flatnonzero(np.diff(world.nodes_of_hosts)) + 1
    ends = np.union1d(parts, hosts[elsewhere])
    batches = []
    for owned in RowOwners(world, hosts).ranges():
        at = owned.first
        while at < owned.last:
            part = int(np.searchsorted(parts, at, "right")) - 1
            piece = int(np.searchsorted(ends, at, "right")) - 1
            begin, end = parts[part : part + 2].tolist()
            pieces = -(-(end - begin) // batch_size)
            number = ((at - begin + 1) * pieces - 1) // (end - begin)
            first = begin + (end - begin) * number // pieces
            last = min(begin + (end - begin) * (number + 1) // pieces, int(ends[piece + 1]))
            if at in (first, ends[piece]):  # else another trainer owns its first node
                batches.append(_Batch(at, last))
            at = last
    return batches


def steps_of(model: object) -> list[_Step]:
    """Return the layers of a model, ``model_or_layers`` of :func:`.layerwise`, in their order.

    Raises InvalidArgumentError if it is neither a module with layers nor a list of them, or has no layer.
    """
    model = _bare(model)
    layers: Any = model
    if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList | nn.Sequential):
        layers = getattr(model, "layers", None)
        if layers is None:
            raise InvalidArgumentError(
                f"{type(model).__name__} has no layers: give a module with .layers, or a list of layers"
            )
    if not isinstance(layers, Sequence | nn.ModuleList | nn.Sequential) or isinstance(layers, str) or not len(layers):
        raise InvalidArgumentError(f"give a module with .layers, or a list of layers (got {type(model).__name__})")
    for layer in layers:
        if not callable(layer):
            raise InvalidArgumentError(f"a layer must be callable (got {type(layer).__name__})")
    forward = getattr(model, "forward_layer", None)
    if callable(forward):
        return [partial(_by_number, forward, number) for number in range(len(layers))]
    if layers is not model and type(model).forward is not nn.Module.forward:  # type: ignore[attr-defined]
        raise InvalidArgumentError(
            f"the steps of {type(model).__name__}.forward between its layers are not known: give the model a method "
            "forward_layer(i, block, h), or pass model.layers if there is nothing between them"
        )
    return [_bare(layer) for layer in layers]


def _bare(model: Any) -> Any:
    """Return a module without DDP's wrapper: trainers call it as often as each has blocks, so not in step."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _by_number(
    forward: Callable[[int, Block, _Rows], _Rows], number: int, block: Block, h: tuple[_Rows, _Rows]
) -> _Rows:
    return forward(number, block, h[0])


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
def _evaluating(model: object) -> Iterator[None]:
    """Put the modules of a model into evaluation mode, without gradients, while the block runs."""
    before = [(module, module.training) for top in modules_of(model) for module in top.modules()]
    for module, _ in before:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before:
            module.training = training
