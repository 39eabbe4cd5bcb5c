"""``python -m mpigraph launch``: the command for every launcher, and that what the user typed reaches the ranks.

Launchers that are not installed are stood in for by a script (``stand_in``): it answers ``--version`` as they do,
writes down its own arguments, and then runs the user's command once, as a rank would. The last test starts a job by
the mpiexec that is installed.
"""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import clean_environment, launcher, run_job, started, warm_python

from mpigraph.cli.launch import read_hosts
from mpigraph.cli.main import main
from mpigraph.config import slurm_allocation
from mpigraph.errors import InvalidArgumentError

VERSIONS = {
    "hydra": "HYDRA build details:\n    Version:                                 5.0.2",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20241121 (id: e7829d6)",
    "openmpi4": "mpiexec (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/",
    "openmpi5": "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/",
    "prrte": "mpiexec (PRRTE) 3.0.8",
}
STAND_IN = """#!{python} -S
import json, os, sys
if sys.argv[1:] == ["--version"]:
    print({version!r})
    sys.exit(0)
with open({seen!r}, "w") as file:
    json.dump(sys.argv[1:], file)
command = sys.argv[sys.argv.index("env"):]
os.execvp(command[0], command)
"""
RANK = """import json, os, sys
with open(sys.argv[1], "w") as file:
    json.dump({"argv": sys.argv[2:], "environ": dict(os.environ)}, file)
"""
HOSTILE = [
    "two words", "it's", 'say "hi"', ";touch pwned", "$(touch pwned)", "`touch pwned`", "$HOME", "*", "~", "\\", "",
    "new\nline", "größe", "&&x", "|x", ">pwned", "--", "-n", "#no", "a=b", "{1,2}", "!!", "tab\there",
]  # fmt: skip


