"""Jobs that are stopped, requeued and go on: on a real Slurm of two nodes, with the shipped template and without.

The script counts its steps, and saves how many there were: at step 20, and when it is stopped. The first time it has no
end; started again, it makes ten steps more.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch import OPEN, ROOT, SETUP, SMALL, SOON, TASKS, log_of, needs_slurm, submit, train_script, until_gone
from cluster import Cluster, until

pytestmark = needs_slurm
LIMIT = 30  # seconds from the signal to a job that is requeued; on a busy machine as many as it took to begin
START = 150  # until it has begun, on a busy machine
AGAIN = 200  # seconds until it has begun again and is through

BEFORE = """
import torch
from mpigraph.checkpoint import latest, load, preemption, requeue, save
preempted = preemption()
"""
BODY = """
torch.distributed.init_process_group("gloo")
folder = f"checkpoints/{os.environ.get('SLURM_ARRAY_TASK_ID', 0)}"
state = {"step": 0}
found = latest(folder)
if found:
    load(state, checkpoint_id=found)
done = state["step"]
print(f"trainer {rank}/{world} begins at step {done}", flush=True)
last = done + 10 if done else 10**9
for step in range(done + 1, last + 1):
    time.sleep(0.01 * (1 + rank))
    torch.distributed.all_reduce(torch.zeros(1))  # as for gradients
    state["step"] = step
    stops = preempted()
    if stops or step == 20:
        save(state, checkpoint_id=f"{folder}/{step}")
        print(f"trainer {rank}/{world} {'stops' if stops else 'is'} at step {step}", flush=True)
    if stops:
        requeue()
print(f"trainer {rank}/{world} is through at step {step}", flush=True)
"""


@pytest.fixture(autouse=True)
def _end_jobs(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    cluster = request.getfixturevalue("cluster")
    cluster.run(["scancel", "--state=PENDING"], check=False)
    cluster.run(["scancel", "--state=RUNNING"], check=False)
    until_gone(cluster)


def counting(cluster: Cluster, where: Path, **changes: str) -> tuple[str, float]:
    """Submit the script by the template; return the job's number once it runs, and how many seconds it took."""
    begin = time.monotonic()
    job = train_script(cluster, where, BODY, BEFORE, CHECKPOINTS="$PWD/checkpoints", **changes)
    wait_for_line(where, job, "begins at step 0", 2)
    return job, time.monotonic() - begin


def wait_for_line(where: Path, job: str, line: str, times: int = 1, seconds: float = START) -> None:
    def complain() -> None:
        raise AssertionError(f"no {times} lines {line!r} in the log:\n{log_of(where, job)}")

    until(lambda: log_of(where, job).count(line) >= times, seconds, complain)


def wait_until_requeued(cluster: Cluster, where: Path, job: str, start: float) -> None:
    begin = time.monotonic()

    def complain() -> None:
        raise AssertionError(f"not requeued: {cluster.job(job)}\n{log_of(where, job)}")

    until(lambda: cluster.job(job)["Restarts"] == "1", max(LIMIT, start), complain)
    print(f"from the signal to requeued: {time.monotonic() - begin:.1f} s; it began in {start:.1f} s")


def check_both_halves(cluster: Cluster, where: Path, job: str) -> str:
    """The job goes on by itself and ends well; its log has both halves, in which trainers were in step."""
    result = cluster.wait(job, AGAIN)
    output = log_of(where, job)
    assert (result["JobState"], result["ExitCode"], result["Restarts"]) == ("COMPLETED", "0:0", "1"), output
    steps = {int(step) for step in re.findall(r"trainer \d/2 stops at step (\d+)", output)}
    assert len(steps) == 1, output
    assert output.count(f"begins at step {steps.pop()}") == 2, output
    assert output.count("is through") == 2 and ", start 0, " in output and ", start 1, " in output, output
    return output


@pytest.mark.parametrize("to", ["batch shell", "ranks", pytest.param("both, twice", marks=pytest.mark.slow)])
def test_a_signal_has_the_job_saved_and_requeued(cluster: Cluster, tmp_path: Path, to: str) -> None:
    """The batch shell gets it as Slurm sends it before the time limit."""
    job, start = counting(cluster, tmp_path)
    options = {"batch shell": ["--batch"], "ranks": [], "both, twice": ["--full"]}[to]
    for _ in range(1 + ("twice" in to)):
        cluster.run(["scancel", *options, "--signal=USR1", job])
    wait_until_requeued(cluster, tmp_path, job, start)
    output = check_both_halves(cluster, tmp_path, job)
    assert ("asked to stop\n" in output) == (to != "ranks")
    assert "status 75, to be requeued" in output and "died" not in output, output


@pytest.mark.slow
def test_the_example_goes_on(cluster: Cluster, parts: Path, tmp_path: Path) -> None:
    """Each epoch is trained once, in the one half of the log or in the other."""
    example = f'    run python {ROOT}/examples/node_classification.py --graph_name S --part_config "$PART_CONFIG"'
    flags = '--num_epochs 60 --fan_out 5,5 --num_hidden 32 --checkpoint_dir "$CHECKPOINTS" --resume'
    changes = SMALL | {"PART_CONFIG": str(parts), "CHECKPOINTS": "$PWD/checkpoints"}
    job = submit(cluster, tmp_path, "train", changes, {"setup": SETUP, "train": f"{example} {flags}"})
    begin = time.monotonic()
    wait_for_line(tmp_path, job, "epoch  1  loss")
    start = time.monotonic() - begin
    cluster.run(["scancel", "--batch", "--signal=USR1", job])
    wait_until_requeued(cluster, tmp_path, job, start)
    result = cluster.wait(job, 2 * AGAIN)
    output = log_of(tmp_path, job)
    assert (result["JobState"], result["Restarts"]) == ("COMPLETED", "1"), output
    assert [int(epoch) for epoch in re.findall(r"epoch +(\d+)  loss", output)] == list(range(60)), output
    before, _, after = output.partition("resumes from checkpoint")
    assert "epoch  1" in before and "test accuracy" in after, output


