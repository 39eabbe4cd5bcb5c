"""The traffic of a simulated job, in one process: the loader's own sampler, work ahead and caches, and no network.

Each host that is not on a trainer's node answers by the classes that answer in a job, and a transport that moves
nothing counts requests and replies. So messages and bytes of each pair of hosts are those of a real job with the same
seeds, one trainer on each node, rows that travel packed, and requests to owners alone. Where trainers share a node's
cache, a job decides by its timing which of them fetches a row that both miss; here they take turns.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np

from mpigraph.arrays import I64, U8, Array, Mask
from mpigraph.config import Config
from mpigraph.dataloading.caches import LOOKAHEAD
from mpigraph.dataloading.fetcher import Stages
from mpigraph.dataloading.seeds import agreed_steps, batch_bounds, shuffled
from mpigraph.dataloading.work_ahead import Pipeline
from mpigraph.errors import InvalidArgumentError
from mpigraph.kernels.row_slots import new_slots
from mpigraph.metadata.book import RangeBook
from mpigraph.mpi.messages import FIRST, HEAD, Gate
from mpigraph.rows.lookahead import CachedRows, Read, UpcomingReads
from mpigraph.rows.packed import message_sizes
from mpigraph.rows.pool import RowPool
from mpigraph.rows.row_cache import RowCache, SlotTable
from mpigraph.rows.transport import RemoteRows
from mpigraph.rows.window import RowWindow
from mpigraph.sampling.answering import Answers
from mpigraph.sampling.channel import Channel
from mpigraph.sampling.minibatch import Layer, RandomContext, SamplingPlan, sample_hops
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.strategies import Uniform
from mpigraph.storage.contents import PartFiles, StoredRows, read_rows
from mpigraph.storage.format import index_dtype, relation_dataset_name, storage_dtype
from mpigraph.store.edge_tables import Adjacency
from mpigraph.store.host_ranges import cut_offsets
from mpigraph.store.shared_edges import HostTables, RowsInto, read_shared
from mpigraph.store.store import LoadedGraph
from mpigraph.store.topology import InMemoryTopology

_GRAPH = 1  # its number
_MOST_KEPT = 1 << 26  # ids of sampled minibatches


class Asked(NamedTuple):
    """A request to one host, and its reply."""

    host: int  # that is asked
    request: int  # bytes of the request, one message
    replies: Sequence[int]  # bytes of each message of the reply
    seconds: float  # processor time of the answer; 0 for rows


@dataclass
class Minibatch:
    """A minibatch that a trainer made."""

    trainer: int  # its number in the job
    # what each hop asks, and last what is fetched: rows of several minibatches, or nothing
    asked: list[list[Asked]] = field(default_factory=list)
    draw: list[float] = field(default_factory=list)  # processor time of each hop while others answer
    sample: float = 0.0  # processor time of the rest of sampling
    plan: float = 0.0  # processor time of planning the reads
    edges: int = 0  # sampled ones
    inputs: int = 0  # its input nodes
    remote: int = 0  # input rows that other nodes hold, and ``fetched`` those of them that its fetch moves
    fetched: int = 0
    epoch: int = 0
    ahead: int = 0  # later ones of its epoch that are sampled before its rows are fetched


Sampled = dict[tuple[int, int, int], tuple[Minibatch, list[I64]]]
"""What trainers sampled, and ids, by trainer, epoch and step: caches change neither."""


class Cluster(NamedTuple):
    """The nodes of a job. Without servers trainers hold the graph."""

    nodes: int
    trainers: int
    servers: int

    @property
    def hosts(self) -> int:
        """The number of ranks that hold the graph."""
        return self.nodes * (self.servers or self.trainers)

    def is_local(self, node: int) -> Mask:
        """Return bool[hosts], the hosts on a node."""
        local: Mask = np.arange(self.hosts) // (self.servers or self.trainers) == node
        return local


class Workload(NamedTuple):
    """The work of each trainer; the options are those of a ``DistNodeDataLoader`` with ``shuffle=True``."""

    fanouts: Sequence[int]  # of each layer, outermost hop first
    batch_size: int  # seeds of a minibatch
    slots: int | None  # of each trainer's cache, for each of the features; None for no cache
    drop_last: bool = False  # leave out seeds that do not fill a minibatch
    return_eids: bool = True  # edge ids travel, too
    seed: int = 0  # of order and draws


class Graph:
    """A partitioned graph's topology in the memory of this process, and its seeds.

    Attributes:
        config: the configuration.
        seeds: int64[n], the nodes of ``train_mask``, or all.
        seed_type: node type id of the seeds.
        features: node type id, name and bytes of a row of each feature that is gathered.
    """

    def __init__(self, files: PartFiles) -> None:
        self.config = config = files.config
        schema = config.schema
        book = config.book
        self.indptr: dict[int, I64] = {}
        self.indices: dict[int, Array] = {}
        shared = [np.stack(read_shared(files, part)) for part in range(book.num_parts if config.shared else 0)]
        self.shared: I64 = np.concatenate([np.empty((3, 0), np.int64), *shared], axis=1)
        self.shared = self.shared[:, np.argsort(self.shared[0], kind="stable")]
        for relation, ends in enumerate(map(schema.ends, range(len(schema.relations)))):
            if relation in config.place_of_shared:
                continue
            offsets = book.node_offsets[ends[1]]
            begins = [files.read_indptr(relation, part, 0, int(n)) for part, n in enumerate(np.diff(offsets))]
            edges = book.edge_offsets[relation]
            joined = [np.asarray(b[:-1] - b[0] + edges[part], np.int64) for part, b in enumerate(begins)]
            self.indptr[relation] = np.concatenate([*joined, edges[-1:]])
            indices = np.empty(int(edges[-1]), index_dtype(book.num_nodes(ends[0])))
            name = relation_dataset_name(schema.relation_key(relation), "indices")
            read_rows(files, StoredRows.alone("part_graph", name, edges), 0, indices)
            self.indices[relation] = indices
        named = [t for t, ntype in enumerate(schema.ntypes) if "train_mask" in config.node_features[ntype]]
        self.seed_type = named[0] if named else 0
        offsets = book.node_offsets[self.seed_type]
        mask = np.ones(int(offsets[-1]), np.uint8)
        if named:
            info = config.node_features[schema.ntypes[named[0]]]["train_mask"]
            mask = np.empty(int(offsets[-1]), storage_dtype(info.stored))
            read_rows(files, StoredRows.of_feature(config, True, self.seed_type, "train_mask"), 0, mask)
        self.seeds: I64 = np.flatnonzero(mask)
        if not len(self.seeds):
            raise InvalidArgumentError(f"{config.path}: there are no seeds (nodes of train_mask, or all without one)")
        self.features = [
            (t, name, storage_dtype(info.stored).itemsize * int(np.prod(info.shape)))
            for t, ntype in enumerate(schema.ntypes)
            for name, info in config.node_features[ntype].items()
            if info.shape
        ]

    def cut(self, hosts: int) -> "_Cut":
        """Return the topology cut over so many hosts."""
        schema = self.config.schema
        book = self.config.book
        nodes = tuple(cut_offsets(offsets, hosts) for offsets in book.node_offsets)
        bounds = np.searchsorted(self.shared[0], np.arange(len(self.config.shared) + 1))
        edges = []
        for relation in range(len(schema.relations)):
            cuts = nodes[schema.ends(relation)[1]]
            place = self.config.place_of_shared.get(relation)
            if place is None:
                edges.append(self.indptr[relation][cuts])
            else:
                edges.append(np.searchsorted(self.shared[1, bounds[place] : bounds[place + 1]], cuts))
        return _Cut(RangeBook(schema, nodes, tuple(edges)), self)


class _Cut(InMemoryTopology):
    """The topology on all hosts of a simulated job."""

    def __init__(self, hosts: RangeBook, graph: Graph) -> None:
        super().__init__(hosts, [])
        self.config = graph.config
        self._graph = graph
        self.place_of_shared = graph.config.place_of_shared
        if self.place_of_shared:
            self.shared = cast(Any, _SharedCut(graph, hosts))
        self._known: dict[tuple[int, int], Adjacency] = {}

    def adjacency(self, relation: int, host: int) -> Adjacency:
        if (relation, host) not in self._known:
            first, last = self.hosts.node_range(host, self.hosts.schema.ends(relation)[1])
            begin, end = self.hosts.edge_range(host, relation)
            indptr = self._graph.indptr[relation][first : last + 1] - begin
            self._known[relation, host] = Adjacency(indptr, self._graph.indices[relation][begin:end], first, begin)
        return self._known[relation, host]


class _SharedCut:
    """The relations that share tables, on all hosts of a simulated job; the attributes are those of SharedEdges."""

    def __init__(self, graph: Graph, hosts: RangeBook) -> None:
        relations = graph.config.shared
        self.ends = ends = np.array([hosts.schema.ends(r) for r in relations])
        self.relations = np.array(relations)
        self.dtype = index_dtype(max(map(hosts.num_nodes, range(len(hosts.node_offsets)))))
        self._first_edges = np.array([hosts.edge_offsets[r] for r in relations])
        self._nodes = np.array(hosts.node_offsets)
        place, destinations, sources = graph.shared
        self._tables = []
        for host in range(hosts.num_parts):
            first, last = self._nodes[ends[place, 1], host : host + 2].T
            own = (destinations >= first) & (destinations < last)
            edges = place[own], (destinations - first)[own], sources[own].astype(self.dtype)
            self._tables.append(HostTables.of(*edges, ends, len(self._nodes)))
        self.edges_of_hosts = np.append(0, np.cumsum([len(tables.indices) for tables in self._tables]))

    def rows_into(self, ntype: int, host: int) -> RowsInto:
        own = self._tables[host]
        listed = own.listed[own.list_begins[ntype] : own.list_begins[ntype + 1]]
        first = int(self._nodes[ntype, host])
        return RowsInto(first, listed, own.rows, own.indptr, own.indices, own.row_begins, own.edge_begins)

    def num_edges(self, host: int) -> int:
        return len(self._tables[host].indices)

    def eid_shifts(self, host: int) -> I64:
        shifts: I64 = self._first_edges[:, host] - self._tables[host].edge_begins[:-1]
        return shifts


class _World(NamedTuple):
    hosts: I64
    rank: int  # -1 of a trainer beside servers
    host_index: int
    is_local: Mask
    all_local: bool
    config: Config


class _Service(NamedTuple):
    transport: "_Window"


class _Rank:
    """A simulated rank of a job, as samplers and windows see its store and world."""

    def __init__(self, cluster: Cluster, topology: _Cut, node: int, host: int) -> None:
        local = cluster.is_local(node)
        self.world: Any = _World(np.arange(cluster.hosts), host, host, local, bool(local.all()), Config())
        self.graph_of_number = {_GRAPH: LoadedGraph(_GRAPH, topology)}

    def graph(self, number: int) -> LoadedGraph:
        return self.graph_of_number[number]


class _Answering(Channel):
    """A channel on which owners answer at once; counts what it asks for the present minibatch."""

    def __init__(self, world: Any, answers: Callable[[int], Answers]) -> None:
        super().__init__(world, 0)
        self._answers = answers
        self.minibatch = Minibatch(0)

    def ask(
        self, asked: Mapping[int, I64], meanwhile: Callable[[], None] | None = None, error: BaseException | None = None
    ) -> Mapping[int, U8]:
        if error is not None:
            raise error
        replies = {}
        sent = []
        begin = time.thread_time()
        if meanwhile is not None:
            meanwhile()
        drawn = time.thread_time()
        self.minibatch.draw.append(drawn - begin)
        for host, words in asked.items():
            before = time.thread_time()
            answer = self._answers(host).answer([words])[0]
            replies[host] = answer[HEAD:].view(np.uint8)
            parts = [part.nbytes for part in (answer[: HEAD + FIRST // 8], answer[HEAD + FIRST // 8 :]) if len(part)]
            sent.append(Asked(host, 8 + words.nbytes, parts, time.thread_time() - before))
        self.minibatch.asked.append(sent)
        self.minibatch.sample -= time.thread_time() - begin
        return replies

    def serve_until_idle(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Window(RowWindow):
    """The rows of a feature without their contents: a byte stands for each row."""

    def __init__(self, rank: _Rank, offsets: I64, row_bytes: int) -> None:
        self.world = rank.world
        self.offsets = offsets
        self.row_shape = (1,)
        self.dtype = np.dtype(np.uint8)
        self.row_bytes = row_bytes
        self.handle: Any = None
        self.service: Any = _Service(self)
        self.moved: list[Asked] = []
        self.fetched = 0
        nowhere = np.empty((0, 1), np.uint8)
        self._words = dict.fromkeys(np.flatnonzero(rank.world.is_local).tolist(), nowhere)
        self._first = {host: int(offsets[host]) for host in self._words}
        self._gate = Gate("")

    def read(self, _: Any, remote: Sequence[RemoteRows], out: Array, meanwhile: Callable[[], None]) -> None:
        """Count the messages that move rows of remote hosts, as their transport."""
        for rows in remote:
            for request in rows.requests():
                self.fetched += len(request.rows)
                self.moved.append(Asked(request.rank, *message_sizes(request.rows, self.row_bytes), 0.0))
        meanwhile()


class _Rows:
    """A tensor without contents, as readers see it."""

    number = 0
    version = 0
    written = False

    def __init__(self, window: _Window) -> None:
        self.window = window
        self.shape = (len(window), 1)

    @contextmanager
    def staging_buffer(self, out: Array) -> Iterator[Array]:
        yield out


class _Cache(RowCache):
    """A trainer's slots in a table that the trainers of its node share."""

    def __init__(self, rows: Any, slots: SlotTable, trainer: int, per_trainer: int, ahead: int) -> None:
        self.rows = rows
        self.slots = slots
        self.per_trainer = per_trainer
        self._me = trainer
        self._own = new_slots(trainer * per_trainer, per_trainer, ahead)


