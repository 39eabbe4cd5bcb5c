"""The wire: operations, and how the questions of a round are asked and answered.

Requests are int64 words, answers are bytes; no pickle, no code. What one rank asks of another in a round is any number
of requests, one after the other, of two kinds. Neighbours of nodes through one relation::

    flags, graph, relation, fanout, weights, key, destinations, excluded edges

with ``weights`` the number of the tensor of edge weights (-1: uniform). Whether edges exist::

    flags, graph, relation, destinations, sources

A list of n ids is ``2 n + narrow, id 0 .. id n-1``, narrow being 1 with two ids in a word, where they fit 32 bits, else
0. Destinations that request k of the same message has already are the word ``-1 - k``. The answer is, request by
request, each array padded to eight bytes::

    counts uint8|int32 [n], sources int32|int64 [sum(counts)], edges int32|int64 [sum(counts)] if asked for
    exists bool [n]

Counts are bytes where the fanout fits one; edges are counted from the owner's first one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, U8, Array

__all__ = [
    "AnswerReader",
    "EdgeQuery",
    "Operation",
    "SampledNeighbors",
    "RelationRequest",
    "Request",
    "count_dtype",
    "pack_answer",
    "pack_query",
    "pack_request",
    "unpack_requests",
]

_REPLACE, _EIDS, _EXISTS = 1, 2, 4


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
        weights: number of the tensor of edge weights, or -1.
        excluded: int64[k], global ids of edges that are as if they did not exist, ascending, each once.
    """

    graph: int
    relation: int
    ids: I64
    fanout: int
    replace: bool
    want_eids: bool
    key: np.uint64
    weights: int = -1
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


def pack_request(request: RelationRequest, ids: I64 | int, excluded: I64) -> list[I64]:
    """The words that ask one rank for ``ids`` of a request, ``excluded`` being edges of that rank.

    Relations into one node type have the same ids, which are sent once: then a number says in which earlier request to
    this rank.
    """
    flags = _REPLACE * request.replace + _EIDS * request.want_eids
    key = int(request.key.view(np.int64))
    numbers = [flags, request.graph, request.relation, request.fanout, request.weights, key]
    destinations = [np.array([-1 - ids], np.int64)] if isinstance(ids, int) else _pack_ids(ids)
    return [np.array(numbers, np.int64), *destinations, *_pack_ids(excluded)]


def pack_query(query: EdgeQuery, positions: I64) -> list[I64]:
    """The words that ask one rank for the edges at ``positions`` of a query."""
    numbers = np.array([_EXISTS, query.graph, query.relation], np.int64)
    return [numbers, *_pack_ids(query.ids[positions]), *_pack_ids(query.src[positions])]


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
        flags, graph, relation = reader.numbers(3)
        if flags & _EXISTS:
            yield EdgeQuery(graph, relation, reader.ids(), reader.ids())
            continue
        fanout, weights, key = reader.numbers(3)
        yield RelationRequest(
            graph=graph,
            relation=relation,
            ids=reader.destinations(),
            fanout=fanout,
            replace=bool(flags & _REPLACE),
            want_eids=bool(flags & _EIDS),
            key=np.int64(key).view(np.uint64),
            weights=weights,
            excluded=reader.ids(),
        )


class _WordReader:
    """Takes numbers and lists of ids in the order in which they were packed."""

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

    def numbers(self, count: int) -> list[int]:
        """The next words, as they are."""
        return [int(word) for word in self._take(count)]

    def destinations(self) -> I64:
        """The ids of the next request, which may be those of an earlier one."""
        size = int(self._words[self._at])
        if size < 0:
            self._at += 1
        self._seen.append(self._seen[-1 - size] if size < 0 else self.ids())
        return self._seen[-1]

    def ids(self) -> I64:
        """The next list of ids."""
        (size,) = self.numbers(1)
        n, narrow = divmod(size, 2)
        if not narrow:
            return self._take(n)
        return self._take((n + 1) // 2).view(np.int32)[:n].astype(np.int64)


def count_dtype(fanout: int) -> np.dtype[Any]:
    """How the counts of a hop travel."""
    return np.dtype(np.uint8 if 0 <= fanout < 256 else np.int32)


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
