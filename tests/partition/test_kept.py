"""Resuming an interrupted run: complete parts are verified, and not written again."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import damaged
import h5py
import numpy as np
import pytest
from interrupted import interrupt, state
from typed_parts import check_equal, typed_source

from mpigraph.errors import StorageError
from mpigraph.partition import output_folder, pipeline
from mpigraph.partition.part_writer import PartWriter
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.row_arrays import made_rows
from mpigraph.partition.shuffle import Shuffle
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import temporary_name
from mpigraph.storage.shard import ShardWriter

COUNTS = {"author": 40, "paper": 90}
EDGES = {("author", "writes", "paper"): 200, ("paper", "cites", "paper"): 300}
PARTS = 4
COMPLETE = 2  # parts that the killed run has written


class Killed(NamedTuple):
    """A graph, the folder of a run that ended in its third part, and the folder of an undisturbed run."""

    source: GraphSource
    out: Path
    expected: Path

    def cut(self, source: GraphSource | None = None, **options: object) -> None:
        arguments: dict[str, object] = {"num_parts": PARTS, "part_method": "random", "resume": True} | options
        partition_source(source or self.source, "g", out_path=self.out, **arguments)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    source = typed_source(COUNTS, EDGES)
    run = Killed(source, tmp_path_factory.mktemp("killed") / "out", tmp_path_factory.mktemp("wanted"))
    partition_source(source, "g", PARTS, run.expected, "random")
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, COMPLETE, lambda: run.cut(resume=False))
    assert not (run.out / "g.json").exists()
    return run


@pytest.fixture
def killed(once: Killed, tmp_path: Path) -> Killed:
    shutil.copytree(once.out, tmp_path / "out")
    return once._replace(out=tmp_path / "out")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The parts that are written from now on."""
    result = []
    write = PartWriter.write
    monkeypatch.setattr(PartWriter, "write", lambda writer, part: result.append(part) or write(writer, part))
    return result


def test_complete_parts_are_verified_and_nothing_of_them_moves(killed: Killed, written, caplog, monkeypatch) -> None:
    read: list[np.ndarray] = []

    def counting(feature: Feature) -> Feature:
        ids = Feature.of(np.arange(len(feature.values)))
        rows = made_rows(lambda rows, chosen: read.append(chosen) or rows, ids.values.dtype, feature.values, ids.values)
        return Feature(rows, feature.dtype)

    came = []
    take = Shuffle.take
    monkeypatch.setattr(
        Shuffle, "take", lambda way, part: (came.append((way, len(records))) or records for records in take(way, part))
    )
    before = state(killed.out)
    papers = killed.source.node_feats["paper"]
    nodes = {**killed.source.node_feats, "paper": papers | {"id": counting(papers["id"])}}
    killed.cut(replace(killed.source, node_feats=nodes))
    check_equal(killed.expected, killed.out)
    assert state(killed.out) == before and written == [2, 3]
    assert caplog.messages[1:] == ["2 of 4 parts are complete, and are not written again"]
    assert caplog.messages[0].startswith("the assignment of an interrupted run is taken from")
    config = pipeline.PartConfig.read(killed.out / "g.json")
    missing = sum(np.diff(offsets[[COMPLETE, PARTS]])[0] for offsets in config.book.edge_offsets)
    edges = [count for way, count in came if "source" in way._dtype.names]
    assert sum(edges) == missing < sum(killed.source.edge_counts)
    first, last = config.book.node_offsets[config.schema.ntype_id("paper")][[COMPLETE, PARTS]]
    assert sum(map(len, read)) == 3 + last - first  # samples tell whether the features are those of before


def test_without_resume_all_parts_are_written_again(killed: Killed, written, caplog) -> None:
    killed.cut(resume=False)
    check_equal(killed.expected, killed.out)
    assert written == [0, 1, 2, 3] and len(caplog.messages) == 1


@pytest.mark.parametrize(
    "name, damage",
    [
        ("graph.h5", lambda path: flip(path)),
        ("node_feat.h5", lambda path: flip(path)),
        ("edge_feat.h5", lambda path: path.unlink()),
        ("graph.h5", lambda path: path.write_bytes((path.parents[1] / "part0" / path.name).read_bytes())),
    ],
)
def test_a_part_that_does_not_verify_is_written_again(killed: Killed, written, caplog, name: str, damage) -> None:
    path = killed.out / "part1" / name
    damage(path)
    before = state(killed.out, range(1))
    killed.cut()
    check_equal(killed.expected, killed.out)
    assert state(killed.out, range(1)) == before and written == [1, 2, 3]
    assert caplog.messages[1].startswith(f"part 1 is written again: {path}: ") and len(caplog.messages) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: damaged.flip(path, "parts"),
        lambda path: ShardWriter(path, "g", 0, "of another run").close(),
    ],
)
def test_a_damaged_assignment_is_ignored(killed: Killed, written, caplog, damage) -> None:
    (kept,) = killed.out.glob("*.assignment.h5")
    damage(kept)
    killed.cut()
    check_equal(killed.expected, killed.out)
    assert written == [0, 1, 2, 3]
    assert caplog.messages[0].startswith(f"the assignment of an interrupted run is ignored: {kept}: ")


