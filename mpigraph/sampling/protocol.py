"""The wire: operations, and how the questions of a round are asked and answered.

Requests are int64 words, answers are bytes; no pickle, no code. What one rank asks of another in a round is any number
of requests, one after the other. A request is a header (:class:`_Header`) and two lists of ids, the destinations first.
A list of n ids is ``2 n + narrow, id 0 .. id n-1``, narrow being 1 with two ids in a word, where they fit 32 bits, else
0. Destinations that request k of the same message has already are the word ``-1 - k``.

The answer is, request by request, a few arrays, each padded to eight bytes: those of :func:`neighbor_arrays`, or bool
[n] for edges.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, U8, Array
from mpigraph.storage.format import index_dtype

__all__ = [
    "AnswerReader",
    "EdgeQuery",
    "Kind",
    "Operation",
    "RelationRequest",
    "Request",
    "SampledNeighbors",
    "neighbor_arrays",
    "pack_answer",
    "pack_query",
    "pack_request",
    "unpack_requests",
]


class Operation(IntEnum):
    """What a rank does in a round or in a control call."""

    SERVE = 0
    IDLE = 1
    SAMPLE = 2
    CLOSE = 3
    OPEN_GRAPH = 10
    CREATE_TENSOR = 11
    OPEN_CHANNEL = 12
    PREPARE_WEIGHTS = 13
    FREE = 14
    BARRIER = 15
    SHUTDOWN = 16
    OPEN_CACHES = 17


class Kind(IntEnum):
    """What a request asks for: neighbours, and how they are drawn, or whether edges exist."""

    UNIFORM = 0
    WEIGHTED = 1
    EXISTS = 2


def _no_ids() -> I64:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class RelationRequest:
    """Sample in-neighbours of nodes through one relation.

    Attributes:
        graph: number of the graph.
        relation: relation id.
        ids: int64[n], destinations; may repeat.
        fanout: most neighbours of a node; -1 means all.
        replace: with replacement.
        want_eids: answer edge ids too.
        key: what the draws depend on besides the node.
        kind: ``UNIFORM`` or ``WEIGHTED``.
        weights: number of the tensor of edge weights, for ``WEIGHTED``.
        excluded: int64[k], global ids of excluded edges, removed before sampling; ascending, each once.
    """

    graph: int
    relation: int
    ids: I64
    fanout: int
    replace: bool
    want_eids: bool
    key: np.uint64
    kind: Kind = Kind.UNIFORM
    weights: int = 0
    excluded: I64 = field(default_factory=_no_ids)

    def excluded_in(self, begin: int, end: int) -> I64:
        """The excluded edges in ``[begin, end)``, an owner's range."""
        if len(self.excluded) == 0:
            return self.excluded
        low, high = np.searchsorted(self.excluded, (begin, end))
        return self.excluded[low:high]


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


Request = RelationRequest | EdgeQuery


class _Header(NamedTuple):
    """The words that a request begins with, in this order. Of edges only the first three count."""

    kind: int
    graph: int
    relation: int
    fanout: int = 0
    replace: int = 0
    want_eids: int = 0
    weights: int = 0
    key: int = 0


def pack_request(request: RelationRequest, ids: I64 | int, excluded: I64) -> list[I64]:
    """The words that ask one rank for ``ids`` of a request, ``excluded`` being edges of that rank.

    The relations of a hop into one node type have the same destinations, which are sent once: then ``ids`` is the
    number of the earlier request to this rank that has them.
    """
    header = _Header(
        kind=request.kind,
        graph=request.graph,
        relation=request.relation,
        fanout=request.fanout,
        replace=request.replace,
        want_eids=request.want_eids,
        weights=request.weights,
        key=int(request.key.view(np.int64)),
    )
    return _pack(header, ids, excluded)


def pack_query(query: EdgeQuery, positions: I64) -> list[I64]:
    """The words that ask one rank for the edges at ``positions`` of a query."""
    return _pack(_Header(Kind.EXISTS, query.graph, query.relation), query.ids[positions], query.src[positions])


def _pack(header: _Header, destinations: I64 | int, others: I64) -> list[I64]:
    known = [np.array([-1 - destinations], np.int64)] if isinstance(destinations, int) else _pack_ids(destinations)
    return [np.array(header, np.int64), *known, *_pack_ids(others)]


