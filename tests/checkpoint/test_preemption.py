"""Jobs that are told to stop: where trainers stop, what signals do, and how a job is started again."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jobs import SOON, Done, clean_environment, mpiexec, run_job, warm_python
from layouts import Job, alone, api, on_all, rotated

import mpigraph.distributed as dist
from mpigraph.checkpoint import preemption, requeue
from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.mpi import stopping
from mpigraph.session.context import current

FOREVER = 100_000  # steps


@pytest.mark.slow
@api
@rotated(3)
@pytest.mark.parametrize("how", ["alone", "in step", "numbered"])
def test_one_trainer_is_told_and_all_stop_at_the_same_step(layout: Job, how: str) -> None:
    """At its step 5; trainers of different speed, that wait for one another in each step or never."""

    def body() -> tuple[int, int]:
        trainers = current().world.trainers
        for step in range(FOREVER):
            if step == 5 and trainers.rank == trainers.size - 1:
                signal.raise_signal(signal.SIGUSR1)
            time.sleep(0.002 + 0.002 * trainers.rank)
            if how == "in step":
                trainers.Barrier()
            if preempted(at=2 * step) if how == "numbered" else preempted():
                break
        steps = trainers.allgather(step)
        assert preempted(), "once is for ever"
        return min(steps), max(steps)

    with preemption() as preempted:
        result = layout.run(body)
    if result is not None:
        assert result[0] == result[1] and 5 <= result[0] < FOREVER - 1, result


def test_a_job_of_one_rank_is_stopped_for_ever() -> None:
    def body() -> None:
        signal.raise_signal(signal.SIGUSR1)
        assert preempted(at=3)
        current().world.watchdog.look()
        assert preempted(at=3)

    with preemption() as preempted:
        alone(body)


@pytest.mark.slow
@api
def test_a_trainer_that_ends_early_is_not_waited_for_for_ever(layout: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step of an epoch is made by the first trainer alone, and in it the others wait, as in DDP's join."""
    monkeypatch.setattr(stopping, "_PATIENCE", 1.0)

    def body() -> list[tuple[int, int]]:
        world = current().world
        trainers = world.trainers
        for epoch in range(FOREVER):
            for step in range(3):
                trainers.Barrier()
                if step == 2 and trainers.rank > 0:
                    continue
                if epoch == 1 and step == 2:
                    signal.raise_signal(signal.SIGUSR1)
                    time.sleep(1.0)  # in which a decision falls that the others cannot follow
                if preempted(at=10 * epoch + step):
                    return trainers.allgather((epoch, step))
        raise AssertionError("did not stop")

    with preemption() as preempted:
        result = layout.run(body)
    if result is not None:
        assert len(set(result)) == 1 and (result[0] > (1, 2) or len(result) == 1), result


@pytest.mark.slow
@api
def test_signals_before_the_first_step_and_after_the_last(layout: Job) -> None:
    """Also to servers, and again and again; a job whose trainers are through ends as ever."""

    def body() -> bool:
        trainers = current().world.trainers
        first = preempted()
        steps = 1
        while not preempted():
            steps += 1
            time.sleep(0.001)
        return len(set(trainers.allgather((first, steps)))) == 1

    before = signal.getsignal(signal.SIGUSR1)
    with preemption(["USR1", "SIGUSR2"]) as preempted:
        for _ in range(3):
            signal.raise_signal(signal.SIGUSR2)
        assert layout.run(body) in (True, None)
        stopping.forget()

        def through() -> bool:
            if current().rank == 0:
                for number in (signal.SIGUSR1, signal.SIGUSR2):
                    signal.raise_signal(number)
            return True

        assert layout.run(through) in (True, None)
    assert signal.getsignal(signal.SIGUSR1) == before and not stopping.asked()


def test_handlers_that_were_there() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    try:
        own = signal.getsignal(signal.SIGUSR2)
        preempted = preemption("usr2")
        signal.raise_signal(signal.SIGUSR2)
        assert seen == [signal.SIGUSR2] and stopping.asked() == "SIGUSR2"
        preempted.close()
        preempted.close()
        assert signal.getsignal(signal.SIGUSR2) is own and not stopping.asked()
        with pytest.raises(ClosedError):
            preempted()
        with preemption("USR2"):
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the user's own, later
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_what_cannot_be_is_refused() -> None:
    for wrong in ("KILL", "STOP", "SEGV", "USR9", "", 10, ["USR1", "NO"], []):
        with pytest.raises(InvalidArgumentError, match="signal"):
            preemption(wrong)
    with preemption() as preempted:
        with pytest.raises(InvalidArgumentError, match="twice"):
            preemption("USR2")
        with ThreadPoolExecutor() as pool:
            failed = [pool.submit(call).exception() for call in (preempted, preemption)]
        assert "main thread" in str(failed[0]) and "twice" in str(failed[1])


