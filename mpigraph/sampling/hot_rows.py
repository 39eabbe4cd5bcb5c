"""Which far rows a node reads most often: what a cache keeps that does not wait for the minibatches to be sampled.

``vip`` computes how likely each node is in a minibatch of each trainer (vertex inclusion probability: Kaler et al.,
"Communication-efficient graph neural networks with probabilistic neighborhood expansion analysis and caching", MLSys
2023), of directed graphs, and of frontiers as they are expanded here. With q for the chance to be in the frontier, a
hop with fanout f draws an edge v -> u with the chance w q(u), w = min(1, f / in-degree of u), and

    q'(v) = 1 - (1 - q(v)) * product over the edges v -> u of (1 - w q(u)),

beginning with batch size / number of seeds at the seeds of a trainer. Where a node is expanded once only, a hop draws
for what the hop before has found: q(u) in the product is the chance that u was found then. Draws of different edges are
taken to be independent, weighted ones to be uniform, and trees that are disjoint to be one. Times do not count: of a
node's edges those that its roots may not see are taken for as likely as others, so where most edges are newer than the
seeds, or older than the window, rows are kept that nobody reads. They cost time, and change no minibatch.

Each trainer computes this for some of its node's destinations, of whose in-edges it adds up what they do to their
sources, and sends that to whom the sources belong. Nobody else takes part, and only nodes that are reached take memory.
All sums that cross ranks are integers, so the chances, and the order of the rows, do not depend on the number of ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import F64, I64
from mpigraph.errors import InvalidArgumentError
from mpigraph.kernels.access import add_amounts, add_to_sources, as_amounts, draw_odds, list_sources, reach
from mpigraph.kernels.compact import LocalIds
from mpigraph.mpi.agree import everywhere, no_way_back
from mpigraph.mpi.alltoall import exchange_rows, sum_over_ranks
from mpigraph.mpi.wait import PEERS_COMPUTE, wait
from mpigraph.mpi.world import TRAINERS, World
from mpigraph.rows.row_tensor import Policy
from mpigraph.sampling.minibatch import SamplingPlan
from mpigraph.store.graph_store import LoadedGraph
from mpigraph.store.topology import Adjacency

__all__ = ["hot_rows"]

_NONE = np.empty(0, np.int64)
_EDGES = 1 << 24  # edges whose sources a trainer adds up before it sends them
_AT_ONCE = 1 << 20  # edges that are looked up at once
_STEPS = 8  # bits of the fraction by which scores are counted
_LOWEST = (1023 - 40) << _STEPS  # scores below 2**-40 are counted together
_BINS = 64 << _STEPS


def hot_rows(
    world: World,
    graph: LoadedGraph,
    plan: SamplingPlan,
    seeds: Mapping[int, I64],
    batch_size: int,
    steps: int,
    policy: str,
    capacities: Mapping[Policy, int],
    *,
    expand_once: bool,
) -> dict[Policy, I64]:
    """The far rows that the trainers of this node will read most often.

    A row of a node is read by each minibatch that it is in, a row of an edge once for each hop that draws it.

    Args:
        world: the job.
        graph: what is sampled.
        plan: how: fanouts and replacement count; weights and excluded edges do not.
        seeds: int64[n] by node type id, all seeds of this trainer; none is fine.
        batch_size: seeds of a minibatch, of all types together.
        steps: minibatches of an epoch of this trainer.
        policy: "vip", or "degree": the nodes with most out-edges in the relations of the plan.
        capacities: how many rows at most, of the nodes or edges of which types; of the same on every trainer, and equal
            on the trainers of a node.
        expand_once: a hop draws only for the nodes that the hop before found, else for all nodes found so far.

    Returns:
        int64[n] ids for each key of ``capacities``: rows that no host of this node holds, hottest first, of equally hot
        ones the lower id first; equal on the trainers of a node. Rows that cannot be read are left out.

    Raises:
        InvalidArgumentError: ``policy`` is none, or "degree" for edges; on every trainer.

    Collective on the trainers.
    """
    if policy not in ("vip", "degree"):
        raise everywhere(InvalidArgumentError(f"policy must be 'vip' or 'degree' (got {policy!r})"))
    if policy == "degree" and not all(key.is_node for key in capacities):
        raise everywhere(InvalidArgumentError("edges have no degree: which edges are read often only 'vip' knows"))
    if world.all_near:
        return {key: _NONE for key in capacities}
    keys = sorted(capacities, key=lambda key: (not key.is_node, key.type_id))
    with no_way_back(world.trainers):
        job = _Job(world, graph, steps, [capacities[key] for key in keys])
        if policy == "degree":
            scored = [_by_degree(job, plan, key.type_id) for key in keys]
        else:
            analysis = _Analysis(job, plan, keys, expand_once)
            for turn in range(int(job.local.max()) + 1):
                analysis.run(turn, seeds if world.local_trainer == turn else {}, batch_size)
            scored = [analysis.scores(key) for key in keys]
        return {key: _hottest(job, number, scored[number]) for number, key in enumerate(keys)}


@dataclass(frozen=True)
class _Scored:
    """Ranges of rows that this trainer has scores of, of positive length and score.

    Attributes:
        node: int64[n], for whom the score counts: a node of the job that does not hold them.
        first: int64[n], the first row of each.
        count: int64[n], how many.
        score: float64[n].
    """

    node: I64
    first: I64
    count: I64
    score: F64


class _Job:
    """Who the trainers are, and which of them computes for which destinations.

    Attributes:
        node: int64[trainers], the node of each.
        local: int64[trainers], its place there.
        steps: int64[trainers], its minibatches.
        capacities: int64[trainers, keys].

    Collective on the trainers: construction, :meth:`exchange`.
    """

    def __init__(self, world: World, graph: LoadedGraph, steps: int, capacities: Sequence[int]) -> None:
        self.world = world
        self.topology = graph.topology
        self.book = graph.topology.hosts
        mine = np.array([world.node_index, world.local_trainer, steps, *capacities], np.int64)
        known = np.empty((world.trainers.size, len(mine)), np.int64)
        with world.meeting("finding which rows are read often", TRAINERS):
            wait(world.trainers.Iallgather(mine, known), PEERS_COMPUTE)
        self.node, self.local, self.steps = (np.ascontiguousarray(column) for column in known.T[:3])
        self.capacities = known[:, 3:]
        self._pieces = [self._cut(ntype) for ntype in range(len(self.book.schema.ntypes))]

    def _cut(self, ntype: int) -> tuple[I64, I64]:
        """Deal each host's nodes out to the trainers near it: where pieces begin, and whose they are."""
        begins: list[I64] = [_NONE] * len(self.world.hosts)
        whose = begins.copy()
        for node in range(self.world.num_nodes):
            trainers = np.flatnonzero(self.node == node)
            for host in self.world.hosts_of_node(node):
                begin, end = self.book.node_range(host, ntype)
                begins[host] = begin + (end - begin) * np.arange(len(trainers)) // len(trainers)
                whose[host] = trainers
        return np.concatenate(begins), np.concatenate(whose)

    def mine(self, ntype: int) -> list[tuple[int, int, int]]:
        """(host, begin, end) of the nodes that this trainer computes for."""
        begins, whose = self._pieces[ntype]
        ends = np.append(begins[1:], self.book.num_nodes(ntype))
        found = np.flatnonzero((whose == self.world.trainers.rank) & (begins < ends))
        hosts = self.book.node_owner(begins[found], ntype)
        return list(zip(hosts.tolist(), begins[found].tolist(), ends[found].tolist(), strict=True))

    def trainer_of(self, nodes: I64, ntype: int) -> I64:
        """int64[n]: who computes for each node."""
        begins, whose = self._pieces[ntype]
        return whose[np.searchsorted(begins, nodes, side="right") - 1]

    def exchange(self, rows: I64, to: I64) -> I64:
        """Send each of ``rows`` (int64[n, columns]) to trainer ``to[i]`` (int64[n]); return what has come."""
        order = np.argsort(to, kind="stable")
        counts = np.bincount(to, minlength=len(self.node))
        with self.world.watch("finding which rows are read often"):
            return exchange_rows(self.world.trainers, np.ascontiguousarray(rows[order]), counts)[0]

    def largest(self, value: int) -> int:
        """The largest of every trainer's value. Collective on the trainers."""
        return self.world.allreduce_minmax(value, largest=True)


