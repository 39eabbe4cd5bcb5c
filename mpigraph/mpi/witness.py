"""A small process on each node that says which rank died, when the launcher has ended all that could; or ends them.

A launcher kills the other ranks within milliseconds of the first that dies, and says neither its role nor, where
several have died, which was the first. The witness has a session of its own, which launchers do not kill, looks at the
ranks of its node, and ends with the first of them. On several nodes each has one: they do not talk to each other, and
the earliest time names the cause.

A launcher may not see that a rank died: MPICH's does not if it hears of that before the rank's socket is closed, on a
busy machine. Then the witness ends the other ranks of its node after some seconds, and the launcher sees their end.

A rank that leaves the job says so in the memory of its spans (:func:`mpigraph.trace.leave`). Who dies after that was
ended by the launcher.

This file is also the program that the process runs: it imports nothing else of the library but
:mod:`mpigraph.trace_memory`, by its path, and only what starts fast.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from runpy import run_path

_LAUNCHER_TIME = 10.0  # seconds that the launcher has to end the ranks of a node after the first


class Witness:
    """The process that looks at the ranks of a node, as the first of them has it."""

    def __init__(self, addresses: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        """Start it: ``addresses`` are :func:`mpigraph.trace.address` of the ranks."""
        import subprocess  # the witness itself does not need it

        words = [sys.executable, "-I", "-S", __file__, json.dumps([addresses, names])]
        none = subprocess.DEVNULL
        self._process = subprocess.Popen(words, stdin=none, stdout=none, start_new_session=True)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def _look(addresses: list[list[int]], names: list[str]) -> None:
    """Wait for the first rank that ends, and print which rank died if none has left the job."""
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
    for handle in ranks:
        poll.register(handle, select.POLLIN)
    dead = dead or [ranks[handle] for handle, _ in poll.poll()]
    if not any(trace.left for trace in traces):
        _print_obituary(sorted(names[rank] for rank in dead))
        spans = {names[rank]: traces[rank].last() for rank in dead}
        _print("".join(f"[mpigraph] last spans of {name}: {spans[name]}\n" for name in sorted(spans) if spans[name]))
        time.sleep(_LAUNCHER_TIME)
        for handle in ranks:
            with suppress(OSError):  # it has ended
                signal.pidfd_send_signal(handle, signal.SIGKILL)


def _print_obituary(names: Sequence[str]) -> None:
    """Print who died, before anything else: some launchers drop what is printed after they have ended the ranks."""
    now = time.time()
    at = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"
    _print(f"[mpigraph] {', '.join(names)} on host {os.uname().nodename} died at {at}; the job is ended\n")


def _print(text: str) -> None:
    with suppress(OSError):
        os.write(2, text.encode())


if __name__ == "__main__":
    _look(*json.loads(sys.argv[1]))
