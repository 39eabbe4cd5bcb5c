"""``python -m mpigraph verify``: what is right is one line, what is wrong one line a file, the same on every rank."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damaged import flip, rewrite
from mpi4py import MPI
from oracle import write_oracle

from mpigraph.cli.grammar import Verify
from mpigraph.cli.info import verify as run_command

OF_GRAPH = "relations/_N:_E:_N"
Outcome = tuple[int, str, list[str]]


@pytest.fixture
def verify(run_on: Callable[..., tuple[int, str, str]]) -> Callable[[object], Outcome]:
    """Run the command on ``comm``: its status, its line, and the lines of its errors."""

    def run(path: object) -> Outcome:
        status, out, err = run_on(run_command, Verify(str(path)))
        return status, out, re.findall(r"^(?:mpigraph verify: )?error: (.*)$", err, re.MULTILINE)

    return run


@pytest.fixture
def copy(comm: MPI.Intracomm, oracle, tmp_path: Path) -> Path:
    """The configuration of a copy of the oracle graph in four parts, the same on all ranks."""
    folder = comm.bcast(tmp_path / "copy")
    if comm.rank == 0:
        shutil.copytree(Path(oracle(4)).parent, folder)
    comm.Barrier()
    return folder / "oracle.json"


@pytest.mark.parametrize("comm", [1, 2, 3], indirect=True)
def test_what_is_right_is_one_line(oracle, typed_oracle: str, verify: Callable[[object], Outcome]) -> None:
    for path, files in ((oracle(4), 12), (oracle(1), 3), (typed_oracle, 9)):
        status, out, errors = verify(path)
        assert (status, errors) == (0, [])
        assert re.fullmatch(rf"{path}: {files} files, \d+\.\d [KM]iB, all checksums right\n", out), out


@pytest.mark.parametrize("comm", [1, 2], indirect=True)
def test_each_bad_file_is_a_line(comm: MPI.Intracomm, copy: Path, verify: Callable[[object], Outcome]) -> None:
    """Of two parts on different ranks; a file with two bad datasets is one line."""
    if comm.rank == 0:
        flip(copy.parent / "part0/graph.h5", "nodes/_N/orig_ids")
        flip(copy.parent / "part0/graph.h5", f"{OF_GRAPH}/indices", 4)
        flip(copy.parent / "part2/edge_feat.h5", "_N:_E:_N/weight")
        flip(copy.parent / "part3/node_feat.h5", "_N/feat")
        (copy.parent / "part3/edge_feat.h5").unlink()
        (copy.parent / "part1/node_feat.h5").write_bytes((copy.parent / "part2/node_feat.h5").read_bytes())
        write_oracle(copy.parent / "other", 4, seed=1)
        shutil.copy(copy.parent / "other/part1/edge_feat.h5", copy.parent / "part1/edge_feat.h5")
    comm.Barrier()
    status, out, errors = verify(copy)
    assert (status, out) == (2, "")
    expected = [
        rf"part0/graph.h5: dataset '{OF_GRAPH}/indices' is damaged",
        "part1/edge_feat.h5: belongs to another partitioning",
        "part1/node_feat.h5: belongs to part 2, not to part 1",
        "part2/edge_feat.h5: dataset '_N:_E:_N/weight' is damaged: the checksum of rows 0 to",
        "part3/edge_feat.h5: shard file is missing",
        "part3/node_feat.h5: dataset '_N/feat' is damaged: the checksum of rows 0 to",
    ]
    assert len(errors) == len(expected)
    for error, pattern in zip(sorted(errors), expected, strict=True):
        assert re.search(pattern, error), error


def add(number: int, at: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda rows: rows + np.where(np.arange(len(rows)) == at, number, 0).astype(rows.dtype)


CONTRADICTIONS = {
    "a source beyond all nodes": ("indices", add(101, -1 % 30), "indices' contradicts itself: edge .* comes from node"),
    "sources that fall": ("indices", lambda rows: rows[::-1], "indices' contradicts itself: edge"),
    "indptr that falls": ("indptr", add(1000, 3), "indptr' contradicts itself"),
    "indptr that does not end": ("indptr", lambda rows: np.minimum(rows, rows[-1] - 1), "indptr' contradicts itself"),
}


@pytest.mark.parametrize("comm", [1, 2], indirect=True)
def test_contents_are_checked_under_right_checksums(
    comm: MPI.Intracomm, copy: Path, verify: Callable[[object], Outcome]
) -> None:
    config, graph = copy.read_bytes(), copy.parent / "part1/graph.h5"
    whole = graph.read_bytes()
    for what, (field, change, message) in CONTRADICTIONS.items():
        comm.Barrier()
        if comm.rank == 0:
            copy.write_bytes(config)
            graph.write_bytes(whole)
            rewrite(copy, 1, "part_graph", f"{OF_GRAPH}/{field}", change)
        comm.Barrier()
        status, out, errors = verify(copy)
        assert (status, out, len(errors)) == (2, "", 1) and re.search(message, errors[0]), (what, errors)


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_ranks_that_see_different_graphs(comm: MPI.Intracomm, oracle, verify: Callable[[object], Outcome]) -> None:
    status, _, errors = verify(oracle(4) if comm.rank == 0 else oracle(2))
    assert status == 2 and len(errors) == 1 and "nodes have different graphs there" in errors[0]