class _Reached:
    """Nodes of one type that minibatches of some trainers reach, of those that this trainer computes for.

    A key is trainer's node * number of nodes of the type + node. All arrays are by the position of a key.

    Attributes:
        total: float64[n], the chance to be in a minibatch.
        fresh: float64[n], the chance to be found by the last hop.
        sums: int64[n], what the edges of this hop add up to.
        score: float64[n], reads in an epoch.
        edge_score: by relation float64[n], reads in an epoch of each in-edge.
    """

    def __init__(self, num_nodes: int, num_groups: int, relations: Sequence[int]) -> None:
        self.num_nodes = max(num_nodes, 1)
        self._ids = LocalIds(self.num_nodes * num_groups)
        self.total = np.zeros(0)
        self.fresh = np.zeros(0)
        self.score = np.zeros(0)
        self.sums = np.zeros(0, np.int64)
        self.edge_score = {relation: np.zeros(0) for relation in relations}

    def add(self, keys: I64, amounts: I64) -> None:
        """Add what edges of this hop do to some nodes."""
        positions = self._ids.insert(keys)
        if self._ids.count > len(self.sums):
            more = 2 * self._ids.count - len(self.sums)
            self.total, self.fresh, self.score = (_longer(a, more) for a in (self.total, self.fresh, self.score))
            self.sums = _longer(self.sums, more)
            self.edge_score = {relation: _longer(score, more) for relation, score in self.edge_score.items()}
        add_amounts(positions, amounts, self.sums)

    def begin(self) -> None:
        """Forget the trainers of the last turn; their scores stay."""
        self.total[:] = 0

    def hop(self) -> None:
        """The hop is over."""
        reach(self.total, self.fresh, self.sums)

    @property
    def groups(self) -> I64:
        """int64[n]: the trainer's node."""
        return self._ids.ids // self.num_nodes

    @property
    def nodes(self) -> I64:
        """int64[n]: the node that is reached."""
        return self._ids.ids % self.num_nodes


