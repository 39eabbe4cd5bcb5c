"""Ranks of a node that read csv together: all have what one rank has, and none parses what another has parsed."""

import gzip
import os

import numpy as np
import pytest
from input_checks import rows
from layouts import shared_folder
from mpi4py import MPI

from mpigraph.errors import GraphDataError
from mpigraph.partition import arrow_files, node_ranks, table_columns
from mpigraph.partition.exchange import ALONE
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.partition.readers import read_source
from mpigraph.partition.typed_tables import TableOptions

SIZES = [1, 2, 3]
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
    """Several blocks in each piece."""
    monkeypatch.setattr(arrow_files, "_BLOCK_BYTES", 300)
    monkeypatch.setattr(table_columns, "_CHUNK", 17)


@pytest.mark.parametrize("comm", SIZES, indirect=True)
@pytest.mark.parametrize("kind", ["numbers", "text", "packed"])
def test_all_ranks_have_what_one_has(comm: MPI.Intracomm, monkeypatch, blocks, kind: str) -> None:
    parsed = []
    parse = table_columns._parse

    def counted(*arguments):
        parsed.append(parse(*arguments))
        return parsed[-1]

    with shared_folder(comm) as folder:
        if comm.rank == 0:
            write_tables(folder, kind)
        comm.Barrier()
        options = TableOptions(categories=("label",))
        wanted = contents(read_source(folder, scratch=folder, tables=options))
        comm.Barrier()
        monkeypatch.setattr(table_columns, "_parse", counted)
        source = read_source(folder, scratch=folder, tables=options, exchange=MPIExchange(comm))
        found = contents(source)
        assert wanted.keys() == found.keys()
        for name, values in wanted.items():
            assert np.array_equal(values, found[name], equal_nan=values.dtype.kind == "f"), name
        assert comm.allreduce(sum(parsed)) == 60 + 180  # each row by one rank
        assert comm.size == 1 or kind == "packed" or sum(parsed) < 200
        comm.Barrier()
        names = {"nodes.csv", "edges-0.csv", "edges-1.csv.gz" if kind == "packed" else "edges-1.csv"}
        assert set(os.listdir(folder)) == names  # temporary files have no names


@pytest.mark.parametrize("comm", SIZES, indirect=True)
def test_a_wrong_row_is_one_error_of_all_ranks(comm: MPI.Intracomm, blocks) -> None:
    exchange = MPIExchange(comm)
    with shared_folder(comm) as folder:
        path = folder / "e.csv"
        for row in (3, 90, 177):
            for wrong, message in (
                ("0,1,2", f"row {row}: Expected 2 columns, got 3"),
                ("1,", f"row {row}: a value is"),
            ):
                if comm.rank == 0:
                    lines = ["src,dst", *["0,1"] * 177]
                    lines[row - 1] = wrong
                    path.write_text("\n".join(lines))
                comm.Barrier()
                with pytest.raises(GraphDataError, match=message) as error, exchange.together("reading"):
                    read_source(path, scratch=folder, exchange=exchange)
                assert error.value.everywhere or comm.size == 1
                comm.Barrier()


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_an_error_of_one_rank_between_two_steps_is_that_of_all(comm: MPI.Intracomm) -> None:
    exchange = MPIExchange(comm)
    with (
        pytest.raises(GraphDataError, match="reading failed on rank 1: no|step failed on rank 1: no"),
        exchange.together("reading"),
    ):
        with exchange.together("step"):
            pass
        if comm.rank == 1:
            raise GraphDataError("no")
        with exchange.together("step"):
            pass
    assert exchange.sum_of(1) == 2  # in step


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_ranks_that_do_not_see_each_other_read_alone(comm: MPI.Intracomm, monkeypatch) -> None:
    if comm.rank == 1:
        monkeypatch.setattr(node_ranks, "_sees", lambda *place: False)
    with shared_folder(comm) as folder:
        if comm.rank == 0:
            write_tables(folder, "text")
        comm.Barrier()
        ranks = node_ranks.NodeRanks(folder, MPIExchange(comm))
        assert (ranks.index, ranks.count) == (0, 1)
        found = contents(read_source(folder, scratch=folder, exchange=MPIExchange(comm)))
        wanted = contents(read_source(folder, scratch=folder, exchange=ALONE))
        assert all(np.array_equal(found[name], values) for name, values in wanted.items() if values.dtype.kind != "f")
        comm.Barrier()
