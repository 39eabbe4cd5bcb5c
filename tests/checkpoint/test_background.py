"""The pace of writing a checkpoint beside training, and checkpoints that cannot be written."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import clean_environment, mpiexec, run_job, warm_python
from layouts import SharedJob, needs_threads

import mpigraph.distributed as dist
from mpigraph import checkpoint
from mpigraph.checkpoint import api
from mpigraph.checkpoint.api import Pace
from mpigraph.errors import StorageError


def test_who_waits_makes_it_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_NICE", 0)  # this thread goes on
    pace = Pace()
    pace.step_back()
    pace.worked -= 1000  # it has worked for so long
    thread = threading.Timer(0.05, pace.urgent.set)
    thread.start()
    begin = time.perf_counter()
    pace.pause()
    pace.worked -= 1000
    pace.pause()
    assert time.perf_counter() - begin < 100
    thread.join()


@needs_threads
@pytest.mark.parametrize("end", [dist.exit_client, checkpoint.requeue])
def test_a_job_does_not_end_well_if_its_last_checkpoint_fails(
    job: SharedJob, g: dist.DistGraph, tmp_path: Path, end: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = job.one_has(lambda: tmp_path)
    if g.rank() == 0:
        (folder / "file").write_text("")
    g.barrier()
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)  # this process lives on
    checkpoint.async_save({}, checkpoint_id=folder / "file")
    with pytest.raises(StorageError, match="file: cannot write") as caught:
        end()
    assert caught.value.everywhere and dist.is_initialized()
    checkpoint.save({}, checkpoint_id=folder / "c")  # instead
    g.barrier()


ENDS = """
import sys
import mpigraph.distributed as dist
from mpigraph import checkpoint

folder, status = sys.argv[1:]
dist.initialize(num_servers=0)
checkpoint.async_save({}, checkpoint_id=f"{folder}/file")
if int(status):
    sys.exit(int(status))
print("trained", flush=True)
"""


@needs_threads
@pytest.mark.slow
@pytest.mark.parametrize("ranks, leaves", [(2, 3), (1, 0), (2, 0)])
def test_the_status_of_a_job_whose_last_checkpoint_fails(tmp_path: Path, ranks: int, leaves: int) -> None:
    """Its own, if it has one that is not 0."""
    (tmp_path / "file").write_text("")
    (tmp_path / "script.py").write_text(ENDS)
    words = [*mpiexec(ranks), *warm_python(), tmp_path / "script.py", tmp_path, leaves]
    done = run_job(words, clean_environment())
    assert done.status == (leaves or 1), done.output
    assert leaves or done.stdout.count("trained") == ranks, done.output
    assert done.stderr.count("saving a checkpoint to ") == 1, done.output
