"""Rows of features that stay on disk: the same as those in memory, wherever they are read; and what can go wrong."""

import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from damaged import flip
from jobs import clean_environment, mpiexec, run_job, warm_python
from layouts import ALONE, LAYOUTS, Job, Layout, own_on_layouts
from oracle import NAME, NUM_NODES, oracle_source, write_oracle

import mpigraph.distributed as dist
from mpigraph.arrays import I64
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import FieldNameError, InvalidArgumentError, PartitionError, ShardFormatError, StorageError
from mpigraph.kernels.row_ops import as_words
from mpigraph.memory import in_units
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature
from mpigraph.rows import cache_sizes, row_cache
from mpigraph.rows.sources import disk, verification
from mpigraph.rows.sources.disk import DiskFile, DiskRows, Reading
from mpigraph.rows.sources.verification import Verification
from mpigraph.session.context import current
from mpigraph.storage import files, verified
from mpigraph.storage.audit import audit_part
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader
from mpigraph.store import on_disk

HEADER = 1234  # bytes before the rows of a piece, which no page begins at


@own_on_layouts(LAYOUTS)
@pytest.mark.parametrize("parts", [1, 3])
def test_minibatches(layout: Job, oracle, parts: int) -> None:
    """Bit-equal to those of memory, with and without a cache and look-ahead, and in any order."""
    path = oracle(parts)
    digests: dict[str | None, list[str]] = {}

    def body(storage: str | None) -> None:
        g = dist.DistGraph(NAME, part_config=path, storage=storage)
        feat = g.ndata["feat"]
        options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "features": ["feat"]}
        seeds = dist.node_split(np.ones(NUM_NODES))
        digests[storage] = []
        for ahead in ({"cache": "1MiB", "lookahead": 3}, {"cache": 0, "lookahead": 0}):
            loader = dist.DistNodeDataLoader(g, seeds, NeighborSampler([3, 4]), **ahead, **options)
            digests[storage] += [digest(batch) for _ in range(2) for batch in loader]
            loader.close()
        ids = torch.arange(NUM_NODES).flip(0).repeat(2)
        assert torch.equal(feat[ids], g.ndata["orig"][ids][:, None].expand(-1, 3).float())
        if storage:
            with pytest.raises(InvalidArgumentError, match="'feat' cannot be written: .* open the graph with storage="):
                feat[0] = 0

    layout.run(lambda: body(None))
    layout.run(lambda: body("disk"))
    if digests:
        assert digests[None] == digests["disk"]


