"""Train on the whole graph: before a layer the rows of other trainers' nodes come, after it their gradients go home.

One autograd node is one layer on all pieces. Its backward runs the pieces' own small graphs and makes all exchanges in
one order, whatever the order of autograd's queue. Trainers agree on each step of it, so an error of one is raised on
all, and a call of another kind is an error, not a wait.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from hashlib import blake2b
from operator import add
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.distgraph.graph import DistGraph
from mpigraph.errors import FieldNameError, InvalidArgumentError, check_integer, check_state
from mpigraph.fullgraph.plan import Gradients, Key, Node, Piece, Tree, climb
from mpigraph.graphs.block import Block
from mpigraph.graphs.fields import EID
from mpigraph.inference.layerwise import in_modes, modules_of, steps_of
from mpigraph.inference.neighbourhoods import (
    Halo,
    Neighbourhoods,
    Ranges,
    alike,
    bytes_of,
    in_step,
    kind_of,
    move,
    rows_of_kind,
)
from mpigraph.kernels.rng import combine
from mpigraph.metadata.schema import Relation
from mpigraph.mpi.agree import everywhere
from mpigraph.mpi.world import World
from mpigraph.store.host_ranges import cut_offsets

T = TypeVar("T")
_Tensor = torch.Tensor
_Rows: TypeAlias = _Tensor | Mapping[Any, _Tensor]
_Sums: TypeAlias = dict[Any, _Tensor]
"""Gradients by node type and relation, and by number of the parameter."""
_MADE: WeakKeyDictionary[World, int] = WeakKeyDictionary()  # how many, on every trainer
_ALIGNED = 64  # bytes: where an array begins may change the last bits of a product


class FullGraph:
    """The whole graph for training without sampling: ``fg(model, x)`` are the rows of the model's last layer.

    Each trainer has some nodes and all their in-edges. A layer reads rows of other trainers' nodes, the *halo*: each
    travels once, before the layer, and its gradient goes back once. Losses, gradients and weights are the same bits on
    any number of trainers and nodes, with or without servers, for one partitioning of the graph and equal ``pieces``
    and ``threads``; not on processors of another kind, or with another version of torch. ::

        fg = mg.FullGraph(g)
        x, y, mask = fg.ndata("feat"), fg.ndata("label"), fg.ndata("train_mask")
        for epoch in range(100):
            loss = fg.mean(F.cross_entropy(fg(model, x), y, reduction="none"), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Parameters get the sums of their gradients over all nodes on every trainer, so the model is not wrapped in DDP.
    All parameters must be in layers, and activations, too: torch's sigmoid, silu, elu, softplus and others round a
    number by its place in an array, which outside of layers depends on the number of trainers. Losses by row, such as
    cross entropies and squares, do not.
    Best with ``initialize(num_servers=0)``: a server does not train.

    Args:
        g: the graph.
        pieces: into how many pieces to divide the nodes; by default one for each part. Best a multiple of the number
            of trainers, and not a large one: sources that pieces of a trainer share are gathered for each.
        edata: names of edge features that blocks have, ``block.edges[etype].data[name]``.
        recompute: compute a layer again in backward, piece by piece, rather than keep what its gradient needs; the rows
            of its halo then travel a second time. Memory: the inputs of the layers, one table of own and halo rows, the
            gradients of a layer's rows and of its sources, and one piece. The bits are the same.
        threads: torch's threads while a piece is computed; the script's own number counts outside.

    ``print(fg)`` shows own and halo rows of each trainer, bytes and memory. Errors, also of the methods, are raised on
    every trainer. In backward all trainers must take part, too.

    Raises:
        InvalidArgumentError: an argument is not as described above.
        FieldNameError: no relation has a feature of ``edata``.
        TensorMismatchError: trainers give different arguments.

    Example:
        >>> fg = mpigraph.FullGraph(g)
        >>> h = fg([mpigraph.nn.SAGEConv(16, 4, "mean")], fg.ndata("feat"))
    """

    @collective("trainers")
    def __init__(
        self,
        g: DistGraph,
        pieces: int | None = None,
        edata: Sequence[str] = (),
        recompute: bool = False,
        threads: int = 1,
    ) -> None:
        """Plan the exchange."""
        if not isinstance(g, DistGraph):
            raise everywhere(InvalidArgumentError(f"g must be a DistGraph (got {type(g).__name__})"))
        self._g, self._world, self._calls, self._calls_to_models = g, g.session.world, 0, 0
        self.recompute, self._threads = bool(recompute), 1
        self._number = _MADE[self._world] = _MADE.get(self._world, 0) + 1
        parts = g.loaded.topology.config.book.node_offsets
        names = [edata] if isinstance(edata, str) else list(edata)

        def check() -> tuple[int, Any]:
            number = check_integer("pieces", len(parts[0]) - 1 if pieces is None else pieces, 1)
            check_integer("threads", threads, 1)
            for name in names:
                if not any(name in g.edges[r].data for r in g.canonical_etypes):
                    raise FieldNameError(f"no relation has an edge feature {name!r}")
            return number, {"pieces": number, "threads": threads, "edata": names, "recompute": self.recompute}

        number, words = self._together("the arguments", check)
        alike("arguments of FullGraph", words)
        self._tree, self._threads = Tree(self._world, number), threads
        self._roots = self._tree.roots[self._world.trainers.rank]
        self._ids: dict[Any, _Tensor] = {}  # of own nodes and edges
        bounds = dict(zip(g.ntypes, (cut_offsets(offsets, number) for offsets in parts), strict=True))
        self._nodes = Neighbourhoods(g, {t: Ranges(cuts, self._tree.owners) for t, cuts in bounds.items()})
        self._halos = self._nodes.halos
        self._homes: dict[Any, Gradients] = {}
        self._pieces = self._plan(names)
        kinds = (g.ntypes, g.canonical_etypes)
        own, edges = (sum(len(self._ids[key]) for key in keys) for keys in kinds)
        row = len(self._pieces), own, sum(len(halo.ids) for halo in self._halos.values()), edges
        self._sizes = self._together("the plan", lambda: (None, row))[1]

    @collective("trainers")
    def _plan(self, names: list[str]) -> list[Piece]:
        """Make the own pieces, and plan the exchange; all trainers take as many steps."""
        g, owners, nodes = self._g, self._tree.owners, self._nodes
        drawn: dict[Node, tuple[Block, dict[str, I64]]] = {}
        numbers = np.flatnonzero(owners == self._world.trainers.rank).tolist()
        for number in numbers + [-1] * (int(np.bincount(owners).max()) - len(numbers)):
            bounds = {t: ranges.bounds[number : number + 2] for t, ranges in nodes.ranges.items() if number >= 0}
            block, read = nodes.block({t: np.arange(*ends) for t, ends in bounds.items()}, near=False)
            if number >= 0:
                drawn[number, number + 1] = block, read
        nodes.plan({t: np.concatenate([nodes.own[t], *(read[t] for _, read in drawn.values())]) for t in g.ntypes})
        self._ids |= {t: halo.own for t, halo in self._halos.items()}
        pieces, eids = list[Piece](), {r: [torch.empty(0, dtype=torch.int64)] for r in g.canonical_etypes}
        ends: dict[Any, int] = dict.fromkeys([*g.ntypes, *g.canonical_etypes], 0)
        for node, (block, read) in drawn.items():
            counts: dict[Any, int] = {t: block.num_dst_nodes(t) for t in g.ntypes}
            for r in g.canonical_etypes:
                ids = block.edges[r].data[EID]
                values = {name: g.edges[r].data[name][ids] for name in names if name in g.edges[r].data}
                block.edges[r].data.update(values)
                eids[r].append(ids)
                counts[r] = len(ids)
            own = {key: slice(ends[key], ends[key] + count) for key, count in counts.items()}
            ends = {key: of.stop for key, of in own.items()}
            at = {t: _index(at, self._halos[t]) for t, at in nodes.places(block, read).items()}
            pieces.append(Piece(node, block, own, at))
        self._ids |= {r: torch.cat(ids) for r, ids in eids.items()}
        for t, ranges in nodes.ranges.items():
            sources = {node: read[t] for node, (_, read) in drawn.items()}
            with self._world.meeting("planning full-graph training"):
                self._homes[t] = Gradients(self._world.trainers, self._tree, ranges, nodes.own[t], sources)
        return pieces

    def __repr__(self) -> str:
        lines = [f"FullGraph({self._g.graph_name!r}, pieces={self._tree.top[1]}, threads={self._threads})"]
        lines.append("trainer  pieces  own rows  halo rows  halo/own  in-edges")
        for trainer, (pieces, own, halo, edges) in enumerate(self._sizes):
            lines.append(f"{trainer:7}  {pieces:6}  {own:8}  {halo:9}  {halo / max(own, 1):8.3f}  {edges:8}")
        sent, table = sum(row[2] for row in self._sizes), max(row[1] + row[2] for row in self._sizes)
        text = "a layer of 64 float32 sends {:.3f} MB, and as much in backward; a trainer's table has at most {:.3f} MB"
        return "\n".join([*lines, text.format(sent * 256 / 1e6, table * 256 / 1e6)])

    # Rows of own nodes and edges

    def nodes(self, ntype: str | None = None) -> _Tensor:
        """Return the ids of this trainer's nodes of a type, int64[n], in the order of their rows. Local."""
        return self._ids[self._key(ntype)].clone()

    def eids(self, etype: str | Relation | None = None) -> _Tensor:
        """Return the ids of the in-edges of this trainer's nodes, int64[m], in the order of their rows. Local."""
        return self._ids[self._g.to_canonical_etype(etype)].clone()

    def ndata(self, name: str, ntype: str | None = None) -> _Tensor:
        """Return a feature of this trainer's nodes, [n, ...]. One-sided.

        Floats are read with the rows of the halo, once: a layer that is given the tensor unchanged sends nothing.
        """
        halo, rows = self._halos[self._key(ntype)], self._g.nodes[self._key(ntype)].data[name]
        if not rows.dtype.is_floating_point:
            return rows[halo.own]
        table = _aligned(rows[torch.cat([halo.own, halo.ids])])  # once, not in each call
        own = table[: len(halo.own)]
        own._table = table, own._version, halo  # type: ignore[attr-defined]
        return own

    def edata(self, name: str, etype: str | Relation | None = None) -> _Tensor:
        """Return a feature of the in-edges of this trainer's nodes, [m, ...]. One-sided."""
        return _aligned(self._g.edges[etype].data[name][self.eids(etype)])

    def _key(self, of: Key | None) -> Any:
        if isinstance(of, tuple):
            return self._g.to_canonical_etype(of)
        return self._g.ntypes[self._g.schema.ntype_id(of)]

    # Layers

    @collective("trainers")
    def __call__(self, model: Any, x: _Rows, parameters: Iterable[_Tensor] = ()) -> Any:
        """Return the rows of the model's last layer.

        Random draws inside layers, such as dropout, depend on the job's seed, the number of the call and the piece.

        Args:
            model: as for :func:`.layerwise`: a list of layers, each called as ``layer(block, (h_src, h_dst))``, or a
                module with ``layers`` and a method ``forward_layer(i, block, h)``, where ``h`` are the rows of the
                sources, the destinations first.
            x: rows of this trainer's nodes, [n, ...]; or by node type. A dict may also have rows of the in-edges of
                this trainer's nodes, by relation (a triple); layers get those of their block and may return new ones.
            parameters: all those that layers use which are no modules, a list, in the same order on all trainers.

        Returns:
            Rows of this trainer's nodes; dicts as ``x``.

        Raises:
            InvalidArgumentError: the model is wrapped in DDP, or has a BatchNorm in training, whose sums would be of
                a piece; or a layer returns something else than a row for each destination, writes to its input, or
                uses a tensor that needs a gradient and is not a parameter of the model.
            TensorMismatchError: the trainers' models differ, or the shapes or dtypes of their rows.
            CollectiveError: trainers make different calls.
        """

        def read() -> tuple[_Call, Any]:
            for part in (part for module in modules_of(model) for part in module.modules()):
                if isinstance(part, nn.parallel.DistributedDataParallel):
                    raise InvalidArgumentError("give the model without DDP: its gradients are sums over all nodes")
                if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
                    raise InvalidArgumentError(f"{type(part).__name__} would average over a piece: use LayerNorm")
            states = [module.state_dict() for module in modules_of(model)]
            values = {f"{i} {name}": value for i, state in enumerate(states) for name, value in state.items()}
            every, steps = list(dict.fromkeys(parameters)) or _parameters(model), steps_of(model)
            if isinstance(parameters, set | frozenset | _Tensor) or not all(isinstance(p, _Tensor) for p in every):
                raise InvalidArgumentError("parameters must be a list of tensors: [*module.parameters()]")
            call = _Call(self, [_Layer(step, _parameters(step) or every) for step in steps], modules_of(model), x)
            if self._calls_to_models & (self._calls_to_models - 1) == 0:  # calls 1, 2, 4, 8, ...
                values |= {f"parameter {i}": value for i, value in enumerate(call.parameters)}
                for name, value in values.items():
                    if isinstance(value, _Tensor):
                        call.word[f"value of {name}"] = blake2b(bytes_of(value).tobytes()).hexdigest()[:16]
            return call, call.word

        self._calls_to_models += 1
        call, words = self._together("a model", read)
        return call.run(words)

    @collective("trainers")
    def mean(self, values: _Tensor, mask: _Tensor | None = None, ntype: Key | None = None) -> _Tensor:
        """Return the mean of numbers of all nodes, the same bits on every trainer; differentiable.

        Args:
            values: [n, ...], of this trainer's nodes of a type, or in-edges of a relation.
            mask: bool[n], the nodes that count; or bool[n, ...], the numbers; all by default.
            ntype: a node type, which graphs with several need, or a relation (a triple).
        """

        def add_up() -> tuple[_Tensor, Any]:
            key = self._key(ntype)
            _check_rows("values", values, len(self._ids[key]))
            kept = torch.ones(len(values), dtype=torch.bool) if mask is None else mask.bool()
            _check_rows("mask", kept, len(values))
            kept = kept.reshape(*kept.shape, *[1] * (values.dim() - kept.dim())).expand_as(values)
            numbers = values.detach().double().masked_fill(~kept, 0.0), kept.double()
            own = {piece.node: piece.own[key] for piece in self._pieces}

            def leaf(node: Node) -> _Tensor | None:
                return torch.stack([_aligned(x[own[node]]).sum() for x in numbers]) if node in own else None

            sums = [climb(root, leaf, lambda _, left, right: left + right).tolist() for root in self._roots]
            return kept, [[str(key), kind_of(values, 1)], sums]

        kept, words = self._together("mean", add_up)
        kinds, sums = zip(*words, strict=True)
        alike("numbers of mean()", kinds)
        numbers = torch.tensor([number for of in sums for number in of], dtype=torch.float64)
        at = dict(zip(self._tree.all_roots, numbers, strict=True))
        total, count = climb(self._tree.top, at.get, lambda _, left, right: left + right)
        mean: _Tensor = total / count
        dtype = values.dtype if values.is_floating_point() else torch.float32
        counting = values.to(dtype).masked_fill(~kept, 0.0)
        return _Mean.apply(counting, (kept / count).to(dtype), mean.to(dtype))  # type: ignore[no-any-return,no-untyped-call]

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return what the bits of the next steps depend on, beside model and optimizer, for a checkpoint. Local."""
        pieces = self._tree.top[1]
        return {"calls": self._calls, "graph": self._g.identity, "pieces": pieces, "threads": self._threads}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue with a saved state; on any number of trainers. Local.

        Raises InvalidArgumentError if it is of another partitioning or number of pieces or threads.
        """
        check_state("FullGraph", state_dict, {"calls": int, "graph": str, "pieces": int, "threads": int})
        for name, value in self.state_dict().items():
            if name != "calls" and state_dict[name] != value:
                raise InvalidArgumentError(f"the state of FullGraph has {name}={state_dict[name]!r}, not {value!r}")
        self._calls = int(state_dict["calls"])

    # Communication

    @collective("trainers")
    def _together(self, what: str, work: Callable[[], tuple[T, Any]]) -> tuple[T, list[Any]]:
        """Do local work with this graph's number of threads; see :func:`.in_step`."""
        return in_step(self._world, f"full graph {self._number}: {what}", work, self._threads)

    @collective("trainers")
    def _move(self, what: str, rows: _Tensor, going: I64, coming: I64) -> _Tensor:
        """Send ``going[r]`` consecutive rows to trainer r; all trainers are here."""
        return move(self._world.trainers, f"full graph {self._number}: {what}", rows, going, coming)


class _Layer:
    """One layer of a call.

    Attributes:
        layer: called with a block and rows.
        parameters: those that it may use.
        number: of the call of a layer, for its random draws.
        keys: of its inputs; ``needs`` those that need a gradient, ``likes`` rows of their kinds.
        keep: whether its rows need a gradient.
        graphs: by own piece its sources and rows, until backward; None if they are computed again.
        out: keys of its rows.
    """

    def __init__(self, layer: Callable[..., Any], parameters: list[_Tensor]) -> None:
        self.layer, self.parameters, self.number, self.keep = layer, parameters, 0, False
        self.keys, self.out = list[Any](), list[Any]()
        self.needs, self.likes = list[Any](), dict[Any, _Tensor]()
        self.graphs: dict[Node, tuple[_Sums, _Sums]] | None = {}


class _Call:
    """Layers, one after the other, on all pieces."""

    def __init__(self, fg: FullGraph, layers: list[_Layer], modules: list[nn.Module], x: _Rows) -> None:
        """Check the input; ``word`` is what must be the same on all trainers."""
        if torch.is_inference_mode_enabled():
            raise InvalidArgumentError("full graphs do not run in inference_mode(): use torch.no_grad()")
        self.fg, self.layers, self.typed, self.grad = fg, layers, isinstance(x, Mapping), torch.is_grad_enabled()
        self.buffers = [buffer for module in modules for buffer in module.buffers()]
        self.modes = [(part, part.training) for module in modules for part in module.modules()]
        self.cast = (torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu"))
        self.parameters = list(dict.fromkeys(p for layer in layers for p in layer.parameters))
        if any(p.device.type != "cpu" for p in self.parameters):
            raise InvalidArgumentError("the model must be on the CPU, as the rows are")
        if any(p._backward_hooks for p in self.parameters):
            raise InvalidArgumentError(
                "a parameter has a hook (register_hook), which would run for each piece and for their sum: change "
                "gradients after backward"
            )
        by_key: Mapping[Any, _Tensor] = x if isinstance(x, Mapping) else {fg._key(None): x}
        self.keys = [key for key in fg._ids if key in by_key]
        if len(self.keys) < max(len(by_key), 1):
            raise InvalidArgumentError(f"x must be rows by {list(fg._ids)} (got {list(by_key)})")
        for key, rows in by_key.items():
            _check_rows(f"x of {key!r}", rows, len(fg._ids[key]))
        self.inputs = [by_key[key] for key in self.keys]
        self.tables = {key: _table(by_key[key], fg._halos.get(key)) for key in self.keys}
        self.word: dict[str, Any] = {"layers": len(layers), "parameters": len(self.parameters), "grad": self.grad}
        self.word["inputs"] = [str(key) for key in self.keys]
        for key in self.keys:
            known = "with halo" if self.tables[key] is not None else ""
            self.word[f"rows of {key!r}"] = kind_of(by_key[key], 1), by_key[key].requires_grad, known
        self.word |= {f"parameter {i}": kind_of(p) for i, p in enumerate(self.parameters)}

    @collective("trainers")
    def run(self, words: list[Any]) -> Any:
        """Return the rows of the last layer; ``words`` of all trainers."""
        alike("a call of a full graph", words)
        for layer in self.layers:
            self.fg._calls += 1
            layer.number = self.fg._calls
        outs = _Layers.apply(self, *self.inputs, *self.parameters)  # type: ignore[no-untyped-call]
        return dict(zip(self.layers[-1].out, outs, strict=True)) if self.typed else outs[0]

    @collective("trainers")
    def read(self, layer: _Layer, inputs: Sequence[_Tensor]) -> dict[Any, _Tensor]:
        """Return by key the rows that own pieces read: own rows; of nodes with those of the halo."""
        tables = {}
        for key, rows in zip(layer.keys, inputs, strict=True):
            table = self.tables[key] if layer is self.layers[0] else None
            if table is None and key in self.fg._halos:
                table = self.fg._halos[key].table(rows.detach(), f"full graph {self.fg._number}: rows of {key!r}")
            tables[key] = _aligned(rows.detach() if table is None else table)
        return tables

    def run_piece(self, layer: _Layer, piece: Piece, tables: dict[Any, _Tensor]) -> tuple[_Sums, _Sums]:
        """Run a layer on one piece; return its sources, as leaves, and its rows."""
        src: _Sums = {}
        dst: _Sums = {}
        for key, table in tables.items():
            at = piece.at.get(key)
            rows = table if at is None else table.index_select(0, at)
            rows = rows if key in piece.at else _aligned(rows[piece.own[key]])
            src[key] = rows.detach().requires_grad_(key in layer.needs and torch.is_grad_enabled())
            dst[key] = src[key][: piece.own[key].stop - piece.own[key].start]
        versions = [rows._version for rows in (*src.values(), *self.buffers)]
        cast = torch.autocast("cpu", *self.cast)  # as in the call, also in backward
        with torch.random.fork_rng(devices=[]), piece.block.local_scope(), cast:
            seed = combine(self.fg._g.session.store.seed, layer.number, piece.node[0])
            torch.default_generator.manual_seed(int(seed) >> 1)
            only = layer.keys[0]
            out = layer.layer(piece.block, (src, dst) if self.typed else (src[only], dst[only]))
        if [rows._version for rows in (*src.values(), *self.buffers)] != versions:
            raise InvalidArgumentError(
                "a layer must not write to its input, or to buffers as spectral_norm does: other pieces read them"
            )
        by_key = out if self.typed else {only: out}
        if not isinstance(by_key, Mapping) or not by_key or not by_key.keys() <= piece.own.keys():
            raise InvalidArgumentError(f"a layer must return rows by {list(piece.own)} (got {type(out).__name__})")
        for key, rows in by_key.items():
            _check_rows(f"rows of {key!r} that a layer returns", rows, piece.own[key].stop - piece.own[key].start)
        _check_graph([rows.grad_fn for rows in by_key.values()], {*map(id, src.values()), *map(id, layer.parameters)})
        return src, {key: by_key[key] for key in piece.own if key in by_key}

    @collective("trainers")
    def forward(self, inputs: Sequence[_Tensor]) -> tuple[list[_Tensor], list[_Tensor]]:
        """Return the rows of the last layer, and what computing again needs."""
        rows, saved = dict(zip(self.keys, inputs, strict=True)), list[_Tensor]()
        needs = [key for key, x in rows.items() if x.requires_grad and self.grad]
        for layer in self.layers:
            layer.keys, layer.needs, layer.keep = [*rows], needs, self.grad and bool(needs or layer.parameters)
            layer.likes = {key: of.new_empty((0, *of.shape[1:])) for key, of in rows.items()}
            if self.fg.recompute and layer.keep:
                layer.graphs = None
                saved += rows.values()
            rows = self.compute(layer, self.read(layer, [*rows.values()]))
            needs = [key for key, of in rows.items() if layer.keep and of.is_floating_point()]
        return [*rows.values()], saved

    @collective("trainers")
    def compute(self, layer: _Layer, tables: dict[Any, _Tensor]) -> dict[Any, _Tensor]:
        """Return the rows of a layer."""
        fg = self.fg

        def run() -> tuple[list[_Sums], Any]:
            outs, kinds = [], []
            for piece in fg._pieces:
                with torch.set_grad_enabled(self.grad and layer.graphs is not None):
                    src, out = self.run_piece(layer, piece, tables)
                if layer.keep and layer.graphs is not None:
                    layer.graphs[piece.node] = src, out
                outs.append({key: of.detach() for key, of in out.items()})
                kinds.append({str(key): kind_of(of, 1) for key, of in out.items()})
            return outs, alike("rows of a layer", kinds, "piece")

        outs, words = fg._together(f"layer, call {layer.number}", run)
        kinds = alike("rows of a layer", words) or {}
        layer.out = [key for key in fg._ids if str(key) in kinds]
        return {key: _joined([out[key] for out in outs], rows_of_kind(kinds[str(key)])) for key in layer.out}

    def back_piece(self, layer: _Layer, piece: Piece, tables: dict[Any, _Tensor], grad_of: _Sums) -> _Sums:
        """Run a piece backward."""
        if layer.graphs is None:
            with torch.enable_grad(), in_modes(self.modes):
                src, out = self.run_piece(layer, piece, tables)
        elif piece.node in layer.graphs:
            src, out = layer.graphs.pop(piece.node)
        else:
            raise InvalidArgumentError(
                "backward ran already: add up the losses, or let FullGraph(..., recompute=True) compute layers again"
            )
        ends = [key for key in grad_of if out[key].requires_grad]
        inputs = {key: src[key] for key in layer.needs} | dict(enumerate(layer.parameters))
        sums: _Sums = {}
        if ends and inputs:
            of = [_aligned(grad_of[key][piece.own[key]]) for key in ends]
            got = torch.autograd.grad([out[key] for key in ends], [*inputs.values()], of, allow_unused=True)
            sums = {key: grad for key, grad in zip(inputs, got, strict=True) if grad is not None}
        if any(grad.layout != torch.strided for grad in sums.values()):
            raise InvalidArgumentError("gradients of parameters must be dense: use nn.Embedding(..., sparse=False)")
        return sums | {key: torch.zeros_like(src[key]) for key in layer.needs if key not in sums}

    @collective("trainers")
    def backward(self, grads: Sequence[_Tensor | None], saved: Sequence[_Tensor]) -> list[_Tensor | None]:
        """Return the gradients of the inputs and of the parameters."""
        if saved:
            self.fg._together(f"backward, call {self.layers[-1].number}, again", lambda: (None, None))
        left, sums = list(saved[: len(saved) - len(self.parameters)]), dict[tuple[int, int], list[_Sums]]()
        grad_of = {key: grad for key, grad in zip(self.layers[-1].out, grads, strict=True) if grad is not None}
        for number, layer in reversed([*enumerate(self.layers)]):
            if layer.keep:
                tables: dict[Any, _Tensor] = {}
                if layer.graphs is None:
                    tables = self.read(layer, left[-len(layer.keys) :])
                    del left[-len(layer.keys) :]
                at_roots, used = self.back(layer, tables, grad_of)
                sums |= {(number, i): at_roots for i in used}
                del tables, grad_of
                grad_of = self.home(layer, at_roots)
        of_parameters = self._weights(sums)
        of_inputs = [grad_of.get(key) if key in self.layers[0].needs else None for key in self.keys]
        return of_inputs + [of_parameters.get(p) for p in self.parameters]

    @collective("trainers")
    def back(self, layer: _Layer, tables: dict[Any, _Tensor], grad_of: _Sums) -> tuple[list[_Sums], list[int]]:
        """Run a layer backward; return the sums at own roots, and the parameters that any trainer uses."""
        fg, pieces = self.fg, {piece.node: piece for piece in self.fg._pieces}

        def leaf(node: Node) -> _Sums | None:
            return self.back_piece(layer, pieces[node], tables, grad_of) if node in pieces else None

        def add_up(node: Node, left: _Sums, right: _Sums) -> _Sums:
            sums = left | right
            for key in left.keys() & right.keys():
                if key in fg._homes:
                    sums[key] = fg._homes[key].below.add(node, left[key], right[key])
                else:
                    both = left.pop(key), right.pop(key)
                    sums[key] = torch.cat(both) if isinstance(key, tuple) else add(*both)
            return sums

        def run() -> tuple[list[_Sums], Any]:
            at_roots = [climb(root, leaf, add_up) for root in fg._roots]
            return at_roots, [i for i in range(len(layer.parameters)) if any(i in sums for sums in at_roots)]

        at_roots, words = fg._together(f"backward, call {layer.number}", run)
        return at_roots, sorted(set[int]().union(*words))

    @collective("trainers")
    def home(self, layer: _Layer, at_roots: list[_Sums]) -> _Sums:
        """Return the gradients of own rows, from those at own roots, which are forgotten."""
        fg, grad_of = self.fg, dict[Any, _Tensor]()
        for key in layer.needs:
            rows = [sums.pop(key) for sums in at_roots]
            grad_of[key] = _joined(rows, layer.likes[key])
            if key in fg._homes:
                home = fg._homes[key]
                came = fg._move(f"gradients of {key!r}", grad_of[key][home.away], home.going, home.coming)
                grad_of[key] = home.sum(dict(zip(fg._roots, rows, strict=True)), came)
        return grad_of

    @collective("trainers")
    def _weights(self, at_roots: dict[tuple[int, int], list[_Sums]]) -> dict[_Tensor, _Tensor]:
        """Return the gradients of the parameters, from those at own roots by layer and number of the parameter."""
        of = {key: self.layers[key[0]].parameters[key[1]] for key in at_roots}
        results: dict[_Tensor, _Tensor] = {}
        if not of:
            return results
        tree, size, sizes = self.fg._tree, self.fg._world.trainers.size, [p.numel() for p in of.values()]
        width = -(-sum(sizes) // size)  # of the slice that each trainer adds up
        dtype = reduce(torch.promote_types, [p.dtype for p in of.values()])
        slices = torch.full((len(self.fg._roots), size * width), -0.0, dtype=dtype)
        for root, row in enumerate(slices):
            for key, out in zip(of, torch.split(row[: sum(sizes)], sizes), strict=True):
                if key[1] in at_roots[key][root]:
                    out.copy_(at_roots[key][root].pop(key[1]).flatten())
        sent = slices.reshape(-1, size, width).transpose(0, 1).reshape(-1, width)
        each = np.array([len(roots) for roots in tree.roots])
        came = self.fg._move("gradients of parameters", sent, np.full(size, len(slices)), each)
        at = dict(zip(tree.all_roots, came, strict=True))
        total, one = climb(tree.top, at.get, lambda _, left, right: left + right), np.ones(size, np.int64)
        every = self.fg._move("gradients of parameters", total.expand(size, width).contiguous(), one, one).flatten()
        for p, grad in zip(of.values(), torch.split(every[: sum(sizes)], sizes), strict=True):
            own = grad.reshape(p.shape).to(p.dtype)
            results[p] = results[p] + own if p in results else own
        return results


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: _Tensor) -> tuple[_Tensor, ...]:  # type: ignore[override]
        ctx.call = call
        ctx.set_materialize_grads(False)
        rows, saved = call.forward(tensors[: len(call.keys)])
        ctx.save_for_backward(*saved, *(call.parameters if saved else ()))  # torch knows if they are changed
        return tuple(rows)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: _Tensor | None) -> tuple[_Tensor | None, ...]:
        return (None, *ctx.call.backward(grads, ctx.saved_tensors))


class _Mean(torch.autograd.Function):
    """The mean over all trainers: a number that is known, with the gradient of this trainer's values."""

    @staticmethod
    def forward(ctx: Any, values: _Tensor, weights: _Tensor, mean: _Tensor) -> _Tensor:  # type: ignore[override]
        ctx.save_for_backward(weights)
        return mean.clone()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: _Tensor) -> tuple[_Tensor, None, None]:
        return grad * ctx.saved_tensors[0], None, None


