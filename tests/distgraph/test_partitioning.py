"""partition_graph and the loaders: every structure and feature of the original is found again."""

import numpy as np
import pytest
import torch

from mpigraph.distgraph.partitioning import load_partition, load_partition_book, load_partition_feats, partition_graph
from mpigraph.errors import InvalidArgumentError, NodeTypeError, PartitionError
from mpigraph.graphs.fields import EID, ETYPE, NID, NTYPE
from mpigraph.graphs.hetero import graph, heterograph

DTYPES = [torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.uint8, torch.int16, torch.int64]


def ring(num_nodes=60, num_edges=300, seed=0):
    """Node feature = the node, edge feature = (src, dst, edge), and one feature of each dtype."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(num_nodes, (2, num_edges), generator=generator)
    g = graph((src, dst), num_nodes=num_nodes)
    g.ndata["id"] = torch.arange(num_nodes)
    for dtype in DTYPES:
        g.ndata[str(dtype)[6:]] = (torch.arange(num_nodes) % 7)[:, None].to(dtype)
    g.edata["told"] = torch.stack([src, dst, torch.arange(num_edges)], 1)
    return g


def library(seed=0):
    generator = torch.Generator().manual_seed(seed)
    counts = {"author": 40, "paper": 90, "venue": 2}
    data = {}
    for relation, m in (
        (("author", "writes", "paper"), 200),
        (("paper", "in", "venue"), 90),
        (("paper", "cites", "paper"), 2),
    ):
        src = torch.randint(counts[relation[0]], (m,), generator=generator)
        data[relation] = src, torch.randint(counts[relation[2]], (m,), generator=generator)
    g = heterograph(data, counts)
    for t in g.ntypes:
        g.nodes[t].data["id"] = torch.arange(counts[t])
    for r in g.canonical_etypes:
        g.edges[r].data["told"] = torch.stack([*data[r], torch.arange(len(data[r][0]))], 1)
    return g


def test_parts_made_elsewhere_are_taken(tmp_path):
    g = library()
    parts_of_nodes = {t: np.arange(g.num_nodes(t)) * 7 % 3 for t in g.ntypes}
    nids, _ = partition_graph(g, "g", 3, tmp_path, assignment=parts_of_nodes, return_mapping=True)
    book = load_partition_book(tmp_path / "g.json", 0)[0]
    for t in g.ntypes:
        parts = book.nid2partid(torch.arange(g.num_nodes(t)), t)
        assert np.array_equal(parts_of_nodes[t][nids[t]], parts)
    with pytest.raises(InvalidArgumentError, match="one part for each of 90 nodes of type 'paper'"):
        partition_graph(g, "g", 3, tmp_path / "short", assignment=parts_of_nodes | {"paper": np.zeros(89, np.int64)})
    with pytest.raises((InvalidArgumentError, PartitionError), match="part"):
        partition_graph(g, "g", 3, tmp_path / "beyond", assignment=parts_of_nodes | {"venue": np.array([0, 3])})
    for wrong in ("parts.npy", ["0", "1"], np.zeros(90, object), torch.zeros(90).int().to_sparse()):
        with pytest.raises(InvalidArgumentError, match="assignment: expected numbers"):
            partition_graph(g, "g", 3, tmp_path / "wrong", assignment=parts_of_nodes | {"paper": wrong})
    with pytest.raises(InvalidArgumentError, match="assignment: .*meta tensor"):
        on_meta = torch.zeros(90, dtype=torch.int64, device="meta")
        partition_graph(g, "g", 3, tmp_path / "wrong", assignment=parts_of_nodes | {"paper": on_meta})
    big_endian = {t: parts.astype(">i4") for t, parts in parts_of_nodes.items()}
    again, _ = partition_graph(g, "g", 3, tmp_path / "big", assignment=big_endian, return_mapping=True)
    assert all(torch.equal(again[t], nids[t]) for t in g.ntypes)
    with pytest.raises(NodeTypeError, match="assignment must be a dict by node type"):
        partition_graph(g, "g", 3, tmp_path / "flat", assignment=np.zeros(132, np.int64))


@pytest.mark.parametrize("method", ["metis", "random"])
@pytest.mark.parametrize("num_parts", [1, 4])
@pytest.mark.parametrize("make", [ring, library])
def test_every_part_is_the_original(tmp_path, method, num_parts, make):
    g = make()
    fields = {t: set(g.nodes[t].data) for t in g.ntypes}
    nids, eids = partition_graph(g, "g", num_parts, tmp_path, part_method=method, return_mapping=True)
    assert fields == {t: set(g.nodes[t].data) for t in g.ntypes}  # the input is not changed
    if g.is_homogeneous:
        nids, eids = {"_N": nids}, {("_N", "_E", "_N"): eids}
    edges_seen = {r: 0 for r in g.canonical_etypes}
    for k in range(num_parts):
        part, node_feats, edge_feats, book, name, ntypes, etypes = load_partition(tmp_path / "g.json", k)
        assert name == "g" and book.partid == k and ntypes == g.ntypes and etypes == g.canonical_etypes
        for t in g.ntypes:
            inner = part.nodes[t].data["inner_node"].bool()
            own = int(inner.sum())
            assert inner[:own].all() and part.nodes[t].data["inner_node"].dtype == torch.uint8
            assert torch.equal(part.nodes[t].data[NID][:own], book.partid2nids(k, t))
            assert torch.equal(book.nid2partid(part.nodes[t].data[NID], t), part.nodes[t].data["part_id"])
            for field in g.nodes[t].data:
                want = g.nodes[t].data[field][nids[t][book.partid2nids(k, t)]]
                assert node_feats[f"{t}/{field}"].dtype == want.dtype
                assert torch.equal(node_feats[f"{t}/{field}"], want)
        for r in g.canonical_etypes:
            src, dst = part.edges(etype=r)
            ends = (nids[r[0]][part.nodes[r[0]].data[NID][src]], nids[r[2]][part.nodes[r[2]].data[NID][dst]])
            orig = eids[r][part.edges[r].data[EID]]
            want = g.edges[r].data["told"][orig]
            assert torch.equal(torch.stack([*ends, orig], 1), want)
            assert torch.equal(edge_feats[":".join(r) + "/told"], want)
            assert part.nodes[r[2]].data["inner_node"][dst].all()
            edges_seen[r] += len(src)
    assert edges_seen == {r: g.num_edges(r) for r in g.canonical_etypes}


def test_what_is_not_asked_for_is_not_returned(tmp_path):
    assert partition_graph(ring(), "g", 2, tmp_path, num_hops=2, graph_formats="csc", n_jobs=2, store_eids=True) is None
    config = tmp_path / "g.json"
    assert load_partition(config, 0, load_feats=False)[1:3] == (None, None)
    nodes, edges = load_partition_feats(config, 0, load_nodes=False)
    assert nodes is None and set(edges) == {"_N:_E:_N/told"}
    book, name, ntypes, etypes = load_partition_book(config, 1)
    assert (book.partid, name, ntypes, etypes) == (1, "g", {"_N": 0}, {("_N", "_E", "_N"): 0})


def test_other_kinds_of_input(tmp_path):
    nids, eids = partition_graph((np.arange(9), np.arange(1, 10)), "path", 2, tmp_path, return_mapping=True)
    assert nids.dtype == eids.dtype == torch.int64 and len(nids) == 10 and len(eids) == 9


def test_balance_by_type(tmp_path):
    g = library()
    classes = {"paper": (torch.arange(90) < 30).to(torch.int8)}
    partition_graph(g, "g", 2, tmp_path, balance_ntypes=classes, balance_edges=True)
    for dtype in (torch.bool, torch.bfloat16):
        partition_graph(ring(), "h", 2, tmp_path / "h", balance_ntypes=(torch.arange(60) < 20).to(dtype))
    with pytest.raises(InvalidArgumentError, match="numbers in balance_ntypes must be .*got nan"):
        partition_graph(ring(), "h", 2, tmp_path / "h", balance_ntypes=[float("nan")] * 60)
    with pytest.raises(NodeTypeError, match="balance_ntypes must be a dict by node type"):
        partition_graph(library(), "g", 2, tmp_path, balance_ntypes=torch.zeros(3))
    with pytest.raises(NodeTypeError, match="'editor' does not exist"):
        partition_graph(library(), "g", 2, tmp_path, balance_ntypes={"editor": torch.zeros(3)})


def test_bad_arguments(tmp_path):
    with pytest.raises(InvalidArgumentError, match="num_hops"):
        partition_graph(ring(), "g", 2, tmp_path, num_hops=-1)
    with pytest.raises(InvalidArgumentError, match=r"graph_name .*\(got 5\)"):
        partition_graph(ring(), 5, 2, tmp_path)
    for name in ("\ud800", "a\0"):
        g = ring()
        g.ndata[name] = torch.zeros(60)
        with pytest.raises(InvalidArgumentError, match="name of a node feature of '_N' must be without surrogates"):
            partition_graph(g, "g", 2, tmp_path)
    with pytest.raises(PartitionError, match=r"missing\.json"):
        load_partition(tmp_path / "missing.json", 0)
    partition_graph(ring(), "g", 2, tmp_path)
    for load in (load_partition, load_partition_feats, load_partition_book):
        with pytest.raises(PartitionError, match=r"part 2 does not exist: .*g\.json has 2 parts"):
            load(tmp_path / "g.json", 2)
    for part in ("0", None, 1.5, True, -1):
        for load in (load_partition, load_partition_feats, load_partition_book):
            with pytest.raises(InvalidArgumentError, match="part_id must be an integer >= 0"):
                load(tmp_path / "g.json", part)


def test_trainers_of_a_machine_change_nothing(tmp_path):
    files = []
    for name, trainers in (("one", 1), ("three", 3)):
        partition_graph(library(), "g", 2, tmp_path / name, num_trainers_per_machine=trainers)
        files.append({path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.*")})
    assert files[0] == files[1] and len(files[0]) > 1


def test_a_part_without_types_has_homogeneous_ids(tmp_path):
    g = library()
    partition_graph(g, "g", 3, tmp_path, part_method="random")
    for k in range(3):
        typed, _, _, book, *_ = load_partition(tmp_path / "g.json", k)
        part = load_partition(tmp_path / "g.json", k, homogeneous=True)[0]
        assert part.is_homogeneous and part.ndata[NTYPE].dtype == part.edata[ETYPE].dtype == torch.int32
        own = int(part.ndata["inner_node"].sum())
        assert torch.equal(part.ndata[NID][:own], book.partid2nids(k)) and part.ndata["inner_node"][:own].all()
        assert torch.equal(part.ndata["part_id"], book.nid2partid(part.ndata[NID]))
        kinds, ids = book.map_to_per_ntype(part.ndata[NID])
        assert torch.equal(kinds, part.ndata[NTYPE].long())
        relations, eids = book.map_to_per_etype(part.edata[EID])
        assert torch.equal(relations, part.edata[ETYPE].long()) and part.edata["inner_edge"].all()
        src, dst = part.edges()
        for i, r in enumerate(g.canonical_etypes):
            of_relation = relations == i
            ends = (typed.nodes[t].data[NID][e] for t, e in zip(r[::2], typed.edges(etype=r), strict=True))
            for there, here in zip(ends, (src, dst), strict=True):
                assert torch.equal(there, ids[here[of_relation]])
            assert torch.equal(typed.edges[r].data[EID], eids[of_relation])
    partition_graph(ring(), "h", 2, tmp_path / "h")
    assert NTYPE not in load_partition(tmp_path / "h" / "h.json", 0, homogeneous=True)[0].ndata
