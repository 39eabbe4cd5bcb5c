"""Several hosts on one machine, for jobs whose every byte between hosts has to pass a network.

    with Hosts(2) as hosts:
        hosts.popen(0, ["python", "server.py"])
        subprocess.run(hosts.mpiexec(ranks_per_host=2) + ["python", "train.py"])

A host is a set of Linux namespaces: a network of its own with the address ``hosts.addresses[i]`` on the interface
``mpig``, a name ``mpig<i>`` that the others resolve, and a private ``/dev/shm``. The hosts hang on a bridge that has a
namespace to itself, so that nothing of the machine's own network is touched. ``Hosts(2, delay=0.002, rate=1e9)`` makes
a slow network, by ``wire.py`` in place of the bridge.

Nothing is left behind: when this process ends, however it does, a reaper ends every process on the hosts.

Needs Linux, root, iproute2 and util-linux; :func:`missing` says what there is not.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import wire
from wire import INTERFACE

SUBNET = "10.77.0."
_TOOLS = ("ip", "mount", "nsenter", "setpriv", "unshare")
_ENDS_WITH_US = ["setpriv", "--pdeathsig", "KILL"]  # the kernel ends it with the thread that started it
_REAP = "--reap"
_RENO = " && echo reno > /proc/sys/net/ipv4/tcp_congestion_control"
"""It keeps a slow network filled; BBR, which some machines prefer, does not."""


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


def missing_delay():
    """What keeps a slow network from being made, where hosts can be made; an empty string if nothing does."""
    return wire.missing()


class Hosts:
    """``count`` hosts on one network, from ``with`` to its end.

    Attributes:
        addresses: IPv4 address of each host.
        names: the name that each host calls itself, known to all.
        launcher_flags: what Hydra's ``mpiexec`` must be told here. It starts processes on a host by a script that
            enters the namespaces in place of ``ssh``; between hosts UCX is held to TCP, else it would notice that they
            share a machine.
    """

    def __init__(self, count, shm="12g", delay=0.0, rate=0.0):
        """Plan the hosts.

        Args:
            count: how many.
            shm: size of each ``/dev/shm``.
            delay: seconds by which the network delivers everything late, in each direction.
            rate: bits per second that each host can send; needed with a delay.

        Raises:
            RuntimeError: this machine or user cannot make namespaces, or no delay.
        """
        why = missing() or (missing_delay() if delay else "")
        if why:
            raise RuntimeError(why)
        self._slow = (delay, rate) if delay else None
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
            _helper(undo, [sys.executable, "-S", __file__, _REAP, self._directory, switch, *self._pids])
            self._connect(undo, switch)
            self._write_launcher()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error):
        self.kill()
        self._pids.clear()
        self._undo.close()

    @property
    def launcher_flags(self):
        script = str(self._directory / "launch")
        bootstrap = ["-bootstrap", "ssh", "-bootstrap-exec", script, "-iface", INTERFACE]
        return [*bootstrap, "-genv", "UCX_TLS", "tcp,self"]

    def enter(self, host):
        """The words to put before a command that is to run on a host."""
        return ["nsenter", "--target", str(self._pids[host]), "--net", "--mount", "--uts", "--ipc", "--"]

    def popen(self, host, command, **options):
        """Start a command on a host; the options are those of :class:`subprocess.Popen`.

        The process that is returned is the command itself.
        """
        return subprocess.Popen([*self.enter(host), *command], **options)

    def processes(self):
        """The ids of all processes on the hosts, however they got there."""
        found = _processes({_network(pid) for pid in self._pids} - {None})
        return [pid for pid in found if pid not in self._pids]

    def sent(self, host):
        """Bytes that a host has sent so far."""
        path = f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"
        return int(_run([*self.enter(host), "cat", path]))

    def kill(self):
        """End every process on the hosts."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def mpiexec(self, ranks_per_host, hosts=None, launcher=None):
        """The words to put before a command that is to run as ranks on hosts, numbered host by host.

        Args:
            ranks_per_host: a number for each of the first hosts, or one number for all.
            hosts: how many hosts, where one number is given (default: all).
            launcher: path of MPICH's ``mpiexec`` (default: the one beside this Python, else on ``PATH``).
        """
        if isinstance(ranks_per_host, int):
            ranks_per_host = [ranks_per_host] * (len(self.names) if hosts is None else hosts)
        launcher = launcher or shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if launcher is None:
            raise RuntimeError("mpiexec is not installed")
        where = ",".join(f"{a}:{n}" for a, n in zip(self.addresses, ranks_per_host, strict=False))
        size = ["-hosts", where, "-n", str(sum(ranks_per_host))]
        return [*self.enter(0), launcher, *self.launcher_flags, *size]

    def _dress(self, i):
        """The shell commands that make a fresh set of namespaces host ``i``."""
        return (
            f"mount --make-rprivate / && mount -t tmpfs -o size={self._shm} tmpfs /dev/shm && "
            "mount -t sysfs sysfs /sys && "  # UCX looks there for network devices
            f"mount --bind {self._directory}/hosts /etc/hosts && echo {self.names[i]} > /proc/sys/kernel/hostname"
            f"{_RENO if self._slow else ''}"
        )

    def _hold(self, undo, commands, namespaces):
        """Start a process in new namespaces that prepares them and then only holds them; return its id."""
        script = f"{commands} && ip link set lo up && echo ready && exec sleep infinity"
        return _helper(undo, [*_ENDS_WITH_US, "unshare", *namespaces, "sh", "-c", script]).pid

    def _connect(self, undo, switch):
        """Lay the cables from the hosts to the bridge, or to the slow network's switch."""
        at_switch = ["nsenter", "--target", str(switch), "--net", "--"]
        lines = ["ip addr add {address}/24 dev {inside}", "ip link set {inside} up"]
        if self._slow:
            script = [sys.executable, "-S", wire.__file__, *self._slow, *self._pids]
            _helper(undo, [*_ENDS_WITH_US, *at_switch, *script])
            lines.insert(0, "ip link set {inside} address {mac}")
        for i, pid in enumerate(self._pids):
            if not self._slow:
                _run([*at_switch, *f"ip link add mpig{i} type veth peer name {INTERFACE} netns {pid}".split()])
                _run([*at_switch, *f"ip link set mpig{i} master mpigbr up".split()])
            for line in lines:
                told = line.format(address=self.addresses[i], inside=INTERFACE, mac=wire.mac(i))
                _run([*self.enter(i), *told.split()])

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
    return done.stdout


