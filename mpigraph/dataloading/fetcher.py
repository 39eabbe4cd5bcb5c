"""The stages of a minibatch, and the caches that they read through.

All loaders gather features in :meth:`FeatureFetcher.fetch`. The caches have the user's options, sizes, and readers.
"""

from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.dataloading.sampler import Needs
from mpigraph.dataloading.seeds import TypedIds
from mpigraph.distgraph.features import Features, Kind, named
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import Blocks, Names, NodeTensors, id_array
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.graphs import block
from mpigraph.graphs.face import TypesView
from mpigraph.log import get_logger
from mpigraph.memory import as_bytes, in_units
from mpigraph.rows.lookahead import CachedRows, UpcomingReads
from mpigraph.rows.row_cache import RowCache, remote_rows
from mpigraph.session.context import Session
from mpigraph.session.control import Operation
from mpigraph.trace import count, span

Sample = TypeVar("Sample")
_NONE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Stages(Generic[Sample]):
    """The stages of a loader; they must not refer to the loader, which can be dropped while they work.

    Attributes:
        sample: draws a minibatch for some seeds (:class:`.Chosen`). Collective when hosts are remote, else local.
        fetch: turns a sample into the loader's minibatch. One-sided.
        announce: tells ``inputs`` the rows that :attr:`fetch` of this sample will read, with the number of the
            minibatch. Local.
        receive: turns the result of :attr:`fetch` into the consumer's minibatch, in its thread. Local.
    """

    seeds: TypedIds
    sample: Callable[[Any], Sample]
    fetch: Callable[[Sample], Any] = lambda batch: batch
    announce: Callable[[Sample, int], None] = lambda sample, batch: None
    inputs: Sequence["FeatureFetcher[Any]"] = ()  # gather the features of nodes and edges, which may be remote
    receive: Callable[[Any], Any] = lambda batch: batch
    times: TypedIds | None = None  # of the seeds, in their form, if they have any
    placed: bool = False  # the minibatch needs the places of its seeds in ``seeds``


Making: TypeAlias = tuple[Callable[..., Any], Callable[..., Any], Callable[..., None], Sequence["FeatureFetcher[Any]"]]
"""The four stages :attr:`.Stages.sample`, ``fetch``, ``announce`` and ``inputs``."""


class WindowFeatures(Generic[Kind]):
    """The features of one window: their rows are read at once.

    Attributes:
        rows: one of the tensors: it has the window, and how rows are stored there.
        alike: equal for features whose rows have the same numbers.
        reader: reads the rows through a cache; None without one.
    """

    def __init__(self, features: Mapping[tuple[Kind, str], DistTensor]) -> None:
        """Read ``features``, by type and name; one that has several names once."""
        once: dict[int, tuple[Kind, DistTensor]] = {of.rows.number: (kind, of) for (kind, _), of in features.items()}
        self._kinds: list[Kind] = [kind for kind, _ in once.values()]
        self._tensors = [tensor for _, tensor in once.values()]
        self.rows = self._tensors[0].rows
        self._tables = np.array([tensor.rows.table for tensor in self._tensors])
        self._sizes = np.array([len(tensor) for tensor in self._tensors])
        self.alike: tuple[object, ...] = tuple(self._kinds), self._tables.tobytes(), self.rows.window.tables.tobytes()
        self.reader: CachedRows | None = None
        places = {number: place for place, number in enumerate(once)}
        self._features: list[tuple[Kind, str, torch.dtype, int]] = [
            (kind, name, of.dtype, places[of.rows.number]) for (kind, name), of in features.items()
        ]

    def numbers(self, ids: Callable[[Kind], torch.Tensor]) -> tuple[I64, list[int]]:
        """Return the numbers of the rows ``ids(type)`` of each tensor, and how many are of each.

        Raises:
            OutOfRangeError: a row does not exist.
            ClosedError: a tensor was closed.
        """
        of_kinds = [ids(kind) for kind in self._kinds]
        counts = list(map(len, of_kinds))
        self.check_open(counts)
        index = id_array(of_kinds[0] if len(of_kinds) == 1 else torch.cat(of_kinds), "ids of rows")
        if len(counts) == 1 or ((index < 0) | (index >= np.repeat(self._sizes, counts))).any():
            for tensor, own in zip(self._tensors, np.split(index, np.cumsum(counts)[:-1]), strict=True):
                tensor.rows.check(own)
        return self.rows.window.numbers(self._tables, index, np.array(counts)), counts

    def check_open(self, counts: Sequence[int]) -> None:
        """Raise ClosedError if a tensor was closed that has some of the rows: ``counts`` of each."""
        for tensor, asked in zip(self._tensors, counts, strict=True):
            if asked and tensor.handle.closed:
                tensor.rows  # noqa: B018 - raises

    def receive(self, count: int, pin_memory: bool, read: Callable[[Array], object]) -> torch.Tensor:
        """Return ``count`` rows, which ``read`` puts into memory."""
        return self._tensors[0].received(count, pin_memory, read)

    def hand_out(
        self, rows: torch.Tensor, counts: list[int], data: Callable[[Kind], MutableMapping[str, torch.Tensor]]
    ) -> None:
        """Put the rows of each feature into ``data(type)``."""
        given = set[int]()
        of_tensors = torch.split(rows, counts)
        for kind, name, dtype, place in self._features:
            own = of_tensors[place]
            as_is = dtype == own.dtype and place not in given
            given.add(place)
            data(kind)[name] = own if as_is else own.to(dtype, copy=True)


