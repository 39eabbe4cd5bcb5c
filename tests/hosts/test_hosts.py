"""Jobs on two and three hosts with addresses of their own, every byte between them over TCP.

The hosts are network namespaces (``tests/support/namespaces.py``): what needs one machine, shared memory above all, is
missed between them as it is between machines.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import jobs
import killed
import namespaces
import pytest
from batches import NUM_BATCHES
from blocks import KINDS, TRANSPORTS
from jobs import EXAMPLES, PRELUDE, clean_environment, generated, needs, soon, warm_python
from killed import CASES, Case
from oracle import NAME, write_oracle

HERE = Path(__file__).resolve().parent
EXAMPLE = EXAMPLES / "node_classification.py"
SOON = 60  # seconds from a rank's death to the end of its job, on a busy machine; waits end later by themselves
SLOW = {"delay": 2e-3, "rate": 1e9}
SPREAD = 0.04  # of the example's accuracy, between numbers of trainers

pytestmark = needs("hosts", namespaces.missing())
needs_delay = needs("hosts", namespaces.missing_delay())


@pytest.fixture(scope="module")
def hosts() -> Iterator[namespaces.Hosts]:
    with namespaces.Hosts(3, shm="256m") as created:
        yield created


@pytest.fixture(scope="module")
def slow_hosts() -> Iterator[namespaces.Hosts]:
    with namespaces.Hosts(2, shm="256m", **SLOW) as created:
        yield created


@pytest.fixture(scope="module")
def oracle_config(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_oracle(tmp_path_factory.mktemp("oracle"), 3, "given")


@pytest.fixture(scope="module")
def trained_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph to train on, in two parts."""
    where = tmp_path_factory.mktemp("graph")
    return generated(where, "--nodes 4000 --edges 40000 --feat-dim 16 --classes 4", "--parts 2 --method metis")


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in clean_environment().items() if not key.startswith("MPIGRAPH_")}
    paths = os.pathsep.join(map(str, (HERE, HERE.parent / "support")))
    return kept | {"MPIGRAPH_TIMEOUT": "120", "PYTHONPATH": paths} | more


def finish(hosts: namespaces.Hosts, job: "subprocess.Popen[str]", seconds: float | None = None) -> str:
    """Wait for a job's end and return what it printed; a job that takes too long is ended."""
    seconds = jobs.patience if seconds is None else seconds
    try:
        return job.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        hosts.kill()
        raise AssertionError(f"the job took more than {seconds} s:\n{job.communicate()[0]}") from None


def start(command: Sequence[object], **env: str) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(list(map(str, command)), env=environment(**env), text=True, **pipes)


def run(hosts: namespaces.Hosts, command: Sequence[object], **env: str) -> str:
    """Run a command to its good end and return what it printed."""
    job = start(command, **env)
    output = finish(hosts, job)
    assert job.returncode == 0, output
    assert hosts.processes() == []
    return output


def fingerprints(
    hosts: namespaces.Hosts, launcher: list[str], config: str, out: Path, servers: int, **env: str
) -> dict[str, str]:
    """Return hashes of the samples and rows of a job, with either transport."""
    out.mkdir()
    result = [{}, {}]
    for transport, prints in zip(TRANSPORTS, result, strict=True):
        command = [*launcher, *warm_python(), HERE / "blocks.py", config, out, servers]
        run(hosts, command, MPIGRAPH_TRANSPORT=transport, **env)
        for path in out.glob(f"{transport}*.json"):
            prints.update(json.loads(path.read_text()))
    assert result[0] == result[1]
    return result[0]


