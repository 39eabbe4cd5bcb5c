"""The nodes that each trainer computes, blocks of their in-edges, and the rows that these read.

Nodes are divided into consecutive ranges, each of one trainer. All in-edges lie with their destinations, so a trainer
knows what its nodes read. Its *table* of a node type has its own rows, by id, and then the *halo*: rows of other
trainers that it reads, by their owner and id. Before a layer the halo comes, each row once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from mpigraph.arrays import I64, Array
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampled_graph import hop_blocks
from mpigraph.distgraph.sampling_arguments import SamplingArguments
from mpigraph.errors import TensorMismatchError
from mpigraph.graphs.block import Block
from mpigraph.metadata.schema import Relation
from mpigraph.mpi.agree import different_calls, everywhere, gather_unlike, joint_error, to_wire
from mpigraph.mpi.coroutine import finish
from mpigraph.mpi.messages import alltoall, exchange_rows
from mpigraph.mpi.world import Trainers, World
from mpigraph.sampling.minibatch import RandomContext, sample_hops
from mpigraph.sampling.strategies import HopKeys

T = TypeVar("T")
_ERROR = b"!"
_SHOWN = 8  # trainers in a message


class Ranges(NamedTuple):
    """The nodes of a type, in consecutive ranges.

    Attributes:
        bounds: int64[n + 1]; range i has the nodes ``bounds[i]`` up to, not with, ``bounds[i + 1]``.
        owners: int64[n], the trainer of each.
    """

    bounds: I64
    owners: I64

    def owner(self, ids: I64) -> I64:
        """Return the trainers of nodes."""
        return self.owners[np.searchsorted(self.bounds, ids, "right") - 1]

    def of(self, trainer: int) -> list[tuple[int, int]]:
        """Return begin and end of a trainer's ranges."""
        own = np.flatnonzero(self.owners == trainer)
        return list(zip(self.bounds[own].tolist(), self.bounds[own + 1].tolist(), strict=True))


