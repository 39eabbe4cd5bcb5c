"""A small process on each node that says which rank died, when the launcher has ended all that could.

A launcher kills the other ranks within milliseconds of the first that dies, and says neither its role nor, where
several have died, which was the first. The witness has a session of its own, which launchers do not kill, looks at the
ranks of its node, and ends with the last of them. On several nodes each has one: they do not talk to each other, and
the earliest time names the cause.

A rank that ends the job because of an error says goodbye first. Its error may come of the death of another rank, whose
sockets the kernel closes before others hear of the end: the witness names those that are ending by then.

While a report is being made, the witness has what is known of the ranks (:meth:`Witness.expect`). If the job dies, it
writes that with their sums and last spans, from memory that outlives them.

This file is also the program that the process runs: it imports nothing else of the library but
:mod:`mpigraph.trace_memory`, by its path, and only what starts fast.
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

_addresses: list[str] = []  # of the witnesses that look at this process
_SPEAKING_TIME = 5.0  # seconds that the witness has to speak
_LEAVES, _FAILED, _REPORT = b"-", b"!", b"r"  # the first byte of what it hears
_TO_HOST = ("sent_messages", "sent_bytes", "received_bytes", "requests", "answered_ns")  # counters, by host
_TO_TRAINER = ("group_sent_bytes", "group_received_bytes")  # counters, by trainer
_EXITING = 4  # PF_EXITING of Linux's include/linux/sched.h: set before a process gives back what it has


def pid_namespace() -> str:
    """Return the name of the namespace of this process's id; "" where there can be no witness."""
    try:
        os.close(os.pidfd_open(os.getpid()))  # Linux before 5.3 cannot, and some containers forbid it
        return os.readlink("/proc/self/ns/pid")
    except (AttributeError, OSError):
        return ""


def say_goodbye(failed: bool, text: str = "") -> None:
    """Tell the witness that this process ends and has said why; wait until the witness has spoken, too.

    Args:
        failed: it ends because of an error, whose cause may be another rank's death.
        text: what it has said.
    """
    while _addresses:
        _tell(_addresses.pop(), (_FAILED if failed else _LEAVES) + text.encode(errors="replace"))


