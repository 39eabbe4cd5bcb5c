"""Reports, begun and ended by all ranks, in files of trainer 0; and the last spans of ranks that die."""

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jobs import SOON, run_script
from layouts import ALONE, API, Job, Layout, SharedJob, on_all, on_layouts, own_on_layouts
from oracle import open_graph

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import InvalidArgumentError, StorageError
from mpigraph.recording import Recording
from mpigraph.reports.summary import Rank, Summary, read
from mpigraph.session.context import Session, current

FILES = {"summary.json", "trace.json.gz", "report.html"}
ON_SEVERAL = on_layouts([layout for layout in API if layout != ALONE])


def loader_of(g: dist.DistGraph, batches: int) -> dist.DistNodeDataLoader:
    seeds = torch.arange(4 * batches) % g.num_nodes()
    return dist.DistNodeDataLoader(g, seeds, NeighborSampler([2, 2]), batch_size=4, features=["feat"])


def not_recording() -> bool:
    """Whether spans could be recorded: there is one recording at a time."""
    Recording().stop()
    return True


def thread_sums(rank: Rank) -> Iterator[tuple[str, float]]:
    """Yield for each thread its name and the sum of its own times and the rest."""
    for thread in rank.threads:
        assert thread.rest is not None
        yield thread.name, sum(stage.own for stage in thread.stages.values()) + thread.rest


def check_everywhere(summary: Summary, job: SharedJob) -> None:
    """Check what every report of a job has."""
    world = job.session.world
    assert [rank.rank for rank in summary.ranks] == list(range(world.size))
    assert [rank.rank for rank in summary.trainers] == world.trainer_ranks.tolist()
    assert [rank.rank for rank in summary.ranks if rank.hosts] == world.hosts.tolist()
    assert [rank.node for rank in summary.ranks] == world.node_of.tolist()
    assert len(summary.nodes) == len({node.name for node in summary.nodes}) == world.num_nodes
    for rank in summary.ranks:
        assert 0 < rank.seconds <= summary.job.seconds + 0.5
        for name, total in thread_sums(rank):
            assert total == pytest.approx(rank.seconds, rel=0.02), (rank.name, name)
        assert rank.cpu.seconds is not None


