"""The wire format of requests and answers.

Requests are int64 words, answers are bytes; no pickle, no code. One rank sends another any number of requests in a
round, one after the other. A list of n ids is ``2 n + narrow, id 0 .. id n-1``, narrow being 1 with two ids in a word,
where they fit 32 bits, else 0. There are requests to

* draw: tag of the strategy, graph, type of the destinations, flags, number of relations, key, the strategy's words;
  the list of destinations, or ``-1 - k`` for those of request k of the same message; a bit for each relation; the keys
  of the destinations' roots, if there are any; the columns of the strategy; the tensors of the relations whose bits are
  set; the list of excluded edges;
* look edges up: tag 0, graph, relation; the lists of destinations and sources.

The answer is, request by request, a few arrays, each padded to eight bytes: those of :func:`row_arrays`, or bool [n]
for edges.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, U8, U64, Array, Mask
from mpigraph.errors import CollectiveError
from mpigraph.sampling.strategies import Strategy
from mpigraph.storage.format import index_dtype


@dataclass(frozen=True)
class SamplingRequest:
    """Sample in-neighbours of nodes of one type through some relations, by strategies that differ in tensors alone.

    Attributes:
        graph: number of the graph.
        dst: node type id of the destinations.
        chosen: bool[relations], true for those to sample; all have this type of destinations.
        ids: int64[n], destinations; may repeat.
        strategy: chooses the neighbours, with the tensors of any of the relations.
        want_eids: answer edge ids too.
        key: of the hop, as :meth:`.Strategy.hop_key` gives it.
        roots: uint64[n], the keys of the destinations' trees; empty without trees.
        excluded: int64[k], numbers of excluded edges, see :attr:`.Topology.edges`; ascending, each once.
        tensors: int64[tables, chosen relations], by table of the strategy the tensor of each relation; without rows if
            the strategy needs no tables.
    """

    graph: int
    dst: int
    chosen: Mask
    ids: I64
    strategy: Strategy
    want_eids: bool
    key: np.uint64
    roots: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    excluded: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    tensors: I64 = field(default_factory=lambda: np.empty((0, 0), np.int64))


@dataclass(frozen=True)
class EdgeQuery:
    """Ask whether edges of one relation exist.

    Attributes:
        graph: number of the graph.
        relation: relation id.
        ids: int64[n], destinations; may repeat.
        src: int64[n], sources.
    """

    graph: int
    relation: int
    ids: I64
    src: I64


AnyRequest = SamplingRequest | EdgeQuery


_QUERY = 0  # in the place of a strategy's tag
_WANT_EIDS, _HAS_ROOTS = 1, 2  # flags


def edges_in(edges: I64, begin: int, end: int) -> I64:
    """Return the ``edges`` (int64[k], ascending) in ``[begin, end)``, such as an owner's range."""
    if len(edges) == 0:
        return edges
    low, high = np.searchsorted(edges, (begin, end))
    return edges[low:high]


