"""``python -m mpigraph info``: its numbers are those that the graph has by construction."""

import io
import json
import mmap
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import flip
from mpi4py import MPI
from odd_names import odd_source
from oracle import NUM_NODES, oracle_source
from typed_oracle import NUM_NODES as TYPED_NODES, RELATIONS, SCHEMA, edges_of

from mpigraph.cli.grammar import Info
from mpigraph.cli.info import _memory, info as run_command
from mpigraph.cli.main import main
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Schema
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import GraphSource
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.part_config import PartConfig
from mpigraph.store.host_ranges import _edge_begins, cut_offsets, host_memory

Outcome = tuple[int, str, str]


@pytest.fixture
def info(run_on: Callable[..., Outcome]) -> Callable[..., Outcome]:
    return lambda path, as_json=True: run_on(run_command, Info(str(path), as_json))


def in_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


@pytest.mark.parametrize("comm", [1, 2, 3], indirect=True)
def test_the_oracle_graph(oracle, info: Callable[..., Outcome]) -> None:
    """Nodes keep their ids in parts that are ranges, so all can be counted from the edges."""
    path = oracle(4, "given")
    status, out, _ = info(path)
    result = json.loads(out)
    assert status == 0 and result["path"] == path and result["graph_name"] == "oracle" and result["num_parts"] == 4
    ((src, dst),) = oracle_source().edges
    part_of = np.arange(NUM_NODES) * 4 // NUM_NODES
    cut = part_of[src] != part_of[dst]
    assert result["num_nodes"] == {"_N": NUM_NODES} and result["num_edges"] == {"_N:_E:_N": len(src)}
    assert result["edges_cut"] == np.count_nonzero(cut)
    assert result["edge_cut_fraction"] == round(np.count_nonzero(cut) / len(src), 4)
    assert result["balance"] == {"nodes": round(26 * 4 / 101, 4), "edges": result["balance"]["edges"]}
    edges = np.bincount(part_of[dst], minlength=4)
    assert result["balance"]["edges"] == round(edges.max() * 4 / len(src), 4)
    assert result["node_features"]["_N"]["feat"] == {"dtype": "float32", "shape": [3]}
    assert result["edge_features"]["_N:_E:_N"]["even"] == {"dtype": "bool", "shape": []}
    for k, part in enumerate(result["parts"]):
        nodes = np.count_nonzero(part_of == k)
        here = part_of[dst] == k
        features = [12, 8, 8, 1], [8, 4, 1]
        memory = in_pages(8 * (nodes + 1)) + in_pages(8 * nodes) + in_pages(4 * edges[k])
        memory += sum(in_pages(size * nodes) for size in features[0])
        memory += sum(in_pages(size * int(edges[k])) for size in features[1])
        assert part == {
            "part": k,
            "nodes": {"_N": nodes},
            "edges": {"_N:_E:_N": edges[k]},
            "cut_edges": np.count_nonzero(here & cut),
            "halo": {"_N": len(set(src[here & cut]))},
            "bytes_on_disk": sum(file.stat().st_size for file in (Path(path).parent / f"part{k}").iterdir()),
            "host_memory": memory,
        }
    check_memory(result)


def check_memory(result: dict[str, Any]) -> None:
    """As many hosts as parts take what the largest part takes; more share parts, and fewer have several."""
    memory = result["memory"]
    sizes = {name: dict(zip(memory["hosts"], of, strict=True)) for name, of in memory["tensors"]}
    assert memory["hosts"] == [1, 2, 4, 8]
    features = {f"_N/{name}" for name in result["node_features"]["_N"]}
    features |= {f"_N:_E:_N/{name}" for name in result["edge_features"]["_N:_E:_N"]}
    assert set(sizes) == {"topology"} | features
    assert sum(of[4] for of in sizes.values()) == max(part["host_memory"] for part in result["parts"])
    assert sizes["_N/feat"] == {1: in_pages(12 * 101), 2: in_pages(12 * 51), 4: in_pages(12 * 26), 8: in_pages(12 * 13)}
    edges = sum(result["num_edges"].values())
    assert sizes["topology"][1] == in_pages(8 * 102) + in_pages(8 * 101) + in_pages(4 * edges)


