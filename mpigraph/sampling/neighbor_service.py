"""One hop of neighbour sampling: local destinations by plain loads, remote ones by asking. Also looks up edges.

All relations of a hop share the message to an owner. The result is the same on every rank: a draw is a hash of the
request's key, the node and the number of the draw. The host of its destination looks an edge up.
"""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

import numpy as np

from mpigraph.arrays import I64, Mask
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.kernels.compact import LocalIds, TreeIds
from mpigraph.kernels.row_ops import split_by_range
from mpigraph.sampling import local as draws, protocol
from mpigraph.store.store import LoadedGraph, Store
from mpigraph.store.topology import Topology

_FREE = np.zeros(1, np.int64)  # before the words of a request


class NeighborService:
    """Samples hops and looks up edges.

    For one thread at a time: where several threads may use it, one holds :attr:`lock` until it has used the result.

    Attributes:
        lock: held by the thread that samples.
        purpose: names the present work in error messages.
        rounds: number of times that it has asked owners, all of a hop at once.
    """

    def __init__(self, state: Store) -> None:
        self.lock = Lock()
        self.purpose = "calls outside of loaders"
        self.rounds = 0
        self._state = state
        self._world = state.world
        self._buffers = draws.Buffers()
        self._workers = draws.Workers(state.world.config.num_worker_threads)
        self._local_ids: dict[int, list[LocalIds]] = {}
        self._tree_ids: dict[int, list[TreeIds]] = {}

    def use_threads(self, num_threads: int) -> None:
        """Sample local neighbours with this many threads from now on."""
        if num_threads != self._workers.num_threads:
            self._workers = draws.Workers(num_threads)

    @collective("the trainers", WHEN_REMOTE)
    def sample(
        self, requests: Sequence[protocol.SamplingRequest], local: bool = False
    ) -> dict[int, protocol.SampledNeighbors]:
        """Sample all requests of one hop.

        Remote hosts answer while this rank draws the local neighbours; then both are merged.

        Args:
            requests: those with one node type have the same destinations; no relation is in two.
            local: this node has the in-edges of all destinations; the call is then local.

        Returns:
            The neighbours by relation id, ascending, without relations of few edges that found none; the next
            call overwrites their sources.
        """
        here, remote = dict[int, draws.PositionsByHost](), dict[int, draws.PositionsByHost]()
        for dst, by_host in self._by_destination(requests).items():
            here[dst], remote[dst] = self._split(by_host, local)
        drawing = [
            draws.LocalSampling(self._state, request, here[request.dst], self._buffers, self._workers, number)
            for number, request in enumerate(requests)
        ]
        drawn: list[protocol.SampledRows] = []
        words = {} if local else self._pack(requests, remote)
        readers = self._ask(words, lambda: drawn.extend(one.finish() for one in drawing), local)
        return self._joined(requests, drawn, remote, readers)

    def _ask(
        self, lists: dict[int, list[I64]], meanwhile: Callable[[], None], local: bool
    ) -> dict[int, protocol.AnswerReader]:
        """Ask ranks, each in one message of some arrays; return the readers of their answers.

        ``local``: no trainer asks any.
        """
        if local:
            meanwhile()
            return {}
        self.rounds += 1
        words = {rank: np.concatenate([_FREE, *arrays]) for rank, arrays in lists.items()}
        answers = self._state.exchange.ask(words, meanwhile, f"sampling round {self.rounds} of {self.purpose}")
        return {rank: protocol.AnswerReader(answer) for rank, answer in answers.items()}

    @collective("the trainers", WHEN_REMOTE)
    def has_edges(self, queries: list[protocol.EdgeQuery], local: bool) -> list[Mask]:
        """Look edges up where their destinations are, all of them in one round.

        Args:
            queries: the edges, relation by relation.
            local: this node has all edges; the call is then local.

        Returns:
            bool[n] for each query: true for edges that exist.
        """
        exist = [np.zeros(len(query.ids), np.bool_) for query in queries]
        by_host = [self._split(self._positions(query), local) for query in queries]

        def look_local() -> None:
            for query, (here, _), out in zip(queries, by_host, exist, strict=True):
                draws.look_up_edges(self._state, query, here, self._workers, out)

        lists: dict[int, list[I64]] = {}
        for query, (_, remote) in zip(queries, by_host, strict=True):
            for host, positions in remote:
                lists.setdefault(int(self._world.hosts[host]), []).extend(protocol.pack_query(query, positions))
        readers = self._ask(lists, look_local, local)
        for out, (_, remote) in zip(exist, by_host, strict=True):
            for host, positions in remote:
                out[positions] = readers[int(self._world.hosts[host])].take(len(positions), np.bool_)
        return exist

    def local_ids(self, graph: LoadedGraph) -> list[LocalIds]:
        """Return the maps of the present minibatch by node type; their memory serves the next one, too."""
        if graph.number not in self._local_ids:
            hosts = graph.topology.hosts
            self._local_ids[graph.number] = [LocalIds(hosts.num_nodes(t)) for t in range(len(hosts.schema.ntypes))]
        return self._local_ids[graph.number]

    def tree_ids(self, graph: LoadedGraph) -> list[TreeIds]:
        """Return the nodes of the present trees by node type; their memory serves the next minibatch, too."""
        if graph.number not in self._tree_ids:
            self._tree_ids[graph.number] = [TreeIds() for _ in graph.topology.hosts.schema.ntypes]
        return self._tree_ids[graph.number]

    def _joined(
        self,
        requests: Sequence[protocol.SamplingRequest],
        drawn: Sequence[protocol.SampledRows],
        remote: dict[int, draws.PositionsByHost],
        readers: dict[int, protocol.AnswerReader],
    ) -> dict[int, protocol.SampledNeighbors]:
        """Return what was drawn here and answered by ``remote`` hosts, relation by relation."""
        sampled: dict[int, protocol.SampledNeighbors] = {}
        for number, (request, rows) in enumerate(zip(requests, drawn, strict=True)):
            topology = self._topology(request)
            parts = [(self._buffers.arange(len(request.ids)), rows)]
            for host, positions in remote.get(request.dst, []):
                reader = readers[int(self._world.hosts[host])]
                answered = reader.rows(request, topology.listed, positions, topology.dtype, topology.num_edges(host))
                parts.append((positions, answered.with_ids(len(positions), partial(topology.id_shifts, host=host))))
            rows = draws.merged(request, parts, self._buffers, number) if len(parts) > 1 else rows
            sampled.update(rows.by_relation(len(request.ids)))
        return dict(sorted(sampled.items()))

    def _topology(self, request: protocol.AnyRequest) -> Topology:
        return self._state.graph_of_number[request.graph].topology

    def _positions(self, request: protocol.AnyRequest) -> draws.PositionsByHost:
        """Return positions of the destinations by host, for hosts that hold any."""
        hosts = self._topology(request).hosts
        if hosts.num_parts == 1:
            return [(0, self._buffers.arange(len(request.ids)))]
        dst = request.dst if isinstance(request, protocol.SamplingRequest) else hosts.schema.ends(request.relation)[1]
        return split_by_range(request.ids, hosts.node_offsets[dst])

    def _by_destination(self, requests: Sequence[protocol.SamplingRequest]) -> dict[int, draws.PositionsByHost]:
        """Return the positions by host for each node type of destinations, computed once for all its relations."""
        return {dst: self._positions(r) for dst, r in {r.dst: r for r in requests}.items()}

    def _split(
        self, by_host: draws.PositionsByHost, local: bool
    ) -> tuple[draws.PositionsByHost, draws.PositionsByHost]:
        """Divide into local and remote hosts; all are local if this node has copies of their edges."""
        here = [one for one in by_host if local or self._world.is_local[one[0]]]
        return here, [one for one in by_host if not (local or self._world.is_local[one[0]])]

    def _pack(
        self, requests: Sequence[protocol.SamplingRequest], remote: dict[int, draws.PositionsByHost]
    ) -> dict[int, list[I64]]:
        """Return the request's arrays by owner; the first request of a node type carries its destinations."""
        words: dict[int, list[I64]] = {}
        count: dict[int, int] = {}
        carrier: dict[tuple[int, int], int] = {}  # rank and node type -> the request that has the destinations
        for request in requests:
            edges_of_hosts = self._topology(request).edges.offsets
            for host, positions in remote[request.dst]:
                rank = int(self._world.hosts[host])
                number = count.get(rank, 0)
                first = carrier.setdefault((rank, request.dst), number)
                ids = request.ids[positions] if first == number else first
                excluded = protocol.edges_in(request.excluded, *edges_of_hosts[host : host + 2])
                packed = protocol.pack_request(request, ids, excluded, positions)
                words.setdefault(rank, []).extend(packed)
                count[rank] = number + 1
        return words