def _tell(address: str, message: bytes) -> None:
    """Send the witness a message, and wait until it has been acted upon, or the witness has ended."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as out:
        out.settimeout(_SPEAKING_TIME)
        out.connect(address)
        out.sendall(message)
        out.shutdown(socket.SHUT_WR)
        out.recv(1)


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
        self._address = f"\0{address}"
        _addresses.append(self._address)
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

    def expect(self, path: str = "", summary: Mapping[str, Any] | None = None) -> None:
        """Have the witness write a file if the job dies from now on; "": none.

        Args:
            path: of the file; its folder is made.
            summary: what is known of a report now (``reports/summary.py``), with the ranks of this node in their order.
        """
        _tell(self._address, _REPORT + json.dumps([path, summary]).encode())

    def close(self) -> None:
        """End the process, unless another rank has done so."""
        say_goodbye(failed=False)
        if hasattr(self, "_process"):
            self._process.wait()


def _look(addresses: list[list[int]], names: list[str], inbox: socket.socket) -> None:
    """Wait for a goodbye, or for the first rank that dies without one; print which rank died, and write the report."""
    traces = _traces(addresses)
    pids = [pid for pid, *_ in addresses]
    poll = select.poll()
    poll.register(inbox, select.POLLIN)
    ranks: dict[int, int] = {}
    dead = set[int]()
    report = _Report(traces)
    for rank, pid in enumerate(pids):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            dead.add(rank)
            continue
        ranks[handle] = rank
        poll.register(handle, select.POLLIN)
    while True:
        ready = set() if dead else {handle for handle, _ in poll.poll()}
        ready |= {handle for handle, _ in poll.poll(0)}  # a goodbye comes before the end
        if inbox.fileno() not in ready:
            dead |= {rank for handle, rank in ranks.items() if handle in ready}
            report.write(_print_obituary({names[rank]: traces[rank].last() for rank in dead}))
            return
        with inbox.accept()[0] as connection:  # the other end waits until it is closed
            message = _hear(connection)
            if message[:1] == _REPORT:
                report.expect(message[1:])
                continue
            if message[:1] == _FAILED:
                ending = {names[rank]: traces[rank].last() for rank, pid in enumerate(pids) if _ends(pid)}
                report.write(message[1:].decode() + _print_obituary(ending))
            return


def _hear(connection: socket.socket) -> bytes:
    message = bytearray()
    with suppress(OSError):  # who sends may be stopped in the middle
        connection.settimeout(_SPEAKING_TIME / 5)
        while piece := connection.recv(1 << 16):
            message += piece
    return bytes(message)


class _Report:
    """The report that is being made, if there is one."""

    def __init__(self, traces: Sequence[Any]) -> None:
        self._traces = traces
        self._path = ""

    def expect(self, message: bytes) -> None:
        """Note what to write if the job dies from now on."""
        self._path, self._summary = json.loads(message)
        self._began = time.monotonic()
        self._before = [trace.sums() for trace in self._traces]

    def write(self, ended: str) -> None:
        """Write what is known."""
        if not self._path:
            return
        seconds = time.monotonic() - self._began
        self._summary |= {"complete": False, "ended": ended}
        self._summary["job"]["seconds"] = seconds
        for rank, trace, before in zip(self._summary["ranks"], self._traces, self._before, strict=True):
            rank |= fields_of_rank(before, trace.sums(), seconds)
            rank |= {"seconds": seconds, "last_spans": trace.last()}
        with suppress(OSError):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            part = f"{self._path}.{os.getpid()}"
            with open(part, "w") as file:
                json.dump(self._summary, file)
            os.replace(part, self._path)


def fields_of_rank(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the fields of a rank (``reports/summary.py``) that come from sums.

    Args:
        before: the sums by thread (:func:`mpigraph.trace.sums`) some seconds ago.
        after: now.
        seconds: between both.
    """
    threads, counts = [], dict[Any, int]()
    for name, now in after.items():
        passed = now.since(before[name]) if name in before else now
        stages = {}
        for stage, (total, histogram, own) in passed.stages.items():
            if not total:
                continue
            last = max((place for place, number in enumerate(histogram, 1) if number), default=0)
            stages[stage] = {
                "seconds": max(total, 0.0), "own": max(own, 0.0), "count": sum(histogram), "histogram": histogram[:last]
            }  # fmt: skip
        if stages:
            threads.append({"name": name, "stages": stages, "rest": seconds - sum(s["own"] for s in stages.values())})
        for key, number in passed.counts.items():
            counts[key] = counts.get(key, 0) + number
    of_ranks: dict[str, dict[int, int]] = {}
    for key, number in counts.items():
        if isinstance(key, tuple) and number > 0:
            of_ranks.setdefault(key[0], {})[key[1]] = number

    def lines(names: Sequence[str]) -> list[list[int]]:
        numbers = [of_ranks.get(name, {}) for name in names]
        return [[rank, *(of.get(rank, 0) for of in numbers)] for rank in sorted(set().union(*numbers))]

    return {
        "threads": threads,
        "to_hosts": [[*numbers, waited / 1e9] for *numbers, waited in lines(_TO_HOST)],
        "to_trainers": lines(_TO_TRAINER),
    }


def _traces(addresses: list[list[int]]) -> list[Any]:
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "trace_memory.py")
    reader = run_path(path)["Trace"]
    return [reader(tuple(address)) for address in addresses]


def _ends(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return bool(int(file.read().rpartition(b")")[2].split()[6]) & _EXITING)
    except FileNotFoundError:
        return True


def _print_obituary(last: Mapping[str, str]) -> str:
    """Print who died, with the last spans of each, and return it."""
    if not last:
        return ""
    now = time.time()
    at = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"
    names = sorted(last)
    text = f"[mpigraph] {', '.join(names)} on host {os.uname().nodename} died at {at}; the job is ended\n"
    text += "".join(f"[mpigraph] last spans of {name}: {last[name]}\n" for name in names if last[name])
    with suppress(OSError):
        os.write(2, text.encode())
    return text


if __name__ == "__main__":
    looked_at, called = json.loads(sys.argv[1])
    _look(looked_at, called, socket.socket(fileno=int(sys.argv[2])))
