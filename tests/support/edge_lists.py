"""Lists of edges that answer what users ask a graph, the oracle of every graph: in memory, a block, distributed.

``FACE`` is what all graphs answer alike, ``PARTS`` what all but blocks do, ``IN_MEMORY`` what needs edges by source.
Each function asks a graph a :class:`Question` and compares the answer with that of the lists.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from mpigraph.distgraph.partitioning import partition_graph
from mpigraph.errors import (
    EdgeTypeError,
    FieldNameError,
    GraphDataError,
    InvalidArgumentError,
    NodeTypeError,
    OutOfRangeError,
)
from mpigraph.graphs.fields import EID, NID
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.schema import DEFAULT_ETYPE, Relation, Schema

RATES, FOLLOWS, LIKES = ("user", "rates", "item"), ("user", "follows", "user"), ("tag", "likes", "item")
SHAPES: dict[str, tuple[dict[str, int], dict[Relation, int]]] = {
    "plain": ({"_N": 12}, {DEFAULT_ETYPE: 40}),
    "sparse": ({"_N": 30}, {DEFAULT_ETYPE: 9}),
    "edgeless": ({"_N": 3}, {DEFAULT_ETYPE: 0}),
    "typed": ({"item": 9, "tag": 0, "user": 14}, {LIKES: 0, FOLLOWS: 25, RATES: 60}),
    "bipartite": ({"item": 5, "user": 8}, {RATES: 20}),
}
"""Numbers of nodes and edges: parallel edges and loops, nodes without edges, types without nodes, no edges at all."""


class Lists:
    """Nodes by type and edges (source, destination) by relation; an id is a place in a list."""

    def __init__(self, counts: dict[str, int], edges: dict[Relation, list[tuple[int, int]]]) -> None:
        self.counts, self.edges = counts, edges

    @classmethod
    def drawn(cls, shape: str, seed: int, by_destination: bool) -> "Lists":
        """Edges at random, in random order or in that of parts, by destination and source."""
        rng = np.random.default_rng(seed)
        counts, sizes = SHAPES[shape]
        edges = {r: [(int(rng.integers(counts[r[0]])), int(rng.integers(counts[r[2]]))) for _ in range(sizes[r])]
                 for r in sizes}  # fmt: skip
        ordered = {r: sorted(pairs, key=lambda pair: pair[::-1]) for r, pairs in edges.items()}
        return cls(counts, ordered if by_destination else edges)

    def graph(self) -> HeteroGraph:
        """The same as a graph in memory; features are ten times the ids of nodes, a hundred times those of edges."""
        columns = {r: torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T for r, pairs in self.edges.items()}
        schema = Schema(tuple(self.counts), tuple(self.edges))
        g = HeteroGraph(schema, {r: (ends[0], ends[1]) for r, ends in columns.items()}, self.counts)
        for ntype in g.ntypes:
            g.nodes[ntype].data["x"] = g.nodes(ntype) * 10
        for relation in g.canonical_etypes:
            g.edges[relation].data["w"] = g.edges("eid", etype=relation) * 100
        return g

    def partitioned(self, directory: Path, num_parts: int) -> str:
        """The same in parts that leave all ids what they are."""
        parts = {t: torch.arange(n) * num_parts // max(n, 1) for t, n in self.counts.items()}
        partition_graph(self.graph(), "lists", num_parts, directory, assignment=parts)
        return str(directory / "lists.json")

    def at(self, relation: Relation, side: int, node: int) -> list[int]:
        """The edges of a relation with this source (side 0) or destination (1)."""
        return [number for number, pair in enumerate(self.edges[relation]) if pair[side] == node]

    def ends(self, relation: Relation, eids: list[int]) -> tuple[list[int], list[int]]:
        """Sources and destinations of edges."""
        return [self.edges[relation][e][0] for e in eids], [self.edges[relation][e][1] for e in eids]

    def met(self, chosen: dict[Relation, list[int]]) -> dict[str, list[int]]:
        """The ends of edges by type, in the order in which they are met: relation by relation, sources first."""
        sides = [(r[2 * side], self.ends(r, chosen.get(r, []))[side]) for r in self.edges for side in (0, 1)]
        return {t: [*dict.fromkeys(v for ntype, ids in sides if ntype == t for v in ids)] for t in self.counts}

    def into(self, nodes: dict[str, list[int]]) -> dict[Relation, list[int]]:
        """The edges into nodes, node by node."""
        return {r: [e for v in nodes[r[2]] for e in self.at(r, 1, v)] for r in self.edges}

    def out_of(self, nodes: dict[str, list[int]]) -> dict[Relation, list[int]]:
        """The edges out of nodes, node by node."""
        return {r: [e for u in nodes[r[0]] for e in self.at(r, 0, u)] for r in self.edges}


class Question(NamedTuple):
    """What is asked of a relation: pairs of nodes, edges, and nodes of every type, each once."""

    r: Relation
    u: list[int]
    v: list[int]
    e: list[int]
    nodes: dict[str, list[int]]


def questions(lists: Lists, seed: int) -> Iterator[Question]:
    """For each relation many nodes and edges, and none."""
    rng = np.random.default_rng(seed)
    for r, pairs in lists.edges.items():
        counts = [lists.counts[t] for t in r[::2]]
        some = {t: rng.permutation(n)[: n // 2].tolist() for t, n in lists.counts.items()}
        u, v = (rng.integers(0, n, 15 if min(counts) else 0).tolist() for n in counts)
        met = [list(side) for side in zip(*pairs[:8], strict=True)] or [[], []]
        yield Question(r, u + met[0], v + met[1], rng.integers(0, len(pairs), min(len(pairs), 20)).tolist(), some)
        yield Question(r, [], [], [], {t: [] for t in lists.counts})


def same(answer: Any, expected: Any) -> None:
    """Compare an answer of tensors, numbers and tuples of them with lists."""
    if isinstance(answer, tuple | dict):
        assert len(answer) == len(expected)
        for key in expected if isinstance(answer, dict) else range(len(answer)):
            same(answer[key], expected[key])
        return
    assert isinstance(answer, torch.Tensor) == isinstance(expected, list)
    if isinstance(answer, torch.Tensor):
        assert answer.dtype in (torch.int64, torch.bool) and answer.dim() == 1
    assert (answer.tolist() if isinstance(answer, torch.Tensor) else answer) == expected


def forms(ids: list[int]) -> list[Any]:
    """The same ids in all forms."""
    return [ids, np.array(ids, np.int32), torch.tensor(ids, dtype=torch.int64), np.array(ids, ">i8"), tuple(ids)]


def counts(g: Any, o: Lists, q: Question) -> None:
    assert g.canonical_etypes == [*o.edges] and g.num_edges(q.r) == g.number_of_edges(q.r[1]) == len(o.edges[q.r])
    assert g.num_edges() == sum(map(len, o.edges.values())) and g.is_homogeneous == (len(o.counts) == len(o.edges) == 1)
    for ntype, n in o.counts.items():
        assert g.num_nodes(ntype) == g.number_of_nodes(ntype) == len(g.nodes[ntype].data["x"]) == n
        same(g.nodes(ntype), [*range(n)])
    assert "w" in g.edata and "x" not in g.edata and len(g.edges[q.r[1]].data["w"]) == len(o.edges[q.r])
    assert "z" not in g.ndata and len(g.edata["w"] if len(o.edges) == 1 else g.edata["w"][q.r]) == len(o.edges[q.r])


def degrees(g: Any, o: Lists, q: Question) -> None:
    for ask, nodes, side in ((g.in_degrees, q.v, 1), (g.out_degrees, q.u, 0)):
        of = Counter(pair[side] for pair in o.edges[q.r])
        for ids in forms(nodes):
            same(ask(ids, q.r), [of[v] for v in nodes])
        same(ask(etype=q.r), [of[v] for v in range(o.counts[q.r[2 * side]])])
        for v in nodes[:3]:
            for number in (v, np.int64(v), np.int32(v)):
                same(ask(number, etype=q.r[1]), of[v])


def ends_of_edges(g: Any, o: Lists, q: Question) -> None:
    for ids in forms(q.e):
        same(g.find_edges(ids, q.r), o.ends(q.r, q.e))
    every = [*range(len(o.edges[q.r]))]
    same(g.edges("all", etype=q.r), (*o.ends(q.r, every), every))
    same(g.all_edges("eid", "srcdst", q.r), sorted(every, key=lambda e: (o.edges[q.r][e], e)))


def edges_into(g: Any, o: Lists, q: Question) -> None:
    eids = o.into({t: q.v if t == q.r[2] else [] for t in o.counts})[q.r]
    for ids in forms(q.v):
        same(g.in_edges(ids, "all", q.r), (*o.ends(q.r, eids), eids))


def edges_between(g: Any, o: Lists, q: Question) -> None:
    exist = [pair in o.edges[q.r] for pair in zip(q.u, q.v, strict=True)]
    for u, v in zip(forms(q.u), forms(q.v)[::-1], strict=True):
        same(g.has_edges_between(u, v, q.r), exist)
    same(g.has_edges_between({q.r[1]: q.u}, {q.r: q.v}), {q.r: exist})
    for u, v in [*zip(q.u, q.v, strict=True)][-3:]:
        same(g.has_edges_between(np.int64(u), v, q.r), (u, v) in o.edges[q.r])
        same(g.has_edges_between([u], q.v, q.r), [(u, other) in o.edges[q.r] for other in q.v])
        same(g.has_edges_between(q.u, v, q.r), [(other, v) in o.edges[q.r] for other in q.u])


def existing_nodes(g: Any, o: Lists, q: Question) -> None:
    for ntype, n in o.counts.items():
        same(g.has_nodes([0, n - 1, n, -1], ntype), [n > 0, n > 0, False, False])
        same(g.has_nodes(np.int64(0), ntype), n > 0)


def parts_of_edges(g: Any, o: Lists, q: Question) -> None:
    for ids in forms(q.e):
        check_part(g, o, g.edge_subgraph({q.r: ids}), {q.r: q.e}, o.met({q.r: q.e}))
    mask = torch.zeros(len(o.edges[q.r]), dtype=torch.bool)
    mask[q.e] = True
    chosen = {q.r: sorted(set(q.e))}
    check_part(g, o, g.edge_subgraph({q.r[1]: mask}), chosen, o.met(chosen))
    check_part(g, o, g.edge_subgraph({q.r: mask.numpy()}, relabel_nodes=False), chosen, None)
    bare = g.edge_subgraph({q.r: q.e}, store_ids=False)
    assert not any(NID in bare.nodes[t].data for t in o.counts) and EID not in bare.edges[q.r].data


def parts_into_nodes(g: Any, o: Lists, q: Question) -> None:
    chosen = o.into(q.nodes)
    check_part(g, o, g.in_subgraph(q.nodes), chosen, None)
    check_part(g, o, g.in_subgraph(q.nodes, relabel_nodes=True), chosen, o.met(chosen))


def parts_of_nodes(g: Any, o: Lists, q: Question) -> None:
    inside = {
        r: [e for e, (u, v) in enumerate(pairs) if u in q.nodes[r[0]] and v in q.nodes[r[2]]]
        for r, pairs in o.edges.items()
    }
    for change in (list, np.array, torch.tensor):
        check_part(g, o, g.subgraph({t: change(ids) for t, ids in q.nodes.items() if ids}), inside, q.nodes)
    check_part(g, o, g.subgraph(q.nodes, relabel_nodes=False), inside, None)


def edges_by_their_ends(g: Any, o: Lists, q: Question) -> None:
    of = {(u, v): [e for e in o.at(q.r, 0, u) if o.edges[q.r][e][1] == v] for u, v in zip(q.u, q.v, strict=True)}
    known = [pair for pair, eids in of.items() if eids]
    same(g.edge_ids([u for u, _ in known], [v for _, v in known], etype=q.r), [of[pair][0] for pair in known])
    for u, v in known[:1]:
        same(g.edge_ids(np.int64(u), v, etype=q.r), of[u, v][0])
    if len(known) < len(of):
        with pytest.raises(GraphDataError, match=r"there is no edge of \('"):
            g.edge_ids(q.u, q.v, etype=q.r)


def check_part(g: Any, o: Lists, part: HeteroGraph, chosen: dict[Relation, list[int]], nodes: Any) -> None:
    """Check the edges, ids and features of a part; without ``nodes`` it has all of them."""
    assert part.ntypes == g.ntypes and part.canonical_etypes == g.canonical_etypes
    for r in o.edges:
        src, dst = o.ends(r, chosen.get(r, []))
        if nodes is not None:
            src, dst = [nodes[r[0]].index(u) for u in src], [nodes[r[2]].index(v) for v in dst]
        same(part.edges(etype=r), (src, dst))
        same(part.edges[r].data[EID], chosen.get(r, []))
    for t, n in o.counts.items():
        assert part.num_nodes(t) == (n if nodes is None else len(nodes[t]))
        same(part.nodes[t].data.get(NID), None if nodes is None else nodes[t])
    features = [part.nodes[t].data for t in o.counts] + [part.edges[r].data for r in o.edges]
    assert {"x" in data or "w" in data for data in features} == {isinstance(g, HeteroGraph)}
    if isinstance(g, HeteroGraph):
        for t in o.counts:
            same(part.nodes[t].data["x"], [10 * node for node in (nodes[t] if nodes else range(o.counts[t]))])
        for r in o.edges:
            same(part.edges[r].data["w"], [100 * e for e in chosen.get(r, [])])


FACE = [counts, degrees, ends_of_edges, edges_into, edges_between, existing_nodes]
PARTS = [parts_of_edges, parts_into_nodes]
IN_MEMORY = [parts_of_nodes, edges_by_their_ends]


OF_NODES: list[Callable[[Any, str | None], Any]] = [
    lambda g, t: g.nodes[t], lambda g, t: g.nodes(t), lambda g, t: g.has_nodes([0], t), lambda g, t: g.get_ntype_id(t),
    lambda g, t: g.in_subgraph({t: [0]}),
]  # fmt: skip
OF_EDGES: list[Callable[[Any, str | None], Any]] = [
    lambda g, r: g.edges[r], lambda g, r: g.edges(etype=r), lambda g, r: g.find_edges([0], r),
    lambda g, r: g.in_degrees([0], r), lambda g, r: g.out_degrees([0], r), lambda g, r: g.in_edges([0], etype=r),
    lambda g, r: g.has_edges_between([0], [0], r), lambda g, r: g.edge_subgraph({r: [0]}),
    lambda g, r: g.to_canonical_etype(r), lambda g, r: g.get_etype_id(r),
]  # fmt: skip
MISUSE: list[tuple[Callable[[Any], Any], tuple[type[Exception], str]]] = [
    (lambda g: g.num_nodes("x"), (NodeTypeError, "'x' does not exist")),
    (lambda g: g.edge_subgraph([0]), (EdgeTypeError, "edge type is ambiguous")),
    (lambda g: g.num_edges(("item", "rates", "user")), (EdgeTypeError, "'item'.* does not exist")),
    (lambda g: g.in_subgraph([0]), (NodeTypeError, "nodes must be a dict by node type")),
    (lambda g: g.ndata["z"], (FieldNameError, "no feature 'z' on any of .*have ..x'")),
    (lambda g: g.nodes["user"].data["z"], (KeyError, "no feature 'z' on nodes of type 'user' .have ..x'")),
    (lambda g: g.edges[RATES].data["z"], (KeyError, "no feature 'z' on edges of relation .'user', 'rates', 'item'")),
    (lambda g: g.ndata.update(z=g.nodes["user"].data["x"]), (InvalidArgumentError, "must be a dict by type")),
    (lambda g: g.ndata.update(z={"x": 1}), (InvalidArgumentError, "unknown type 'x'")),
    (lambda g: g.edges("vu", etype=RATES), (InvalidArgumentError, "form must be")),
    (lambda g: g.in_edges([0], "vu", RATES), (InvalidArgumentError, "form must be")),
    (lambda g: g.edges("uv", "dst", RATES), (InvalidArgumentError, "order must be")),
    (lambda g: g.find_edges([0, 60], RATES), (OutOfRangeError, "edge id .* 60 at position 1 is out of range")),
    (lambda g: g.edge_subgraph({RATES: [60]}), (OutOfRangeError, "edge id of relation .* 60")),
    (lambda g: g.in_degrees([9], RATES), (OutOfRangeError, "node id of type 'item' 9")),
    (lambda g: g.out_degrees([-1], RATES), (IndexError, "node id of type 'user' -1")),
    (lambda g: g.in_edges([9], etype=RATES), (OutOfRangeError, "node id of type 'item' 9")),
    (lambda g: g.in_subgraph({"user": [14]}), (OutOfRangeError, "node id of type 'user' 14")),
    (lambda g: g.has_edges_between([14], [0], RATES), (OutOfRangeError, "node id of type 'user' 14")),
    (lambda g: g.has_edges_between([0], [9], RATES), (OutOfRangeError, "node id of type 'item' 9")),
    (lambda g: g.has_edges_between([0, 1], [0, 1, 2], RATES), (InvalidArgumentError, "2 sources and 3 destinations")),
    (lambda g: g.has_edges_between([0.5], [0], RATES), (InvalidArgumentError, "source ids must be integers")),
    (lambda g: g.has_edges_between({RATES: [0]}, {FOLLOWS: [0]}),
     (EdgeTypeError, r"sources are of edge types .*'rates'.*, destinations of \[.*'follows'")),
    (lambda g: g.has_edges_between([0], {FOLLOWS: [0]}), (EdgeTypeError, "ambiguous")),
    (lambda g: g.has_edges_between({RATES: [0]}, {RATES: [0]}, RATES),
     (InvalidArgumentError, "give etype or dicts .*etype=.'user', 'rates'")),
    (lambda g: g.has_edges_between([0], {RATES: [0]}, RATES), (InvalidArgumentError, "give etype or dicts")),
    (lambda g: g.has_edges_between({"rates": [0], RATES: [0]}, {RATES: [0]}),
     (InvalidArgumentError, "source ids: .*'rates'.* is given twice")),
    (lambda g: g.has_edges_between({RATES: [0]}, {"rates": [0], RATES: [0]}),
     (InvalidArgumentError, "destination ids: .* is given twice")),
    (lambda g: g.edge_subgraph({"rates": [0], RATES: [1]}), (InvalidArgumentError, "is given twice")),
    (lambda g: g.edge_subgraph({RATES: torch.ones(3) > 0}), (InvalidArgumentError, "a mask must have 60 entries")),
    (lambda g: g.edge_subgraph({RATES: [0.5]}), (InvalidArgumentError, "edge ids must be integers")),
    (lambda g: g.find_edges([[0]], RATES), (InvalidArgumentError, "in one dimension")),
    (lambda g: g.in_degrees("follows"), (InvalidArgumentError, "got 'follows'; the relation is etype=")),
]  # fmt: skip
"""What makes no sense on the graph "typed"."""


def check_misuse(g: Any) -> None:
    """Check that each wrong call names what is wrong with it."""
    for calls, error, what in ((OF_NODES, NodeTypeError, "node type"), (OF_EDGES, EdgeTypeError, "edge type")):
        for of_type in calls:
            for kind, words in ((None, f"{what} is ambiguous: name one of"), ("x", f"{what} 'x' does not exist")):
                with pytest.raises(error, match=words):
                    of_type(g, kind)
    for call, (error, words) in MISUSE:
        with pytest.raises(error, match=words):
            call(g)
