"""A real Slurm of several nodes on this machine: munged, slurmctld and a slurmd for each node.

    with Cluster(tmp_path) as cluster:
        job = cluster.submit("train.sbatch")
        assert cluster.wait(job, 60)["JobState"] == "COMPLETED"

Each node has a ``/dev/shm`` and a disk (``cluster.local``, the same path on all) of its own. The cluster lives inside
the ``with`` block; daemons end with this process, however it ends. A job that is requeued starts again after
``cred_expire`` seconds, which are two minutes by default.

Needs root, and Debian's packages slurmctld, slurmd, slurm-client and munge; :func:`missing` says what there is not.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from jobs import soon

_TOOLS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sacct", "sinfo", "setpriv")
_ENDS_WITH_US = ["setpriv", "--pdeathsig", "KILL"]
_OF_A_JOB = ("SLURM", "PMI", "MPI", "HYD", "OMPI", "PRTE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
_OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL"}

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
GresTypes=gpu
JobCompType=jobcomp/filetxt
JobCompLoc={directory}/jobs.txt
KillWait=5
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=2
{nodes}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=4000 Gres=gpu:2 State=UNKNOWN"
)


def missing() -> str:
    """Return the reason why no cluster can start here; an empty string if one can."""
    tools = [tool for tool in _TOOLS if _which(tool) is None]
    if tools:
        return f"not installed: {', '.join(tools)} (Debian: slurmctld, slurmd, slurm-client, munge, util-linux)"
    trial = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
    return "nodes with mounts of their own need root" if os.geteuid() or trial.returncode else ""


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Cluster:
    """``count`` nodes, n0, n1, ...

    Attributes:
        local: a directory that is empty on each node, and another disk on each.
    """

    def __init__(self, directory: Path, count: int = 2) -> None:
        why = missing()
        if why:
            raise RuntimeError(why)
        self.names = [f"n{i}" for i in range(count)]
        self.directory = directory
        self.local = directory / "local"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._undo = ExitStack()
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(_OF_A_JOB)}
        self.env |= {"SLURM_CONF": str(directory / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    def __enter__(self) -> "Cluster":
        with ExitStack() as undo:
            undo.callback(self._end)
            self._configure()
            where = self.directory
            key, sock = f"--key-file={where}/munge.key", f"--socket={where}/munge.socket"
            files = [f"--pid-file={where}/munged.pid", f"--log-file={where}/munged.log", f"--seed-file={where}/seed"]
            self._start("munged", ["munged", "--foreground", "--force", key, sock, *files])
            until(lambda: (where / "munge.socket").exists(), 20, self._complain)
            self._start("slurmctld", ["slurmctld", "-D"])
            for name in self.names:
                self._start(name, [*self._mounts(), "slurmd", "-D", "-N", name])
            until(self._all_idle, 60, self._complain)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def _configure(self) -> None:
        for name in ("state", "local", *(f"spool-{name}" for name in self.names)):
            (self.directory / name).mkdir()
        host, ports = socket.gethostname().partition(".")[0], _free_ports(1 + len(self.names))
        nodes = [NODE.format(name=n, host=host, port=p) for n, p in zip(self.names, ports[1:], strict=True)]
        text = CONF.format(host=host, ports=ports, directory=self.directory, nodes="\n".join(nodes))
        (self.directory / "slurm.conf").write_text(text)
        (self.directory / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def lose(self, name: str) -> None:
        """End a node with all that runs there, at once, as a power failure does; Slurm is told."""
        slurmd = self._daemons[name]
        there = [pid for pid in self.processes() if _mounts_of(pid) == _mounts_of(slurmd.pid)]
        del self._daemons[name]
        for pid in [slurmd.pid, *there]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        slurmd.wait()
        self.run(["scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=lost"])

    def bring_back(self, name: str) -> None:
        """Start a node that was lost."""
        self._start(name, [*self._mounts(), "slurmd", "-D", "-N", name])
        self.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"], check=False)
        until(self._all_idle, 60, self._complain)

    def _mounts(self) -> list[str]:
        """The words that give a node its own disk and shared memory."""
        mounts = f"mount --make-rprivate / && mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs {self.local}"
        return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "node"]

    def _start(self, name: str, command: list[str]) -> None:
        with open(self.directory / f"{name}.out", "wb") as out:
            self._daemons[name] = subprocess.Popen(
                [*_ENDS_WITH_US, *command], env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def _all_idle(self) -> bool:
        for name, daemon in self._daemons.items():
            if daemon.poll() is not None:
                raise RuntimeError(f"{name} ended with {daemon.returncode}\n{self._logs()}")
        done = self.run(["sinfo", "--noheader", "--Node", "--format=%T"], check=False)
        return done.stdout.split() == ["idle"] * len(self.names)

    def _logs(self) -> str:
        logs = [*self.directory.glob("*.log"), *self.directory.glob("*.out")]
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def _complain(self) -> None:
        raise RuntimeError(f"Slurm does not start\n{self._logs()}")

    def run(
        self, command: list[str], check: bool = True, cwd: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run one of Slurm's commands."""
        done = subprocess.run(command, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{command}: {done.stderr}")
        return done

    def submit(self, script: Path, directory: Path, *options: str) -> str:
        """Submit a batch script from a directory, as a user would; return the number of the job."""
        return self.run(["sbatch", "--parsable", *options, str(script)], cwd=directory).stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """Return the fields of ``scontrol show job``."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run(["scontrol", "show", "job", job]).stdout))

    def wait(self, job: str, seconds: float, states: Iterable[str] = _OVER) -> dict[str, str]:
        """Wait until a job is in one of some states (by default: over); return what is known of it."""
        expected = set(states)

        def complain() -> None:
            raise TimeoutError(f"job {job} is not in {expected} after {seconds} s: {self.job(job)}\n{self._logs()}")

        until(lambda: self.job(job)["JobState"] in expected, seconds, complain)
        return self.job(job)

    def processes(self) -> list[int]:
        """Return the ids of all processes of jobs, of any parent."""
        daemons = {daemon.pid for daemon in self._daemons.values()} | {os.getpid()}
        nodes = {_mounts_of(self._daemons[name].pid) for name in self.names if name in self._daemons}
        return [pid for pid in _pids() if pid not in daemons and self._belongs(pid, nodes - {None})]

    def _belongs(self, pid: int, nodes: set[str | None]) -> bool:
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() in ("slurmctld", "slurmscriptd"):
                return False  # slurmctld has a child
            if _mounts_of(pid) in nodes:
                return True  # also a rank that a warm Python has forked, whose own variables /proc does not show
            return f"SLURM_CONF={self.env['SLURM_CONF']}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(
                b"\0"
            )
        return False

    def on_node(self, name: str, path: str | Path) -> Path:
        """A path as a node sees it."""
        return Path(f"/proc/{self._daemons[name].pid}/root{path}")

    def shared_memory(self) -> set[str]:
        """The files in the nodes' shared memory."""
        return {file.name for name in self.names for file in self.on_node(name, "/dev/shm").iterdir()}

    def _end(self) -> None:
        if "slurmctld" in self._daemons:
            self.run(["scancel", "--full", "--user", "root"], check=False)
            with suppress(TimeoutError):
                until(lambda: not self.processes(), 20)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def until(true: Callable[[], bool], seconds: float, complain: Callable[[], None] | None = None) -> None:
    """Wait for something, at most so many seconds; then ``complain``, else TimeoutError."""
    if not soon(true, seconds):
        if complain:
            complain()
        raise TimeoutError(f"waited {seconds} s")


def settings(template: Path, changes: Mapping[str, str], commands: Mapping[str, str]) -> str:
    """The text of a template with other settings.

    Args:
        template: a shipped template.
        changes: option of ``#SBATCH`` (with dashes) or variable -> value as the shell reads it; "" leaves it out. An
            option that is turned off (``##SBATCH``) is turned on.
        commands: name of a function -> the lines of its body.

    Raises:
        KeyError: the settings have no such thing.
    """
    head, begin, rest = template.read_text().partition("# ==== settings ")
    block, end, tail = rest.partition("# ==== end of the settings ")
    assert begin and end
    for name, value in changes.items():
        pattern = rf"^#?#SBATCH {name}=.*\n" if name.startswith("--") else rf"^{name}=.*\n"
        line = f"#SBATCH {name}={value}\n" if name.startswith("--") else f"{name}={value}\n"
        block, count = re.subn(pattern, lambda _, line=line if value else "": line, block, flags=re.MULTILINE)
        if count != 1:
            raise KeyError(f"{template.name} sets {name} {count} times")
    for name, body in commands.items():
        parts = re.split(rf"^({name}\(\) \{{.*\n)(?:.*\n)*?\}}\n", block, flags=re.MULTILINE)
        if len(parts) != 3:
            raise KeyError(f"{template.name} has no function {name}")
        block = f"{parts[0]}{parts[1]}{body}\n}}\n{parts[2]}"
    return head + begin + block + end + tail


def _mounts_of(pid: int) -> str | None:
    """What names the mounts of a process; None if it has ended."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/mnt")
    return None


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