@pytest.fixture(autouse=True)
def outside_slurm(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_JOB_CPUS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A Slurm allocation of two nodes, as far as a program can see it."""
    for name, value in {"ID": "7", "NUM_NODES": "2", "CPUS_PER_NODE": "16(x2)"}.items():
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    monkeypatch.setenv("PATH", f"{stand_in(tmp_path, 'srun').parent}:/usr/bin:/bin")


def stand_in(tmp_path, name="mpiexec", version=VERSIONS["hydra"]):
    path = tmp_path / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(STAND_IN.format(python=sys.executable, version=version, seen=str(tmp_path / "seen.json")))
    path.chmod(0o755)
    return path


def write_hosts(tmp_path, text="10.0.0.1 30050\n10.0.0.2\n"):
    (tmp_path / "ip_config.txt").write_text(text)
    return "ip_config.txt"


def dry_run(capsys, tmp_path, *more, status=0):
    """Return the words that --dry-run prints, or its error."""
    arguments = ["launch", "--num_trainers", "2", "--workspace", str(tmp_path), "--dry-run", *more]
    if "--ip_config" not in more and not slurm_allocation():
        arguments += ["--ip_config", write_hosts(tmp_path)]
    assert (
        main([*map(str, arguments), "python train.py --lr 0.01"] if status == 0 else [*map(str, arguments)]) == status
    )
    out, err = capsys.readouterr()
    if status:
        assert out == "" and err.count("\n") == 1
        return err
    assert out.count("\n") == 1
    return shlex.split(out)


ENV = "env MPIGRAPH_NUM_SERVERS=1 MPIGRAPH_NUM_WORKER_THREADS=1 python train.py --lr 0.01"
SSH = ("--ssh_port", "2222", "--ssh_username", "ann")
GOLDEN = {
    "hydra": "{mpiexec} -hosts 10.0.0.1,10.0.0.2 -ppn 3 -n 6 -wdir {dir} " + ENV,
    "intel": "env I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=disable {mpiexec} -hosts 10.0.0.1,10.0.0.2 -ppn 3 -n 6 "
    "-wdir {dir} " + ENV,
    "openmpi4": "{mpiexec} --host 10.0.0.1:3,10.0.0.2:3 --map-by ppr:3:node -np 6 --bind-to none --wdir {dir} " + ENV,
}
GOLDEN["openmpi5"] = GOLDEN["prrte"] = GOLDEN["openmpi4"]
GOLDEN_SSH = {
    "hydra": "env 'HYDRA_LAUNCHER_EXTRA_ARGS=-p 2222 -l ann' " + GOLDEN["hydra"],
    "intel": GOLDEN["intel"].replace("disable", "disable 'I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS=-p 2222 -l ann'"),
}
OPENMPI_SSH = "env 'OMPI_MCA_plm_rsh_args=-p 2222 -l ann' 'PRTE_MCA_plm_ssh_args=-p 2222 -l ann' " + GOLDEN["openmpi4"]


@pytest.mark.parametrize("ssh", [False, True], ids=["plain", "ssh"])
@pytest.mark.parametrize("family", GOLDEN)
def test_the_command_for_each_mpiexec(capsys, tmp_path, family, ssh):
    mpiexec = stand_in(tmp_path, version=VERSIONS[family])
    golden = GOLDEN_SSH.get(family, OPENMPI_SSH) if ssh else GOLDEN[family]
    result = dry_run(capsys, tmp_path, "--mpiexec", mpiexec, *(SSH if ssh else ()))
    assert result == shlex.split(golden.format(mpiexec=mpiexec, dir=tmp_path))


SRUN = "{bin}/srun --nodes={n} --ntasks={t} --ntasks-per-node=3 --cpus-per-task=5 --distribution=block "
SRUN += "--kill-on-bad-exit=1 --chdir={dir} --export=ALL " + ENV


@pytest.mark.parametrize("hosts, nodes", [(None, 2), ("one\n", 1), ("10.0.0.1\nfe80::1\n", 2)])
def test_the_command_in_a_slurm_allocation(capsys, tmp_path, slurm, hosts, nodes):
    more = () if hosts is None else ("--ip_config", write_hosts(tmp_path, hosts))
    golden = SRUN.format(bin=tmp_path / "bin", n=nodes, t=3 * nodes, dir=tmp_path)
    assert dry_run(capsys, tmp_path, *more) == golden.split()


def test_more_ranks_than_cpus_share_them(capsys, tmp_path, slurm, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "64,2")
    result = dry_run(capsys, tmp_path)
    assert "--cpus-per-task=1" in result and "--overcommit" in result
    monkeypatch.delenv("SLURM_JOB_CPUS_PER_NODE")
    assert not [word for word in dry_run(capsys, tmp_path) if word.startswith(("--cpus", "--over"))]


def test_what_the_arguments_become(capsys, tmp_path):
    more = ["--num_servers", 0, "--num_samplers", 4, "--num_omp_threads", 2, "--part_config", "data/g.json"]
    more += ["--num_server_threads", 1, "--graph_format", "csc,coo", "--server_name", "s", "--keep_alive"]
    more += ["--extra_envs", "A=1,2;3", "B= x=y"]
    more += ["--launcher_flags=-iface 'eth 0'", "--mpiexec", stand_in(tmp_path)]
    result = dry_run(capsys, tmp_path, *more)
    inputs = result[result.index("env") + 1 : result.index("python")]
    assert inputs == [
        "MPIGRAPH_NUM_SERVERS=0", "MPIGRAPH_NUM_WORKER_THREADS=4", f"MPIGRAPH_PART_CONFIG={tmp_path}/data/g.json",
        "OMP_NUM_THREADS=2", "A=1,2;3", "B= x=y",
    ]  # fmt: skip
    assert result[result.index("env") - 2 : result.index("env")] == ["-iface", "eth 0"]
    assert result[result.index("-ppn") + 1] == "2"


WORDS = ("a,b", "-oProxyCommand=x", "a;b", "$(x)")  # that are no hosts
BAD_HOSTS = [
    ("# mine\n\na b c\n", ":3: expected 'ADDRESS [PORT]', each host once (got 'a b c')"),
    ("node1\nNODE1 30051\n", ":2: expected 'ADDRESS [PORT]', each host once (got 'NODE1 30051')"),
    *((f"{word}\n", f":1: expected 'ADDRESS [PORT]', each host once (got '{word}')") for word in WORDS),
    ("# no host\n", "names no host"),
]


def test_good_lines(tmp_path):
    write_hosts(
        tmp_path, "\ufeff# machines\n\n 10.0.0.1\t30050 # first\nnode-2.local 1\r\nfe80::1%eth0\n::ffff:10.0.0.9\n"
    )
    assert read_hosts(tmp_path / "ip_config.txt") == ["10.0.0.1", "node-2.local", "fe80::1%eth0", "::ffff:10.0.0.9"]
    (tmp_path / "ip_config.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgumentError, match="cannot read the list of hosts: .utf-8. codec"):
        read_hosts(tmp_path / "ip_config.txt")


WRONG = [
    ((), "the command is missing"),
    (("  ",), "the command is missing"),
    (("python 'x",), "No closing quotation"),
    (("--num_trainers", 0, "c"), "--num_trainers must be >= 1 (got 0)"),
    (("c", "--extra_envs", "A"), "--extra_envs must be NAME=VALUE, once for each name (got A)"),
    (("--launcher_flags=-x '", "c"), "--launcher_flags cannot be split"),
    (("--ip_config", "none.txt", "c"), "none.txt: cannot read the list of hosts: [Errno 2] No such file"),
    (("--mpiexec", "/none/mpiexec", "c"), "--mpiexec /none/mpiexec: no such program"),
    (("--mpiexec", "/bin/true", "c"), "is of an unknown MPI library (--version says"),
]


def test_wrong_arguments_are_one_line(capsys, tmp_path):
    mpiexec = ("--mpiexec", stand_in(tmp_path))
    for more, message in WRONG:
        more = more if "--mpiexec" in more else (*mpiexec, *more)
        assert message in dry_run(capsys, tmp_path, *more, status=2), message
    for text, message in BAD_HOSTS:
        error = dry_run(capsys, tmp_path, "--ip_config", write_hosts(tmp_path, text), *mpiexec, "c", status=2)
        assert message in error and str(tmp_path / "ip_config.txt") in error, message


def test_what_cannot_be_started_is_said(capsys, tmp_path, monkeypatch):
    mpiexec = stand_in(tmp_path)
    assert main(["launch", "--num_trainers", "1", "--mpiexec", str(mpiexec), "c"]) == 2
    assert "--ip_config is needed" in capsys.readouterr().err
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no launcher: no mpiexec beside" in dry_run(capsys, tmp_path, "c", status=2)


def test_too_many_hosts_for_the_allocation(capsys, tmp_path, slurm):
    more = ["--ip_config", write_hosts(tmp_path, "a\nb\nc\n"), "c"]
    assert "3 hosts, but the Slurm allocation has 2 node(s)" in dry_run(capsys, tmp_path, *more, status=2)


def test_the_mpiexec_beside_python_comes_first(capsys, tmp_path, monkeypatch):
    beside, on_path = stand_in(tmp_path), tmp_path / "other"
    on_path.mkdir()
    (on_path / "mpirun").write_bytes(stand_in(tmp_path, "mpirun", VERSIONS["openmpi5"]).read_bytes())
    (on_path / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{on_path}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert dry_run(capsys, tmp_path)[0] == str(beside)
    beside.unlink()
    if not any(Path(directory, "mpiexec").exists() for directory in ("/usr/bin", "/bin")):
        assert dry_run(capsys, tmp_path)[0] == str(on_path / "mpirun")


def launch(tmp_path, *arguments):
    """The arguments of a process that launches on the stand-in's one host."""
    write_hosts(tmp_path, "127.0.0.1\n")
    common = ["--num_trainers", "1", "--ip_config", "ip_config.txt", "--workspace", str(tmp_path)]
    return [sys.executable, "-m", "mpigraph", "launch", *common, *arguments]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "family", ["hydra", "srun", *(pytest.param(name, marks=SLOW) for name in ("openmpi4", "openmpi5", "intel"))]
)
def test_every_argument_arrives_unchanged(tmp_path, family):
    """Through a stand-in for each launcher, which records its arguments and runs the command as a rank."""
    (tmp_path / "rank.py").write_text(RANK)
    told = tmp_path / "out $(x).json"
    command = shlex.join([sys.executable, str(tmp_path / "rank.py"), str(told), *HOSTILE])
    values = {f"HOSTILE_{i}": text for i, text in enumerate(HOSTILE)}
    chosen, env = ["--mpiexec", str(stand_in(tmp_path, version=VERSIONS.get(family, "")))], clean_environment()
    if family == "srun":
        chosen = []
        env |= {"SLURM_JOB_ID": "7", "PATH": f"{stand_in(tmp_path, 'srun').parent}:{env['PATH']}"}
    extra = ["--extra_envs", *(f"{name}={value}" for name, value in values.items())]
    done = run_job(launch(tmp_path, *chosen, command, *extra), env)
    assert done.status == 0, done.stderr
    rank, seen = json.loads(told.read_text()), json.loads((tmp_path / "seen.json").read_text())
    assert rank["argv"] == HOSTILE
    assert {name: rank["environ"][name] for name in values} == values
    assert seen[-len(HOSTILE) :] == HOSTILE
    assert shlex.split(done.stderr)[-len(seen) :] == seen  # the line that is printed could be typed
    assert not (tmp_path / "pwned").exists() and not Path("pwned").exists()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(number, marks=SLOW) for number in (signal.SIGINT, signal.SIGHUP))]
)
def test_signals_reach_the_launcher(tmp_path, number):
    body = "import signal, sys, time\n"
    body += f"signal.signal({int(number)}, lambda *_: sys.exit(42))\nprint('ready', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "rank.py").write_text(body)
    command = shlex.join([sys.executable, str(tmp_path / "rank.py")])
    arguments = launch(tmp_path, "--mpiexec", str(stand_in(tmp_path)), command)
    pipe = {"stdout": subprocess.PIPE, "text": True}
    with started(arguments, clean_environment(), **pipe) as process, process.stdout:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(20) == 42


