"""Ranks that read csv together: all have what one rank has, and none parses what another has parsed."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from dgl_files import Layout, write_partition
from input_checks import rows
from layouts import shared_folder
from mpi4py import MPI
from typed_parts import typed_source

from mpigraph.errors import GraphDataError, StorageError
from mpigraph.formats import dgl_parts, id_maps, reading_ranks, table_files, text_files
from mpigraph.formats.dgl_binary import read_part_graph
from mpigraph.formats.layout import TableOptions
from mpigraph.formats.readers import read_source
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.partition.over_mpi import MPIExchange

SIZES = [3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 2))]
KINDS = ["numbers", "text", "packed"]
NAMES = ["plain", "quoted, with\nends of lines", 'say ""so""', "7", "007", ""]


def write_tables(folder, kind):
    """Nodes with a column of text in quotes, edges in two files; ids are integers with gaps, or text."""
    rng = np.random.default_rng(0)
    ids = [f"n{i}" for i in range(60)] if kind == "text" else [str(7 * i) for i in range(60)]
    nodes = ["id,note,split,label,f0,f1"]
    for i, name in enumerate(ids):
        nodes.append(f'{name},"{NAMES[i % 6]}",{("train", "val", "test")[i % 3]},{"ab"[i % 2]},{i / 8},{-i}')
    (folder / "nodes.csv").write_text("\n".join(nodes))
    for number in range(2):
        lines = [f"{ids[a]},{ids[b]},{'' if a < 30 else a + 0.5 * number}" for a, b in rng.integers(0, 60, (90, 2))]
        text = "\n".join(["src,dst,weight", *lines])
        if number and kind == "packed":
            (folder / "edges-1.csv.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"edges-{number}.csv").write_text(text)


def contents(source):
    """Everything in a source, as numpy."""
    found = {"counts": np.array(source.num_nodes)}
    for number, ends in enumerate(source.edges):
        found |= {f"edges{number}{end}": rows(ids) for end, ids in enumerate(ends)}
    for tables in (source.node_feats, source.edge_feats):
        found |= {f"{owner} {name}": rows(f.values) for owner, feats in tables.items() for name, f in feats.items()}
    return found


@pytest.fixture
def blocks(monkeypatch):
    """Several blocks in each piece, and several messages for each file."""
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 300)
    monkeypatch.setattr(id_maps, "_CHUNK", 17)


@pytest.mark.parametrize("comm", SIZES, indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_have_what_one_has(comm: MPI.Intracomm, monkeypatch, blocks, kind: str) -> None:
    parsed = []
    write = table_files.write_parquet

    def counted(path, *arguments):
        parsed.append(path.name)
        return write(path, *arguments)

    with shared_folder(comm) as folder:
        if comm.rank == 0:
            write_tables(folder, kind)
        comm.Barrier()
        names = {*os.listdir(folder)}
        options = TableOptions(categories=("label",))
        wanted = contents(read_source(folder, tables=options))
        comm.Barrier()
        monkeypatch.setattr(table_files, "write_parquet", counted)
        source = read_source(folder, scratch=folder, tables=options, exchange=MPIExchange(comm))
        found = contents(source)
        assert wanted.keys() == found.keys()
        for name, values in wanted.items():
            assert np.array_equal(values, found[name], equal_nan=values.dtype.kind == "f"), name
        assert {*sum(comm.allgather(parsed), [])} == names
        assert comm.allreduce(len(parsed)) == len(names)  # each file by one rank
        assert comm.size == 1 or len(parsed) < len(names)
        assert len(os.listdir(folder)) == len(names) + 1
        comm.Barrier()
        del source
        comm.Barrier()
        assert {*os.listdir(folder)} == names


@pytest.mark.parametrize("comm", SIZES, indirect=True)
def test_what_killed_ranks_have_left_is_removed(comm: MPI.Intracomm) -> None:
    with shared_folder(comm) as folder:
        exchange = MPIExchange(comm)
        ranks = ReadingRanks(folder, exchange)
        alive = ranks.new_file("").parent
        if comm.rank == 0:
            left = folder / f"{reading_ranks._PREFIX}left"
            left.mkdir()
            (left / reading_ranks._LOCK).write_bytes(b"locked")
        comm.Barrier()
        another = ReadingRanks(folder, exchange).new_file("").parent
        comm.Barrier()
        assert alive.is_dir() and alive != another and not (folder / f"{reading_ranks._PREFIX}left").exists()
        comm.Barrier()


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_a_folder_that_a_rank_does_not_see_is_one_error(comm: MPI.Intracomm, monkeypatch) -> None:
    if comm.rank == 1:
        monkeypatch.setattr(Path, "is_dir", lambda path: False)
    with shared_folder(comm) as folder:
        with pytest.raises(StorageError, match="does not see what another makes: give --scratch a folder") as error:
            ReadingRanks(folder, MPIExchange(comm)).new_file("")
        assert error.value.everywhere


@pytest.mark.parametrize("comm", SIZES, indirect=True)
def test_parts_of_dgl_are_read_by_one_rank(comm: MPI.Intracomm, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(dgl_parts, "read_part_graph", lambda path: calls.append(path) or read_part_graph(path))
    with shared_folder(comm) as folder:
        if comm.rank == 0:
            parts = [np.arange(count) % 2 for count in typed_source().num_nodes]
            write_partition(folder, typed_source(), parts, Layout(ids="beside"))
        comm.Barrier()
        (path,) = folder.glob("*.json")
        wanted = read_source(path)
        calls.clear()
        source = read_source(path, exchange=MPIExchange(comm))
        assert comm.allreduce(len(calls)) == 2
        assert all(np.array_equal(value, contents(source)[name]) for name, value in contents(wanted).items())
        assert source.left_out == wanted.left_out and np.array_equal(source.parts.of_nodes, wanted.parts.of_nodes)
        comm.Barrier()


@pytest.mark.parametrize("comm", SIZES, indirect=True)
def test_a_wrong_row_is_one_error_of_all_ranks(comm: MPI.Intracomm, blocks) -> None:
    exchange = MPIExchange(comm)
    with shared_folder(comm) as folder:
        path = folder / "e.csv"
        for row in (3, 90, 177, 178):
            for wrong, message in (
                ("0,1,2", f"row {row}: Expected 2 columns, got 3"),
                ("1,", f"row {row}, column dst: a value is"),
                ('0,"1', "a field in quotes does not end"),
            ):
                if comm.rank == 0:
                    lines = ["src,dst", *["0,1"] * 177]
                    lines[row - 1] = wrong
                    path.write_text("\n".join(lines))
                comm.Barrier()
                with pytest.raises(GraphDataError, match=message) as error, exchange.together("reading"):
                    read_source(path, exchange=exchange)
                assert error.value.everywhere or comm.size == 1
                comm.Barrier()