def _longer(array: np.ndarray, more: int) -> np.ndarray:
    return np.concatenate([array, np.zeros(more, array.dtype)])


@dataclass(frozen=True)
class _Work:
    """In-edges of one relation on one host whose sources are to be added up: of ``rows``, with ``amounts``.

    ``bases`` + source is the source's key.
    """

    relation: int
    adjacency: Adjacency
    rows: I64
    bases: I64
    amounts: I64
    edges: int


class _Analysis:
    """The chances of one trainer of every node at a time, and the reads that come of them.

    Collective on the trainers: :meth:`run`.
    """

    def __init__(self, job: _Job, plan: SamplingPlan, keys: Sequence[Policy], expand_once: bool) -> None:
        self._job = job
        self._plan = plan
        self._expand_once = expand_once
        self._schema = job.book.schema
        edges = [key.type_id for key in keys if not key.is_node]
        self._reached = [
            _Reached(
                job.book.num_nodes(ntype),
                job.world.num_nodes,
                [relation for relation in edges if self._schema.ends(relation)[1] == ntype],
            )
            for ntype in range(len(self._schema.ntypes))
        ]

    def run(self, turn: int, seeds: Mapping[int, I64], batch_size: int) -> None:
        """Add the reads of the trainers in place ``turn`` on their nodes; ``seeds`` are this one's, if it is one."""
        steps = np.zeros(self._job.world.num_nodes)
        now = self._job.local == turn
        steps[self._job.node[now]] = self._job.steps[now]
        count = max(sum(map(len, seeds.values())), 1)
        for ntype, reached in enumerate(self._reached):
            reached.begin()
            ids, times = np.unique(seeds.get(ntype, _NONE), return_counts=True)
            amounts = np.empty(len(ids), np.int64)
            as_amounts(np.minimum(times * (batch_size / count), 1.0), amounts)
            self._send(ntype, self._job.world.node_index * reached.num_nodes + ids, amounts)
            reached.hop()
        for fanouts in reversed(self._plan.fanouts):
            self._hop({relation: fanout for relation, fanout in fanouts.items() if fanout}, steps)
        for reached in self._reached:
            count = len(reached.nodes)
            reached.score[:count] += steps[reached.groups] * reached.total[:count]

    def _hop(self, fanouts: Mapping[int, int], steps: F64) -> None:
        rounds = self._rounds([part for r, fanout in sorted(fanouts.items()) for part in self._work(r, fanout, steps)])
        sources = sorted({self._schema.ends(relation)[0] for relation in fanouts})
        for number in range(self._job.largest(len(rounds))):
            works = rounds[number] if number < len(rounds) else []
            for src in sources:
                self._send(src, *self._add_up([w for w in works if self._schema.ends(w.relation)[0] == src], src))
        for reached in self._reached:
            reached.hop()

    def _work(self, relation: int, fanout: int, steps: F64) -> list[_Work]:
        """What this trainer has to do for one relation in this hop."""
        src, dst = self._schema.ends(relation)
        reached = self._reached[dst]
        nodes = reached.nodes
        chances = (reached.fresh if self._expand_once else reached.total)[: len(nodes)]
        found = []
        for host, begin, end in self._job.mine(dst):
            adjacency = self._job.topology.adjacency(relation, host)
            mine = np.flatnonzero((nodes >= begin) & (nodes < end) & (chances > 0))
            rows = nodes[mine] - adjacency.first_node
            odds = np.empty(len(rows))
            draw_odds(rows, adjacency.indptr, chances[mine], fanout, self._plan.replace, odds)
            groups = reached.groups[mine]
            if relation in reached.edge_score:
                reached.edge_score[relation][mine] += steps[groups] * odds
            amounts = np.empty(len(rows), np.int64)
            as_amounts(odds, amounts)
            bases = groups * self._reached[src].num_nodes
            ends = np.cumsum(adjacency.indptr[rows + 1] - adjacency.indptr[rows])
            at = 0
            while at < len(rows):
                before = int(ends[at - 1]) if at else 0
                to = max(int(np.searchsorted(ends, before + _AT_ONCE, side="right")), at + 1)
                cut = slice(at, to)
                edges = int(ends[to - 1]) - before
                found.append(_Work(relation, adjacency, rows[cut], bases[cut], amounts[cut], edges))
                at = to
        return found

    @staticmethod
    def _rounds(works: Sequence[_Work]) -> list[list[_Work]]:
        """Some works at a time, so that what is sent is bounded."""
        rounds: list[list[_Work]] = []
        edges = _EDGES
        for work in works:
            if edges >= _EDGES:
                rounds.append([])
                edges = 0
            rounds[-1].append(work)
            edges += work.edges
        return rounds

    def _add_up(self, works: Sequence[_Work], src: int) -> tuple[I64, I64]:
        """The keys of the sources, each once, and the sums of the amounts."""
        listed = LocalIds(self._reached[src].num_nodes * self._job.world.num_nodes)
        sums = np.zeros(0, np.int64)
        for work in works:
            indptr, indices = work.adjacency.indptr, work.adjacency.indices
            keys = np.empty(work.edges, np.int64)
            list_sources(work.rows, indptr, indices, work.bases, keys)
            positions = listed.insert(keys)
            if listed.count > len(sums):
                sums = _longer(sums, 2 * listed.count - len(sums))
            add_to_sources(work.rows, indptr, work.amounts, positions, sums)
        return listed.ids, sums[: listed.count]

    def _send(self, ntype: int, keys: I64, amounts: I64) -> None:
        """Give the amounts to who computes for the nodes. Collective on the trainers."""
        reached = self._reached[ntype]
        to = self._job.trainer_of(keys % reached.num_nodes, ntype)
        came = self._job.exchange(np.stack([keys, amounts], axis=1), to)
        reached.add(np.ascontiguousarray(came[:, 0]), np.ascontiguousarray(came[:, 1]))

    def scores(self, key: Policy) -> _Scored:
        """What nodes or edges of a type are read how often, by nodes that do not hold them."""
        ntype = key.type_id if key.is_node else self._schema.ends(key.type_id)[1]
        reached = self._reached[ntype]
        nodes, groups = reached.nodes, reached.groups
        score = (reached.score if key.is_node else reached.edge_score[key.type_id])[: len(nodes)]
        read = np.flatnonzero((score > 0) & (groups != self._job.world.node_index))
        nodes, groups, score = nodes[read], groups[read], score[read]
        if key.is_node:
            return _Scored(groups, nodes, np.ones(len(nodes), np.int64), score)
        first = np.zeros(len(nodes), np.int64)
        count = np.zeros(len(nodes), np.int64)
        for host, begin, end in self._job.mine(ntype):
            adjacency = self._job.topology.adjacency(key.type_id, host)
            mine = np.flatnonzero((nodes >= begin) & (nodes < end))
            rows = nodes[mine] - adjacency.first_node
            first[mine] = adjacency.first_edge + adjacency.indptr[rows]
            count[mine] = adjacency.indptr[rows + 1] - adjacency.indptr[rows]
        return _Scored(groups, first, count, score)


