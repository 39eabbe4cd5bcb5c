"""Train on the whole graph: before a layer the rows of other trainers' nodes come, after it their gradients go home.

One autograd node (:class:`_Layer`) is one layer on all pieces: its backward runs the pieces' own small graphs and makes
all exchanges in one order, whatever the order of autograd's queue. Trainers agree on each of its steps, so an error of
one is raised on all, and a call of another kind is an error, not a wait.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.distgraph.graph import DistGraph
from mpigraph.errors import (
    CollectiveError,
    FieldNameError,
    InvalidArgumentError,
    TensorMismatchError,
    check_integer,
    check_state,
)
from mpigraph.fullgraph.plan import Halo, Node, Piece, Pieces, climb, whole_block
from mpigraph.graphs.fields import EID
from mpigraph.inference.layerwise import modules_of, steps_of
from mpigraph.kernels.rng import combine
from mpigraph.metadata.schema import Relation
from mpigraph.mpi.agree import allgather_bytes, everywhere, joint_error, same, to_wire
from mpigraph.mpi.coroutine import finish
from mpigraph.mpi.messages import alltoall
from mpigraph.mpi.wait import NOW
from mpigraph.store.host_ranges import cut_offsets

T = TypeVar("T")
Key = str | Relation
"""A node type, or a relation whose edges have rows."""
_Rows = torch.Tensor | Mapping[Any, torch.Tensor]
_ALIGNED = 64  # bytes; where an array begins may change the last bits of a product
_ERROR = b"!"


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

    Parameters have the sums of their gradients over all nodes on every trainer, so the model is not wrapped in DDP.
    All parameters must be in layers; what a script computes of own rows between calls must treat each row alike.
    Best with ``initialize(num_servers=0)``: a server trains nothing.

    Args:
        g: the graph.
        pieces: into how many pieces to divide the nodes; by default one for each part. Best a multiple of the number
            of trainers, and not a large one: sources that pieces of a trainer share are gathered for each.
        edata: names of edge features that blocks have, ``block.edges[etype].data[name]``.
        recompute: compute a layer again in backward, piece by piece, rather than keep what its gradient needs; the rows
            of its halo then travel a second time. Memory: the inputs of the layers, one table of own and halo rows, and
            one piece. The bits are the same.
        threads: torch's threads while a piece is computed; the script's own number counts outside.

    Raises:
        InvalidArgumentError: an argument is not as described above.
        FieldNameError: no relation has a feature of ``edata``.

    All errors, of the methods, too, are raised on every trainer. All methods are collective on the trainers, except
    where they say otherwise, and so is ``loss.backward()``.
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
        self._g, self._world = g, g.session.world
        world, parts = self._world, g.loaded.topology.config.book.node_offsets
        arguments: dict[str, object] = {"pieces": pieces, "edata": edata, "recompute": recompute, "threads": threads}
        with world.meeting("comparing the arguments of FullGraph"):
            same(
                world.trainers, "trainers give FullGraph different arguments", arguments, TensorMismatchError, "trainer"
            )
        with world.together("FullGraph"):
            count = len(parts[0]) - 1 if pieces is None else check_integer("pieces", pieces, 1)
            self._threads = check_integer("threads", threads, 1)
            names = [edata] if isinstance(edata, str) else list(edata)
            for name in names:
                if not any(name in g.edges[r].data for r in g.canonical_etypes):
                    raise FieldNameError(f"no relation has an edge feature {name!r}")
        self.recompute = bool(recompute)
        self._calls = self._models = 0
        self._keys: dict[Key, torch.Tensor] = {}  # ids of the own rows
        with world.meeting("making a communicator for full-graph training"):
            self._comm = world.trainers.Dup()
        self._pieces = Pieces(world, count)
        bounds = {t: cut_offsets(offsets, count) for t, offsets in zip(g.ntypes, parts, strict=True)}
        self._own, sources = self._blocks(bounds, names)
        self._halos = {}
        for ntype in g.ntypes:
            with world.meeting("planning full-graph training"):
                self._halos[ntype] = Halo(
                    self._comm,
                    self._pieces,
                    lambda ids, ends=bounds[ntype]: self._pieces.owners[np.searchsorted(ends, ids, "right") - 1],
                    self._keys[ntype].numpy(),
                    {piece.node: ids[ntype] for piece, ids in zip(self._own, sources, strict=True)},
                )
        sizes = [
            len(self._own),
            *(sum(getattr(halo, of) for halo in self._halos.values()) for of in ("num_own", "num_halo")),
        ]
        sizes.append(sum(len(self._keys[r]) for r in g.canonical_etypes))
        with world.meeting("planning full-graph training"):
            self._sizes = [json.loads(text) for text in allgather_bytes(self._comm, json.dumps(sizes).encode())]

    @collective("trainers")
    def _blocks(self, bounds: Mapping[str, I64], names: Sequence[str]) -> tuple[list[Piece], list[dict[str, I64]]]:
        """Return the own pieces, and the ids of their sources; all trainers take as many steps."""
        g, pieces, sources = self._g, list[Piece](), list[dict[str, I64]]()
        numbers = np.flatnonzero(self._pieces.owners == self._comm.rank).tolist()
        most = int(np.bincount(self._pieces.owners).max())
        ids: dict[Key, list[torch.Tensor]] = {key: [] for key in (*g.ntypes, *g.canonical_etypes)}
        ends = dict.fromkeys(ids, 0)
        for number in numbers + [-1] * (most - len(numbers)):
            seeds = {} if number < 0 else {t: np.arange(*bounds[t][number : number + 2]) for t in g.ntypes}
            block, read = whole_block(g, {g.schema.ntype_id(t): nodes for t, nodes in seeds.items()})
            if number < 0:
                continue
            eids = {r: block.edges[r].data[EID] for r in g.canonical_etypes}
            own = {}
            for key, rows in ({t: torch.from_numpy(nodes) for t, nodes in seeds.items()} | eids).items():
                own[key] = slice(ends[key], ends[key] + len(rows))
                ends[key] = own[key].stop
                ids[key].append(rows)
            for r, rows in eids.items():
                block.edges[r].data.update(
                    {name: g.edges[r].data[name][rows] for name in names if name in g.edges[r].data}
                )
            pieces.append(Piece((number, number + 1), block, own))
            sources.append(read)
        none = torch.empty(0, dtype=torch.int64)
        self._keys = {key: torch.cat([none, *rows]) for key, rows in ids.items()}
        return pieces, sources

    def __repr__(self) -> str:
        """Describe the plan: what each trainer has, and what one layer sends and keeps for each byte of a row."""
        lines = [f"FullGraph({self._g.graph_name!r}, pieces={self._pieces.count}, threads={self._threads})"]
        lines.append("trainer  pieces  own rows  halo rows  halo/own  in-edges")
        for trainer, (pieces, own, halo, edges) in enumerate(self._sizes):
            lines.append(f"{trainer:7}  {pieces:6}  {own:8}  {halo:9}  {halo / max(own, 1):8.3f}  {edges:8}")
        own, halo = (sum(sizes[i] for sizes in self._sizes) for i in (1, 2))
        table = max(own + halo for _, own, halo, _ in self._sizes)
        lines.append(
            f"a layer with rows of 64 float32 sends {halo * 256 / 1e6:.3f} MB, and as many gradients come back"
        )
        lines.append(f"its table of own and halo rows takes at most {table * 256 / 1e6:.3f} MB on a trainer")
        return "\n".join(lines)

    # Rows of own nodes and edges

    def nodes(self, ntype: str | None = None) -> torch.Tensor:
        """Return the ids of this trainer's nodes of a type, int64[n], in the order of their rows. Local."""
        return self._keys[self._g.ntypes[self._g.schema.ntype_id(ntype)]].clone()

    def eids(self, etype: str | Relation | None = None) -> torch.Tensor:
        """Return the ids of the in-edges of this trainer's nodes, int64[m], in the order of their rows. Local."""
        return self._keys[self._g.to_canonical_etype(etype)].clone()

    def ndata(self, name: str, ntype: str | None = None) -> torch.Tensor:
        """Return a feature of this trainer's nodes, [n, ...]. One-sided.

        Floats are read with the rows of the halo, once: a layer that is given the tensor unchanged sends nothing.
        """
        ntype = self._g.ntypes[self._g.schema.ntype_id(ntype)]
        halo, ids = self._halos[ntype], self._keys[ntype]
        rows = self._g.nodes[ntype].data[name]
        if not rows.dtype.is_floating_point:
            return rows[ids]
        table = rows[torch.cat([ids, halo.ids])]
        own = table[: halo.num_own]
        own._table = table, own._version  # type: ignore[attr-defined]
        return own

    def edata(self, name: str, etype: str | Relation | None = None) -> torch.Tensor:
        """Return a feature of the in-edges of this trainer's nodes, [m, ...]. One-sided."""
        return self._g.edges[etype].data[name][self.eids(etype)]

    # Layers

    @collective("trainers")
    def __call__(self, model: Any, x: _Rows) -> Any:
        """Return the rows of the model's last layer.

        Args:
            model: as for :func:`.layerwise`: a list of layers, each called as ``layer(block, (h_src, h_dst))``, or a
                module with ``layers`` and a method ``forward_layer(i, block, h)``, where ``h`` are the rows of the
                sources, the destinations first.
            x: rows of this trainer's nodes, [n, ...]; or by node type. A dict may also have rows of the in-edges of
                this trainer's nodes, by relation (a triple); layers get those of their block and may return new ones.

        Returns:
            Rows of this trainer's nodes; dicts as ``x``.

        Raises:
            InvalidArgumentError: the model is wrapped in DDP, or has a BatchNorm in training, whose sums would be of
                a piece; or a layer returns something else than a row for each destination, writes to its input, or
                uses a tensor that needs a gradient and is not a parameter of the model.
            TensorMismatchError: the trainers' models, or their rows, differ in more than their number.
            CollectiveError: trainers make different calls.

        Random draws inside layers, such as dropout, depend on the job's seed, the number of the call and the piece.
        """

        def read() -> tuple[tuple[Any, dict[str, torch.Tensor]], None]:
            for module in [model] if isinstance(model, nn.Module) else modules_of(model):
                for part in module.modules():
                    if isinstance(part, nn.parallel.DistributedDataParallel):
                        raise InvalidArgumentError("give the model without DDP: gradients are sums over all nodes")
                    if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
                        raise InvalidArgumentError(
                            f"{type(part).__name__} would average over a piece in training: use LayerNorm"
                        )
            state = [list(module.state_dict().items()) for module in modules_of(model)]
            steps = steps_of(model)
            return (steps, {f"{i} {name}": value for i, one in enumerate(state) for name, value in one}), None

        (steps, state), _ = self._together("reading the model", read)
        self._models += 1
        if self._models & (self._models - 1) == 0:  # calls 1, 2, 4, 8, ...
            hashes = {n: blake2b(_bytes(v)).hexdigest()[:16] for n, v in state.items() if isinstance(v, torch.Tensor)}
            with self._world.meeting("comparing the trainers' models"):
                values = {"layers": len(steps), "parameters": len(hashes)} | hashes
                same(self._comm, "the trainers' models differ", values, TensorMismatchError, "trainer")
        parameters = [p for module in modules_of(model) for p in module.parameters() if p.requires_grad]
        apart = not callable(getattr(model, "forward_layer", None))
        layers = getattr(model, "layers", model)
        for i, step in enumerate(steps):
            own = (
                [p for p in layers[i].parameters() if p.requires_grad]
                if apart and isinstance(layers[i], nn.Module)
                else []
            )
            x = self.apply(step, x, own if apart else parameters)
        return x

    @collective("trainers")
    def apply(self, layer: Callable[..., Any], x: _Rows, parameters: Sequence[torch.Tensor] = ()) -> Any:
        """Return the rows of one layer, for a script with a loop of its own; arguments and errors as above.

        Args:
            layer: called as ``layer(block, (h_src, h_dst))``.
            x: rows of own nodes and edges.
            parameters: all those that the layer uses.
        """
        self._calls += 1
        return _Call(self, layer, x, list(dict.fromkeys(parameters))).rows()

    @collective("trainers")
    def mean(self, values: torch.Tensor, mask: torch.Tensor | None = None, ntype: Key | None = None) -> torch.Tensor:
        """Return the mean of numbers of all nodes, the same bits on every trainer; differentiable.

        Args:
            values: [n, ...], of this trainer's nodes of a type, or in-edges of a relation.
            mask: bool[n], the nodes that count; all by default.
            ntype: a node type, which graphs with several need, or a relation (a triple).
        """
        return _Mean.apply(values, self, mask, ntype)  # type: ignore[no-any-return, no-untyped-call]

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return what the bits of the next steps depend on, beside model and optimizer, for a checkpoint. Local."""
        return {"calls": self._calls} | self._result()

    def _result(self) -> dict[str, Any]:
        return {"graph": self._g.identity, "pieces": self._pieces.count, "threads": self._threads}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue with a saved state; on any number of trainers. Local.

        Raises InvalidArgumentError if it is of another partitioning or number of pieces or threads.
        """
        check_state("FullGraph", state_dict, {"calls": int, "graph": str, "pieces": int, "threads": int})
        for name, value in self._result().items():
            if state_dict[name] != value:
                raise InvalidArgumentError(
                    f"the state of FullGraph is of {name}={state_dict[name]!r}, here it is {value!r}"
                )
        self._calls = int(state_dict["calls"])

    # Communication

    @contextmanager
    def _computing(self) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            with self._world.forbid_meetings("a layer"):
                yield
        finally:
            torch.set_num_threads(before)

    @collective("trainers")
    def _together(self, what: str, work: Callable[[], tuple[T, Any]]) -> tuple[T, list[Any]]:
        """Do local work, which returns a result and a word for the others; return it and the words of all trainers.

        Raises on all trainers what it raised on one, and CollectiveError where they do different things.
        """
        what, failure, result = f"full-graph training: {what}", None, None
        try:
            with self._computing():
                result, word = work()
            data = json.dumps([what, word]).encode()
        except Exception as error:
            failure, data = error, _ERROR + to_wire(error)
        with self._world.meeting(what):
            said = allgather_bytes(self._comm, data)
        if any(one.startswith(_ERROR) for one in said):
            raise joint_error(
                what, [one[1:] if one.startswith(_ERROR) else b"" for one in said], "trainer"
            ) from failure
        decoded = [json.loads(one) for one in said]
        by_call: dict[str, list[str]] = {}
        for trainer, (call, _) in enumerate(decoded):
            by_call.setdefault(call, []).append(str(trainer))
        if len(by_call) > 1:
            calls = "; ".join(f"{call} on trainer {', '.join(trainers)}" for call, trainers in by_call.items())
            raise everywhere(CollectiveError(f"trainers make different calls: {calls}"))
        return result, [word for _, word in decoded]  # type: ignore[return-value]

    @collective("trainers")
    def _move(
        self, what: str, rows: torch.Tensor, going: I64, coming: I64, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Send ``going[r]`` consecutive rows to trainer r; all are here."""
        if self._comm.size == 1:
            return rows
        out = rows.new_empty((int(coming.sum()), *rows.shape[1:])) if out is None else out
        sent, came = _bytes(rows), _bytes(out)
        nbytes = sent.nbytes + came.nbytes
        finish([alltoall(self._comm, sent, going, coming, came)], f"full-graph training: {what}", NOW, nbytes=nbytes)
        return out

    @collective("trainers")
    def _sum(self, what: str, vectors: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """Return the sum of vectors (one for each own root, [n] as ``like``) over all pieces, on every trainer."""
        size, roots, n = self._comm.size, self._pieces.roots, len(like)
        width = -(-n // size)  # of the slice of each trainer
        rows = like.new_zeros((len(vectors), size * width))
        for row, vector in zip(rows, vectors, strict=True):
            row[:n] = vector
        slices = rows.reshape(len(vectors), size, width).transpose(0, 1).reshape(-1, width)
        each = np.array([len(nodes) for nodes in roots])
        came = self._move(what, slices, np.full(size, len(vectors)), each)
        at = dict(zip((node for nodes in roots for node in nodes), came, strict=True))
        total = climb((0, self._pieces.count), at.get, lambda _, left, right: left + right)
        one = np.ones(size, np.int64)
        return self._move(what, total.expand(size, width).contiguous(), one, one).flatten()[:n]


class _Call:
    """One layer on all pieces."""

    def __init__(self, fg: FullGraph, layer: Callable[..., Any], x: _Rows, parameters: list[torch.Tensor]) -> None:
        self.fg, self.layer, self.parameters = fg, layer, parameters
        self.number = fg._calls
        self.typed = isinstance(x, Mapping)
        by_key: Mapping[Any, Any] = x if isinstance(x, Mapping) else {fg._g.ntypes[0]: x}
        self.keys: list[Key] = [key for key in fg._keys if key in by_key]
        self.grad = torch.is_grad_enabled()
        self.graphs: dict[Node, Any] | None = {}

        def check() -> tuple[None, Any]:
            unknown = [key for key in by_key if key not in fg._keys]
            if unknown or not by_key or (not self.typed and len(fg._g.ntypes) > 1):
                raise InvalidArgumentError(
                    f"x must be rows by node type or relation, of {list(fg._keys)} (got {unknown})"
                )
            for key in self.keys:
                rows = by_key[key]
                if not isinstance(rows, torch.Tensor) or rows.device.type != "cpu" or rows.dim() < 1:
                    raise InvalidArgumentError(f"x of {key!r} must be a tensor of rows on the CPU (got {_kind(rows)})")
                if len(rows) != len(fg._keys[key]):
                    raise InvalidArgumentError(
                        f"x of {key!r} must have a row for each of {len(fg._keys[key])} own ones (got {_kind(rows)})"
                    )
            self.tables = {key: _table(by_key[key]) for key in self.keys}
            self.inputs = [by_key[key] for key in self.keys]
            self.like = {
                key: rows.new_empty((0, *rows.shape[1:])) for key, rows in zip(self.keys, self.inputs, strict=True)
            }
            self.needs = [rows.requires_grad and self.grad for rows in self.inputs]
            known = [table is not None for table in self.tables.values()]
            kinds = [[str(key), _kind(rows, 1)] for key, rows in zip(self.keys, self.inputs, strict=True)]
            return None, [kinds, self.needs, known, self.grad, len(parameters)]

        _, words = fg._together(f"call {self.number} of a layer", check)
        if any(word != words[0] for word in words):
            texts = "; ".join(f"{word} on trainer {i}" for i, word in enumerate(words))
            raise everywhere(TensorMismatchError(f"trainers give a layer rows of different kinds: {texts}"))

    def rows(self) -> Any:
        """Compute the layer."""
        outs = _Layer.apply(self, *self.inputs, *self.parameters)  # type: ignore[no-untyped-call]
        self.inputs = []
        return dict(zip(self.out, outs, strict=True)) if self.typed else outs[0]

    def read(self, inputs: Sequence[torch.Tensor]) -> dict[Key, torch.Tensor]:
        """Return for each key the rows that own pieces read: own rows, for node types with the halo."""
        tables = {}
        for key, rows in zip(self.keys, inputs, strict=True):
            table, halo = self.tables[key], self.fg._halos.get(key)  # type: ignore[call-overload]
            if table is None and halo is not None:
                table = rows.detach()
                if halo.num_halo:
                    table = torch.cat([table, table.new_empty((halo.num_halo, *rows.shape[1:]))])
                sent = rows.detach().index_select(0, halo.send)
                self.fg._move(f"rows of {key!r}", sent, halo.going, halo.coming, table[halo.num_own :])
            tables[key] = _aligned(rows.detach() if table is None else table)
        return tables

    def run(self, piece: Piece, tables: Mapping[Key, torch.Tensor]) -> tuple[dict[Key, Any], dict[Key, Any]]:
        """Run the layer on one piece; return its sources, as leaves, and its rows."""
        block, src, dst = piece.block, dict[Key, torch.Tensor](), dict[Key, torch.Tensor]()
        for key, need in zip(self.keys, self.needs, strict=True):
            halo = self.fg._halos.get(key)  # type: ignore[call-overload]
            at = None if halo is None else halo.at[piece.node]
            rows = tables[key] if at is None else tables[key].index_select(0, at)
            rows = _aligned(rows[piece.own[key]]) if halo is None else rows
            src[key] = rows.detach().requires_grad_(need and torch.is_grad_enabled())
            dst[key] = src[key] if halo is None else src[key][: block.num_dst_nodes(key)]
        before = [rows._version for rows in src.values()]
        with torch.random.fork_rng(devices=[]), block.local_scope():
            torch.manual_seed(int(combine(self.fg._g.session.store.seed, self.number, piece.node[0])) >> 1)
            ends = (src, dst) if self.typed else (src[self.keys[0]], dst[self.keys[0]])
            out = self.layer(block, ends)
        if [rows._version for rows in src.values()] != before:
            raise InvalidArgumentError("a layer must not write to its input: other pieces read it")
        if not isinstance(out, Mapping if self.typed else torch.Tensor):
            raise InvalidArgumentError(f"a layer must return rows{' by type' * self.typed} (got {type(out).__name__})")
        by_key: Mapping[Any, Any] = out if isinstance(out, Mapping) else {self.keys[0]: out}
        for key, rows in by_key.items():
            count = piece.own[key].stop - piece.own[key].start if key in piece.own else None
            if not isinstance(rows, torch.Tensor) or rows.dim() < 1 or rows.shape[0] != count:
                raise InvalidArgumentError(f"a layer must return a row for each of {count} {key!r} (got {_kind(rows)})")
        self._check_graph(
            [rows.grad_fn for rows in by_key.values()], {*map(id, src.values()), *map(id, self.parameters)}
        )
        return src, dict(by_key)

    def _check_graph(self, functions: list[Any], known: set[int]) -> None:
        """Look at the graph of a piece: gradients of what is not known would be lost."""
        seen = set()
        while functions:
            function = functions.pop()
            if function is None or function in seen:
                continue
            seen.add(function)
            variable = getattr(function, "variable", None)
            if "_Layer" in function.name() or (variable is not None and id(variable) not in known):
                raise InvalidArgumentError(
                    "a layer uses a tensor that needs a gradient, and is neither its input nor a parameter of the model"
                    f" ({function.name() if variable is None else _kind(variable)}): put it into the model, or into x"
                )
            functions += [one for one, _ in function.next_functions]

    @collective("trainers")
    def forward(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute the rows of own nodes, by key: ``out``."""
        fg, keep = self.fg, self.grad and any(self.needs) | bool(self.parameters) and not self.fg.recompute
        tables = self.read(inputs)

        def compute() -> tuple[list[dict[Key, torch.Tensor]], Any]:
            outs = []
            for piece in fg._own:
                with torch.set_grad_enabled(keep):
                    src, out = self.run(piece, tables)
                if keep and self.graphs is not None:
                    self.graphs[piece.node] = src, out
                outs.append({key: rows.detach() for key, rows in out.items()})
            kinds = [[[str(key), _kind(rows, 1)] for key, rows in out.items()] for out in outs]
            return outs, kinds

        outs, words = fg._together(f"layer of call {self.number}", compute)
        kinds = [dict(one) for word in words for one in word]
        names = {str(key): key for key in fg._keys}
        self.out = [key for name, key in names.items() if any(name in one for one in kinds)]
        for key in self.out:
            shapes = {one.get(str(key)) for one in kinds}
            if len(shapes) > 1:
                raise everywhere(TensorMismatchError(f"a layer gives rows of {key!r} of {shapes} on different pieces"))
        if not self.out:
            raise everywhere(InvalidArgumentError("a layer gives no rows"))
        results = []
        for key in self.out:
            rows = [out[key] for out in outs]
            shape, _, dtype = next(one[str(key)] for one in kinds).partition(" ")
            none = torch.empty((0, *json.loads(shape)), dtype=getattr(torch, dtype))
            results.append(rows[0].view_as(rows[0]) if len(rows) == 1 else torch.cat([none, *rows]))
        if not keep:
            self.graphs = None if fg.recompute and self.grad else {}
        return results

    @collective("trainers")
    def backward(self, grads: Sequence[torch.Tensor | None], saved: Sequence[torch.Tensor]) -> list[Any]:
        """Return the gradients of the inputs and the parameters."""
        fg, what = self.fg, f"backward of call {self.number}"
        tables: dict[Key, torch.Tensor] = {}
        if self.graphs is None:  # recompute
            fg._together(f"{what}: again", lambda: (None, None))
            tables = self.read(saved[: len(self.keys)])
        grad_of = {key: grad for key, grad in zip(self.out, grads, strict=True) if grad is not None}
        wanted = [key for key, need in zip(self.keys, self.needs, strict=True) if need]
        of_edges: dict[Key, dict[Node, torch.Tensor]] = {key: {} for key in wanted if key not in fg._halos}
        pieces = {piece.node: piece for piece in fg._own}

        def leaf(node: Node) -> dict[Any, torch.Tensor] | None:
            """Run a piece backward; return gradients of its sources by type, and by number of the parameter."""
            piece = pieces.get(node)
            if piece is None:
                return None
            if self.graphs is None:
                with torch.enable_grad():
                    src, out = self.run(piece, tables)
            elif node in self.graphs:
                src, out = self.graphs.pop(node)
            else:
                raise InvalidArgumentError("backward ran already: retain_graph needs FullGraph(..., recompute=True)")
            ends = [key for key in grad_of if out[key].requires_grad]
            inputs = [*(src[key] for key in wanted), *self.parameters]
            found = [_aligned(grad_of[key][piece.own[key]]) for key in ends]
            got = (
                torch.autograd.grad([out[key] for key in ends], inputs, found, allow_unused=True)
                if ends
                else [None] * len(inputs)
            )
            rows = {key: torch.zeros_like(src[key]) if grad is None else grad for key, grad in zip(wanted, got)}
            for key, by_node in of_edges.items():
                by_node[node] = rows.pop(key)
            weights = {j: grad for j, grad in enumerate(got[len(wanted) :]) if grad is not None}
            return {**rows, **weights}

        def add(node: Node, left: dict[Any, torch.Tensor], right: dict[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
            total = {}
            for key in {**left, **right}:
                both = [side.pop(key) for side in (left, right) if key in side]
                if len(both) == 1:
                    total[key] = both[0]
                else:
                    total[key] = fg._halos[key].below.add(node, *both) if key in fg._halos else both[0] + both[1]
            return total

        def compute() -> tuple[list[dict[Any, torch.Tensor]], Any]:
            at_roots = [climb(root, leaf, add) for root in fg._pieces.roots[fg._comm.rank]]
            return at_roots, sorted({key for one in at_roots for key in one if isinstance(key, int)})

        at_roots, words = fg._together(what, compute)
        roots = fg._pieces.roots[fg._comm.rank]
        results: dict[Key, torch.Tensor] = {}
        for key in wanted:
            if key in of_edges:
                results[key] = torch.cat([of_edges[key][piece.node] for piece in fg._own] or [self.like[key]])
                continue
            halo = fg._halos[key]  # type: ignore[index]
            rows = [one.pop(key) for one in at_roots]
            every = rows[0] if len(rows) == 1 else torch.cat([self.like[key], *rows])
            sent = every.index_select(0, halo.away)
            came = fg._move(f"gradients of {key!r}", sent, halo.back_going, halo.back_coming)
            results[key] = halo.gradients(dict(zip(roots, rows, strict=True)), came)
        used = sorted({j for word in words for j in word})
        weights: list[torch.Tensor | None] = [None] * len(self.parameters)
        if used:
            of = [self.parameters[j] for j in used]
            none = torch.empty(0, dtype=reduce(torch.promote_types, [p.dtype for p in of]))
            vectors = [
                torch.cat(
                    [
                        none,
                        *(one[j].flatten() if j in one else torch.full((p.numel(),), -0.0) for j, p in zip(used, of)),
                    ]
                )
                for one in at_roots
            ]
            like = none.new_empty(sum(p.numel() for p in of))
            total = fg._sum("gradients of parameters", vectors, like).split([p.numel() for p in of])
            for j, p, grad in zip(used, of, total, strict=True):
                weights[j] = grad.reshape(p.shape).to(p.dtype)
        return [*(results.get(key) for key in self.keys), *weights]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        ctx.call = call
        ctx.set_materialize_grads(False)
        outs = tuple(call.forward(tensors[: len(call.keys)]))
        if call.graphs is None:
            ctx.save_for_backward(*tensors)
        return outs

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, *ctx.call.backward(grads, ctx.saved_tensors))


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, values: torch.Tensor, fg: FullGraph, mask: torch.Tensor | None, ntype: Key | None
    ) -> torch.Tensor:
        def add_up() -> tuple[tuple[list[torch.Tensor], torch.Tensor], Any]:
            schema = fg._g.schema
            is_edges = isinstance(ntype, tuple)
            key: Key = fg._g.to_canonical_etype(ntype) if is_edges else schema.ntypes[schema.ntype_id(ntype)]
            own = len(fg._keys[key])
            kept = torch.ones(own, dtype=torch.bool) if mask is None else mask.bool()
            for name, rows in (("values", values), ("mask", kept)):
                if rows.dim() < 1 or len(rows) != own or (rows is kept and rows.dim() > 1):
                    raise InvalidArgumentError(
                        f"{name} must have a row for each of {own} own {key!r} (got {_kind(rows)})"
                    )
            kept = kept.reshape(own, *[1] * (values.dim() - 1)).expand_as(values)
            numbers = values.detach().double().masked_fill(~kept, 0.0)
            pieces = {piece.node: piece.own[key] for piece in fg._own}

            def leaf(node: Node) -> torch.Tensor | None:
                rows = pieces.get(node)
                return (
                    None if rows is None else torch.stack([_aligned(x[rows]).sum().double() for x in (numbers, kept)])
                )

            roots = fg._pieces.roots[fg._comm.rank]
            sums = [climb(root, leaf, lambda _, left, right: left + right) for root in roots]
            return (sums, kept), [str(key), _kind(values, 1)]

        (sums, ctx.kept), words = fg._together("mean", add_up)
        if any(word != words[0] for word in words):
            raise everywhere(TensorMismatchError(f"trainers give mean() numbers of different kinds: {words}"))
        total, count = fg._sum("mean", sums, torch.empty(2, dtype=torch.float64))
        ctx.count = count
        ctx.set_materialize_grads(False)
        return (total / count).to(values.dtype if values.is_floating_point() else torch.float32)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        share = (grad.double() / ctx.count).to(grad.dtype)
        return ctx.kept * share, None, None, None


def _bytes(rows: torch.Tensor) -> Array:
    """Return the memory of contiguous rows, uint8[n, bytes of a row]."""
    width = math.prod(rows.shape[1:])
    return rows.detach().contiguous().reshape(len(rows) if rows.dim() else 1, width).view(torch.uint8).numpy()


def _aligned(rows: torch.Tensor) -> torch.Tensor:
    """Return rows that begin where memory of their own would."""
    rows = rows.contiguous()
    return rows if rows.data_ptr() % _ALIGNED == 0 else rows.clone()


def _kind(rows: object, first: int = 0) -> str:
    """Return the shape, from a dimension on, and the dtype of a tensor, for messages."""
    if not isinstance(rows, torch.Tensor):
        return type(rows).__name__
    return f"{list(rows.shape[first:])} {str(rows.dtype).removeprefix('torch.')}"


def _table(rows: torch.Tensor) -> torch.Tensor | None:
    """Return the rows of :meth:`FullGraph.ndata` with their halo, unless they were written since."""
    table, version = getattr(rows, "_table", (None, 0))
    return table if rows._version == version else None
