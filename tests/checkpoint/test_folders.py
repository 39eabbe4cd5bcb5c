"""Folders that cannot be written, that others write to, that nodes do not share; and what is removed."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import embedding
from layouts import SharedJob, alone, several

import mpigraph.distributed as dist
from mpigraph import checkpoint
from mpigraph.checkpoint.folder import Manifest, checksum
from mpigraph.errors import CollectiveError, InvalidArgumentError, ShardFormatError, StorageError
from mpigraph.session.context import current
from mpigraph.storage.shard import ShardWriter


@pytest.mark.parametrize("background", [False, True])
def test_a_folder_that_cannot_be_written_is_one_error(g: dist.DistGraph, shared_path: Path, background: bool) -> None:
    state = {"emb": embedding()}
    if g.rank() == 0:
        (shared_path / "file").write_text("")
        (shared_path / "dangling").symlink_to(shared_path / "nowhere" / "else")
        (shared_path / "loop").symlink_to(shared_path / "loop")
        os.mkfifo(shared_path / "fifo")
    g.barrier()
    save = checkpoint.async_save if background else checkpoint.save
    for name in ("file", "file/c", "dangling", "loop", "fifo"):
        with pytest.raises(StorageError, match=f"saving a checkpoint to .*{name}.*cannot write"):
            save(state, checkpoint_id=shared_path / name)
            if name == "file":
                save(state, checkpoint_id=shared_path / "not")  # which raises the error of the one before
            checkpoint.wait()
    save(state, checkpoint_id=shared_path / "c")
    assert checkpoint.latest(shared_path) == shared_path / "c"  # waits for it


@pytest.mark.parametrize("save", [checkpoint.save, checkpoint.async_save])
def test_a_folder_that_holds_something_else_is_refused(g: dist.DistGraph, shared_path: Path, save: Any) -> None:
    """On every trainer, before anything is written; beside a checkpoint, files of others do no harm."""
    names = ("notes.txt", "manifest.json", "g.json")
    if g.rank() == 0:
        for name in names:
            (shared_path / name).mkdir()
            (shared_path / name / name).write_text("mine")
    g.barrier()
    for name in names:
        directory = shared_path / name
        with pytest.raises(InvalidArgumentError, match=f"holds '{name}' and no checkpoint: give") as caught:
            save({"step": 1}, checkpoint_id=directory)
        assert caught.value.everywhere
        there = [path.name for path in directory.iterdir()]
        g.barrier()
        assert there == [name] and (directory / name).read_text() == "mine"
        g.barrier()
    directory = shared_path / "own"
    checkpoint.save({"step": 1}, checkpoint_id=directory)
    if g.rank() == 0:
        (directory / "notes.txt").write_text("mine")
    g.barrier()
    save({"step": 2}, checkpoint_id=directory)
    checkpoint.wait()
    state = {"step": 0}
    checkpoint.load(state, checkpoint_id=directory)
    assert state == {"step": 2} and (directory / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("version", [4, 6])
def test_a_checkpoint_of_another_version_stays(
    job: SharedJob, g: dist.DistGraph, shared_path: Path, version: int
) -> None:
    """The documented loop does not begin anew, and no save replaces the checkpoint; one number alone is damage."""
    for step in (1, 2):
        checkpoint.save({"step": step}, checkpoint_id=shared_path / str(step))
    g.barrier()
    path = shared_path / "2" / "manifest.json"
    written = path.read_text()
    content = json.loads(written) | {"version": version}
    g.barrier()
    if g.rank() == 0:
        path.write_text(json.dumps(content))
    g.barrier()
    assert checkpoint.latest(shared_path) == shared_path / "1"
    del content["checksum"]
    of_another = json.dumps(content | {"checksum": checksum(content)})
    g.barrier()
    if g.rank() == 0:
        path.write_text(of_another)
    g.barrier()
    for call in (
        lambda: checkpoint.latest(shared_path),
        lambda: checkpoint.load({"step": 0}, checkpoint_id=path.parent),
        lambda: checkpoint.save({"step": 3}, checkpoint_id=path.parent),
        lambda: checkpoint.async_save({"step": 3}, checkpoint_id=path.parent),
    ):
        with pytest.raises(ShardFormatError, match=rf"2/manifest.json: a checkpoint of version {version}") as caught:
            call()
        assert caught.value.everywhere
    for step in (3, 4, 5):
        checkpoint.save({"step": step}, checkpoint_id=shared_path / str(step), keep=2)
    g.barrier()
    assert path.read_text() == of_another and len(list(path.parent.glob("*.h5"))) == job.layout.trainers


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("what", [ShardWriter.close, Manifest.write], ids=["file", "manifest"])
def test_what_one_trainer_cannot_write_leaves_nothing(
    job: SharedJob, g: dist.DistGraph, shared_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool, what: Any
) -> None:
    writes = (job.layout.trainers - 1) if what is ShardWriter.close else 0
    checkpoint.save({}, checkpoint_id=shared_path / "c0")
    save = checkpoint.async_save if background else checkpoint.save
    with monkeypatch.context() as patch:
        if g.rank() == writes:
            patch.setattr(ShardWriter if what is ShardWriter.close else Manifest, what.__name__, broken)
        with pytest.raises(CollectiveError, match="Input/output error"):
            save({"x": torch.rand(3)}, checkpoint_id=shared_path / "c1")
            checkpoint.wait()
    assert checkpoint.latest(shared_path) == shared_path / "c0"
    g.barrier()
    assert sorted(path.name for path in shared_path.iterdir()) == [".mpigraph-writer", "c0"]
    save({}, checkpoint_id=shared_path / "c1")
    assert checkpoint.latest(shared_path) == shared_path / "c1"


def broken(*args: Any) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_what_is_kept(job: SharedJob, g: dist.DistGraph, shared_path: Path) -> None:
    if g.rank() == 0:
        (shared_path / "mine").mkdir()
        (shared_path / "mine" / "notes.txt").write_text("")
        (shared_path / "killed").mkdir()
        for name in (".0123456789ab-1.h5.tmp", ".manifest.json.tmp"):
            (shared_path / "killed" / name).write_text("")
    g.barrier()
    for step in range(5):
        checkpoint.save({"step": step}, checkpoint_id=shared_path / f"c{step}", keep=2)
    checkpoint.save({"step": 5}, checkpoint_id=shared_path / "c3", keep=2)  # in place of an older one
    g.barrier()
    assert sorted(path.name for path in shared_path.iterdir() if path.is_dir()) == ["c3", "c4", "mine"]
    assert checkpoint.latest(shared_path) == shared_path / "c3"
    assert len(list((shared_path / "c3").iterdir())) == job.layout.trainers + 1


def test_folders_that_cannot_be_looked_at() -> None:
    """Such as ``lost+found`` at the top of a disk; a folder that cannot be read is an error, not an empty one."""
    around = Path(tempfile.mkdtemp())
    try:
        around.chmod(0o777)
        (around / "lost+found").mkdir(mode=0o700 if os.geteuid() == 0 else 0)
        (around / "hidden").mkdir(mode=0o700 if os.geteuid() == 0 else 0)
        (around / "file").write_text("")

        def body() -> None:
            with another_user():
                for step in range(3):
                    checkpoint.save({}, checkpoint_id=around / f"c{step}", keep=2)
                assert checkpoint.latest(around) == around / "c2" and not (around / "c0").exists()
                assert checkpoint.latest(around / "nothing") is None
                for name, words in (("hidden", "Permission denied"), ("file", "Not a directory")):
                    with pytest.raises(StorageError, match=f"{name}: cannot look for checkpoints: {words}"):
                        checkpoint.latest(around / name)

        alone(body)
    finally:
        shutil.rmtree(around)


@contextmanager
def another_user() -> Iterator[None]:
    """Inside, files are written and read as somebody who is not root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@several
def test_a_folder_that_nodes_do_not_share_is_one_error(g: dist.DistGraph, shared_path: Path) -> None:
    """The trainers of each simulated node see a folder of their own under one path, as nodes would."""
    world = current().world
    if world.num_nodes == 1:
        return
    path = shared_path / f"node{world.node_index}" / "c"
    state = {"emb": embedding(), "mine": checkpoint.OfTrainer(torch.full((1,), g.rank()))}
    for save in (checkpoint.save, checkpoint.async_save):
        with pytest.raises(StorageError, match=r"trainer \d wrote it on node .* does not see it.* one folder"):
            save(state, checkpoint_id=path)
            checkpoint.wait()
        g.barrier()
        assert not path.exists()
        g.barrier()
    checkpoint.save(state, checkpoint_id=shared_path / "c")
    if g.rank() == 0:  # as if it had been copied there
        shutil.copytree(shared_path / "c", path)
    g.barrier()
    with pytest.raises(ShardFormatError, match=r"file is missing on node .*: all trainers must see one folder"):
        checkpoint.load(state, checkpoint_id=path)
    assert checkpoint.latest(path.parent) is None
    checkpoint.load(state, checkpoint_id=shared_path / "c")
