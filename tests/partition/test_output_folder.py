"""A graph is not written over another one without being told to, and leaves no parts of an earlier run of its own."""

from pathlib import Path

import numpy as np
import pytest
from layouts import shared_folder
from mpi4py import MPI

from mpigraph.cli import partition as command
from mpigraph.cli.main import main
from mpigraph.errors import InvalidArgumentError, StorageError
from mpigraph.metadata.schema import Schema
from mpigraph.partition.output_folder import check_vacant, new_npy_files
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import GraphSource
from mpigraph.storage.part_config import PartConfig


def ring(num_nodes: int) -> GraphSource:
    ids = np.arange(num_nodes)
    return GraphSource(Schema.homogeneous(), (num_nodes,), ((ids, np.roll(ids, 1)),))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_sound(config: Path) -> bool:
    return main(["verify", str(config)]) == 0


@pytest.mark.parametrize("comm", [1, 3], indirect=True)
def test_another_graph_is_refused_on_every_rank_before_anything_is_written(comm: MPI.Intracomm) -> None:
    exchange = MPIExchange(comm)
    with shared_folder(comm) as folder:
        partition_source(ring(12), "one", 3, folder / "out", "random", exchange=exchange)
        before = content(folder / "out") if comm.rank == 0 else {}
        for graph, name, said in (
            (ring(12), "two", "holds the graph 'one' of 12 nodes and 12 edges, which .*--overwrite"),
            (ring(13), "one", "holds the graph 'one' of 12 nodes and 12 edges .not 13 and 13., which .*--overwrite"),
        ):
            with pytest.raises(InvalidArgumentError, match=said) as caught:
                partition_source(graph, name, 2, folder / "out", "random", exchange=exchange)
            assert comm.size == 1 or caught.value.everywhere  # type: ignore[attr-defined]
            comm.Barrier()
            assert comm.rank > 0 or content(folder / "out") == before
        partition_source(ring(13), "two", 2, folder / "out", "random", exchange=exchange, overwrite=True)
        if comm.rank == 0:
            names = sorted(path.name for path in (folder / "out").iterdir())
            assert names == ["part0", "part1", "two.json"] and is_sound(folder / "out" / "two.json")


def test_the_same_graph_in_fewer_parts_leaves_no_others(tmp_path: Path) -> None:
    partition_source(ring(40), "g", 12, tmp_path, "random")
    (tmp_path / "part7" / "notes.txt").write_text("mine")
    (tmp_path / "part1").chmod(0o770)
    partition_source(ring(40), "g", 2, tmp_path, "random", seed=1)
    assert (tmp_path / "part1").stat().st_mode & 0o777 == 0o770  # it is the folder that was there
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["g.json", "part0", "part1", "part7"]
    assert [path.name for path in (tmp_path / "part7").iterdir()] == ["notes.txt"]
    assert is_sound(tmp_path / "g.json")


def test_what_an_interrupted_run_has_left_of_another_graph_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in ("assign", "write_parts"):
        out = tmp_path / stage
        with monkeypatch.context() as patch:
            patch.setattr("mpigraph.partition.pipeline.PartWriter.write", lambda writer, part: 1 / 0)
            if stage == "assign":
                patch.setattr("mpigraph.partition.pipeline.Numbering", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                partition_source(ring(12), "one", 3, out, "random")
        with pytest.raises(InvalidArgumentError, match="an interrupted run has left of the graph 'one'.*--overwrite"):
            partition_source(ring(12), "two", 3, out, "random")
        partition_source(ring(12), "two", 3, out, "random", overwrite=True)
        assert not list(out.glob("one.*"))
        partition_source(ring(12), "two", 3, out, "random")


def test_files_of_other_things_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "g.json").write_text("{}")
    with pytest.raises(InvalidArgumentError, match="b/g.json is no partition configuration.*--overwrite"):
        partition_source(ring(12), "g", 2, tmp_path / "b", "random")
    partition_source(ring(12), "h", 2, tmp_path / "b", "random")
    assert (tmp_path / "b" / "g.json").read_text() == "{}"
    old = (tmp_path / "b" / "h.json").read_text().replace('"format_version": ', '"format_version": 9')
    (tmp_path / "b" / "h.json").write_text(old)  # of an older version: partition the graph again
    check_vacant(tmp_path / "b", "h", (12, 12))
    with pytest.raises(InvalidArgumentError, match="the graph 'h'"):
        check_vacant(tmp_path / "b", "h", (12, 11))


def test_the_command_refuses_before_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "a.npz", edge_src=[0, 1, 2], edge_dst=[1, 2, 0])
    words = ["partition", str(tmp_path / "a.npz"), "--parts", "2", "-o", str(tmp_path / "out")]
    assert main([*words, "--name", "one"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(command, "_read", lambda *_: pytest.fail("read"))
        assert main([*words, "--name", "two"]) == 2
    assert "holds the graph 'one' of 3 nodes and 3 edges, which would be overwritten" in capsys.readouterr().err
    assert main([*words, "--name", "two", "--overwrite"]) == 0
    assert PartConfig.read(tmp_path / "out" / "two.json").num_parts == 2
    assert not (tmp_path / "out" / "one.json").exists()


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_every_rank_must_see_the_folder_of_npy_files(comm: MPI.Intracomm, tmp_path: Path) -> None:
    (tmp_path / str(comm.rank)).mkdir()
    with pytest.raises(StorageError, match="on rank 1: .*is not the directory that rank 0 sees"):
        with new_npy_files(MPIExchange(comm), tmp_path / str(comm.rank), {"x": ((3,), np.int32)}):
            pass