def pack_request(
    request: SamplingRequest, ids: I64 | int, excluded: I64, positions: I64 | slice = slice(None)
) -> list[I64]:
    """Return the words that ask one rank for ``ids`` of a request; ``excluded`` are edges of that rank.

    The requests of a hop with one node type have the same destinations, which are sent once: then ``ids`` is the
    number of the earlier request to this rank that has them. ``positions`` are the places of ``ids`` in the request.
    """
    strategy, roots, chosen = request.strategy, request.roots, request.chosen
    flags = _WANT_EIDS * request.want_eids + _HAS_ROOTS * (len(roots) > 0)
    header = [strategy.tag, request.graph, request.dst, flags, len(chosen), int(request.key.view(np.int64))]
    bits = np.zeros(-(-len(chosen) // 64) * 64, np.bool_)
    bits[: len(chosen)] = chosen
    return [
        np.array(header + strategy.words(), np.int64),
        *([np.array([-1 - ids], np.int64)] if isinstance(ids, int) else _pack_ids(ids)),
        np.packbits(bits).view(np.int64),
        roots.view(np.int64)[positions if len(roots) else slice(0)],
        *(getattr(strategy, name)[positions] for name in strategy.columns),
        request.tensors.ravel(),
        *_pack_ids(excluded),
    ]


def pack_query(query: EdgeQuery, positions: I64) -> list[I64]:
    """Return the words that ask one rank for the edges at ``positions`` of a query."""
    header = np.array([_QUERY, query.graph, query.relation], np.int64)
    return [header, *_pack_ids(query.ids[positions]), *_pack_ids(query.src[positions])]


def _pack_ids(ids: I64) -> list[I64]:
    narrow = bool(ids.max(initial=0) < 2**31)
    body = ids
    if narrow:
        body = np.empty((len(ids) + 1) // 2, np.int64)
        body[-1:] = 0
        body.view(np.int32)[: len(ids)] = ids
    return [np.array([2 * len(ids) + narrow], np.int64), body]


def unpack_requests(words: I64) -> list[AnyRequest]:
    """Read the requests in the words of a rank.

    Raises CollectiveError if the words are malformed, or a strategy is not known here.
    """
    reader = _Words(words)
    requests: list[AnyRequest] = []
    while reader.at < len(words):
        (tag,) = reader.take(1)
        requests.append(reader.query() if tag == _QUERY else reader.request(Strategy.of_tag(int(tag)), requests))
    return requests


class _Words:
    """Reads words from the first to the last. All methods raise CollectiveError if the words are malformed."""

    def __init__(self, words: I64) -> None:
        self.at = 0
        self._words = words

    def take(self, count: int) -> I64:
        """Return the next words."""
        begin, self.at = self.at, self.at + count
        if count < 0 or self.at > len(self._words):
            raise CollectiveError("the words of a sampling request are malformed")
        return self._words[begin : self.at]

    def ids(self, size: int | None = None) -> I64:
        """Return a list of ids; ``size`` is its first word, if that was taken."""
        size = int(self.take(1)[0]) if size is None else size
        count = size >> 1
        if not size & 1:
            return self.take(count)
        return self.take((count + 1) >> 1).view(np.int32)[:count].astype(np.int64)

    def query(self) -> EdgeQuery:
        """Return the rest of a query."""
        graph, relation = self.take(2).tolist()
        return EdgeQuery(graph, relation, self.ids(), self.ids())

    def request(self, kind: type[Strategy], earlier: Sequence[AnyRequest]) -> SamplingRequest:
        """Return the rest of a request behind ``earlier`` ones."""
        graph, dst, flags, num_relations = self.take(4).tolist()
        key = self.take(1).view(np.uint64)[0]
        parameters = self.take(kind.num_words()).tolist()
        size = int(self.take(1)[0])
        ids = earlier[-1 - size].ids if 0 <= -1 - size < len(earlier) else self.ids(size)
        bits = self.take(-(-num_relations // 64))
        chosen = np.unpackbits(bits.view(np.uint8), count=num_relations).view(np.bool_)
        roots = self.take(len(ids) if flags & _HAS_ROOTS else 0).view(np.uint64)
        strategy = kind.from_words(parameters, [self.take(len(ids)) for _ in kind.columns])
        shape = len(kind.tables) if strategy.needs_tables else 0, int(np.count_nonzero(chosen))
        tensors = self.take(shape[0] * shape[1]).reshape(shape)
        many = (graph, dst, chosen, ids, strategy, bool(flags & _WANT_EIDS))
        return SamplingRequest(*many, key, roots, self.ids(), tensors)


@dataclass(frozen=True)
class SampledNeighbors:
    """Sampled neighbours of consecutive nodes through one relation.

    Attributes:
        offsets: int64[n + 1], the first neighbour of each node.
        src: int32 or int64 [offsets[-1]], global source ids; in a buffer of the sampler's, to be used at once.
        eids: int64[offsets[-1]], global edge ids; empty without ``want_eids``.
    """

    offsets: I64
    src: Array
    eids: I64


@dataclass(frozen=True)
class SampledRows:
    """The neighbours that a request with n destinations finds: rows, each of a relation and a destination.

    First those of relations that have a row for each destination, relation after relation, then m rows of listed
    relations, by relation and destination.

    Attributes:
        dense: int64[d], the relations with n rows each.
        relations: int64[m], the relation of each of the other rows.
        at: int64[m], the position of their destination in the request.
        counts: int [d * n + m], the neighbours of each row.
        offsets: int64[d * n + m + 1], their sums.
        src: int32 or int64 [sum of counts], global source ids.
        edges: int64[sum of counts], global ids, or from owners counted from the host's first edge; empty without
            ``want_eids``.
    """

    dense: I64
    relations: I64
    at: I64
    counts: Array
    offsets: I64
    src: Array
    edges: I64

    def by_relation(self, count: int) -> Iterator[tuple[int, SampledNeighbors]]:
        """Yield relations and their neighbours of the ``count`` destinations, without listed ones that have none."""
        for k, relation in enumerate(self.dense.tolist()):
            own = self.offsets[k * count : (k + 1) * count + 1]
            edges = slice(int(own[0]), int(own[-1]))
            yield relation, SampledNeighbors(own - own[0] if k else own, self.src[edges], self.edges[edges])
        if not len(self.at):
            return
        begin = len(self.dense) * count
        first = np.flatnonzero(np.diff(self.relations, prepend=-1))  # row of each relation
        table = np.zeros((len(first), count + 1), np.int64)
        which = np.repeat(np.arange(len(first)), np.diff(first, append=len(self.at)))
        table[which, self.at + 1] = self.counts[begin:]
        np.cumsum(table, axis=1, out=table)
        ends = self.offsets[begin + np.append(first, len(self.at))].tolist()
        for k, relation in enumerate(self.relations[first].tolist()):
            edges = slice(ends[k], ends[k + 1])
            yield relation, SampledNeighbors(table[k], self.src[edges], self.edges[edges])

    def with_ids(self, count: int, shift_of: Callable[[I64], I64]) -> "SampledRows":
        """Add ``shift_of(relations)`` to the edges, of the relation of each of the rows of ``count`` destinations."""
        if not len(self.edges):
            return self
        counts = np.diff(self.offsets[count * np.arange(len(self.dense) + 1)])  # of each dense relation
        of_rows = self.counts[count * len(self.dense) :]
        shifts = shift_of(np.append(self.dense, self.relations))
        return replace(self, edges=self.edges + np.repeat(shifts, np.append(counts, of_rows)))


def row_arrays(request: SamplingRequest, rows: SampledRows, listed: I64, num_edges: int) -> list[Array]:
    """Return the arrays that answer a request, of a host with ``num_edges`` edges.

    If there are ``listed`` relations among those chosen, the number of rows of each, and the positions of these rows;
    then counts, which are bytes where the fanout fits one, sources, and edges with ``want_eids``.
    """
    arrays: list[Array] = []
    if len(listed):
        sizes = np.searchsorted(rows.relations, listed, "right") - np.searchsorted(rows.relations, listed)
        arrays += [sizes.astype(np.int32), rows.at.astype(np.int32)]
    arrays += [rows.counts.astype(_count_dtype(request.strategy.fanout)), rows.src]
    return arrays + ([rows.edges.astype(index_dtype(num_edges))] if request.want_eids else [])


def sums(counts: Array) -> I64:
    """Return the sums of the first 0, 1, ... counts: int64[n + 1]."""
    offsets = np.empty(len(counts) + 1, np.int64)
    offsets[0] = 0
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _count_dtype(most: int) -> np.dtype[Any]:
    return np.dtype(np.uint8 if 0 <= most < 256 else np.int32)


def pack_answer(arrays: Sequence[Array], head: int) -> I64:
    """Return the words of an answer: ``head`` free ones, then the arrays of its requests, one after the other."""
    sizes = [-(-array.nbytes // 8) for array in arrays]
    answer = np.zeros(head + sum(sizes), np.int64)
    at = head
    for array, size in zip(arrays, sizes, strict=True):
        answer[at : at + size].view(np.uint8)[: array.nbytes] = array.view(np.uint8)
        at += size
    return answer


class AnswerReader:
    """Takes the arrays of an answer in the order in which they were packed."""

    def __init__(self, answer: U8) -> None:
        self._answer = answer
        self._at = 0

    def take(self, count: int, dtype: npt.DTypeLike) -> Array:
        """Return the next ``count`` elements, a view."""
        nbytes = count * np.dtype(dtype).itemsize
        array = self._answer[self._at : self._at + nbytes].view(dtype)
        self._at += -(-nbytes // 8) * 8
        return array

    def rows(
        self, request: SamplingRequest, listed: Mask, positions: I64, dtype: npt.DTypeLike, num_edges: int
    ) -> SampledRows:
        """Return what :func:`row_arrays` packed for the destinations at ``positions`` (int64[p]) of a request.

        ``listed`` is bool[relations], ``dtype`` that of sources. There are p rows of each dense relation.
        """
        dense, of_list = np.flatnonzero(request.chosen & ~listed), np.flatnonzero(request.chosen & listed)
        sizes = self.take(len(of_list), np.int32)
        at = self.take(int(sizes.sum()), np.int32)
        counts = self.take(len(dense) * len(positions) + len(at), _count_dtype(request.strategy.fanout))
        offsets = sums(counts)
        src = self.take(int(offsets[-1]), dtype)
        edges = self.take(len(src) if request.want_eids else 0, index_dtype(num_edges)).astype(np.int64)
        return SampledRows(dense, np.repeat(of_list, sizes), positions[at], counts, offsets, src, edges)