@pytest.mark.parametrize("hosts", [1, 2, 4, 8])
def test_memory_is_what_hosts_allocate(hosts: int, tmp_path: Path) -> None:
    """But for the edges where hosts share a part, which are taken to be evenly divided."""
    path = partition_source(oracle_source(40_001), "g", 4, tmp_path, "random").path
    config = PartConfig.read(str(path))
    memory = _memory(config)
    total = sum(of[memory["hosts"].index(hosts)] for _, of in memory["tensors"])
    files = PartFiles(config)
    nodes = tuple(cut_offsets(offsets, hosts) for offsets in config.book.node_offsets)
    begins = [_edge_begins(files, config.book.edge_table, nodes, host) for host in range(hosts)]
    edges = np.append(np.array(begins).T, config.book.edge_table[:, -1:], axis=1)
    exact = host_memory(config, RangeBook(config.schema, nodes, edges))
    assert total == pytest.approx(exact.max(), rel=0 if hosts <= 4 else 0.02)


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_a_typed_graph(typed_oracle: str, info: Callable[..., Outcome]) -> None:
    status, out, _ = info(typed_oracle)
    result = json.loads(out)
    book = PartConfig.read(typed_oracle).book
    files = PartFiles(PartConfig.read(typed_oracle))
    owners = {}  # of nodes by original id
    for t, ntype in enumerate(SCHEMA.ntypes):
        ids = [files.open(k, "part_graph").read(f"nodes/{ntype}/orig_ids") for k in range(3)]
        owners[ntype] = np.repeat(range(3), list(map(len, ids)))[np.argsort(np.concatenate(ids))]
        assert np.array_equal(np.bincount(owners[ntype], minlength=3), np.diff(book.node_offsets[t]))
    halo: list[dict[str, set[int]]] = [{ntype: set() for ntype in SCHEMA.ntypes} for _ in range(3)]
    cut_edges = [0, 0, 0]
    for number, (src_type, _, dst_type) in enumerate(RELATIONS):
        for src, dst in zip(*edges_of(number), strict=True):
            here = owners[dst_type][dst]
            if owners[src_type][src] != here:
                cut_edges[here] += 1
                halo[here][src_type].add(src)
    assert status == 0 and result["num_nodes"] == TYPED_NODES and result["edges_cut"] == sum(cut_edges)
    assert [part["cut_edges"] for part in result["parts"]] == cut_edges
    assert [part["halo"] for part in result["parts"]] == [{t: len(s) for t, s in of.items()} for of in halo]
    assert set(result["balance"]) == {f"nodes {ntype}" for ntype, count in TYPED_NODES.items() if count} | {"edges"}


@pytest.mark.parametrize("comm", [1, 2], indirect=True)
def test_the_tables(oracle, info: Callable[..., Outcome]) -> None:
    status, out, _ = info(oracle(4, "given"), as_json=False)
    lines = out.splitlines()
    assert status == 0 and lines[0] == f"{oracle(4, 'given')}: 4 part(s) by given"
    assert re.fullmatch(r"edges cut: \d+ \(\d+\.\d%\)", lines[1])
    assert re.fullmatch(r"largest part / mean: nodes 1\.030, edges \d\.\d{3}", lines[2])
    assert re.fullmatch(r"_N +101  feat float32\[3\], label int64, orig int64, third bool", lines[5])
    assert lines[10].split() == "part nodes edges edges cut halo nodes on disk memory of a host".split()
    assert [line.split()[:2] for line in lines[11:15]] == [["0", "26"], ["1", "25"], ["2", "25"], ["3", "25"]]
    assert all(re.search(r"\d+\.\d KiB +\d+\.\d KiB$", line) for line in lines[11:15])
    assert lines[16] == "memory of the largest of so many hosts:" and lines[17].split() == "hosts 1 2 4 8".split()
    assert [line.split()[0] for line in lines[18:]][:2] == ["topology", "_N/feat"] and lines[-1].startswith("all")


def copy_of(comm: MPI.Intracomm, oracle, tmp_path: Path) -> Path:
    folder = comm.bcast(tmp_path / "copy")
    if comm.rank == 0:
        shutil.copytree(Path(oracle(2)).parent, folder)
    return folder / "oracle.json"


INDICES = "relations/_N:_E:_N/indices"


@pytest.mark.parametrize("comm", [1, 2], indirect=True)
@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda path: (path.parent / "part1/graph.h5").unlink(), "part1/graph.h5: shard file is missing"),
        (lambda path: flip(path.parent / "part1/graph.h5", INDICES), f"part1/graph.h5: dataset '{INDICES}' is damaged"),
    ],
    ids=["missing", "a bit"],
)
def test_what_is_wrong_is_one_error(
    comm: MPI.Intracomm, oracle, tmp_path: Path, info: Callable[..., Outcome], damage, message: str
) -> None:
    path = copy_of(comm, oracle, tmp_path)
    if comm.rank == 0:
        damage(path)
    comm.Barrier()
    status, out, err = info(path)
    errors = [line for line in err.splitlines() if "error" in line]
    assert (status, out) == (2, "") and len(errors) == 1 and message in errors[0], err


def test_letters_that_the_terminal_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = np.array([0, 1]), np.array([1, 0])
    source = GraphSource(Schema(("ä",), (("ä", "r", "ä"),)), (2,), (ends,))
    partition_source(source, "g", 1, tmp_path, "random")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert main(["info", str(tmp_path / "g.json")]) == 0
    assert b"\\xe4:r:\\xe4" in printed.getvalue()


def test_names_do_not_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = partition_source(odd_source(), "g", 1, tmp_path, "random").path
    assert main(["info", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.isprintable() or all(line.isprintable() for line in printed.splitlines()), printed
    assert "\\x1b[31m" in printed and "two words\\t\\n" in printed and "/people/person/place_of_birth" in printed