@on_layouts(API)
def test_reports_one_after_another_replace_each_other(
    job: SharedJob, g: dist.DistGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that is named as bytes; the words of the command are no text, as of a file with an odd name."""
    folder = Path(job.one_has(lambda: str(tmp_path / "made" / "report")))
    monkeypatch.setattr("sys.argv", ["train.py", "\udcff"])
    loader = loader_of(g, 5)
    for _ in range(2):
        list(loader)
        with mg.report(os.fsencode(folder)):
            list(loader)
        if job.rank == 0:
            assert {path.name for path in folder.iterdir()} == FILES
            summary = read(folder)
            check_everywhere(summary, job)
            assert [graph.nodes for graph in summary.job.graphs] == [g.num_nodes()]
            assert [graph.edges for graph in summary.job.graphs] == [g.num_edges()]
            for rank in summary.trainers:
                assert rank.steps.seeds == [4] * 5 and len(rank.steps.seconds) == 5
                main = next(thread for thread in rank.threads if thread.name == "MainThread")
                assert main.stages["step"].count == main.stages["wait"].count == 5
                assert main.stages["step"].seconds + main.stages["wait"].seconds <= rank.seconds
            events = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["traceEvents"]
            latest = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X") / 1e6
            assert {event["pid"] for event in events if event["name"] == "step"} == set(job.session.world.trainer_ranks)
            assert latest <= 1.001 * summary.ranks[0].seconds, "all on the clock of trainer 0"
    on_all(job.trainers, not_recording())


@on_layouts(API)
def test_minibatches_of_any_form(job: SharedJob, shared_path: Path) -> None:
    """What a script's own ``collate_fn`` returns may be none of the library's forms."""
    ids = torch.arange(3)
    forms = [({"a": 3}, ids), ({"a": torch.tensor(3)},), ({"a": None},), (), None, "ids", ({"a": ids, "b": ids},)]
    loader = dist.DistDataLoader(range(len(forms)), 1, collate_fn=lambda which: forms[which[0]])
    with mg.report(shared_path):
        assert len(list(loader)) == len(forms)
    if job.rank == 0:
        assert {tuple(rank.steps.inputs) for rank in read(shared_path).trainers} == {(0, 0, 0, 0, 0, 0, 6)}


@on_layouts(API)
def test_what_cannot_be_is_an_error_on_every_trainer_before_the_block(job: SharedJob, shared_path: Path) -> None:
    def fails(words: str, *args: object, **kwargs: object) -> None:
        with pytest.raises(InvalidArgumentError, match=words), mg.report(*args, **kwargs):  # type: ignore[arg-type]
            raise AssertionError("the block runs")

    (shared_path / "file").write_text("")
    fails("the folder of a report must be one that trainer 0 can write to", shared_path / "file")
    fails("the folder of a report must be one that trainer 0 can write to", "/proc/nothing/here")
    for path in ("", None, 7, b""):
        fails("the folder of a report must be a path", path)
    for name in sorted(FILES):
        (shared_path / name).write_text("the user's own")
        fails(f"a report would replace .*{name}, which mpigraph did not write", shared_path)
        (shared_path / name).unlink(missing_ok=True)
        job.trainers.Barrier()
    fails("the folder of a report must be", None if job.rank == 0 else shared_path / "new")
    fails("the folder of a report must be one that trainer 0 can write to", str(shared_path / "a\0b"))
    assert not (shared_path / "new").exists()
    with mg.report(shared_path / "one"):
        fails(r"one report is made at a time, and one in '.*one' is being made", shared_path / "other")
    assert (shared_path / "one" / "summary.json").exists() and not (shared_path / "other").exists()
    assert not_recording() and not current().control.reporting.folder


@pytest.mark.slow
@ON_SEVERAL
def test_a_block_that_is_left_by_an_error_of_its_own_ends_as_the_next_one_begins(
    job: SharedJob, g: dist.DistGraph, shared_path: Path
) -> None:
    with pytest.raises(ValueError, match="mine"), mg.report(shared_path / "one"):
        list(loader_of(g, 2))
        raise ValueError("mine")
    assert not job.one_has(lambda: (shared_path / "one" / "summary.json").exists())
    with mg.report(shared_path / "two"):
        list(loader_of(g, 3))
    if job.rank == 0:
        for name, steps in (("one", 2), ("two", 3)):
            assert {len(rank.steps.seconds) for rank in read(shared_path / name).trainers} == {steps}


@own_on_layouts([Layout(4, 1, 2)])
def test_the_rows_of_other_nodes(layout: Job, oracle, tmp_path: Path) -> None:
    """Each seed is read in each epoch, with a cache that has room for all: from the second on nothing is fetched."""
    path, folder = oracle(3), Path(layout.share(str(tmp_path)))

    def body() -> None:
        g = open_graph(path)
        sampler, options = NeighborSampler([-1]), {"features": ["feat"], "cache": "1MB"}
        loader = dist.DistNodeDataLoader(g, torch.arange(g.num_nodes()), sampler, batch_size=8, **options)
        with mg.report(folder):
            for _ in range(3):
                list(loader)
        if current().rank == 0:
            rank = read(folder).trainers[0]
            assert rank.remote_rows == loader.stats().remote_rows
            assert 2 * rank.remote_rows <= 3 * rank.cached_rows < 3 * rank.remote_rows

    layout.run(body)


@ON_SEVERAL
def test_a_report_that_cannot_be_written_is_an_error_on_every_trainer(
    job: SharedJob, shared_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr("mpigraph.reports.summary.write", full)
    with (
        pytest.raises(StorageError, match=r"writing the report .* failed on rank \d: no space left"),
        mg.report(shared_path),
    ):
        pass
    monkeypatch.undo()
    with pytest.raises(StorageError, match=r"writing the report .* cannot be written"), mg.report(shared_path / "gone"):
        if job.rank == 0:
            (shared_path / "gone").rmdir()
            (shared_path / "gone").write_text("")
    with mg.report(shared_path):
        pass
    assert job.one_has(lambda: len(read(shared_path).ranks) == job.session.world.size)


@pytest.mark.slow
@own_on_layouts(API)
def test_the_report_of_a_whole_job(layout: Job, oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by a variable that trainer 0 has, or an argument; a job without a report comes between."""
    path, folder = oracle(3), Path(layout.share(str(tmp_path)))
    first = 0 if layout.comm.rank == 0 else 1  # rank 0 trains in these layouts

    def body() -> None:
        g = open_graph(path)
        list(loader_of(g, 3))
        if Session.running is not None and current().control.reporting.folder:
            with pytest.raises(InvalidArgumentError, match="MPIGRAPH_REPORT"), mg.report(folder / "another"):
                pass

    monkeypatch.setenv("MPIGRAPH_REPORT", "" if first else str(folder / "by variable"))
    layout.run(body)
    monkeypatch.delenv("MPIGRAPH_REPORT")
    layout.run(body)
    layout.run(body, report=folder / "by argument")
    layout.comm.Barrier()
    assert {entry.name for entry in folder.iterdir()} == {"by variable", "by argument"}
    for name in ("by variable", "by argument"):
        summary = read(folder / name)
        assert len(summary.ranks) == layout.comm.size
        assert [rank.steps.seeds for rank in summary.trainers] == [[4] * 3] * len(summary.trainers)
        assert {path.name for path in (folder / name).iterdir()} == FILES
    assert summary.job.arguments["report"] == str(folder / "by argument")
    assert not_recording()


@own_on_layouts(API)
def test_a_folder_for_a_whole_job_is_checked_before_training(layout: Job, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = layout.share(str(tmp_path / "file"))
    with pytest.raises(InvalidArgumentError, match="the folder of a report must be"):
        layout.run(lambda: None, report=path)
    layout.run(lambda: None)  # all ranks can go on


SERIALIZED = "import mpi4py\nmpi4py.rc.thread_level = 'serialized'\n"
TIED = """
import mpigraph as mg
loader = dist.DistNodeDataLoader(g, torch.arange(g.num_nodes()), NeighborSampler([3]), batch_size=8, features=["feat"])
with mg.report({folder!r}):
    list(loader)
"""


@pytest.mark.slow
def test_reports_where_only_the_main_thread_may_communicate(tmp_path: Path, oracle) -> None:
    body = TIED.format(folder=str(tmp_path / "report"))
    options = {"ranks": 4, "before": SERIALIZED, "MPIGRAPH_RANKS_PER_NODE": "2"}
    status, output, _ = run_script(tmp_path, oracle(3), body, **options)
    assert status == 0, output
    summary = read(tmp_path / "report")
    assert len({len(rank.steps.seconds) for rank in summary.trainers}) == 1 and len(summary.ranks) == 4


KILLED = """
import os
from mpigraph import trace
from mpigraph.session import context
enter, begin = trace.span.__enter__, context._begin_report
left = [{count}]

def begun(control, store):
    begin(control, store)
    if int(os.environ["PMI_RANK"]) == {victim}:
        trace.span.__enter__ = counted

def counted(span):
    result = enter(span)
    left[0] -= span.name == {stage!r}
    if not left[0]:
        os.kill(os.getpid(), 9)
    return result

context._begin_report = begun
"""
WORKS = """
from mpigraph import checkpoint
from mpigraph.trace import span
seeds = torch.arange(g.num_nodes())
loader = dist.DistNodeDataLoader(g, seeds, NeighborSampler([3, 3]), batch_size=4, features=["feat"])
emb = dist.DistEmbedding(g.num_nodes(), 4, "emb")
optimizer = dist.optim.SparseAdagrad([emb], lr=0.1)
for step in range(100):
    for _ in loader:
        with span("forward"):
            loss = emb(seeds).sum()
        with span("backward"):
            loss.backward()
        optimizer.step()
        dist.sample_neighbors(g, seeds, 2)
    checkpoint.save({"emb": emb}, checkpoint_id=f"{folder}/state{step}")
"""
PLACES = [  # the rank that is killed (1 and 3 serve), in which stage, and how often it has begun
    (0, "wait", 2), (0, "forward", 1), (2, "place", 4), (1, "answer", 3),
    (0, "sample", 1), (0, "sample", 30), (2, "sample", 7), (0, "plan", 2), (2, "plan", 20), (0, "fetch", 1),
    (2, "fetch", 2), (0, "place", 9), (2, "wait", 40), (0, "step", 5), (2, "step", 33), (2, "backward", 6),
    (0, "meet", 1), (2, "meet", 60), (0, "own", 3), (3, "answer", 50), (1, "meet", 2), (3, "meet", 5),
]  # fmt: skip


@pytest.mark.parametrize(
    ("victim", "stage", "count"),
    [*PLACES[:1], *(pytest.param(*place, marks=pytest.mark.study) for place in PLACES[1:])],
)
def test_the_last_span_of_a_killed_rank_is_known(tmp_path: Path, oracle, victim: int, stage: str, count: int) -> None:
    """It is killed just after the span has begun, wherever that is."""
    before = KILLED.format(victim=victim, stage=stage, count=count)
    body = f"folder = {str(tmp_path)!r}" + WORKS
    status, output, seconds = run_script(tmp_path, oracle(3), body, ranks=4, before=before, MPIGRAPH_RANKS_PER_NODE="2")
    assert status != 0 and seconds < SOON, output
    spoken = [line for line in output.splitlines() if "last spans of" in line and f"(rank {victim})" in line]
    said = spoken[0].partition(": ")[2] if spoken else ""
    assert said.startswith("in ") and re.search(rf"\bin {stage}\b", said.partition("; before: ")[0]), output