def flip(path: Path) -> None:
    """Change a byte of the rows in a file."""
    with h5py.File(path) as file:
        rows: list[str] = []
        file.visititems(lambda name, item: rows.append(name) if isinstance(item, h5py.Dataset) and item.size else None)
    damaged.flip(path, rows[0])


OTHERS = "nothing to resume in {}: no assignment is of this graph and these options"
NO_PART = "nothing to resume in {}: no complete part is of this graph, assignment and features"


def other_papers(source: GraphSource, **changes: Feature) -> GraphSource:
    return replace(source, node_feats={**source.node_feats, "paper": source.node_feats["paper"] | changes})


@pytest.mark.parametrize(
    "change, options, line",
    [
        (lambda source: source, {"seed": 1}, OTHERS),
        (lambda source: source, {"num_parts": 2}, OTHERS),
        (lambda source: source, {"objtype": "vol"}, OTHERS),
        (lambda source: source, {"balance_edges": True}, OTHERS),
        (lambda source: source, {"balance_classes": {"paper": np.arange(90) % 2}}, OTHERS),
        (lambda source: typed_source(COUNTS, EDGES, seed=1), {}, OTHERS),
        (lambda source: other_papers(source, id=Feature.of(np.arange(90)[::-1].copy())), {}, NO_PART),
        (lambda source: other_papers(source, new=Feature.of(np.arange(90))), {}, NO_PART),
        (lambda source: replace(source, node_ids=tuple(np.arange(n) + 7 for n in source.num_nodes)), {}, NO_PART),
    ],
)
def test_nothing_is_taken_up_from_another_run(killed: Killed, written, caplog, tmp_path, change, options, line) -> None:
    source = change(killed.source)
    options = {"num_parts": PARTS} | options
    partition_source(source, "g", out_path=tmp_path / "other", part_method="random", **options)
    del written[:]
    killed.cut(source, **options)
    check_equal(tmp_path / "other", killed.out)
    assert written == [*range(options["num_parts"])]
    assert caplog.messages[-1] == line.format(killed.out)


FEW_NEW = np.arange(90) + 1000 * np.isin(np.arange(90), [20, 21, 60])  # the same where features are compared


@pytest.mark.parametrize("method", ["random", "given"])
@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("at", ["the end", "a part", "the numbering", "the configuration"])
def test_a_finished_graph_gets_new_features(
    tmp_path: Path, monkeypatch, caplog, method: str, resume: bool, at: str
) -> None:
    """Also if the run that writes them is killed, and another one goes on."""
    old = typed_source(COUNTS, EDGES)
    new = other_papers(old, id=Feature.of(FEW_NEW), third=Feature.of(FEW_NEW % 3 == 0))
    given = {"assignment": np.arange(sum(old.num_nodes)) % PARTS} if method == "given" else {}

    def cut(source: GraphSource, folder: str, resume: bool = True) -> None:
        partition_source(source, "g", PARTS, tmp_path / folder, method, resume=resume, **given)

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    cut(new, "wanted")
    cut(old, "out")
    if at == "a part":
        interrupt(monkeypatch, COMPLETE, lambda: cut(new, "out", resume))
    elif at != "the end":
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            if at == "the numbering":
                patch.setattr(pipeline, "Numbering", kill)
            else:
                patch.setattr(output_folder, "remove_other_graphs", kill)
            cut(new, "out", resume)
    cut(new, "out")
    check_equal(tmp_path / "wanted", tmp_path / "out")
    assert at != "the end" or caplog.messages[-1] == OTHERS.format(tmp_path / "out")
    assert at != "a part" or caplog.messages[-1] == "2 of 4 parts are complete, and are not written again"


def test_a_disk_that_the_complete_parts_have_filled_is_no_error(killed: Killed, monkeypatch) -> None:
    needed = []
    monkeypatch.setattr(pipeline, "check_space", lambda folder, size, what: needed.append(size))
    killed.cut(resume=False)
    shutil.rmtree(killed.out / "part3")
    killed.cut()
    assert needed[0] - needed[1] == sum(path.stat().st_size for path in state(killed.out, range(PARTS - 1)))


def test_a_second_run_into_the_folder_is_refused(killed: Killed, monkeypatch) -> None:
    """The second run may write any graph, since all graphs have the same names of files."""
    write = PartWriter.write
    refused = []

    def disturbed(writer: PartWriter, part: int) -> object:
        for name in ("g", "other"):
            with pytest.raises(StorageError, match="/out/partition: another process is writing this file$"):
                partition_source(killed.source, name, 2, killed.out, "random")
            refused.append(name)
        return write(writer, part)

    with monkeypatch.context() as patch:
        patch.setattr(PartWriter, "write", disturbed)
        killed.cut()
    check_equal(killed.expected, killed.out)
    assert len(refused) == 4
    temporary_name(killed.out / "partition").touch()  # as a run leaves it that was killed
    killed.cut(resume=False)
    check_equal(killed.expected, killed.out)
