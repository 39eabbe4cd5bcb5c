"""The wire format of requests and answers.

Requests are int64 words, answers are bytes; no pickle, no code. One rank sends another any number of requests in a
round, one after the other. A request is a header (:func:`_header`) and two lists of ids, the destinations first.
A list of n ids is ``2 n + narrow, id 0 .. id n-1``, narrow being 1 with two ids in a word, where they fit 32 bits, else
0. Destinations that request k of the same message has already are the word ``-1 - k``. The second list is the excluded
edges; before them are the keys of the destinations, where each has its own, and the columns of the strategy. A request
through several relations has before all that their number and that of their tables, a bit for each relation, and their
tensors; and in place of the relation ``-1 - type`` of its destinations.

The answer is, request by request, a few arrays, each padded to eight bytes: those of :func:`neighbor_arrays` or
:func:`row_arrays`, or bool [n] for edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, U8, U64, Array, Mask
from mpigraph.errors import CollectiveError
from mpigraph.sampling.strategies import MAX_WORDS, Strategy
from mpigraph.storage.format import index_dtype


def _no_ids() -> I64:
    return np.empty(0, np.int64)


def _no_roots() -> U64:
    return np.empty(0, np.uint64)


@dataclass(frozen=True)
class RelationRequest:
    """Sample in-neighbours of nodes through one relation.

    Attributes:
        graph: number of the graph.
        relation: relation id.
        ids: int64[n], destinations; may repeat.
        strategy: chooses the neighbours.
        want_eids: answer edge ids too.
        key: input of the draws besides the node; or uint64[n], for each destination.
        excluded: int64[k], global ids of excluded edges, removed before sampling; ascending, each once.
    """

    graph: int
    relation: int
    ids: I64
    strategy: Strategy
    want_eids: bool
    key: np.uint64 | U64
    excluded: I64 = field(default_factory=_no_ids)

    @property
    def by_root(self) -> bool:
        """True if each destination has a key of its own."""
        return isinstance(self.key, np.ndarray)


@dataclass(frozen=True)
class SharedRequest:
    """Sample in-neighbours of nodes through relations that share tables, in one pass.

    Attributes:
        graph: number of the graph.
        dst: node type id of the destinations.
        chosen: bool[relations that share tables], true for those to sample.
        ids: int64[n], destinations; may repeat.
        strategy: chooses the neighbours, with the tensors of any of the relations.
        want_eids: answer edges too.
        key: of the hop, as :meth:`.Strategy.hop_key` gives it.
        roots: uint64[n], the keys of the destinations' trees; empty without trees.
        excluded: int64[k], numbers of excluded edges, see :attr:`.SharedEdges.edges_of_hosts`; ascending, each once.
        tensors: int64[tables, relations that share tables], by table of the strategy the tensor of each chosen
            relation; without rows if the strategy needs no tables.
    """

    graph: int
    dst: int
    chosen: Mask
    ids: I64
    strategy: Strategy
    want_eids: bool
    key: np.uint64
    roots: U64 = field(default_factory=_no_roots)
    excluded: I64 = field(default_factory=_no_ids)
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


Request = RelationRequest | SharedRequest | EdgeQuery


_QUERY = 0  # in the place of a strategy's tag
_HEADER = 6 + MAX_WORDS


def edges_in(edges: I64, begin: int, end: int) -> I64:
    """Return the ``edges`` (int64[k], ascending) in ``[begin, end)``, such as an owner's range."""
    if len(edges) == 0:
        return edges
    low, high = np.searchsorted(edges, (begin, end))
    return edges[low:high]