@pytest.mark.slow
def test_a_job_comes_to_its_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm looks at its jobs every half minute, so it asks after half a minute or a whole one, each time."""
    job, start = counting(cluster, tmp_path, **{"--time": "00:02:00", "--signal": "B:USR1@60"})
    wait_for_line(tmp_path, job, "asked to stop\n")
    wait_until_requeued(cluster, tmp_path, job, start)
    result = cluster.wait(job, AGAIN)
    output = log_of(tmp_path, job)
    assert result["JobState"] == "COMPLETED" and int(result["Restarts"]) >= 1, output
    (stopped,) = {int(step) for step in re.findall(r"stops at step (\d+)", output)}
    assert output.count(f"begins at step {stopped}") >= 2 and output.count(f"is through at step {stopped + 10}") == 2, (
        output
    )


@pytest.mark.slow
def test_a_node_is_lost_and_the_job_goes_on_without_it(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm keeps the number of tasks that it counted at the first start: a person says what there is now."""
    job, start = counting(cluster, tmp_path, **{"--nodes": "1-2"})
    wait_for_line(tmp_path, job, "is at step 20", 2)
    cluster.lose("n1")
    try:
        wait_until_requeued(cluster, tmp_path, job, start)
        cluster.wait(job, SOON, ["PENDING"])
        cluster.run(["scontrol", "update", f"JobId={job}", f"NumTasks={TASKS}"])
        result = cluster.wait(job, AGAIN)
        output = log_of(tmp_path, job)
        assert (result["JobState"], result["NumNodes"]) == ("COMPLETED", "1"), output
        assert "2 nodes, start 0" in output and "1 nodes, start 1" in output, output
        assert "trainer 0/1 begins at step 20" in output and "trainer 0/1 is through at step 30" in output, output
    finally:
        cluster.bring_back("n1")


@pytest.mark.parametrize("why", ["restarts", "slurm"])
def test_a_job_that_is_not_requeued_says_so(cluster: Cluster, tmp_path: Path, why: str) -> None:
    job, _ = counting(cluster, tmp_path, **({"RESTARTS": "0"} if why == "restarts" else {}))
    if why == "slurm":
        cluster.run(["scontrol", "update", f"JobId={job}", "Requeue=0"])
    cluster.run(["scancel", "--signal=USR1", job])
    result = cluster.wait(job, SOON)
    output = log_of(tmp_path, job)
    assert (result["JobState"], result["ExitCode"], result["Restarts"]) == ("FAILED", "75:0", "0"), output
    assert ("not requeued, after 0 times" if why == "restarts" else "Requested operation") in output, output


def test_scancel_and_errors_are_the_end_of_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """Requeued is what came some way before it failed, and nothing that somebody has cancelled."""
    (tmp_path / "error").mkdir()
    failed = train_script(cluster, tmp_path / "error", "raise ValueError(1)", CHECKPOINTS="$PWD/checkpoints")
    job, _ = counting(cluster, tmp_path)
    wait_for_line(tmp_path, job, "is at step 20", 2)
    cluster.run(["scancel", job])
    for number, state in ((job, "CANCELLED"), (failed, "FAILED")):
        result = cluster.wait(number, SOON)
        assert (result["JobState"], result["Restarts"]) == (state, "0"), log_of(tmp_path, number)


OWN = """#!/bin/bash
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A_%a.out
#SBATCH --array=0-1
#SBATCH --nodes=1
#SBATCH --ntasks=2
{setup}
srun --mpi=pmi2 python -u script.py
"""


@pytest.mark.slow
def test_ranks_have_one_task_of_an_array_requeued(cluster: Cluster, tmp_path: Path) -> None:
    """Without the template the first trainer asks Slurm."""
    (tmp_path / "script.py").write_text(f"{BEFORE}" + OPEN + BODY)
    (tmp_path / "own.sbatch").write_text(OWN.format(setup=SETUP))
    begin = time.monotonic()
    job = cluster.submit(tmp_path / "own.sbatch", tmp_path)
    for task in (0, 1):
        wait_for_line(tmp_path, f"{job}_{task}", "begins at step 0", 1)
    start = time.monotonic() - begin
    cluster.run(["scancel", "--signal=USR1", f"{job}_1"])
    wait_until_requeued(cluster, tmp_path, f"{job}_1", start)
    wait_for_line(tmp_path, f"{job}_1", "is through", 1, AGAIN)
    output = log_of(tmp_path, f"{job}_1")
    assert f"job {job}_1 is requeued" in output and "died" not in output, output
    assert cluster.job(f"{job}_0")["JobState"] == "RUNNING" and cluster.job(f"{job}_0")["Restarts"] == "0"
    assert "stops" not in log_of(tmp_path, f"{job}_0")
