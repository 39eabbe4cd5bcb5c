"""A small process on each node that says which rank died, when the launcher has ended all that could.

A launcher kills the other ranks within milliseconds of the first that dies, and says neither its role nor, where
several have died, which was the first. The witness has a session of its own, which launchers do not kill, looks at the
ranks of its node, and ends with the last of them. On several nodes each has one: they do not talk to each other, and
the earliest time names the cause.

This file is also the program that the process runs: it imports nothing else of the library, and only what starts fast.
"""

import json
import os
import select
import socket
import sys
import time
from collections.abc import Sequence

__all__ = ["Witness", "pid_namespace", "say_goodbye"]

_addresses: list[str] = []  # of the witnesses that look at this process


def pid_namespace() -> str:
    """Return what names the processes among which this one's id means something; "" where there can be no witness."""
    try:
        os.close(os.pidfd_open(os.getpid()))  # Linux before 5.3 cannot, and some containers forbid it
        return os.readlink("/proc/self/ns/pid")
    except (AttributeError, OSError):
        return ""


def say_goodbye() -> None:
    """Tell the witness that this process ends, or has ended the job, by itself and has said why."""
    while _addresses:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.sendto(b"", _addresses.pop())
        except OSError:
            continue  # it is gone


class Witness:
    """Looks at the ranks of a node, from construction to :meth:`close`."""

    def __init__(self, first: bool, address: str, pids: Sequence[int], names: Sequence[str]) -> None:
        """Be looked at; the first rank of a node starts the process.

        Args:
            first: whether this rank starts it.
            address: a name that no other job on this node has.
            pids: the process ids of the node's ranks.
            names: who they are, for the message.
        """
        _addresses.append(f"\0{address}")
        if first:
            import subprocess  # what runs as the witness does not need it

            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
                inbox.bind(_addresses[-1])
                words = [json.dumps([list(map(int, pids)), list(names)]), str(inbox.fileno())]
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
        say_goodbye()
        if hasattr(self, "_process"):
            self._process.wait()


def _look(pids: list[int], names: list[str], inbox: int) -> str:
    """Wait for a goodbye, or for the first rank that dies without one; return what to say of it."""
    poll = select.poll()
    poll.register(inbox, select.POLLIN)
    ranks = {}
    for pid, name in zip(pids, names, strict=True):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return _obituary([name])
        ranks[handle] = name
        poll.register(handle, select.POLLIN)
    ready = {handle for handle, _ in poll.poll()}
    ready |= {handle for handle, _ in poll.poll(0)}  # a goodbye comes before the end
    return "" if inbox in ready else _obituary([ranks[handle] for handle in ready])


def _obituary(names: list[str]) -> str:
    now = time.time()
    at = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"
    return f"[mpigraph] {', '.join(sorted(names))} on host {os.uname().nodename} died at {at}; the job is ended\n"


if __name__ == "__main__":
    looked_at, called = json.loads(sys.argv[1])
    text = _look(looked_at, called, int(sys.argv[2]))
    try:
        os.write(2, text.encode())
    except OSError:
        pass