def _by_degree(job: _Job, plan: SamplingPlan, ntype: int) -> _Scored:
    """The out-degrees, in the relations of the plan, of the nodes that this trainer computes for."""
    relations = sorted({relation for fanouts in plan.fanouts for relation, fanout in fanouts.items() if fanout})
    relations = [relation for relation in relations if job.book.schema.ends(relation)[0] == ntype]
    ids = np.concatenate([_NONE, *(np.arange(begin, end) for _, begin, end in job.mine(ntype))])
    degrees = sum((job.topology.out_degrees(ids, relation) for relation in relations), np.zeros(len(ids), np.int64))
    ids, score = ids[degrees > 0], degrees[degrees > 0].astype(np.float64)
    others = np.flatnonzero(np.arange(job.world.num_nodes) != job.world.node_index)
    node = np.repeat(others, len(ids))
    return _Scored(node, np.tile(ids, len(others)), np.ones(len(node), np.int64), np.tile(score, len(others)))


def _hottest(job: _Job, number: int, scored: _Scored) -> I64:
    """Bring the scores that every trainer has together at the nodes that they count for; return this node's rows.

    Only as many rows travel as a node has a place for, and those that are about as hot as the last of these.

    Collective on the trainers.
    """
    world = job.world
    first_of = np.flatnonzero(job.local == 0)
    first_of = first_of[np.argsort(job.node[first_of])]
    most = job.capacities[first_of, number]
    bins = np.clip((scored.score.view(np.int64) >> (52 - _STEPS)) - _LOWEST, 0, _BINS - 1)
    counted = np.bincount(scored.node * _BINS + bins, scored.count, world.num_nodes * _BINS).astype(np.int64)
    with world.watch("finding which rows are read often"):
        counted = sum_over_ranks(world.trainers, counted).reshape(world.num_nodes, _BINS)
    hotter = np.cumsum(counted[:, ::-1], axis=1)[:, ::-1] - counted
    wanted = hotter[scored.node, bins] < most[scored.node]
    rows = np.stack([scored.score.view(np.int64), scored.first, scored.count], axis=1)[wanted]
    rows = job.exchange(rows, first_of[scored.node[wanted]])
    rows = rows[np.lexsort((rows[:, 1], -rows[:, 0]))]
    ends = np.cumsum(rows[:, 2])
    begins = ends - rows[:, 2]
    ids = np.repeat(rows[:, 1] - begins, rows[:, 2]) + np.arange(int(ends[-1]) if len(ends) else 0)
    ids = ids[: most[world.node_index]]
    peers = np.flatnonzero(job.node == world.node_index) if world.local_trainer == 0 else _NONE
    return job.exchange(np.tile(ids, len(peers))[:, None], np.repeat(peers, len(ids)))[:, 0].copy()