class _Asked(NamedTuple):
    """The rows that a minibatch asks for: int64[n], their numbers in the window; and how many are of each tensor."""

    numbers: I64
    counts: list[int]


class FeatureFetcher(Generic[Kind]):
    """Gathers rows of features, by type (of edges: the relation) and name, for minibatches.

    One-sided: :meth:`fetch`.

    Attributes:
        tensors: the features.
        together: the same by window.
        upcoming: rows that sampled minibatches will read through caches, by what has the same numbers of rows: features
            with the same ones share one.
        counted: count remote rows that are read without a cache, as for the inputs of minibatches.
    """

    def __init__(self, view: TypesView[Kind, Features], pin_memory: bool, *names: Names) -> None:
        """Look features up by name in ``g.nodes`` or ``g.edges``; errors are those of :func:`.named`."""
        self.tensors: dict[tuple[Kind, str], DistTensor] = named(view, *names)
        by_window: dict[int, dict[tuple[Kind, str], DistTensor]] = {}
        for key, tensor in self.tensors.items():
            by_window.setdefault(tensor.rows.window.number, {})[key] = tensor
        self.together: list[WindowFeatures[Kind]] = [WindowFeatures(features) for features in by_window.values()]
        self.upcoming: dict[tuple[object, ...], UpcomingReads] = {}
        self._announced: deque[dict[tuple[object, ...], _Asked]] = deque()
        self.counted = False
        self._fetched = False
        self._pin_memory = pin_memory

    def announce(self, ids: Callable[[Kind], torch.Tensor], batch: int) -> None:
        """Note that minibatch ``batch`` will fetch the rows ``ids(type)``; call it for each, in the order of fetching.

        Raises OutOfRangeError if a row does not exist.
        """
        known: dict[tuple[object, ...], _Asked] = {}
        for alike, upcoming in self.upcoming.items():
            of_reads = [of for of in self.together if of.alike == alike]
            known[alike] = _Asked(*of_reads[0].numbers(ids))
            read, fresh = upcoming.announce(batch, known[alike].numbers)
            for of in of_reads:
                if of.reader is not None:
                    of.reader.announce(read, fresh)
        self._announced.append(known)

    def forget(self) -> None:
        """Forget all that was announced and not fetched."""
        self._announced.clear()
        for upcoming in self.upcoming.values():
            upcoming.clear()
        for of in self.together:
            if of.reader is not None:
                of.reader.clear()

    def fetch(
        self, ids: Callable[[Kind], torch.Tensor], data: Callable[[Kind], MutableMapping[str, torch.Tensor]]
    ) -> None:
        """Put the rows ``ids(type)`` of each feature into ``data(type)``. One-sided; the target does nothing."""
        known = self._announced.popleft() if self._announced else {}
        for of in self.together:
            if of.alike not in known:
                known[of.alike] = _Asked(*of.numbers(ids))
            numbers, counts = known[of.alike]
            if of.reader is None:
                rows = self._gather(of, numbers)
            else:
                of.check_open(counts)
                read = of.reader.upcoming.reads[0]
                rows = of.receive(len(read.ids), self._pin_memory, partial(of.reader.read, read))
            of.hand_out(rows, counts, data)
        for upcoming in self.upcoming.values():
            upcoming.done()
        if not self._fetched:
            self._fetched = True
            self._warn_of_gaps(ids, data)

    def _warn_of_gaps(
        self, ids: Callable[[Kind], torch.Tensor], data: Callable[[Kind], MutableMapping[str, torch.Tensor]]
    ) -> None:
        """Warn of features that have NaN in the first minibatch, on the first trainer: the loss will be NaN, too."""
        for (kind, name), tensor in self.tensors.items():
            world, rows = tensor.rows.window.world, data(kind).get(name)
            if rows is None or not rows.is_floating_point() or world.rank != world.trainer_ranks[0]:
                continue
            gaps = ids(kind)[rows[..., None].flatten(1).isnan().any(1)].tolist()
            if gaps:
                first = ", ".join(map(str, gaps[:5])) + (", ..." if len(gaps) > 5 else "")
                get_logger().warning(
                    f"feature {name!r} of {kind} is NaN in {len(gaps)} of {len(rows)} rows of the first minibatch "
                    f"(rows {first}), and so will the loss be: python -m mpigraph partition --fill COLUMN=mean fills it"
                )

    def _gather(self, of: WindowFeatures[Kind], numbers: I64) -> torch.Tensor:
        window = of.rows.window
        with span("fetch"):
            rows = of.receive(len(numbers), self._pin_memory, partial(of.rows.read, numbers))
        if self.counted and not window.world.all_local:
            remote = int(np.count_nonzero(~window.world.is_local[window.host_of(numbers)]))
            count("remote_rows", remote)
            count("fetched_rows", remote)
            count("fetched_bytes", remote * window.row_bytes)
        return rows