def _pack_ids(ids: I64) -> list[I64]:
    narrow = bool(ids.max(initial=0) < 2**31)
    body = ids
    if narrow:
        body = np.empty((len(ids) + 1) // 2, np.int64)
        body[-1:] = 0
        body.view(np.int32)[: len(ids)] = ids
    return [np.array([2 * len(ids) + narrow], np.int64), body]


def unpack_requests(words: I64) -> Iterator[Request]:
    """The requests in a rank's words."""
    reader = _WordReader(words)
    while reader.left:
        header = reader.header()
        destinations = reader.destinations()
        others = reader.ids()
        if header.kind == Kind.EXISTS:
            yield EdgeQuery(header.graph, header.relation, destinations, others)
            continue
        yield RelationRequest(
            graph=header.graph,
            relation=header.relation,
            ids=destinations,
            fanout=header.fanout,
            replace=bool(header.replace),
            want_eids=bool(header.want_eids),
            key=np.int64(header.key).view(np.uint64),
            kind=Kind(header.kind),
            weights=header.weights,
            excluded=others,
        )


class _WordReader:
    """Takes headers and lists of ids in the order in which they were packed."""

    def __init__(self, words: I64) -> None:
        self._words = words
        self._at = 0
        self._seen: list[I64] = []

    @property
    def left(self) -> bool:
        """Whether there is anything more."""
        return self._at < len(self._words)

    def _take(self, count: int) -> I64:
        self._at += count
        return self._words[self._at - count : self._at]

    def header(self) -> _Header:
        """The header of the next request."""
        return _Header(*self._take(len(_Header._fields)).tolist())

    def destinations(self) -> I64:
        """The destinations of the next request, which may be those of an earlier one."""
        size = int(self._words[self._at])
        if size < 0:
            self._at += 1
        self._seen.append(self._seen[-1 - size] if size < 0 else self.ids())
        return self._seen[-1]

    def ids(self) -> I64:
        """The next list of ids."""
        n, narrow = divmod(int(self._take(1)[0]), 2)
        if not narrow:
            return self._take(n)
        return self._take((n + 1) // 2).view(np.int32)[:n].astype(np.int64)


@dataclass(frozen=True)
class SampledNeighbors:
    """Sampled neighbours of consecutive nodes.

    Attributes:
        offsets: int64[n + 1], where each node's neighbours are.
        src: int32 or int64 [offsets[-1]], global source ids; in a buffer of the sampler's, to be used at once.
        eids: int64[offsets[-1]], global edge ids; empty if nobody asked.
    """

    offsets: I64
    src: Array
    eids: I64


def neighbor_arrays(request: RelationRequest, found: SampledNeighbors, owned: tuple[int, int]) -> list[Array]:
    """What answers a request for neighbours: counts [n], sources, and edge ids if asked for.

    Counts are bytes where the fanout fits one; edges are counted from the owner's first one, ``owned`` being its range.
    """
    first, last = owned
    counts = np.diff(found.offsets).astype(_count_dtype(request.fanout))
    return [counts, found.src, (found.eids - first).astype(index_dtype(last - first))]


def _count_dtype(fanout: int) -> np.dtype[Any]:
    return np.dtype(np.uint8 if 0 <= fanout < 256 else np.int32)


def pack_answer(arrays: list[Array]) -> U8:
    """The bytes that answer one rank: the arrays, one after the other."""
    sizes = [-(-a.nbytes // 8) * 8 for a in arrays]
    answer = np.empty(sum(sizes), np.uint8)
    at = 0
    for array, size in zip(arrays, sizes, strict=True):
        answer[at : at + array.nbytes] = array.view(np.uint8)
        answer[at + array.nbytes : at + size] = 0
        at += size
    return answer


class AnswerReader:
    """Takes the arrays of an answer in the order in which they were packed."""

    def __init__(self, answer: U8) -> None:
        self._answer = answer
        self._at = 0

    def take(self, count: int, dtype: npt.DTypeLike) -> Array:
        """The next ``count`` elements, a view."""
        nbytes = count * np.dtype(dtype).itemsize
        array = self._answer[self._at : self._at + nbytes].view(dtype)
        self._at += -(-nbytes // 8) * 8
        return array

    def neighbors(
        self, request: RelationRequest, count: int, src_dtype: npt.DTypeLike, owned: tuple[int, int]
    ) -> tuple[Array, Array, I64]:
        """The arrays of :func:`neighbor_arrays` for ``count`` destinations, edge ids global again."""
        first, last = owned
        counts = self.take(count, _count_dtype(request.fanout))
        total = int(counts.sum(dtype=np.int64))
        src = self.take(total, src_dtype)
        eids = self.take(total if request.want_eids else 0, index_dtype(last - first))
        return counts, src, eids.astype(np.int64) + first