def pack_request(
    request: RelationRequest | SharedRequest, ids: I64 | int, excluded: I64, positions: I64 | slice = slice(None)
) -> list[I64]:
    """Return the words that ask one rank for ``ids`` of a request; ``excluded`` are edges of that rank.

    The relations of a hop into one node type have the same destinations, which are sent once: then ``ids`` is the
    number of the earlier request to this rank that has them. ``positions`` are the places of ``ids`` in the request.
    """
    strategy = request.strategy
    own: list[I64] = []
    if isinstance(request, SharedRequest):
        relation = -1 - request.dst
        roots = request.roots
        tensors = request.tensors
        own += [np.array([len(request.chosen), len(tensors)]), _as_bits(request.chosen)]
        own += [tensors[:, request.chosen].ravel()] if len(tensors) else []
    else:
        relation = request.relation
        roots = request.key if isinstance(request.key, np.ndarray) else _no_roots()
    key = np.uint64(0) if isinstance(request.key, np.ndarray) else request.key
    by_root = len(roots) > 0
    words = strategy.words()
    header = _header(strategy.tag, request.graph, relation, request.want_eids, by_root, words, int(key.view(np.int64)))
    own += [roots[positions].view(np.int64)] if by_root else []
    own += [getattr(strategy, name)[positions] for name in strategy.columns]
    if not own:
        return _pack(header, ids, _pack_ids(excluded))
    second_list = np.concatenate([*own, excluded])
    return _pack(header, ids, [np.array([2 * len(second_list)], np.int64), second_list])


