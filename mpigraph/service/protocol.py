"""The wire: operations, and how a hop of sampling is asked and answered.

Requests are int64 words, answers are bytes; no pickle, no code. A sampling request from one rank to another is the
concatenation, relation by relation, of ::

    graph, relation, fanout, flags, key, weights, n, id 0 .. id n-1

with ``weights`` the number of the tensor of edge weights (-1: uniform), and two ids in a word where they fit 32 bits.
Its answer is, relation by relation, each array padded to eight bytes::

    counts uint8|int32 [n], sources int32|int64 [sum(counts)], edges int32|int64 [sum(counts)] if asked for

Counts are bytes where the fanout fits one; edges are counted from the owner's first one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "AnswerReader",
    "Operation",
    "Part",
    "RelationRequest",
    "count_dtype",
    "pack_answer",
    "pack_request",
    "unpack_requests",
]

_I64 = npt.NDArray[np.int64]
_U8 = npt.NDArray[np.uint8]
_HEAD = 7
_REPLACE, _EIDS, _NARROW = 1, 2, 4


class Operation(IntEnum):
    """What a rank does in a round or in a control call. Local; no communication."""

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

    Local; no communication.
    """

    graph: int
    relation: int
    ids: _I64
    fanout: int
    replace: bool
    want_eids: bool
    key: np.uint64
    weights: int = -1


def pack_request(request: RelationRequest, ids: _I64) -> _I64:
    """The words that ask one rank for ``ids`` of a request. Local; no communication."""
    narrow = ids.max(initial=0) < 2**31
    flags = _REPLACE * request.replace + _EIDS * request.want_eids + _NARROW * narrow
    body = ids
    if narrow:
        body = np.empty((len(ids) + 1) // 2, np.int64)
        body[-1:] = 0
        body.view(np.int32)[: len(ids)] = ids
    words = np.empty(_HEAD + len(body), np.int64)
    key = request.key.view(np.int64)
    words[:_HEAD] = request.graph, request.relation, request.fanout, flags, key, request.weights, len(ids)
    words[_HEAD:] = body
    return words


def unpack_requests(words: _I64) -> Iterator[RelationRequest]:
    """The requests in a rank's words. Local; no communication."""
    at = 0
    while at < len(words):
        graph, relation, fanout, flags, _, weights, n = words[at : at + _HEAD].tolist()
        key = words[at + 4].view(np.uint64)
        at += _HEAD
        used = (n + 1) // 2 if flags & _NARROW else n
        ids = words[at : at + used]
        if flags & _NARROW:
            ids = ids.view(np.int32)[:n].astype(np.int64)
        replace, want_eids = bool(flags & _REPLACE), bool(flags & _EIDS)
        yield RelationRequest(graph, relation, ids, fanout, replace, want_eids, key, weights)
        at += used


def count_dtype(fanout: int) -> np.dtype[Any]:
    """How the counts of a hop travel. Local; no communication."""
    return np.dtype(np.uint8 if 0 <= fanout < 256 else np.int32)


@dataclass(frozen=True)
class Part:
    """Sampled neighbours of consecutive nodes.

    Attributes:
        offsets: int64[n + 1], where each node's neighbours are.
        src: int32 or int64 [offsets[-1]], global source ids; in a buffer of the sampler's, to be used at once.
        eids: int64[offsets[-1]], global edge ids; empty if nobody asked.

    Local; no communication.
    """

    offsets: _I64
    src: npt.NDArray[Any]
    eids: _I64


def pack_answer(arrays: list[npt.NDArray[Any]]) -> _U8:
    """The bytes that answer one rank: the arrays, one after the other. Local; no communication."""
    sizes = [-(-a.nbytes // 8) * 8 for a in arrays]
    answer = np.empty(sum(sizes), np.uint8)
    at = 0
    for array, size in zip(arrays, sizes, strict=True):
        answer[at : at + array.nbytes] = array.view(np.uint8)
        answer[at + array.nbytes : at + size] = 0
        at += size
    return answer


class AnswerReader:
    """Takes the arrays of an answer in the order in which they were packed. Local; no communication."""

    def __init__(self, answer: _U8) -> None:
        self._answer = answer
        self._at = 0

    def take(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The next ``count`` elements, a view."""
        nbytes = count * np.dtype(dtype).itemsize
        array = self._answer[self._at : self._at + nbytes].view(dtype)
        self._at += -(-nbytes // 8) * 8
        return array