@own_on_layouts([ALONE, Layout(2, 1, 0), Layout(2, 0, 1), Layout(4, 0, 2)])
def test_a_default_cache_leaves_memory_to_minibatches(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets half of what reading ahead leaves, and stops to grow when an eighth of the memory is free.

    A node's first rank says if that is little. Shared memory has nothing but the cache.
    """
    path, free, lines = oracle(3), [1 << 40, 1 << 40], []  # of servers, too: the least of a node counts
    looks = []
    monkeypatch.setattr(row_cache, "_UNLOOKED", 0)
    monkeypatch.setattr(row_cache, "free_memory", lambda: looks.append(1) or free[0])
    monkeypatch.setattr(row_cache, "free_shared_memory", lambda: free[1])
    logger = SimpleNamespace(info=lambda *words: None, warning=lambda text, *words: lines.append(text % words))
    monkeypatch.setattr(row_cache, "get_logger", lambda: logger)

    def opened(g: dist.DistGraph) -> dist.DistNodeDataLoader:
        sampler = NeighborSampler([3, 4])
        return dist.DistNodeDataLoader(g, np.arange(40), sampler, batch_size=4, features=["feat"], seed=3)

    def body() -> None:
        g = dist.DistGraph(NAME, part_config=path, storage="feat=disk")
        world, row_bytes = current().world, g.ndata["feat"].rows.window.row_bytes
        trainers = world.num_local_trainers
        needed = trainers * (cache_sizes.OF_MINIBATCHES + cache_sizes.ahead_memory(NUM_NODES))
        found = []
        for slots, is_short in ((0, False), (10, False), (NUM_NODES, False), (NUM_NODES, True)):
            caches = cache_sizes.cache_memory(NUM_NODES, trainers * slots, row_bytes)
            free[:] = [needed + 2 * caches, 2 * caches] if slots else [10_000, 10_000]
            loader = opened(g)
            (cache,) = current().store.caches.values()
            assert cache.per_trainer == slots
            found.append([digest(batch) for batch in loader])
            used = cache.used
            least = min(slots, 10) if trainers == 1 else 0  # another trainer of the node may have read all rows
            assert least <= used <= slots
            free[:] = [size // 8 - is_short for size in free]
            found.append([digest(batch) for _ in range(3) for batch in loader][-10:])
            assert cache.used == used if is_short else least <= cache.used <= slots
            loader.close()
        assert found[::2] == found[:1] * 4 and found[1::2] == found[1:2] * 4
        monkeypatch.setattr(row_cache, "_UNLOOKED", 1 << 20)
        free[:] = [1 << 40, 1 << 40]
        loader = opened(g)
        looks.clear()
        assert [digest(batch) for batch in loader] == found[0]
        assert len(looks) <= 1  # the cache grows by less than that
        loader.close()
        for short in (1, 0):
            lines.clear()
            free[:] = [needed + trainers * cache_sizes.OF_MINIBATCHES - short, needed]
            opened(g).close()
            assert len(lines) == (short and world.node.rank == 0)
            assert all(f"has {in_units(free[0])} of memory free" in line for line in lines)

    layout.run(body)


@own_on_layouts([ALONE])
def test_features_share_the_open_files_of_more_parts_than_the_limit_was_for(layout: Job, tmp_path: Path) -> None:
    parts = 100
    feats = {name: Feature.of(np.random.default_rng(0).standard_normal((NUM_NODES, 3))) for name in ("a", "b", "c")}
    source = replace(oracle_source(), node_feats={"_N": feats}, edge_feats={})
    path = partition_source(source, NAME, parts, tmp_path, "random").config_path
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def body() -> None:
        before = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + parts - 10, limits[1]))
        g = dist.DistGraph(NAME, part_config=path, storage="disk")
        assert len(os.listdir("/proc/self/fd")) - before <= parts + 10
        assert torch.equal(g.ndata["a"][:], g.ndata["c"][:])

    try:
        layout.run(body)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


# ---- one source ------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_files(tmp_path: Path) -> Callable[..., tuple[DiskRows, Any]]:
    """Make a source of random rows in three files, of which the second has none; return it, and the rows."""

    def make(width: int, counts: tuple[int, ...] = (300, 0, 211), reading: Reading | None = None) -> Any:
        draws = np.random.default_rng(width)
        rows = draws.integers(0, 256, (sum(counts), width), np.uint8)
        pieces = []
        first = 0
        for k, count in enumerate(counts):
            path = tmp_path / f"{width}-{k}"
            path.write_bytes(draws.bytes(HEADER) + rows[first : first + count].tobytes() + bytes(k))
            pieces.append((DiskFile(path), HEADER, 0, count))
            first += count
        return DiskRows("x", width, pieces, reading or Reading(threads=3)), rows

    return make


def read(source: DiskRows, ids: I64, width: int) -> Any:
    out = np.zeros((len(ids), width), np.uint8)
    source.gather(ids, as_words(out), np.arange(len(ids)))
    return out


@pytest.mark.parametrize("width", [1, 3, 8, 512, 5000])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(("gap", "together"), [(0, 64), (100, 1), (16384, 3)])
def test_rows(
    on_files: Any, monkeypatch: pytest.MonkeyPatch, width: int, direct: bool, gap: int, together: int
) -> None:
    """Any rows in any order, of any width, in any number of runs and pieces."""
    monkeypatch.setattr(disk, "_TOGETHER", together)
    monkeypatch.setattr(disk, "_RUN_BYTES", 20000)
    source, rows = on_files(width, reading=Reading(3, gap, direct))
    draws = np.random.default_rng(0)
    for ids in (
        np.arange(len(rows)),
        np.empty(0, np.int64),
        np.array([len(rows) - 1]),
        np.array([299, 300]),
        *(draws.integers(0, len(rows), count) for count in (1, 10, 100, 3000)),
    ):
        assert np.array_equal(read(source, ids, width), rows[ids])
    out = np.zeros((7, len(rows), width), np.uint8)
    ids = [np.arange(first, len(rows), 7) for first in range(7)]
    tickets = [source.read_ahead(ids[k], as_words(out[k]), ids[k][::-1].copy()) for k in range(7)]
    del tickets[3]  # costs no more
    for k, ticket in zip((0, 1, 2, 4, 5, 6), tickets, strict=True):
        ticket.finish()
        assert ticket.done and np.array_equal(out[k][ids[k][::-1]], rows[ids[k]])
        assert not np.delete(out[k], ids[k], 0).any()


def test_neighbours_are_read_together(on_files: Any) -> None:
    ids = np.array([0, 1, 5, 20, 21, 299, 300, 301])
    for gap, runs in ((0, 5), (29, 5), (30, 4), (139, 4), (140, 3), (1 << 20, 2)):
        source, _ = on_files(10, reading=Reading(gap=gap))
        assert len(source.plan(ids)[0]) == runs, gap


def test_a_fork_reads(on_files: Any) -> None:
    """Also what its parent has begun to read."""
    source, rows = on_files(512)
    out = np.zeros((100, 512), np.uint8)
    ticket = source.read_ahead(np.arange(100), as_words(out), np.arange(100))
    child = os.fork()
    if child == 0:
        ticket.finish()
        right = np.array_equal(out, rows[:100]) and np.array_equal(read(source, np.arange(50), 512), rows[:50])
        os._exit(0 if right else 1)
    ticket.finish()
    assert np.array_equal(out, rows[:100])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_errors_name_file_dataset_and_row(on_files: Any, tmp_path: Path) -> None:
    source, rows = on_files(100)
    path = tmp_path / "100-2"
    os.rename(path, tmp_path / "vanished")  # an open file is there all the same
    path.write_bytes(b"another file")
    assert np.array_equal(read(source, np.arange(511), 100), rows)
    path = tmp_path / "vanished"
    os.utime(path, ns=(1, 1))
    with pytest.raises(StorageError, match="100-2: was written while a graph reads it"):
        read(source, np.array([300]), 100)
    assert np.array_equal(read(source, np.arange(300), 100), rows[:300])
    os.truncate(path, HEADER + 1050)
    with pytest.raises(ShardFormatError, match=r"100-2: dataset 'x', row 10: the file ends before it: it was cut off"):
        read(source, np.array([0, 310]), 100)
    file = DiskFile(tmp_path / "100-0")
    failing = DiskRows("x", 100, [(file, HEADER, 2, 298)], Reading())
    os.close(file.number)  # as a disk that fails
    with pytest.raises(StorageError, match=r"100-0: dataset 'x', row 9: cannot read: Bad file descriptor"):
        read(failing, np.array([7]), 100)
    assert os.open(tmp_path / "100-0", os.O_RDONLY) == file.number  # which is closed with the file


def test_a_disk_that_does_not_answer(on_files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = on_files(8, reading=Reading(timeout=0.05))
    monkeypatch.setattr(DiskRows, "read_runs", lambda *_: time.sleep(1))
    with pytest.raises(StorageError, match="dataset 'x': the disk has not answered for 0 s"):
        read(source, np.array([7]), 8)


# ---- checksums -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("past_cache", [True, False])
def test_checksums_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, past_cache: bool) -> None:
    """A note of that holds until the file changes in any way; damage is an error, and no note."""
    config = PartConfig.read(write_oracle(tmp_path))
    path = config.part_path(0, "node_feats")
    monkeypatch.setattr(verified, "SMALL", 0)
    monkeypatch.setattr(verification, "_BLOCK", 4096)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    compared: list[int] = []

    @contextmanager
    def counted(number: int) -> Iterator[int | None]:
        compared.append(number)
        with files.direct(number) as direct:
            yield direct if past_cache else None

    monkeypatch.setattr(verification, "direct", counted)
    with ShardReader(path) as shard:
        extents = {name: shard.extent(name) for name in shard.names()}

    def run(background: Verification | None = None) -> int:
        compared.clear()
        background = background or Verification()
        for name, extent in extents.items():
            background.add(DiskFile(path), config.seals[0]["node_feats"], name, extent)
        background.finish()
        return len(compared)

    of_job = Verification()
    assert run(of_job) == len(extents) == 4
    os.utime(path, (1, 1))  # another file of this name, opened by the same job
    assert [run(of_job), run(of_job)] == [4, 0]
    os.utime(path)
    assert run() == 4
    assert run() == 0
    shutil.copy2(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)
    assert run() == 4
    assert run() == 0
    damaged = sorted(extents)[1]
    flip(path, damaged, 40)
    for _ in range(2):
        with pytest.raises(ShardFormatError, match=rf"{path}: dataset '{damaged}' is damaged: .* rows 0 to \d+"):
            run()
    flip(path, damaged, 40)
    assert audit_part(PartFiles(config), 0, lambda _: None).bad == []  # what ``verify`` does
    assert run() == 0
    os.truncate(path, 1000)
    with pytest.raises(ShardFormatError, match="the file ends before its end: it was cut off"):
        run()


@pytest.mark.slow
def test_damage_ends_the_job(tmp_path: Path) -> None:
    """At the latest when it would end by itself; once it is gone the same job runs."""
    path = write_oracle(tmp_path, 2)
    script = f"""
import torch
import mpigraph.distributed as dist
dist.initialize(num_servers=1)
g = dist.DistGraph("oracle", part_config={path!r})
print(int(g.ndata["feat"][torch.arange(101)].sum()), flush=True)
dist.exit_client()
print("ended")
"""
    (tmp_path / "job.py").write_text(script)
    command = [*mpiexec(3), *warm_python(), tmp_path / "job.py"]
    shard = PartConfig.read(path).part_path(1, "node_feats")
    for damaged in (True, False):
        flip(shard, "_N/feat", 17)
        done = run_job(command, clean_environment() | {"MPIGRAPH_STORAGE": "disk"})
        if damaged:
            assert done.status == 1 and "ended" not in done.stdout
            assert "ShardFormatError" in done.stderr and f"{shard}: dataset '_N/feat' is damaged" in done.stderr
        else:
            assert done.status == 0 and done.stdout.count("15150\nended") + done.stdout.count("15150\n15150") >= 1


# ---- which features --------------------------------------------------------------------------------------------------


@own_on_layouts([ALONE, Layout(2, 1, 0), Layout(2, 0, 1), Layout(4, 0, 2)])
def test_memory_decides(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The largest features go to disk until the others fit; all that the user names "memory" stay there."""
    path = oracle(2)
    free: list[int] = []
    monkeypatch.setattr(on_disk, "tightest_limits", lambda world: np.full((world.num_nodes, 3), free[0]))

    def places(storage: Any) -> set[str]:
        g = dist.DistGraph(NAME, part_config=path, storage=storage)
        graph = current().store.graphs[NAME]
        assert torch.equal(g.ndata["feat"][torch.arange(4)][:, 0], g.ndata["orig"][torch.arange(4)].float())
        return {name for _, name in graph.on_disk}

    for nbytes, storage, expected in (
        (1 << 30, "auto", set()),
        (1, "auto", {"feat"}),
        (1, {"node": {"feat": "auto"}}, {"feat"}),
        (1 << 30, {"node": {"feat": "disk"}}, {"feat"}),
        (1, {"node": {"feat": "memory"}}, set()),
        (1, {"edge": {}}, set()),
        (1, "memory", set()),
        (1, "disk", {"feat"}),
        (1, None, set()),
    ):
        free[:] = [nbytes]
        assert layout.run(lambda s=storage: places(s)) in (expected, None)


@own_on_layouts([ALONE, Layout(3, 1, 0)])
def test_what_cannot_be_on_disk(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one error on every rank, after which the job goes on."""
    path = oracle(2)

    def body() -> None:
        for storage, kind, text in (
            ("disc", InvalidArgumentError, r"storage must be one of \['memory', 'disk', 'auto'\] \(got 'disc'\)"),
            ({"feat": "disk"}, InvalidArgumentError, "storage must be"),
            ({"node": {"feat": "ssd"}}, InvalidArgumentError, "storage of 'feat' must be one of"),
            ({"node": {"label": "disk"}}, InvalidArgumentError, "'label' has int64 rows of shape"),
            ({"node": {"weight": "disk"}}, FieldNameError, "no node feature 'weight'"),
            ("feat=disk,feat=memory", InvalidArgumentError, "storage must name each feature once"),
            ("feat=disk,nothing=disk", FieldNameError, "no node or edge feature 'nothing'"),
        ):
            with pytest.raises(kind, match=text):
                dist.DistGraph(NAME, part_config=path, storage=storage)
        with monkeypatch.context() as patched:
            patched.setattr(current().world, "config", replace(current().world.config, storage="disc"))
            with pytest.raises(InvalidArgumentError, match="MPIGRAPH_STORAGE must be one of"):
                dist.DistGraph(NAME, part_config=path)
        with pytest.raises(InvalidArgumentError, match="'feat' is on disk as float32 and cannot be kept as float16"):
            dist.DistGraph(NAME, part_config=path, storage="disk", feat_dtype="float16")
        g = dist.DistGraph(NAME, part_config=path, storage="feat=disk")
        for storage in ("disk", "auto", None, {"node": {"feat": "disk"}}):
            assert dist.DistGraph(NAME, part_config=path, storage=storage).num_nodes() == g.num_nodes()
        with pytest.raises(PartitionError, match="open already, with feature 'feat' on disk"):
            dist.DistGraph(NAME, part_config=path, storage="memory")

    layout.run(body)


@own_on_layouts([ALONE, Layout(2, 1, 0)])
def test_a_shared_file_system_is_named(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(on_disk, "file_system", lambda _: "nfs4")
    monkeypatch.setattr(on_disk.get_logger(), "warning", lambda text, *of: lines.append(text % of))
    layout.run(lambda: dist.DistGraph(NAME, part_config=oracle(2), storage="disk").num_nodes() and None)
    said = layout.comm.allreduce(len(lines))
    assert said == 1
    assert all("is on a shared file system (nfs4), which gave" in line for line in lines)
