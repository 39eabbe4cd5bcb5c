"""Several jobs and one folder of checkpoints: the job that came last writes, and what it keeps can be loaded."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from layouts import SharedJob, alone
from oracle import open_graph

from mpigraph import checkpoint
from mpigraph.checkpoint import saving
from mpigraph.checkpoint.api import Saver, saver_of
from mpigraph.checkpoint.folder import Writer
from mpigraph.errors import ShardFormatError, StorageError
from mpigraph.session.context import current

NEWER = r"another job, which came later .*, writes checkpoints here since .* from process \d+ on .*end this job"


@pytest.fixture
def around(job: SharedJob, g, tmp_path: Path) -> Path:
    return job.one_has(lambda: tmp_path) / "checkpoints"


class Jobs:
    """Jobs that share a folder, played by one after the other: each has a saver of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        save(folder / "100", 100)

    def come(self, looks: bool = True, loads: bool = True, newest: str = "100") -> Saver:
        session = current()
        session.saver = None
        assert not looks or checkpoint.latest(self.folder) == self.folder / newest
        assert not loads or step_of(self.folder / newest) == int(newest)
        return saver_of(session)

    def save(self, saver: Saver, name: str, step: int, **options: Any) -> None:
        current().saver = saver
        save(self.folder / name, step, **options)

    @property
    def newest(self) -> tuple[str, int]:
        current().saver = None
        directory = checkpoint.latest(self.folder)
        assert directory is not None
        return directory.name, step_of(directory)


def save(directory: Path, step: int, **options: Any) -> None:
    checkpoint.save({"step": step, "x": torch.full((100,), float(step))}, checkpoint_id=directory, **options)


def step_of(directory: Path) -> int:
    state = {"step": 0, "x": torch.zeros(100)}
    checkpoint.load(state, checkpoint_id=directory)
    assert (state["x"] == state["step"]).all()
    return state["step"]


@pytest.mark.parametrize(
    "looks, loads, saves, looks_again",
    [(True, True, False, False), (True, False, True, False), (False, True, False, False), (True, True, False, True)],
)
def test_an_older_job_that_wakes_is_refused(
    job: SharedJob, around: Path, looks: bool, loads: bool, saves: bool, looks_again: bool
) -> None:
    """The newer job takes over, whoever saves first, and the older one stays older."""
    jobs = Jobs(around)
    older, newer = jobs.come(looks, loads), jobs.come(looks, loads)
    if saves:
        jobs.save(older, "200", 200)
    jobs.save(newer, "200", 2000)
    jobs.save(newer, "300", 300)
    if looks_again:
        current().saver = older
        assert checkpoint.latest(around) == around / "300"
    for name in ("200", "400"):
        with pytest.raises(StorageError, match=NEWER) as caught:
            jobs.save(older, name, 201)
        assert caught.value.everywhere
    assert jobs.newest == ("300", 300) and step_of(around / "200") == 2000
    jobs.save(newer, "400", 400)
    assert jobs.newest == ("400", 400)


def test_jobs_that_only_load_take_the_folder_from_no_other(job: SharedJob, around: Path) -> None:
    jobs = Jobs(around)
    trains = jobs.come()
    for step in (200, 300):
        jobs.save(trains, str(step), step)
        jobs.come(newest=str(step))  # evaluates
    jobs.save(trains, "400", 400)
    assert jobs.newest == ("400", 400)


def test_of_jobs_that_found_nothing_the_first_to_save_has_the_folder(job: SharedJob, around: Path) -> None:
    one, other = Saver(job.session), Saver(job.session)
    for saver in (one, other):
        job.session.saver = saver
        assert checkpoint.latest(around) is None
    assert not around.exists()
    save(around / "1", 1)
    job.session.saver = one
    with pytest.raises(StorageError, match=NEWER):
        save(around / "1", 2)
    assert step_of(around / "1") == 1


