"""Staging: every node gets the parts that its hosts read, whole, and no others; what is there and right is kept."""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from damaged import flip
from layouts import Job, on_all, rotated
from mpi4py import MPI
from oracle import NAME, write_oracle

import mpigraph
import mpigraph.distributed as dist
from mpigraph.cli import stage as staging
from mpigraph.cli.grammar import Stage
from mpigraph.cli.stage import stage as run_command
from mpigraph.distributed import partition_graph
from mpigraph.errors import PartitionError, ShardFormatError, StorageError
from mpigraph.storage import files
from mpigraph.storage.part_config import PartConfig
from mpigraph.store import host_ranges


def nodes_of(layout: Job) -> list[list[int]]:
    """The ranks of each node of a layout."""
    size = layout.comm.size
    step = layout.layout.ranks_per_node or size
    return [list(range(begin, min(begin + step, size))) for begin in range(0, size, step)]


def stage(config: PartConfig, parts: list[int], directory: Path) -> int:
    """Stage as the command does; return how many files were copied."""
    shards = staging.shards_of(config, parts, directory)
    missing = [shard for shard in shards if not staging.is_staged(shard, config)]
    staging.check_fit(missing, directory)
    for shard in missing:
        staging.copy_shard(shard, config)
    return len(missing)


@pytest.fixture
def config(oracle) -> PartConfig:
    return PartConfig.read(oracle(4))