@collective("comm")
def move(
    comm: Trainers, what: str, rows: torch.Tensor, going: I64, coming: I64, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Send ``going[r]`` consecutive rows to trainer r; return those that come, ``coming[r]`` from each."""
    if comm.size == 1:
        return rows
    out = rows.new_empty((int(coming.sum()), *rows.shape[1:])) if out is None else out
    finish([alltoall(comm, bytes_of(rows), going, coming, bytes_of(out))], what, stage="exchange")
    return out


def bytes_of(rows: torch.Tensor) -> Array:
    """Return the memory of contiguous rows, uint8[n, bytes of a row]."""
    width = rows.shape[1:].numel()
    return rows.detach().contiguous().reshape(len(rows) if rows.dim() else 1, width).view(torch.uint8).numpy()


def kind_of(rows: object, first: int = 0) -> str:
    """Return the shape, from a dimension on, and the dtype of a tensor; of other objects the name of the class."""
    if not isinstance(rows, torch.Tensor):
        return type(rows).__name__
    return f"{list(rows.shape[first:])} {str(rows.dtype).removeprefix('torch.')}"


def rows_of_kind(kind: str) -> torch.Tensor:
    """Return a tensor of no row of a kind, which begins with the second dimension."""
    shape, _, dtype = kind.rpartition(" ")
    return torch.empty((0, *json.loads(shape)), dtype=getattr(torch, dtype))


def alike(what: str, words: Sequence[Any], label: str = "trainer") -> Any:
    """Return the word of all that have one, None if no one has; of dicts that of each name.

    Raises TensorMismatchError, on every trainer, where they differ; all trainers have the same ``words``. Each is of
    what ``label`` says.
    """
    if any(isinstance(word, dict) for word in words):
        names = dict.fromkeys(name for word in words for name in word or ())
        return {name: alike(f"{what}: {name}", [(word or {}).get(name) for word in words], label) for name in names}
    said: dict[str, list[int]] = {}
    for number, word in enumerate(words):
        if word is not None:
            said.setdefault(json.dumps(word), []).append(number)
    if len(said) > 1:
        parts = [f"{text} on {label} {', '.join(map(str, numbers[:_SHOWN]))}" for text, numbers in said.items()]
        raise everywhere(TensorMismatchError(f"{what}: these differ: {'; '.join(parts)}"))
    return next((word for word in words if word is not None), None)


@collective("trainers")
def in_step(
    world: World, doing: str, work: Callable[[], tuple[T, Any]], threads: int | None = None
) -> tuple[T, list[Any]]:
    """Do local work, which returns a result and a word for the others; return it and the words of all trainers.

    ``threads``: those of torch meanwhile. Raises on all trainers what it raised on one, and CollectiveError where they
    do different things.
    """
    world.check_main_thread(doing)
    failure, before = None, torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with world.forbid_meetings("a layer"):
            result, word = work()
        data = json.dumps([doing, word]).encode()
    except Exception as error:
        failure, data = error, _ERROR + to_wire(error)
    finally:
        torch.set_num_threads(before)
    with world.meeting(doing):
        told = gather_unlike(world.training, data)
    errors = [one[1:] if one.startswith(_ERROR) else b"" for one in told]
    if any(errors):
        raise joint_error(doing, errors, "trainer") from failure
    calls, words = zip(*map(json.loads, told), strict=True)
    if len(set(calls)) > 1:
        raise different_calls(calls)
    return result, list(words)


class Halo:
    """The table of one node type, and the exchange that fills it.

    Attributes:
        own: int64[n], ids of this trainer's rows.
        ids: int64[m], those of the halo; ``coming`` int64[trainers] of them from each trainer.
        send: int64[k], the own rows that others read; ``going`` int64[trainers] of them to each.
    """

    @collective("comm")
    def __init__(self, comm: Trainers, ranges: Ranges, own: I64, read: I64) -> None:
        """Tell the owners what this trainer reads: ``read``, any ids; ``own`` are ascending."""
        halo = np.setdiff1d(read, own)
        owners = ranges.owner(halo)
        halo = halo[np.argsort(owners, kind="stable")]
        self._comm, self.coming = comm, np.bincount(owners, minlength=comm.size)
        asked, self.going = exchange_rows(comm, halo[:, None], self.coming)
        self.own, self.ids = torch.from_numpy(own), torch.from_numpy(halo)
        self.send = torch.from_numpy(np.searchsorted(own, asked[:, 0]))
        table = np.concatenate([own, halo])
        self._order = np.argsort(table)
        self._sorted = table[self._order]

    def places(self, ids: I64) -> torch.Tensor:
        """Return the rows of the table that nodes have."""
        return torch.from_numpy(self._order[np.searchsorted(self._sorted, ids)])

    @collective("self.comm")
    def table(self, rows: torch.Tensor, what: str) -> torch.Tensor:
        """Return the table of own rows, [n, ...]: themselves where there is no halo."""
        if len(self.ids):
            table = torch.cat([rows, rows.new_empty((len(self.ids), *rows.shape[1:]))])
        else:
            table = rows
        move(self._comm, what, rows.index_select(0, self.send), self.going, self.coming, table[len(rows) :])
        return table


class Neighbourhoods:
    """Blocks of this trainer's nodes, and where their sources lie in its tables.

    Attributes:
        ranges: by node type, the trainers of all nodes.
        own: by node type, int64[n], the nodes of this trainer.
        halos: by node type, after :meth:`plan`.
    """

    @collective("trainers")
    def __init__(self, g: DistGraph, ranges: Mapping[str, Ranges]) -> None:
        """Take all in-edges of the nodes of each trainer's ranges."""
        self._g, self.ranges = g, ranges
        self._sampling = g.plan(SamplingArguments([-1]), {})
        me = g.session.world.trainers.rank
        self.own = {t: np.concatenate([np.arange(0), *(np.arange(*of) for of in r.of(me))]) for t, r in ranges.items()}
        self.halos: dict[str, Halo] = {}
        self._degrees: dict[Relation, torch.Tensor] = {}

    def sources(self) -> dict[str, I64]:
        """Return the nodes that own nodes read, by type; all own nodes lie on this machine."""
        g, world, topology = self._g, self._g.session.world, self._g.loaded.topology
        read = {t: np.zeros(g.num_nodes(t), bool) for t in g.ntypes}
        for number, (source, _, ntype) in enumerate(g.canonical_etypes):
            offsets, ranges = topology.hosts.node_offsets[g.schema.ntype_id(ntype)], self.ranges[ntype]
            for host in np.flatnonzero(world.is_local).tolist():
                edges, (first, last) = topology.adjacency(number, host), offsets[host : host + 2].tolist()
                for begin, end in ranges.of(world.trainers.rank):
                    if begin < last and first < end:
                        into = edges.into(max(begin, first) - first, min(end, last) - first)
                        read[source][edges.indices[into]] = True
        return {t: np.flatnonzero(marks) for t, marks in read.items()}

    @collective("trainers")
    def plan(self, read: Mapping[str, I64]) -> None:
        """Plan the exchange of the rows that own nodes read, ids by type."""
        world = self._g.session.world
        with world.meeting("planning the exchange of rows"):
            for t, own in self.own.items():
                self.halos[t] = Halo(world.trainers, self.ranges[t], own, read[t])

    @collective("trainers", WHEN_REMOTE)
    def block(self, seeds: Mapping[str, I64], near: bool) -> tuple[Block, dict[str, I64]]:
        """Return the block of some nodes, with ``edata[EID]``; and the ids of its sources by type.

        Sources are the nodes themselves, int64[n] by type, and then, by their ids, the others. ``near``: this machine
        has all in-edges of the nodes; the call is then local.
        """
        g = self._g
        plan = replace(self._sampling, seeds={g.schema.ntype_id(t): ids for t, ids in seeds.items()})
        no_draws = HopKeys.of(np.uint64(0), 0)  # all edges: no number is drawn
        with ExitStack() as kept, g.session.sampling() as service:
            g.keep_tensors(plan, kept)
            sampled = sample_hops(service, g.loaded, plan, RandomContext(0, 0), keys=no_draws, near=near)
        (hop,) = sampled.hops
        for t, ids in enumerate(sampled.ids):
            first = hop.num_dst[t]
            order = np.argsort(ids[first:])
            sampled.ids[t] = np.append(ids[:first], ids[first:][order])
            place = np.arange(len(ids), dtype=np.int32)
            place[first + order] = np.arange(first, len(ids))
            for r, csc in hop.edges.items():
                if g.schema.ends(r)[0] == t:
                    hop.edges[r] = replace(csc, indices=place[csc.indices])
        (block,) = hop_blocks(sampled)
        return block, dict(zip(g.ntypes, sampled.ids, strict=True))

    def places(self, block: Block, sources: Mapping[str, I64]) -> dict[str, torch.Tensor]:
        """Return where the sources of a block lie in the tables; the block learns their out-degrees in the graph."""
        at = {t: halo.places(sources[t]) for t, halo in self.halos.items()}
        block.graph_out_degrees = lambda r: self._out_degrees(r)[at[r[0]]]
        return at

    def _out_degrees(self, r: Relation) -> torch.Tensor:
        """Return those of the rows of the table; those of remote nodes are fetched once. One-sided."""
        if r not in self._degrees:
            ids = torch.cat([self.halos[r[0]].own, self.halos[r[0]].ids]).numpy()
            read = self._g.loaded.topology.out_degrees
            self._degrees[r] = torch.from_numpy(read(ids, self._g.schema.relation_id(r)))
        return self._degrees[r]
