"""Waits inside torch that cannot end are ended, with the lines of both sides; slow jobs are not."""

import argparse
import dis
import inspect
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import SOON, run_script

from mpigraph.session.torch_waits import TorchWaits, _calls_wait, _collective_called

TRAIN = """
import sys, time
import torch
import mpigraph as mg
torch.distributed.init_process_group("{backend}", **({"init_method": "mpi4py://"} if "{backend}" == "mpi4py" else {}))
model = torch.nn.parallel.DistributedDataParallel(mg.nn.SAGEConv(3, 2, "mean"))
sampler = mg.dataloading.NeighborSampler([3])
def loader_of(count):
    return dist.DistNodeDataLoader(g, torch.arange(count), sampler, batch_size=5, features=["feat"])
def step(blocks, backward=None):
    out = model(blocks[0], blocks[0].srcdata["feat"])
    (backward(out) if backward else out).sum().backward()
def leave_early(leave):
    for number, (_, _, blocks) in enumerate(loader_of(20)):
        if number == 2 and g.rank() == 0:
            leave()
        step(blocks)
"""
STUCK = {
    "exit": "leave_early(lambda: (dist.exit_client(), time.sleep(100)))",
    "return": "leave_early(sys.exit)",
    "loader": "loader_of(5) if g.rank() == 0 else torch.distributed.barrier()",
    "barrier": "g.barrier() if g.rank() == 0 else torch.distributed.barrier()",
    "groups": "for _ in range(8): torch.distributed.new_group()\n"
    "g.barrier() if g.rank() == 0 else torch.distributed.barrier()",
    "work": "g.barrier() if g.rank() == 0 else torch.distributed.all_reduce(torch.ones(3), async_op=True).wait()",
    "epochs": "for _ in range(2):\n for _, _, blocks in loader_of(5 if g.rank() else 30): step(blocks)\ng.barrier()",
}
SLOW = {
    "backward": """
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, grad):
        if g.rank() == 1: time.sleep({seconds})
        return grad
for _, _, blocks in loader_of(10): step(blocks, Slow.apply)
""",
    "kernel": """
x = torch.randn(1500, 1500)
end = time.monotonic() + {seconds}
while g.rank() == 1 and time.monotonic() < end: x = torch.nn.functional.normalize(x @ x)
for _, _, blocks in loader_of(10): step(blocks)
""",
    "thread": """
def compute():
    end = time.monotonic() + {seconds}
    while time.monotonic() < end: sum(range(1000))
    torch.distributed.send(torch.ones(1), 0)
if g.rank() == 1:
    import threading
    threading.Thread(target=compute, daemon=True).start()
elif g.rank() == 0:
    torch.distributed.recv(torch.zeros(1), 1)
g.barrier()
""",
    "evaluation": "time.sleep({seconds} if g.rank() == 0 else 0)\ntorch.distributed.barrier()",
    "loader": "time.sleep({seconds} if g.rank() == 0 else 0)\nloader_of(10)",
    "join": """
with model.join():
    for number, (_, _, blocks) in enumerate(loader_of(15 if g.rank() == 0 else 5)):
        if number: time.sleep({seconds} / 2)
        step(blocks)
""",
}
LOCAL, REMOTE = {"servers": 1}, {"servers": 0, "MPIGRAPH_RANKS_PER_NODE": "1"}


def cases(bodies: dict[str, str], quicker: dict[tuple[str, str], Any]) -> list[object]:
    """Each body with each group, local and remote: a study, except the remote ones with marks of their own."""
    every = [(name, backend, layout) for name in bodies for backend in ("gloo", "mpi4py") for layout in (LOCAL, REMOTE)]
    marks = [quicker.get(case[:2], pytest.mark.study) if case[2] is REMOTE else pytest.mark.study for case in every]
    return [pytest.param(*case, marks=mark) for case, mark in zip(every, marks, strict=True)]