@rotated(3)
def test_a_job_opens_the_parts_that_staging_brings(layout: Job, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The division of parts in a job is that of staging: no rank opens a part that its node lacks."""
    original, opened = PartConfig.part_path, set()
    monkeypatch.setattr(PartConfig, "part_path", lambda c, k, which: opened.add(k) or original(c, k, which))
    nodes, servers = nodes_of(layout), layout.layout.servers if layout.comm.size > 1 else 0
    hosts = staging.hosts_of_nodes([members[-servers:] for members in nodes])
    own = next(h for h, members in zip(hosts, nodes, strict=True) if layout.comm.rank in members)
    for num_parts in (1, 3, 7):
        opened.clear()
        layout.run(partial(dist.DistGraph, NAME, part_config=oracle(num_parts)))
        allowed = set(host_ranges.parts_of_hosts(own, sum(map(len, hosts)), num_parts))
        on_all(layout.comm, opened <= allowed, f"{num_parts} parts: opened {opened} of {allowed}")


def test_hosts_are_numbered_as_the_job_numbers_them() -> None:
    assert staging.hosts_of_nodes([[2], [5]]) == [[0], [1]]
    assert staging.hosts_of_nodes([[0, 1, 2], [3, 4, 5]]) == [[0, 1, 2], [3, 4, 5]]
    assert staging.hosts_of_nodes([[2, 4], [3, 5]], 2) == [[0, 2], [1, 3]]  # ranks that were dealt out in turn
    for servers in (1, 2, 3):  # one rank on each node is enough to stage by
        assert staging.hosts_of_nodes([[0], [1]], servers) == [list(range(servers)), list(range(servers, 2 * servers))]


def test_staging_copies_once(config: PartConfig, tmp_path: Path) -> None:
    assert stage(config, [1, 2], tmp_path) == 6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part1", "part2"]
    for part in (1, 2):
        for name in ("graph.h5", "node_feat.h5", "edge_feat.h5"):
            staged, source = (base / f"part{part}" / name for base in (tmp_path, config.directory))
            assert staged.read_bytes() == source.read_bytes()
    assert len(list((tmp_path / "part1").iterdir())) == 3  # nothing temporary stays
    assert stage(config, [1, 2], tmp_path) == 0
    assert stage(config, [0, 1], tmp_path) == 3


def other_graph(shard: Path, config: PartConfig, **how: Any) -> None:
    """Put the same part of another graph in place of a shard: of the same size and name, itself undamaged."""
    write_oracle(shard.parents[1] / "other", 4, **how)
    shutil.copy(shard.parents[1] / "other" / "part1" / "node_feat.h5", shard)


WRONGS: dict[str, Callable[[Path, PartConfig], object]] = {
    "missing": lambda shard, config: shard.unlink(),
    "link": lambda shard, config: shard.unlink() or shard.symlink_to(config.directory / "part1" / "node_feat.h5"),
    "cut off": lambda shard, config: os.truncate(shard, shard.stat().st_size - 100),
    "flipped": lambda shard, config: flip(shard, "_N/feat"),
    "another graph": partial(other_graph, part_method="given"),
    "partitioned again": partial(other_graph, seed=1),
    "interrupted": lambda shard, config: shard.replace(shard.with_name(".node_feat.h5.tmp")),
}


@pytest.mark.parametrize("how", WRONGS)
def test_what_is_wrong_is_copied_again(config: PartConfig, tmp_path: Path, how: str) -> None:
    stage(config, [0, 1], tmp_path)
    shard = tmp_path / "part1" / "node_feat.h5"
    WRONGS[how](shard, config)
    assert stage(config, [0, 1], tmp_path) == 1
    assert shard.read_bytes() == (config.directory / "part1" / "node_feat.h5").read_bytes() and not shard.is_symlink()
    assert len(list(shard.parent.iterdir())) == 3


def test_a_damaged_original_is_never_staged(config: PartConfig, tmp_path: Path) -> None:
    shutil.copytree(config.directory, tmp_path / "bad")
    shard = tmp_path / "bad" / "part0" / "node_feat.h5"
    flip(shard, "_N/feat")
    with pytest.raises(ShardFormatError, match=r"bad/part0/node_feat.h5 is damaged"):
        stage(PartConfig.read(tmp_path / "bad" / "oracle.json"), [0], tmp_path / "to")
    assert not (tmp_path / "to/part0/node_feat.h5").exists()


def test_staging_refuses(config: PartConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PartitionError, match="where the parts are"):
        stage(config, [0], config.directory)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 1 << 10))
        with pytest.raises(StorageError, match=r"lacks space: staging to this node needs [\d.]+ KiB, and 1.0 KiB are"):
            stage(config, [0], tmp_path / "full")
    (tmp_path / "part0").mkdir()
    with open(tmp_path / "part0" / ".graph.h5.tmp", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another process is writing"):
            stage(config, [0], tmp_path)
    shutil.copytree(config.directory, tmp_path / "less")
    (tmp_path / "less/part2/graph.h5").unlink()
    less = PartConfig.read(tmp_path / "less" / "oracle.json")
    assert stage(less, [0], tmp_path) == 3
    with pytest.raises(PartitionError, match=r"part2/graph.h5"):
        stage(less, [2], tmp_path)


Outcome = tuple[int, str, str]


@pytest.fixture
def run_stage(run_on: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    def run(config: object, to: object, ranks_per_node: int = 0, **options: Any) -> Outcome:
        monkeypatch.setenv("MPIGRAPH_RANKS_PER_NODE", str(ranks_per_node))
        return run_on(run_command, Stage(str(config), str(to), **options))

    return run


def read_only(path: str, flags: int) -> int:
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.slow
@pytest.mark.parametrize("comm", [1], indirect=True)
def test_the_command_alone_brings_everything(
    oracle, tmp_path: Path, run_stage: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = run_stage(oracle(3), tmp_path / "to")
    assert status == 0 and out == f"{tmp_path / 'to' / 'oracle.json'}\n"
    assert re.search(r"node 0 \(.+\): part\(s\) 0, 1, 2: 9 files copied \([\d.]+ KiB\), 0 kept", err)
    staged = PartConfig.read(out.strip())
    assert all(staged.part_path(k, "part_graph").is_file() for k in range(3))
    with monkeypatch.context() as patch:  # nothing can be written there any more
        patch.setattr(files, "_open_new", read_only)
        assert "0 files copied (0.0 KiB), 9 kept" in run_stage(oracle(3), tmp_path / "to")[2]
    (tmp_path / "to" / "oracle.json").unlink()
    assert run_stage(oracle(3), tmp_path / "to")[1] == out


@pytest.mark.parametrize("comm", [4], indirect=True)
@pytest.mark.parametrize("servers", [0, 1])
def test_each_node_gets_its_parts(
    comm: MPI.Intracomm, oracle, tmp_path: Path, run_stage: Callable[..., Outcome], servers: int
) -> None:
    to = comm.bcast(tmp_path / "to")
    status, out, err = run_stage(oracle(4), to, ranks_per_node=2, servers=servers)
    assert status == 0 and out == f"{to / 'oracle.json'}\n"
    assert re.findall(r"node (\d) .*part\(s\) (.*): 6 files", err) == [("0", "0, 1"), ("1", "2, 3")], err


@pytest.mark.parametrize("comm", [1, 2], indirect=True)
def test_another_graph_is_not_staged_over(
    comm: MPI.Intracomm, oracle, tmp_path: Path, run_stage: Callable[..., Outcome]
) -> None:
    """The same graph in fewer parts is staged, without parts of the earlier one."""
    to = comm.bcast(tmp_path / "to")
    if comm.rank == 0:
        partition_graph(mpigraph.graph(([0, 1], [1, 2])), "other", 3, to)
    comm.Barrier()
    status, out, err = run_stage(oracle(2), to)
    assert status == 2 and out == "" and err.count("error: ") == 1
    assert "holds the graph 'other' of 3 nodes and 2 edges, which would be overwritten" in err and "--overwrite" in err
    assert PartConfig.read(to / "other.json").num_parts == 3
    assert run_stage(oracle(4), to, overwrite=True)[0] == 0
    assert run_stage(oracle(2), to)[0] == 0
    assert sorted(path.name for path in to.iterdir()) == ["oracle.json", "part0", "part1"]


@pytest.mark.parametrize("comm", [1, 2], indirect=True)
def test_a_link_out_of_the_folder_is_an_error(
    comm: MPI.Intracomm, oracle, tmp_path: Path, run_stage: Callable[..., Outcome]
) -> None:
    to = comm.bcast(tmp_path)
    if comm.rank == 0:
        (to / "part1").symlink_to(Path(oracle(2)).parent / "part1")
    comm.Barrier()
    status, _, err = run_stage(oracle(2), to, overwrite=True)
    assert status == 2 and err.count("error: ") == 1 and f"{to}/part1: a link to " in err
