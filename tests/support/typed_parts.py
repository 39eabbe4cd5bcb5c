"""Typed graphs with all that is odd about types, for tests of parts, books, splits and tensors.

The node feature ``id`` is the node and the edge feature ``told`` is (src, dst, position in the list of edges). Two
relations join the same types, one joins a type to itself, one has no edges; one type has no nodes, one has fewer than
there are parts, and two have equally many, as do two relations.
"""

import filecmp
from dataclasses import replace
from pathlib import Path

import numpy as np
from oracle import partitioned

from mpigraph.formats.shards import read_partition
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Relation, Schema, relation_key
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.contents import PartFiles, StoredRows, read_rows
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader

TYPED = "typed"
COUNTS = {"author": 40, "editor": 0, "field": 2, "paper": 90, "reader": 40}
EDGES = {
    ("author", "reviews", "paper"): 70,
    ("author", "writes", "paper"): 200,
    ("editor", "edits", "paper"): 0,
    ("field", "hosts", "author"): 0,
    ("paper", "cites", "paper"): 200,
    ("paper", "in", "field"): 90,
    ("reader", "reads", "paper"): 150,
}


def typed_source(counts: dict[str, int] = COUNTS, edges: dict[Relation, int] = EDGES, seed: int = 0) -> GraphSource:
    """A graph with so many nodes of each type and edges of each relation, at random."""
    rng = np.random.default_rng(seed)
    lists = [tuple(rng.integers(0, max(counts[r[i]], 1), m) for i in (0, 2)) for r, m in edges.items()]
    told = [{"told": Feature.of(np.stack([*ends, np.arange(len(ends[0]))], 1))} for ends in lists]
    nodes = {
        ntype: {"id": Feature.of(np.arange(n)), "third": Feature.of(np.arange(n) % 3 == 0)}
        for ntype, n in counts.items()
    }
    feats = dict(zip(map(relation_key, edges), told, strict=True))
    return GraphSource(Schema(tuple(counts), tuple(edges)), tuple(counts.values()), tuple(lists), nodes, feats)


def many_relations(number: int, num_edges: int) -> GraphSource:
    """A graph of two types and so many relations between and within them, every seventh without edges.

    They share tables. Every fifth has a feature alone, every fourth one with a row shape of its own.
    """
    ends = (("a", "a"), ("a", "b"), ("b", "a"), ("b", "b"))
    edges = {(ends[r % 4][0], f"r{r}", ends[r % 4][1]): 0 if r % 7 == 0 else num_edges // number for r in range(number)}
    source = typed_source({"a": 60, "b": 45}, edges)
    features = {}
    for r, (key, table) in enumerate(source.edge_feats.items()):
        told = np.asarray(table["told"].values)
        alone = {f"alone{r}": Feature.of(told[:, 0] * 100 + r)} if r % 5 == 1 else {}
        features[key] = {"told": Feature.of(told[:, r % 2] if r % 4 == 1 else told)} | alone
    return replace(source, edge_feats=features)


def write_typed(directory: Path, num_parts: int = 3, source: GraphSource | None = None, name: str = TYPED) -> str:
    """Partition a typed graph at random; return the path of its configuration."""
    return partitioned(source or typed_source(), name, num_parts, directory, "random")


def check_equal(expected: Path, actual: Path) -> None:
    """Check that two folders hold the same files, and nothing else."""
    names = sorted(path.relative_to(expected) for path in expected.rglob("*"))
    assert names and sorted(path.relative_to(actual) for path in actual.rglob("*")) == names
    files = [str(name) for name in names if (expected / name).is_file()]
    assert filecmp.cmpfiles(expected, actual, files, shallow=False) == (files, [], [])


def original_ids(result: PartConfig) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """By node type and by relation, the original id of each new one."""
    source = read_partition(result.path)
    return [ids[:] for ids in source.node_ids or ()], [ids[:] for ids in source.edge_ids or ()]


def check_round_trip(source: GraphSource, result: PartConfig, num_parts: int) -> None:
    """Every node and edge of the source is found once, where the book says, with its features."""
    node_ids, edge_ids = original_ids(result)
    config = PartConfig.read(result.path)
    book, schema = config.book, source.schema
    assert config.num_parts == num_parts

    for t, ntype in enumerate(schema.ntypes):
        orig = node_ids[t]
        assert np.array_equal(np.sort(orig), np.arange(source.num_nodes[t]))
        for k in range(num_parts):
            own = orig[slice(*book.node_range(k, t))]
            graph = ShardReader(config.part_path(k, "part_graph"), config.graph_name, k)
            assert np.array_equal(graph.read(f"nodes/{ntype}/orig_ids"), own)
            feats = ShardReader(config.part_path(k, "node_feats"))
            for name, feature in source.node_feats.get(ntype, {}).items():
                rows = np.asarray(feature.values[:])[own]
                assert np.array_equal(feats.read(f"{ntype}/{name}"), rows, equal_nan=True)
    for r, relation in enumerate(schema.relations):
        key, (s, d) = ":".join(relation), schema.ends(r)
        src, dst = (np.asarray(end[:]) for end in source.edges[r])
        assert np.array_equal(np.sort(edge_ids[r]), np.arange(len(src)))
        for k in range(num_parts):
            orig = edge_ids[r][slice(*book.edge_range(k, r))]
            node_begin, node_end = book.node_range(k, d)
            files = PartFiles(config)
            files.check(k)
            indptr = files.read_indptr(r, k, 0, node_end - node_begin)
            indices, ids = (files.read_edges(r, k, field) for field in ("indices", "orig_ids"))
            for name, feature in source.edge_feats.get(key, {}).items():
                rows = StoredRows.of_feature(config, False, [r], name)
                values = np.empty((len(orig), *feature.values.shape[1:]), feature.values.dtype)
                read_rows(files, rows, [book.edge_range(k, r)], values)
                assert np.array_equal(values, np.asarray(feature.values[:])[orig], equal_nan=True)
            own = node_ids[s][slice(*book.node_range(k, s))]
            if r not in config.shared:
                out_degrees = files.open(k, "part_graph").read(f"relations/{key}/out_degrees")
                assert np.array_equal(out_degrees, np.bincount(src, minlength=source.num_nodes[s])[own])
            assert indices.dtype == np.int32 and np.array_equal(ids, orig)
            assert indptr[0] == 0 and indptr[-1] == len(orig)
            new_dst = np.repeat(np.arange(node_begin, node_end), np.diff(indptr))
            assert np.array_equal(node_ids[s][indices], src[orig])
            assert np.array_equal(node_ids[d][new_dst], dst[orig])
            assert np.array_equal(np.lexsort((orig, indices, new_dst)), np.arange(len(orig)))


def random_book(num_parts: int, seed: int) -> RangeBook:
    """A book of the types above with parts of random sizes, some of them empty."""
    rng = np.random.default_rng(seed)
    schema = Schema(tuple(COUNTS), tuple(EDGES))

    def offsets(total: int) -> np.ndarray:
        return np.concatenate([[0], np.sort(rng.integers(0, total + 1, num_parts - 1)), [total]])

    return RangeBook(schema, tuple(map(offsets, COUNTS.values())), tuple(map(offsets, EDGES.values())))