@pytest.fixture(scope="module")
def expected(hosts: namespaces.Hosts, oracle_config: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the hashes of one process alone."""
    result = fingerprints(hosts, [], oracle_config, tmp_path_factory.mktemp("alone") / "out", 0)
    assert len(result) == len(KINDS) * NUM_BATCHES
    return result


@pytest.mark.parametrize(
    "ranks, servers",
    [
        ([2, 2], 1),
        ([1, 3], 0),
        ([1, 1, 1], 0),
        *(pytest.param(*how, marks=pytest.mark.slow) for how in [([2, 2], 0), ([2, 3], 1), ([2, 2, 2], 1)]),
    ],
)
def test_blocks_and_rows_are_those_of_one_process(
    hosts: namespaces.Hosts,
    oracle_config: str,
    tmp_path: Path,
    expected: dict[str, str],
    ranks: list[int],
    servers: int,
) -> None:
    before = [hosts.sent(host) for host in range(len(ranks))]
    result = fingerprints(hosts, hosts.mpiexec(ranks), oracle_config, tmp_path / "out", servers)
    assert result == expected
    assert (tmp_path / "out" / "hosts").read_text() == str(len(ranks))
    assert all(hosts.sent(host) > before[host] + 20_000 for host in range(len(ranks)))


@needs_delay
def test_blocks_and_rows_are_the_same_on_a_slow_network(
    slow_hosts: namespaces.Hosts, oracle_config: str, tmp_path: Path, expected: dict[str, str]
) -> None:
    assert fingerprints(slow_hosts, slow_hosts.mpiexec(2), oracle_config, tmp_path / "out", 1) == expected


EPOCHS = """
import zlib
from mpigraph import checkpoint
out, kill = sys.argv[1], int(sys.argv[2])
g.ndata["feat"][torch.tensor([0])] = torch.zeros(1, 3)
loader = dist.DistNodeDataLoader(
    g, torch.arange(rank, 100, 2), NeighborSampler([3, 3]), batch_size=10, shuffle=True, features=["feat"], seed=7
)
state = {{"loader": loader, "step": 0}}
found = checkpoint.latest(out + "/saved")
if found:
    checkpoint.load(state, checkpoint_id=found)
log = open(f"{{out}}/{{rank}}", "a")
for epoch in range(loader.epoch, 4):
    for inputs, seeds, blocks in loader:
        rows = blocks[0].srcdata["feat"]
        orig = g.ndata["orig"][inputs]
        assert (orig == 0).any() or torch.equal(rows, orig[:, None].expand(-1, 3).float())
        print(state["step"], epoch, zlib.crc32(inputs.numpy()), file=log, flush=True)
        state["step"] += 1
        if state["step"] == kill and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    checkpoint.save(state, checkpoint_id=f"{{out}}/saved/{{epoch}}")
"""


@pytest.mark.parametrize("servers", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_job_goes_on(hosts: namespaces.Hosts, oracle_config: str, tmp_path: Path, servers: int) -> None:
    """Each row says its node's original id; node 0's was written."""
    script = tmp_path / "script.py"
    script.write_text(PRELUDE.format(servers=servers, path=oracle_config) + EPOCHS.format())
    command = [*hosts.mpiexec([1 + servers] * 2), *warm_python(), script]
    logs = []
    for name, kills in (("whole", [0]), ("killed", [13, 0])):
        (tmp_path / name).mkdir()
        for kill in kills:
            job = start([*command, tmp_path / name, kill])
            output = finish(hosts, job)
            assert (job.returncode == 0) == (kill == 0), output
            until_gone(hosts)
        lines = [(tmp_path / name / str(rank)).read_text().splitlines() for rank in range(2)]
        logs.append([dict(line.split(" ", 1) for line in of_rank) for of_rank in lines])
    assert logs[0] == logs[1]
    assert len(logs[0][1]) == 20
    assert len(lines[1]) == 23  # the three steps of the second epoch that the kill undid


def example(config: Path) -> list[str]:
    flags = "--num_epochs 8 --eval_every 8 --fan_out 5,5 --num_hidden 32 --batch_size 200 --lr 0.01"
    return [str(EXAMPLE), "--graph_name", "S", "--part_config", str(config), *flags.split()]


def accuracy(output: str) -> float:
    result = re.search(r"test accuracy ([0-9.]+)", output)
    assert result, output
    return float(result[1])


@pytest.fixture(scope="module")
def accuracy_alone(hosts: namespaces.Hosts, trained_graph: Path) -> float:
    alone = accuracy(run(hosts, [*warm_python(), *example(trained_graph)]))
    assert alone > 0.6
    return alone


@pytest.mark.parametrize("ranks, servers, backend", [([2, 2], 1, "gloo"), ([1, 1, 1], 0, "mpi4py")])
def test_the_example_trains_as_well_as_one_process(
    hosts: namespaces.Hosts, trained_graph: Path, accuracy_alone: float, ranks: list[int], servers: int, backend: str
) -> None:
    more = ["--num_servers", str(servers), "--backend", backend]
    command = [*hosts.mpiexec(ranks), *warm_python(), *example(trained_graph), *more]
    output = run(hosts, command, MPIGRAPH_LOG_LEVEL="INFO")
    assert f"{len(ranks)} trainer(s), {len(ranks)} host(s), {len(ranks)} node(s)" in output
    assert accuracy(output) == pytest.approx(accuracy_alone, abs=SPREAD)


@pytest.mark.slow
@needs_delay
def test_the_example_trains_on_a_slow_network(
    slow_hosts: namespaces.Hosts, trained_graph: Path, accuracy_alone: float
) -> None:
    output = run(slow_hosts, [*slow_hosts.mpiexec(2), *warm_python(), *example(trained_graph)])
    assert accuracy(output) == pytest.approx(accuracy_alone, abs=SPREAD)


def test_a_host_without_a_trainer_is_a_clear_error(hosts: namespaces.Hosts, oracle_config: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PRELUDE.format(servers=1, path=oracle_config))
    job = start([*hosts.mpiexec([1, 3]), *warm_python(), tmp_path / "script.py"])
    output = finish(hosts, job)
    assert job.returncode != 0
    assert "num_servers=1 leaves no trainer on node 0, which has 1 rank(s)" in output
    until_gone(hosts)


IN_AN_EPOCH = [Case("hosts", "epoch", who, "KILL") for who in ("trainer 1", "server")]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in IN_AN_EPOCH else pytest.mark.study, id=" ".join(case))
        for case in CASES
        if case.nodes == "hosts"
    ],
)
def test_a_killed_rank_ends_the_job_on_all_hosts(hosts: namespaces.Hosts, oracle_config: str, case: Case) -> None:
    result = killed.run(case, oracle_config, [sys.executable], hosts)
    assert not result.wrong(case) and result.seconds < SOON, result
    until_gone(hosts)


def until_gone(hosts: namespaces.Hosts) -> None:
    """No process may be left on the hosts."""
    assert soon(lambda: not hosts.processes(), SOON), f"left: {hosts.processes()}"


NUM_LAUNCHED = 2  # hosts that the launch command is told


def launch(hosts: namespaces.Hosts, where: Path, script: list[str], *more: str) -> list[str]:
    """The command of a user who has DGL's arguments; nothing but the launcher's flags is special here."""
    lines = [f"{address}  # {name}\n" for address, name in zip(hosts.addresses, hosts.names, strict=True)]
    (where / "ip_config.txt").write_text("".join(lines[:NUM_LAUNCHED]))
    flags = f"--launcher_flags={shlex.join(hosts.launcher_flags)}"
    options = ["--num_trainers", "1", "--num_servers", "1", "--ip_config", "ip_config.txt", "--workspace", str(where)]
    tool = [sys.executable, "-m", "mpigraph", "launch", flags, *options, *more]
    return [*hosts.enter(0), *tool, shlex.join([*warm_python(), *script])]


def test_the_launch_command_trains_over_the_hosts(
    hosts: namespaces.Hosts, trained_graph: Path, accuracy_alone: float, tmp_path: Path
) -> None:
    more = ["--extra_envs", "MPIGRAPH_LOG_LEVEL=INFO", "--part_config", str(trained_graph), "--num_omp_threads", "1"]
    output = run(hosts, launch(hosts, tmp_path, example(trained_graph), *more))
    assert "2 trainer(s), 2 host(s), 2 node(s)" in output
    assert accuracy(output) == pytest.approx(accuracy_alone, abs=SPREAD)


def test_the_launch_command_passes_on_status_and_signals(
    hosts: namespaces.Hosts, oracle_config: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(
        f"import os, sys, time\nimport mpigraph.distributed as dist\ndist.initialize()\n"
        f"g = dist.DistGraph({NAME!r})\nprint(f'opened in {{os.getcwd()}}\\n', end='', flush=True)\n"
        "if len(sys.argv) > 1: sys.exit(3)\ntime.sleep(300)\n"
    )
    opened = f"opened in {tmp_path}"
    failing = start(launch(hosts, tmp_path, ["script.py", "fail"], "--part_config", oracle_config))
    output = finish(hosts, failing)
    assert failing.returncode == 3 and opened in output, output
    sleeping = start(launch(hosts, tmp_path, ["script.py"], "--part_config", oracle_config))
    printed = []
    while "".join(printed).count(opened) < NUM_LAUNCHED:
        printed.append(sleeping.stdout.readline())
        assert printed[-1], "".join(printed)
    sleeping.send_signal(signal.SIGTERM)
    finish(hosts, sleeping, SOON)
    assert sleeping.returncode != 0
    until_gone(hosts)