def _parameters(of: Any) -> list[_Tensor]:
    return [p for module in modules_of(of) for p in module.parameters() if p.requires_grad]


def _check_graph(functions: list[Any], known: set[int]) -> None:
    """Look at the graph of a piece: the gradient of what is not known would be lost."""
    seen = {None}
    while functions:
        function = functions.pop()
        if function in seen:
            continue
        seen.add(function)
        variable = getattr(function, "variable", None)
        if isinstance(function, _Layers) or (variable is not None and id(variable) not in known):
            text = "uses a tensor that needs a gradient, and is neither its input nor a parameter of the model"
            raise InvalidArgumentError(f"a layer {text}: put it into the model, or into x (got {kind_of(variable)})")
        functions += [one for one, _ in function.next_functions]


def _check_rows(what: str, rows: object, count: int) -> None:
    if (
        not isinstance(rows, _Tensor)
        or rows.device.type != "cpu"
        or rows.layout != torch.strided
        or rows.shape[:1] != (count,)
    ):
        raise InvalidArgumentError(f"{what} must be a dense tensor on the CPU with {count} rows (got {kind_of(rows)})")


def _joined(rows: list[_Tensor], none: _Tensor) -> _Tensor:
    """Return rows of all pieces; ``none`` are rows of their kind."""
    return rows[0] if len(rows) == 1 else torch.cat([none, *rows])


def _index(places: _Tensor, halo: Halo) -> _Tensor | None:
    """Return the places of a piece's sources in a table; None if they are the table."""
    count = len(halo.own) + len(halo.ids)
    return None if len(places) == count and torch.equal(places, torch.arange(count)) else places


def _aligned(rows: _Tensor) -> _Tensor:
    """Return rows that begin where memory of their own would."""
    rows = rows.contiguous()
    return rows if rows.data_ptr() % _ALIGNED == 0 else rows.clone()


def _table(rows: _Tensor, halo: Halo | None) -> _Tensor | None:
    """Return the rows of :meth:`FullGraph.ndata` with a halo, if that is theirs, and they were not written since."""
    table, version, of = getattr(rows, "_table", (None, 0, None))
    return table if of is halo and rows._version == version else None