def _slot_table(num_rows: int, per_trainer: int, trainers: int) -> SlotTable:
    count = trainers * per_trainer
    return SlotTable(
        hint=np.zeros(num_rows, np.int32),
        row_of=np.empty(count, np.int64),
        times=np.zeros(count, np.int32),
        versions=np.full(trainers, -1, np.int64),
        words=np.empty((count, 1), np.uint8),
        alone=trainers == 1,
        fence=lambda: None,
    )


class _Trainer:
    """A trainer of a simulated job: makes the minibatches of one epoch after the other."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        work: Workload,
        topology: _Cut,
        answers: Callable[[int], Answers],
        number: int,
        sampled: Sampled,
    ) -> None:
        self._sampled = sampled
        node = number // cluster.trainers
        self.number = number
        self.rank = _Rank(cluster, topology, node, -1)
        self._channel = _Answering(self.rank.world, answers)
        self._service = NeighborService(self.rank, self._channel)  # type: ignore[arg-type]
        self._work = work
        self._seed_type = graph.seed_type
        pieces = np.array_split(graph.seeds, cluster.nodes * cluster.trainers)
        self._seeds: I64 = pieces[number]
        sizes = [agreed_steps(len(piece), work.batch_size, work.drop_last, lambda n, _: n) for piece in pieces]
        self._steps = (min if work.drop_last else max)(filter(None, sizes), default=0)
        relations = range(len(graph.config.schema.relations))
        self._layers = [Layer(dict.fromkeys(relations, Uniform(fanout)) if fanout else {}) for fanout in work.fanouts]
        self._pool = RowPool()
        self._readers: list[tuple[int, CachedRows | None, _Window]] = []
        self._upcoming: dict[int, UpcomingReads] = {}
        self._pipeline = Pipeline()
        self._ahead = 0  # minibatches that are sampled and not fetched

    def open(self, features: Sequence[tuple[int, str, int]], tables: Sequence[SlotTable], trainers: int) -> None:
        """Make the readers of features; ``tables`` are the node's, none without caches."""
        self._pipeline.lookahead = LOOKAHEAD if tables else 0
        for at, (ntype, _, row_bytes) in enumerate(features):
            window = _Window(self.rank, self._topology.hosts.node_offsets[ntype], row_bytes)
            reader = None
            if tables and self._work.slots is not None:
                rows: Any = _Rows(window)
                most = min(self._work.slots, int(np.diff(window.offsets)[~self.rank.world.is_local].sum()))
                cache = _Cache(rows, tables[at], self.number % trainers, most, LOOKAHEAD)
                upcoming = self._upcoming.setdefault(ntype, UpcomingReads(window))
                reader = CachedRows(rows, cache, upcoming, self._pool)
            self._readers.append((ntype, reader, window))

    @property
    def _topology(self) -> _Cut:
        return cast(_Cut, self.rank.graph(_GRAPH).topology)

    def epoch(self, epoch: int) -> Iterator[Minibatch]:
        """Yield the minibatches of an epoch in the order in which a loader makes them."""
        work = self._work
        order = shuffled(len(self._seeds), work.seed, epoch, self.number)
        bounds = batch_bounds(len(self._seeds), work.batch_size, work.drop_last, self._steps)
        batches = (order[bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1))
        steps = iter(range(epoch * self._steps, (epoch + 1) * self._steps))

        def sample(positions: I64) -> tuple[Minibatch, list[I64]]:
            return self._sample(self._seeds[positions], RandomContext(work.seed, epoch, next(steps)))

        fetcher: Any = self
        stages = Stages[Any](self._seeds, sample, self._fetch, self._announce, [fetcher])
        return self._pipeline.produce(batches, sample, stages, lambda: None)

    def _sample(self, seeds: I64, context: RandomContext) -> tuple[Minibatch, list[I64]]:
        self._ahead += 1
        key = self.number, context.epoch, context.step
        if key in self._sampled:
            minibatch, ids = self._sampled[key]
            return replace(minibatch, asked=[*minibatch.asked]), ids
        minibatch = self._channel.minibatch = Minibatch(self.number, epoch=context.epoch)
        plan = SamplingPlan(self._layers, {self._seed_type: seeds}, self._work.return_eids)
        begin = time.thread_time()
        sampled = sample_hops(self._service, self.rank.graph(_GRAPH), plan, context)
        minibatch.sample += time.thread_time() - begin
        minibatch.edges = sum(len(edges.indices) for hop in sampled.hops for edges in hop.edges.values())
        minibatch.inputs = sum(map(len, sampled.ids))
        if len(self._sampled) * minibatch.inputs < _MOST_KEPT:
            self._sampled[key] = replace(minibatch, asked=[*minibatch.asked]), sampled.ids
        return minibatch, sampled.ids

    def _announce(self, sample: tuple[Minibatch, list[I64]], batch: int) -> None:
        begin = time.thread_time()
        for ntype, upcoming in self._upcoming.items():
            read, fresh = upcoming.announce(batch, sample[1][ntype])
            for _, reader, _ in self._readers:
                if reader is not None and reader.upcoming is upcoming:
                    reader.announce(read, fresh)
        sample[0].plan = time.thread_time() - begin

    def forget(self) -> None:
        for upcoming in self._upcoming.values():
            upcoming.clear()
        for _, reader, _ in self._readers:
            if reader is not None:
                reader.clear()

    def _fetch(self, sample: tuple[Minibatch, list[I64]]) -> Minibatch:
        minibatch, ids = sample
        self._ahead -= 1
        minibatch.ahead = self._ahead
        moved: list[Asked] = []
        for ntype, reader, window in self._readers:
            out = np.empty((len(ids[ntype]), 1), np.uint8)
            if reader is None:
                window.gather(ids[ntype], out)
                minibatch.fetched += self._remote(window, ids[ntype])
            else:
                before = window.fetched
                read: Read = reader.upcoming.reads[0]
                reader.read(read, out)
                minibatch.fetched += window.fetched - before
            minibatch.remote += self._remote(window, ids[ntype])
            moved += window.moved
            window.moved = []
        for upcoming in self._upcoming.values():
            upcoming.reads.popleft()
        minibatch.asked.append(moved)
        return minibatch

    @staticmethod
    def _remote(window: _Window, ids: I64) -> int:
        return int(np.count_nonzero(~window.world.is_local[window.host_of(ids)]))