@pytest.mark.parametrize(
    "name, backend, where", cases(STUCK, {("loader", "mpi4py"): (), ("return", "gloo"): pytest.mark.slow})
)
def test_what_cannot_end_is_ended(tmp_path: Path, oracle, name: str, backend: str, where: dict[str, object]) -> None:
    body = TRAIN.replace("{backend}", backend) + STUCK[name]
    status, output, seconds = run_script(tmp_path, oracle(2), body, MPIGRAPH_TIMEOUT="6", **where)
    assert status == 124 and seconds < SOON, output
    last = output[output.rindex("[mpigraph]") :]
    assert "the job is stuck and is ended" in last, last
    if name not in ("return", "epochs"):
        assert last.count(" at script.py:") >= 2, last


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("MPI.COMM_WORLD.allreduce(1)", "MPI.COMM_WORLD.allreduce()"),
        pytest.param("world.Dup()", "world.Dup()", marks=pytest.mark.slow),
        pytest.param("comms.own.Barrier()", "comms.own.Barrier()", marks=pytest.mark.slow),
        pytest.param(
            "g.barrier() if g.rank() else MPI.COMM_WORLD.bcast(\n 1, root=1)",
            "MPI.COMM_WORLD.bcast()",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_collective_of_mpi_that_servers_do_not_join_is_ended(tmp_path: Path, oracle, call: str, name: str) -> None:
    before = (
        "from types import SimpleNamespace\nimport mpigraph\nfrom mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\ncomms = SimpleNamespace(own=world.Dup())\n"
    )
    status, output, seconds = run_script(tmp_path, oracle(2), call, before=before, MPIGRAPH_TIMEOUT="6")
    assert status == 124 and seconds < SOON, output
    assert "every trainer waits for others" in output or "the job is stuck" in output
    last = output[output.rindex("[mpigraph]") :]
    assert f"{name}, for servers" in last and "mpigraph.distributed.trainers()" in last, last
    assert " at script.py:" in last, last


def test_a_communicator_of_the_trainers_is_the_scripts(tmp_path: Path, oracle) -> None:
    body = "comm = dist.trainers()\nassert comm.allgather(rank) == [0, 1] and comm.rank == rank\nprint('done')"
    status, output, _ = run_script(tmp_path, oracle(2), body)
    assert status == 0 and output.count("done") == 2, output


@pytest.mark.parametrize(
    "name, backend, where", cases(SLOW, {(name, "gloo"): pytest.mark.slow for name in ("backward", "thread")})
)
def test_slow_jobs_are_not_ended(tmp_path: Path, oracle, name: str, backend: str, where: dict[str, object]) -> None:
    seconds = 4 if name == "backward" else 9
    body = TRAIN.replace("{backend}", backend) + SLOW[name].replace("{seconds}", str(seconds)) + "\nprint('done')"
    env = {"MPIGRAPH_TIMEOUT": str(seconds / 3)}
    status, output, _ = run_script(tmp_path, oracle(2), body, **env, **where)
    assert status == 0 and "done" in output, output


class Lock:
    """A lock that waits in C, by a method called ``wait``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.wait = self.lock.acquire


@pytest.mark.parametrize(
    "call, waits", [("lock.wait()", True), ("lock.lock.acquire()", False), ("lock.wait(True)", False)]
)
def test_a_line_of_the_script_that_waits_for_work_is_known(call: str, waits: bool) -> None:
    lock = Lock()
    thread = threading.Thread(target=exec, args=(call, {"lock": lock}))
    thread.start()
    while (frame := sys._current_frames().get(thread.ident)) is None or frame.f_code.co_name != "<module>":
        time.sleep(0.01)
    time.sleep(0.1)
    known = _calls_wait(frame.f_code, frame.f_lasti)
    lock.lock.release()
    thread.join()
    assert known == waits


def test_a_group_that_is_destroyed_just_now_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.distributed_c10d.is_initialized", lambda: True)  # as seen a moment ago
    assert TorchWaits(2)(sys._getframe()) == ""


def test_any_code_can_be_looked_at() -> None:
    """The watchdog looks at the code that its rank runs, whatever that is: here an empty tuple is loaded."""

    def code(comm: Any, rows: Any = ()) -> Any:
        return comm.Barrier() or (rows == () and comm.bcast(()))

    found = {_collective_called(code.__code__, at) for at in range(0, len(code.__code__.co_code), 2)}
    assert found == {(), ("comm", "Barrier"), ("comm", "bcast")}
    unhashable = code.__code__.replace(co_consts=(*code.__code__.co_consts, {}))  # such as torch.compile makes
    assert _collective_called(unhashable, -1) == () and not _calls_wait(unhashable, -1)
    functions = [value for module in (argparse, dis, inspect) for value in vars(module).values()]
    looked_at = [_collective_called(f.__code__, -1) for f in functions if inspect.isfunction(f)]
    assert set(looked_at) == {()} and len(looked_at) > 50
