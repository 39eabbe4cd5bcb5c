"""A small process on each node that says which rank died, when the launcher has ended all that could.

A launcher kills the other ranks within milliseconds of the first that dies, and says neither its role nor, where
several have died, which was the first. The witness has a session of its own, which launchers do not kill, looks at the
ranks of its node, and ends with the last of them. On several nodes each has one: they do not talk to each other, and
the earliest time names the cause.

A rank that ends the job because of an error says goodbye first. Its error may come of the death of another rank, whose
sockets the kernel closes before others hear of the end: the witness names those that are ending by then.

This file is also the program that the process runs: it imports nothing else of the library but :mod:`mpigraph.trace`,
by its path, and only what starts fast.
"""

import json
import os
import select
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from runpy import run_path
from typing import Any

__all__ = ["Witness", "pid_namespace", "say_goodbye"]

_addresses: list[str] = []  # of the witnesses that look at this process
_SPEAKING_TIME = 5.0  # seconds that the witness has to speak
_FAILED = b"!"
_EXITING = 4  # PF_EXITING of Linux's include/linux/sched.h: set before a process gives back what it has


def pid_namespace() -> str:
    """Return the name of the namespace of this process's id; "" where there can be no witness."""
    try:
        os.close(os.pidfd_open(os.getpid()))  # Linux before 5.3 cannot, and some containers forbid it
        return os.readlink("/proc/self/ns/pid")
    except (AttributeError, OSError):
        return ""


def say_goodbye(failed: bool) -> None:
    """Tell the witness that this process ends and has said why; wait until the witness has spoken, too.

    ``failed``: it ends because of an error, whose cause may be another rank's death.
    """
    while _addresses:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as out:
            out.settimeout(_SPEAKING_TIME)
            out.connect(_addresses.pop())
            out.sendall(_FAILED if failed else b"-")
            out.recv(1)  # fails when the witness has ended


class Witness:
    """Looks at the ranks of a node, from construction to :meth:`close`."""

    def __init__(self, first: bool, address: str, traces: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        """Join the ranks that the witness looks at.

        Args:
            first: whether this is the first rank of the node, which starts the process.
            address: a name that no other job on this node has.
            traces: :func:`mpigraph.trace.address` of each of the node's ranks; it begins with the process id.
            names: of the same ranks, for the message.
        """
        _addresses.append(f"\0{address}")
        if first:
            import subprocess  # the witness itself does not need it

            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as inbox:
                inbox.bind(_addresses[-1])
                inbox.listen()
                words = [json.dumps([[list(map(int, trace)) for trace in traces], list(names)]), str(inbox.fileno())]
                null = subprocess.DEVNULL
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__, *words],
                    stdin=null,
                    stdout=null,
                    pass_fds=[inbox.fileno()],
                    start_new_session=True,
                )

    def close(self) -> None:
        """End the process, unless another rank has done so."""
        say_goodbye(failed=False)
        if hasattr(self, "_process"):
            self._process.wait()


def _look(addresses: list[list[int]], names: list[str], inbox: socket.socket) -> None:
    """Wait for a goodbye, or for the first rank that dies without one, and print which rank died."""
    traces = _traces(addresses)
    pids = [pid for pid, *_ in addresses]
    poll = select.poll()
    poll.register(inbox, select.POLLIN)
    ranks: dict[int, int] = {}
    dead = set[int]()
    for rank, pid in enumerate(pids):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            dead.add(rank)
            continue
        ranks[handle] = rank
        poll.register(handle, select.POLLIN)
    ready = set() if dead else {handle for handle, _ in poll.poll()}
    ready |= {handle for handle, _ in poll.poll(0)}  # a goodbye comes before the end
    dead |= {rank for handle, rank in ranks.items() if handle in ready}
    if inbox.fileno() in ready:
        with inbox.accept()[0] as connection:  # the other end waits until it is closed
            if connection.recv(1) == _FAILED:
                _print_obituary({names[rank]: traces[rank].last() for rank, pid in enumerate(pids) if _ends(pid)})
        return
    _print_obituary({names[rank]: traces[rank].last() for rank in dead})


def _traces(addresses: list[list[int]]) -> list[Any]:
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "trace.py")
    reader = run_path(path)["Trace"]
    return [reader(tuple(address)) for address in addresses]


def _ends(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return bool(int(file.read().rpartition(b")")[2].split()[6]) & _EXITING)
    except FileNotFoundError:
        return True


def _print_obituary(last: Mapping[str, str]) -> None:
    if not last:
        return
    now = time.time()
    at = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"
    names = sorted(last)
    text = f"[mpigraph] {', '.join(names)} on host {os.uname().nodename} died at {at}; the job is ended\n"
    text += "".join(f"[mpigraph] last spans of {name}: {last[name]}\n" for name in names if last[name])
    with suppress(OSError):
        os.write(2, text.encode())


if __name__ == "__main__":
    looked_at, called = json.loads(sys.argv[1])
    _look(looked_at, called, socket.socket(fileno=int(sys.argv[2])))