def simulate(
    graph: Graph,
    cluster: Cluster,
    work: Workload,
    *,
    nodes: Sequence[int] | None = None,
    minibatches: int | None = None,
    epochs: int = 1,
    sampled: Sampled | None = None,
) -> list[Minibatch]:
    """Make the minibatches of trainers, those of a node in turn.

    Of the trainers on some nodes (all by default), at most so many minibatches each, through at most so many epochs.
    ``sampled`` is of this job with another cache, or gets what is sampled.
    """
    topology = graph.cut(cluster.hosts)
    kept: Sampled = {} if sampled is None else sampled
    per_node = cluster.servers or cluster.trainers

    @cache
    def answers(host: int) -> Answers:
        return Answers(_Rank(cluster, topology, host // per_node, host))  # type: ignore[arg-type]

    all_made = []
    for node in range(cluster.nodes) if nodes is None else nodes:
        numbers = range(node * cluster.trainers, (node + 1) * cluster.trainers)
        trainers = [_Trainer(graph, cluster, work, topology, answers, number, kept) for number in numbers]
        tables = []
        if work.slots is not None and cluster.nodes > 1:
            for ntype, _, _ in graph.features:
                offsets = topology.hosts.node_offsets[ntype]
                remote = int(np.diff(offsets)[~cluster.is_local(node)].sum())
                tables.append(_slot_table(int(offsets[-1]), min(work.slots, remote), cluster.trainers))
        for trainer in trainers:
            trainer.open(graph.features, tables, cluster.trainers)
        going = [islice(_epochs(trainer, epochs), minibatches) for trainer in trainers]
        while going:
            alive = []
            for batches in going:
                minibatch = next(batches, None)
                if minibatch is not None:
                    all_made.append(minibatch)
                    alive.append(batches)
            going = alive
    return all_made


def _epochs(trainer: _Trainer, epochs: int) -> Iterator[Minibatch]:
    for epoch in range(epochs):
        count = 0
        for minibatch in trainer.epoch(epoch):
            count += 1
            yield minibatch
        if not count:  # a trainer without seeds
            return