class BlockFetcher:
    """Gathers the node features of a minibatch's blocks. One-sided: a call.

    Attributes:
        fetchers: of the input nodes, and of the output nodes.
    """

    def __init__(self, g: DistGraph, needs: Needs, features: Names, labels: Names, pin_memory: bool) -> None:
        """Look up ``features`` for the input nodes, ``labels`` for the output nodes, and what the sampler needs."""
        self.fetchers = (
            FeatureFetcher(g.nodes, pin_memory, features, needs.node_feats),
            FeatureFetcher(g.nodes, pin_memory, labels, needs.labels),
        )

    def announce(self, sample: tuple[Any, ...], batch: int) -> None:
        """Note input and output nodes, which come first in a sample. Raises OutOfRangeError if one does not exist."""
        for fetcher, nodes in zip(self.fetchers, sample, strict=False):
            fetcher.announce(partial(_of_type, nodes), batch)

    def __call__(self, sample: Blocks) -> Blocks:
        """Put rows of a sample's nodes into ``blocks[0].srcnodes`` and ``blocks[-1].dstnodes``."""
        input_nodes, output_nodes, blocks = sample
        inputs, outputs = self.fetchers
        if not blocks and (inputs.tensors or outputs.tensors):
            raise InvalidArgumentError("features and labels come with blocks: the sampler has no layer")
        if isinstance(blocks, block.Blocks):  # a sampler of the user's may give a plain list
            blocks.explain_missing()
        inputs.fetch(partial(_of_type, input_nodes), lambda t: blocks[0].srcnodes[t].data)
        outputs.fetch(partial(_of_type, output_nodes), lambda t: blocks[-1].dstnodes[t].data)
        return sample


def _of_type(nodes: NodeTensors, ntype: str) -> torch.Tensor:
    return nodes.get(ntype, _NONE) if isinstance(nodes, dict) else nodes


_LOOKAHEAD = 8
"""Minibatches that a loader samples ahead by default: blocks of some MB each."""
_AUTO = -1  # bytes


@dataclass(frozen=True)
class CacheOptions:
    """Size and look-ahead that a user asked for."""

    total: int  # bytes on each node for all features together, -1 for as many as fit
    lookahead: int  # minibatches sampled ahead


def check_cache(cache: str | int | None, lookahead: int | None) -> CacheOptions:
    """Check the options, which :class:`.DistNodeDataLoader` describes. Raises InvalidArgumentError."""
    ahead = _LOOKAHEAD if cache is not None else 0
    ahead = ahead if lookahead is None else check_integer("lookahead", lookahead, 0, 1 << 20)
    total = 0 if cache is None else _AUTO if cache == "auto" else cache_size(cache)
    return CacheOptions(total, ahead)


def cache_size(cache: object) -> int:
    """Return the bytes of a size such as "2GiB", or of a number. Raises InvalidArgumentError if it is neither."""
    try:
        return as_bytes(cache) if isinstance(cache, str) else check_integer("cache", cache, 0)
    except ValueError:
        raise InvalidArgumentError(f"cache must be a size such as '2GiB', or bytes (got {cache!r})") from None


@collective("trainers")
def open_caches(session: Session, options: CacheOptions, fetchers: Sequence[FeatureFetcher[Any]]) -> list[RowCache]:
    """Open the caches of a loader, through which its fetchers read from now on, and count the rows that they read.

    Returns:
        The caches, one for each window of a fetcher; none where no row is remote, or trainers must sample in step.

    Raises:
        SharedMemoryError: a node's shared memory cannot hold them; on every rank.
    """
    reads = [(fetcher, of) for fetcher in fetchers for of in fetcher.together]
    for fetcher in fetchers:
        fetcher.counted = True
    wanted = bool(reads and (options.lookahead or options.total))
    if session.world.all_local or not session.world.threads_may_communicate or not wanted:
        return []
    numbers = [of.rows.number for _, of in reads]
    caches: list[RowCache] = session.control.call(
        Operation.OPEN_CACHES, doing="making caches", groups=[(numbers, options.total)], ahead=options.lookahead
    )
    for (fetcher, of), cache in zip(reads, caches, strict=True):
        rows = of.rows
        upcoming = fetcher.upcoming.setdefault(of.alike, UpcomingReads(rows.window))
        of.reader = CachedRows(rows, cache, upcoming)
        slots = cache.per_trainer * session.world.num_local_trainers
        remote = remote_rows(rows.window)
        get_logger().info(
            "cache of rows of %r on this node: up to %s, %d of %d rows of other nodes; %d minibatches ahead",
            rows.name,
            in_units(slots * rows.window.row_bytes),
            min(slots, remote),
            remote,
            options.lookahead,
        )
    return caches