def _helper(undo, command):
    """Start a process that says "ready" and then stays until ``undo``."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    helper = subprocess.Popen(list(map(str, command)), start_new_session=True, text=True, **pipes)
    undo.callback(_end, helper)
    if helper.stdout.readline() != "ready\n":
        raise RuntimeError(f"cannot make hosts here: {helper.stderr.read().strip()}")
    return helper


def _end(helper):
    helper.kill()
    helper.wait()
    for pipe in (helper.stdin, helper.stdout, helper.stderr):
        pipe.close()


def _network(pid):
    """What names the network namespace of a process; None if it has ended."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return None


def _processes(networks):
    """The ids of all processes in some network namespaces."""
    everyone = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in everyone if _network(pid) in networks]


def _reap(directory, *holders):
    """Wait until the process that started this one has ended, then end all processes on its hosts.

    The namespaces are held open here, so that no new ones get their names meanwhile.
    """
    held = [open(f"/proc/{pid}/ns/net", "rb") for pid in holders]
    networks = {_network(pid) for pid in holders}
    print("ready", flush=True)
    sys.stdin.read()  # its end is the end of the process that holds the other end
    while found := _processes(networks):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(directory, ignore_errors=True)
    for namespace in held:
        namespace.close()


if __name__ == "__main__":  # python namespaces.py COUNT RANKS_PER_HOST COMMAND ...
    if sys.argv[1] == _REAP:
        _reap(*sys.argv[2:])
    else:
        with Hosts(int(sys.argv[1])) as _hosts:
            sys.exit(subprocess.run([*_hosts.mpiexec(int(sys.argv[2])), *sys.argv[3:]]).returncode)