@pytest.mark.parametrize(
    "code, status",
    [
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), 9)", 137),
        pytest.param("os.kill(os.getpid(), 13)", 141, marks=SLOW),
        pytest.param("pass", 0, marks=SLOW),
    ],
)
def test_the_status_is_the_launchers(tmp_path, code, status):
    command = shlex.join([sys.executable, "-S", "-c", f"import os, sys, signal; signal.signal(13, 0); {code}"])
    arguments = launch(tmp_path, "--mpiexec", str(stand_in(tmp_path)), command)
    shell = ["sh", "-c", '"$@"; exit $?', "sh", *arguments]  # a shell, since what it sees is 128 + signal
    assert run_job(shell, clean_environment()).status == status


@pytest.mark.slow
def test_a_job_by_the_mpiexec_that_is_installed(tmp_path):
    """Two ranks on this machine: the one trainer finds its server, its variables and its working directory."""
    (tmp_path / "train me.py").write_text(
        "import os, sys, mpigraph.distributed as dist\n"
        "dist.initialize(timeout=60)\n"
        "from mpigraph.session.context import current\n"
        "world = current().world\n"
        "print('told', world.size, world.num_servers, current().num_threads, os.environ['HOSTILE'], sys.argv[1:])\n"
        "dist.exit_client()\nsys.exit(0)\n"
    )
    command = shlex.join([*warm_python(), "train me.py", *HOSTILE])
    more = ["--num_servers", "1", "--num_samplers", "3", "--num_omp_threads", "1", "--mpiexec", launcher()]
    arguments = launch(tmp_path, *more, command, "--extra_envs", "HOSTILE=$(x) ;'\",=")
    done = run_job(arguments, clean_environment())
    assert done.status == 0, done.output
    assert f"told 2 1 3 $(x) ;'\",= {HOSTILE}" in done.stdout