def _as_bits(mask: Mask) -> I64:
    padded = np.zeros(-(-len(mask) // 64) * 64, np.bool_)
    padded[: len(mask)] = mask
    return np.packbits(padded).view(np.int64)


def pack_query(query: EdgeQuery, positions: I64) -> list[I64]:
    """Return the words that ask one rank for the edges at ``positions`` of a query."""
    return _pack(_header(_QUERY, query.graph, query.relation), query.ids[positions], _pack_ids(query.src[positions]))


def _header(
    tag: int,
    graph: int,
    relation: int,
    want_eids: bool = False,
    by_root: bool = False,
    words: Sequence[int] = (),
    key: int = 0,
) -> list[int]:
    """Return the first words of a request, the key last."""
    return [tag, graph, relation, want_eids, by_root, *words, *(MAX_WORDS - len(words)) * [0], key]


def _pack(header: list[int], destinations: I64 | int, second_list: list[I64]) -> list[I64]:
    known = [np.array([-1 - destinations], np.int64)] if isinstance(destinations, int) else _pack_ids(destinations)
    return [np.array(header, np.int64), *known, *second_list]


def _pack_ids(ids: I64) -> list[I64]:
    narrow = bool(ids.max(initial=0) < 2**31)
    body = ids
    if narrow:
        body = np.empty((len(ids) + 1) // 2, np.int64)
        body[-1:] = 0
        body.view(np.int32)[: len(ids)] = ids
    return [np.array([2 * len(ids) + narrow], np.int64), body]


def unpack_requests(words: I64) -> list[Request]:
    """Read the requests in the words of a rank.

    Raises CollectiveError if the words are malformed, or a strategy is not known here.
    """
    requests: list[Request] = []
    at = 0
    while at < len(words):
        header, begin = words[at : at + _HEADER], at + _HEADER
        earlier = -1 - int(words[begin]) if begin < len(words) else -1
        if 0 <= earlier < len(requests):
            ids, at = requests[earlier].ids, begin + 1
        else:
            ids, at = _unpack_ids(words, begin)
        second_list, at = _unpack_ids(words, at)
        requests.append(_request(header, ids, second_list))
    return requests


def _unpack_ids(words: I64, at: int) -> tuple[I64, int]:
    """Return the list of ids at a place, and the place after it."""
    size = int(words[at]) if at < len(words) else -1
    count = size >> 1
    end = at + 1 + ((count + 1) >> 1 if size & 1 else count)
    if size < 0 or end > len(words):
        raise CollectiveError("the words of a sampling request are malformed")
    body = words[at + 1 : end]
    return body.view(np.int32)[:count].astype(np.int64) if size & 1 else body, end


def _request(header: I64, ids: I64, second_list: I64) -> Request:
    tag, graph, relation, want_eids, by_root, *parameters, _ = header.tolist()
    if tag == _QUERY:
        return EdgeQuery(graph, relation, ids, second_list)
    chosen = None
    if relation < 0:
        count, tables = second_list[:2].tolist()
        end = 2 + -(-count // 64)
        chosen = np.unpackbits(second_list[2:end].view(np.uint8), count=count).view(np.bool_)
        tensors = np.zeros((tables, count), np.int64)
        of_each = np.count_nonzero(chosen)
        begin, end = end, end + tables * of_each
        tensors[:, chosen] = second_list[begin:end].reshape(tables, of_each)
        second_list = second_list[end:]
    kind = Strategy.of_tag(tag)
    of_each = by_root + len(kind.columns)
    arrays = [second_list[k * len(ids) : (k + 1) * len(ids)] for k in range(of_each)]
    excluded = second_list[of_each * len(ids) :]
    roots = arrays.pop(0).view(np.uint64) if by_root else _no_roots()
    strategy = kind.from_words(parameters, arrays)
    key = header[-1:].view(np.uint64)[0]
    if chosen is None:
        own_key = roots if by_root else key
        return RelationRequest(graph, relation, ids, strategy, bool(want_eids), own_key, excluded)
    many = (graph, -1 - relation, chosen, ids, strategy, bool(want_eids))
    return SharedRequest(*many, key, roots, excluded, tensors)


@dataclass(frozen=True)
class SampledNeighbors:
    """Sampled neighbours of consecutive nodes.

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
    """Sampled neighbours of some destinations through many relations: rows, each of a destination and a relation.

    Attributes:
        bounds: int64[n + 1], the first row of each destination.
        places: int[m], the relation of each row, by its place among those that share tables; rising in a destination.
        counts: int[m], the neighbours of each row.
        src: int32 or int64 [sum of counts], global source ids.
        edges: int64[sum of counts], counted from the host's first edge of these relations; empty without ``want_eids``.
    """

    bounds: I64
    places: Array
    counts: Array
    src: Array
    edges: I64


def neighbor_arrays(request: RelationRequest, neighbors: SampledNeighbors, owned: tuple[int, int]) -> list[Array]:
    """Return the arrays that answer a request: counts [n], sources, and edge ids with ``want_eids``.

    Counts are bytes where the fanout fits one. Edges are counted from the first of ``owned``, the owner's range.
    """
    first, last = owned
    arrays = [np.diff(neighbors.offsets).astype(_count_dtype(request.strategy.fanout)), neighbors.src]
    return arrays + ([(neighbors.eids - first).astype(index_dtype(last - first))] if request.want_eids else [])


def row_arrays(request: SharedRequest, rows: SampledRows, num_edges: int) -> list[Array]:
    """Return the arrays that answer a request, of a host with ``num_edges`` edges of these relations.

    The number of rows of each destination [n], then places, counts, sources, and edges with ``want_eids``.
    """
    places = _count_dtype(len(request.chosen))
    arrays = [np.diff(rows.bounds).astype(places), rows.places.astype(places)]
    arrays += [rows.counts.astype(_count_dtype(request.strategy.fanout)), rows.src]
    return arrays + ([rows.edges.astype(index_dtype(num_edges))] if request.want_eids else [])


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

    def neighbors(
        self, request: RelationRequest, count: int, src_dtype: npt.DTypeLike, owned: tuple[int, int]
    ) -> tuple[Array, Array, I64]:
        """Return the arrays of :func:`neighbor_arrays` for ``count`` destinations, with global edge ids."""
        first, last = owned
        counts = self.take(count, _count_dtype(request.strategy.fanout))
        total = int(counts.sum(dtype=np.int64))
        src = self.take(total, src_dtype)
        eids = self.take(total if request.want_eids else 0, index_dtype(last - first))
        return counts, src, eids.astype(np.int64) + first

    def rows(self, request: SharedRequest, count: int, src_dtype: npt.DTypeLike, num_edges: int) -> SampledRows:
        """Return what :func:`row_arrays` packed for ``count`` destinations."""
        places = _count_dtype(len(request.chosen))
        bounds = np.zeros(count + 1, np.int64)
        np.cumsum(self.take(count, places), out=bounds[1:])
        of_rows = self.take(int(bounds[-1]), places)
        counts = self.take(len(of_rows), _count_dtype(request.strategy.fanout))
        total = int(counts.sum(dtype=np.int64))
        src = self.take(total, src_dtype)
        edges = self.take(total if request.want_eids else 0, index_dtype(num_edges))
        return SampledRows(bounds, of_rows, counts, src, edges.astype(np.int64))
