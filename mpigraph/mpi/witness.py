"""A small process on each node that says which rank died, when the launcher has ended all that could.

A launcher kills the other ranks within milliseconds of the first that dies, and says neither its role nor, where
several have died, which was the first. The witness has a session of its own, which launchers do not kill, looks at the
ranks of its node, and ends with the first of them. On several nodes each has one: they do not talk to each other, and
the earliest time names the cause.

A rank that leaves the job says so in the memory of its spans (:func:`mpigraph.trace.leave`), and why. Who dies after
that was ended by the launcher.

While a report is being made, the witness has what is known of the ranks (:meth:`Witness.expect`). If the job dies, it
writes that with their last spans, from memory that outlives them.

This file is also the program that the process runs: it imports nothing else of the library but
:mod:`mpigraph.trace_memory`, by its path, and only what starts fast.
"""

import json
import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from runpy import run_path
from typing import Any


class Witness:
    """The process that looks at the ranks of a node, as the first of them has it."""

    def __init__(self, addresses: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        """Start it: ``addresses`` are :func:`mpigraph.trace.address` of the ranks."""
        import subprocess  # the witness itself does not need it

        words = [sys.executable, "-I", "-S", __file__, json.dumps([addresses, names])]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def expect(self, path: str = "", summary: Mapping[str, Any] | None = None) -> None:
        """Have the witness write a file if the job dies from now on; "": none.

        Args:
            path: of the file; its folder is made.
            summary: what is known of a report now (``reports/summary.py``), with the ranks of this node in their order.
        """
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, if the kernel does not let it look at the ranks
            self._process.stdin.write(json.dumps([path, summary]).encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def _look(addresses: list[list[int]], names: list[str]) -> None:
    """Wait for the first rank that ends; print which rank died if none has left the job, and write the report."""
    read = run_path(os.path.join(os.path.dirname(__file__), os.pardir, "trace_memory.py"))["Trace"]
    traces = [read(tuple(address)) for address in addresses]
    ranks, dead = dict[int, int](), list[int]()
    for rank, address in enumerate(addresses):
        try:
            ranks[os.pidfd_open(address[0])] = rank
        except ProcessLookupError:  # it has died since
            dead.append(rank)
        except (AttributeError, OSError):  # Linux before 5.3 has no such call, and some containers forbid it
            return
    poll = select.poll()
    for handle in [0, *ranks]:
        poll.register(handle, select.POLLIN)
    report = _Report(traces)
    heard = b""
    while not dead and not (dead := [ranks[handle] for handle, _ in poll.poll() if handle in ranks]):
        piece = os.read(0, 1 << 16)
        *lines, heard = (heard + piece).split(b"\n")
        for line in lines:
            report.expect(line)
        if not piece:  # the first rank ends
            poll.unregister(0)
    said = [words for trace in traces if (words := trace.last_words()) is not None]
    report.write("".join(said) if said else _print_obituary({names[rank]: traces[rank].last() for rank in dead}))


class _Report:
    """The report that is being made, if there is one."""

    def __init__(self, traces: Sequence[Any]) -> None:
        self._traces = traces
        self._path = ""

    def expect(self, message: bytes) -> None:
        """Note what to write if the job dies from now on."""
        self._path, self._summary = json.loads(message)
        self._began = time.monotonic()

    def write(self, ended: str) -> None:
        """Write what is known."""
        if not (self._path and ended):
            return
        seconds = time.monotonic() - self._began
        self._summary |= {"complete": False, "ended": ended}
        self._summary["job"]["seconds"] = seconds
        for rank, trace in zip(self._summary["ranks"], self._traces, strict=True):
            rank |= {"seconds": seconds, "last_spans": trace.last()}
        with suppress(OSError):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            part = f"{self._path}.{os.getpid()}"
            with open(part, "w") as file:
                json.dump(self._summary, file)
            os.replace(part, self._path)


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
    _look(*json.loads(sys.argv[1]))