@api
def test_servers_must_have_handlers_too(layout: Job) -> None:
    def body() -> str:
        if not current().world.num_servers:
            with preemption():
                return "before"
        with pytest.raises(InvalidArgumentError) as caught:
            preemption()
        return str(caught.value)

    result = layout.run(body)
    on_all(layout.comm, result is None or "before" in result, str(result))


PRELUDE = """
import os, random, signal, sys, threading, time
import torch
import mpigraph.distributed as dist
from mpigraph.checkpoint import preemption, requeue
preempted = preemption(["USR1", "TERM"])
dist.initialize(num_servers={servers})
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""


def run_script(tmp_path: Path, body: str, ranks: int, servers: int, **env: str) -> Done:
    script = tmp_path / "script.py"
    script.write_text(PRELUDE.format(servers=servers) + body)
    return run_job([*mpiexec(ranks), *warm_python(), script], clean_environment() | env, SOON)


STORM = """
def storm():
    pause = random.Random(rank)
    time.sleep(pause.random())
    while True:
        os.kill(os.getpid(), pause.choice([signal.SIGUSR1, signal.SIGTERM]))
        time.sleep(0.01 * pause.random())
threading.Thread(target=storm, daemon=True).start()
torch.distributed.init_process_group({backend!r}, init_method={init!r})
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
step = 0
while step < 100_000:
    model(torch.rand(50, 300)).sum().backward()
    step += 1
    if preempted():
        break
done = torch.tensor([step])
torch.distributed.all_reduce(done)  # as saving would: everybody must come
print(f"stopped {{step}} {{done.item() == world * step}}", flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi4py", marks=pytest.mark.study)])
@pytest.mark.slow
def test_hundreds_of_signals_inside_ddp(tmp_path: Path, backend: str) -> None:
    init = "mpi4py://" if backend == "mpi4py" else None
    done = run_script(tmp_path, STORM.format(backend=backend, init=init), 3, 1)
    assert done.status == 0, done.output
    steps = [line for line in done.stdout.splitlines() if line.startswith("stopped")]
    assert len(steps) == 2 and len(set(steps)) == 1 and steps[0].endswith("True"), done.output
    assert "the job was asked to stop" in done.stderr  # by a signal, if the first trainer has had one by then


REQUEUE = """
if rank == world - 1:
    os.kill(os.getpid(), signal.SIGUSR1)
while not preempted():
    time.sleep(0.001)
try:
    requeue()
finally:
    print("cleaned", flush=True)
"""
SCONTROL = """#!/bin/sh
echo "scontrol $@"
{also}
"""


@pytest.mark.parametrize(
    "ranks, servers, env, also, says",
    [
        pytest.param(1, 0, {}, "", "the job is not requeued (this is not a job of Slurm)", marks=pytest.mark.slow),
        (3, 1, {"SLURM_JOB_ID": "7"}, "kill -TERM $PPID", "job 7 is requeued"),  # as Slurm does
        pytest.param(
            2,
            1,
            {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "3"},
            "echo Requested operation is presently disabled >&2; exit 1",
            "does not requeue job 8_3: Requested operation is presently disabled; the script ends with status 75",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["nowhere", "requeued", "refused"],
)
def test_requeue(tmp_path: Path, ranks: int, servers: int, env: dict[str, str], also: str, says: str) -> None:
    """With a fake scontrol; tests/slurm has a real one."""
    asked = tmp_path / "asked"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(SCONTROL.format(also=f'echo "$@" >> {asked}\n{also}'))
    scontrol.chmod(0o700)
    env = env | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = run_script(tmp_path, REQUEUE, ranks, servers, **env)
    assert done.status == 75 and says in done.stderr, done.output
    assert done.stdout.count("cleaned") == max(ranks - servers, 1) and "died" not in done.stderr, done.output
    if "SLURM_JOB_ID" in env:
        job = env.get("SLURM_ARRAY_JOB_ID", "") and "8_3"
        assert asked.read_text() == f"requeue {job or 7}\n"
    else:
        assert not asked.exists()
    quiet = run_script(tmp_path, REQUEUE, ranks, servers, **env, MPIGRAPH_REQUEUE="exit") if ranks == 1 else None
    assert quiet is None or (quiet.status == 75 and "requeue" not in quiet.stderr)


def test_requeue_needs_a_job() -> None:
    from mpigraph.errors import NotInitializedError

    assert not dist.is_initialized()
    with pytest.raises(NotInitializedError):
        requeue()
