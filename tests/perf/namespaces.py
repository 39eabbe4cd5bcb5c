"""Several hosts on one machine, for jobs whose every byte between hosts has to pass a network.

    with Hosts(2) as hosts:
        hosts.popen(0, ["python", "server.py"])
        subprocess.run(hosts.mpiexec(ranks_per_host=2) + ["python", "train.py"])

A host is a set of Linux namespaces: a network of its own with the address ``hosts.addresses[i]`` on the interface
``mpig``, a name ``mpig<i>`` that the others resolve, and a private ``/dev/shm``. The hosts hang on a bridge that has a
namespace to itself, so that nothing of the machine's own network is touched. A namespace lives as long as the process
that holds it, and the holders die with this process, however it ends: nothing is left behind.

Needs Linux, root, iproute2 and util-linux; :func:`missing` says what there is not.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

SUBNET = "10.77.0."
INTERFACE = "mpig"  # inside every host
_TOOLS = ("ip", "mount", "nsenter", "setpriv", "unshare")
_ENDS_WITH_US = ["setpriv", "--pdeathsig", "KILL"]  # the kernel ends it with the thread that started it


def missing():
    """What keeps hosts from being made here, in words; an empty string if nothing does."""
    if not sys.platform.startswith("linux"):
        return "namespaces need Linux"
    if os.geteuid() != 0:
        return "namespaces need root"
    tools = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if tools:
        return f"not installed: {', '.join(tools)} (packages iproute2 and util-linux)"
    trial = subprocess.run(["unshare", "--net", "--mount", "--uts", "--ipc", "true"], capture_output=True, text=True)
    return f"this machine forbids namespaces: {trial.stderr.strip()}" if trial.returncode else ""


class Hosts:
    """``count`` hosts on one bridge, from ``with`` to its end.

    Attributes:
        addresses: IPv4 address of each host.
        names: the name that each host calls itself, known to all.
    """

    def __init__(self, count, shm="12g"):
        """Plan the hosts; ``shm`` is the size of each ``/dev/shm``.

        Raises:
            RuntimeError: this machine or user cannot make namespaces.
        """
        why = missing()
        if why:
            raise RuntimeError(why)
        if not 1 <= count < 255:
            raise ValueError(f"count must be 1 to 254 (got {count})")
        self.addresses = [f"{SUBNET}{i + 1}" for i in range(count)]
        self.names = [f"mpig{i}" for i in range(count)]
        self._shm = shm
        self._pids = []
        self._undo = ExitStack()

    def __enter__(self):
        with ExitStack() as undo:
            self._directory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mpig-")))
            names = "".join(f"{a} {n}\n" for a, n in zip(self.addresses, self.names, strict=True))
            (self._directory / "hosts").write_text("127.0.0.1 localhost\n" + names, encoding="ascii")
            switch = self._hold(undo, "ip link add mpigbr type bridge && ip link set mpigbr up", ["--net"])
            for i in range(len(self.names)):
                self._pids.append(self._hold(undo, self._dress(i), ["--net", "--mount", "--uts", "--ipc"]))
                self._connect(i, switch)
            self._write_launcher()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error):
        self.kill()
        self._pids.clear()
        self._undo.close()

    def enter(self, host):
        """The words to put before a command that is to run on a host."""
        return ["nsenter", "--target", str(self._pids[host]), "--net", "--mount", "--uts", "--ipc", "--"]

    def popen(self, host, command, **options):
        """Start a command on a host; the options are those of :class:`subprocess.Popen`.

        The command ends with this process. The process that is returned is the command itself.
        """
        return subprocess.Popen([*_ENDS_WITH_US, *self.enter(host), *command], **options)

    def processes(self):
        """The ids of all processes on the hosts, however they got there."""
        networks = {_network(pid) for pid in self._pids} - {None}
        everyone = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in everyone if pid not in self._pids and _network(pid) in networks]

    def shared_memory(self):
        """Bytes that the files in every ``/dev/shm`` hold."""
        found = [os.statvfs(f"/proc/{pid}/root/dev/shm") for pid in self._pids]
        return sum((stat.f_blocks - stat.f_bfree) * stat.f_frsize for stat in found)

    def kill(self):
        """End every process on the hosts."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def mpiexec(self, ranks_per_host, hosts=None, launcher=None):
        """The words to put before a command that is to run as ranks on the first ``hosts`` hosts (default: all).

        Ranks are numbered host by host. Of MPICH's Hydra; between hosts UCX is held to TCP, else it would notice that
        they share a machine. ``launcher`` is the path of ``mpiexec`` (default: the one beside this Python).
        """
        count = len(self.names) if hosts is None else hosts
        launcher = launcher or shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if launcher is None:
            raise RuntimeError("mpiexec is not installed")
        options = ["-bootstrap", "ssh", "-bootstrap-exec", str(self._directory / "launch"), "-iface", INTERFACE]
        options += ["-hosts", ",".join(self.addresses[:count]), "-ppn", str(ranks_per_host)]
        options += ["-n", str(count * ranks_per_host), "-genv", "UCX_TLS", "tcp,self"]
        return [*self.enter(0), launcher, *options]

    def _dress(self, i):
        """The shell commands that make a fresh set of namespaces host ``i``."""
        return (
            f"mount --make-rprivate / && mount -t tmpfs -o size={self._shm} tmpfs /dev/shm && "
            "mount -t sysfs sysfs /sys && "  # UCX looks there for network devices
            f"mount --bind {self._directory}/hosts /etc/hosts && echo {self.names[i]} > /proc/sys/kernel/hostname"
        )

    def _hold(self, undo, commands, namespaces):
        """Start a process in new namespaces that prepares them and then only holds them; return its id."""
        script = f"{commands} && ip link set lo up && echo ready && exec sleep infinity"
        holder = subprocess.Popen(
            [*_ENDS_WITH_US, "unshare", *namespaces, "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        undo.callback(_end, holder)
        if holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"cannot make namespaces here: {holder.stderr.read().strip()}")
        return holder.pid

    def _connect(self, i, switch):
        """Lay the cable from host ``i`` to the bridge."""
        host, port = str(self._pids[i]), f"mpig{i}"
        for line in (
            f"ip link add {port} type veth peer name {INTERFACE} netns {host}",
            f"ip link set {port} master mpigbr up",
        ):
            _run(["nsenter", "--target", str(switch), "--net", "--", *line.split()])
        for line in (f"ip addr add {self.addresses[i]}/24 dev {INTERFACE}", f"ip link set {INTERFACE} up"):
            _run([*self.enter(i), *line.split()])

    def _write_launcher(self):
        """What Hydra calls in place of ``ssh``: options, a host, and the words of a shell command."""
        cases = "".join(f"{a}) pid={p} ;;\n" for a, p in zip(self.addresses, self._pids, strict=True))
        script = (
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1\nshift\ncase $host in\n'
            f'{cases}*) echo "no host $host" >&2; exit 1 ;;\nesac\n'
            'exec nsenter --target "$pid" --net --mount --uts --ipc -- sh -c "exec $*"\n'
        )
        path = self._directory / "launch"
        path.write_text(script, encoding="ascii")
        path.chmod(0o755)


def _run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip()}")


def _network(pid):
    """What names the network namespace of a process; None if it has ended."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return None


def _end(holder):
    holder.kill()
    holder.wait()
    holder.stdout.close()
    holder.stderr.close()


if __name__ == "__main__":  # python namespaces.py COUNT RANKS_PER_HOST COMMAND ...
    with Hosts(int(sys.argv[1])) as _hosts:
        sys.exit(subprocess.run([*_hosts.mpiexec(int(sys.argv[2])), *sys.argv[3:]]).returncode)