def test_an_older_job_removes_nothing_of_a_newer_one(
    job: SharedJob, around: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stops just when its checkpoint is whole, and wakes when the newer job has saved under the same name."""
    jobs = Jobs(around)
    older, newer = jobs.come(), jobs.come()
    find_old = saving.Save._old

    def meanwhile(self: saving.Save, peers: Any) -> list[str] | None:
        monkeypatch.undo()
        old = find_old(self, peers)
        jobs.save(newer, "200", 201)
        return old

    monkeypatch.setattr(saving.Save, "_old", meanwhile)
    with pytest.raises(StorageError, match=NEWER):
        jobs.save(older, "200", 200, keep=2)
    assert jobs.newest == ("200", 201)


def test_a_folder_of_evaluation_may_be_read_only(tmp_path: Path, oracle) -> None:
    def body() -> None:
        open_graph(oracle(2))
        jobs = Jobs(tmp_path)
        record = tmp_path / ".mpigraph-writer"
        record.chmod(0o400)
        open_file = os.open

        def refused(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if flags & os.O_RDWR and Path(path).name == record.name:
                raise PermissionError(13, "Permission denied")
            return open_file(path, flags, *args, **options)

        before = record.read_bytes()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", refused)
            reader = jobs.come()
            with pytest.raises(StorageError, match="cannot write: Permission denied"):
                jobs.save(reader, "200", 200)
        assert record.read_bytes() == before

    alone(body)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', '{"largest": "x"}', '{"largest": 1e999}'])
def test_a_damaged_record_of_writers_stands_in_nobodys_way(tmp_path: Path, text: str) -> None:
    record = tmp_path / ".mpigraph-writer"
    record.write_text(text)
    one, other = Writer(), Writer()
    for writer in (one, one, other, other):
        with writer.holding(tmp_path):
            pass
        assert record.stat().st_size == 1024  # overwritten in place: no kill leaves half of it
    with pytest.raises(StorageError, match=NEWER), one.holding(tmp_path):
        pass


def damage(job: SharedJob, directory: Path, step: int) -> None:
    job.trainers.Barrier()
    if job.rank == 0:
        path = next(directory.glob("*-0.h5"))
        data = bytearray(path.read_bytes())
        data[data.index(torch.full((100,), float(step)).numpy().tobytes()) + 17] ^= 1
        path.write_bytes(data)
    job.trainers.Barrier()


@pytest.mark.parametrize("looks", [True, False])
def test_damaged_checkpoints_are_not_among_those_that_are_kept(job: SharedJob, around: Path, looks: bool) -> None:
    jobs = Jobs(around)
    jobs.save(saver_of(job.session), "200", 200)
    jobs.save(saver_of(job.session), "300", 300)
    damage(job, around / "300", 300)
    with pytest.raises(ShardFormatError, match="-0.h5: dataset 'tensors' is damaged"):
        checkpoint.load({"x": torch.zeros(100)}, checkpoint_id=around / "300")
    saver = jobs.come(newest="200") if looks else Saver(job.session)
    jobs.save(saver, "280", 280, keep=2)
    assert names(around) == ["200", "280", "300"]
    damage(job, around / "280", 280)
    assert jobs.newest == ("200", 200)
    current().saver = saver
    damage(job, around / "200", 200)
    assert checkpoint.latest(around) is None  # by which this job knows of all three
    for step in (281, 282, 283):
        jobs.save(saver, str(step), step, keep=2)
    assert names(around) == ["282", "283"]  # damaged ones stay until there are newer ones that are whole


def names(around: Path) -> list[str]:
    current().world.trainers.Barrier()
    result = sorted(path.name for path in around.iterdir() if path.is_dir())
    current().world.trainers.Barrier()
    return result


def test_a_checkpoint_is_found_through_a_link(job: SharedJob, around: Path) -> None:
    """And a link is not removed, nor does it count twice."""
    jobs = Jobs(around)
    disk = around.parent / "disk"
    if job.rank == 0:
        disk.mkdir()
        (around / "link").symlink_to(disk)
        (around / "newest").symlink_to(around / "100")
        (around / "loop").symlink_to(around / "loop")
        (around / "dangling").symlink_to(around / "nowhere")
    job.trainers.Barrier()
    assert checkpoint.latest(around) == around / "100"
    save(around / "link", 200)
    assert jobs.newest == ("link", 200)
    for step in (300, 400, 500):
        save(around / str(step), step, keep=2)
    assert names(around) == ["400", "500", "link"] and step_of(around / "link") == 200
    assert len([path for path in around.iterdir() if path.is_symlink()]) == 4
