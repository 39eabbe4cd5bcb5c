"""A warm Python that tests fork jobs from: torch and Numba are imported once, not by every rank of every job.

It runs without MPI. :mod:`zygote_rank` is what a launcher starts in place of ``python``: it sends its arguments, its
environment, its directory and its open files here, and ends as the process ends that is forked for it. That process
enters the namespaces of who asked, runs the script as ``__main__`` does, imports the library itself, and meets MPI as
if the launcher had started it, by the files that it was given.
"""

import array
import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import types
from typing import Any

from mpigraph import config

MOST = 512  # files that a launcher leaves open for a rank


def preload() -> None:
    """Import what takes long and does not look at MPI or at the environment."""
    import h5py  # noqa: F401
    import numba  # noqa: F401
    import torch._dynamo  # the first optimizer of a process imports it, for more than a second
    import torch.distributed  # noqa: F401

    from mpigraph.kernels import warm_up

    warm_up()
    gc.collect()
    gc.freeze()  # no rank looks at all of this, and copies its memory, whenever it collects rubbish, as at its end


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What a rank is to be, and its open files."""
    files = array.array("i")
    data, extra, _, _ = connection.recvmsg(1 << 16, socket.CMSG_LEN(MOST * files.itemsize))
    for _, _, numbers in extra:
        files.frombytes(numbers)
    size, _, text = data.partition(b"\n")
    while len(text) < int(size):
        text += connection.recv(1 << 16)
    return json.loads(text), files.tolist()


def serve(path: str) -> tuple[dict[str, Any], list[int]]:
    """Fork ranks until standard input ends; return in each of them with what it is to be."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    os.rename(f"{path}.new", path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return watch_over(connection)
        connection.close()


def watch_over(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork a rank, return in it, and tell how it ends; it ends with who asked for it."""
    job, files = receive(connection)
    job["pid"], _, _ = struct.unpack("iii", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    pid = os.fork()
    if pid == 0:
        connection.close()
        return job, files
    for number in files:
        os.close(number)
    end = os.pidfd_open(pid)
    connection.send(b"%d\n" % pid)
    ready, _, _ = select.select([end, connection], [], [])
    if end not in ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    try:
        connection.send(b"%d\n" % status)
    except OSError:
        pass  # whoever asked is gone
    os._exit(0)


def enter(pid: int) -> None:
    """Enter the namespaces of a process: its network, its name, its shared memory, its file systems."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name in ("net", "uts", "ipc", "mnt"):
        theirs, ours = f"/proc/{pid}/ns/{name}", f"/proc/self/ns/{name}"
        if os.readlink(theirs) != os.readlink(ours):
            with open(theirs, "rb") as namespace:
                assert libc.setns(namespace.fileno(), 0) == 0, os.strerror(ctypes.get_errno())


def become(job: dict[str, Any], files: list[int]) -> tuple[types.CodeType, dict[str, Any]]:
    """Make this process the one that the launcher meant to start; return its script and the names in it."""
    os.setsid()
    enter(job["pid"])
    aside = [os.dup2(number, MOST + i) for i, number in enumerate(files)]
    os.closerange(0, MOST)
    for number, at in zip(aside, job["files"], strict=True):
        os.dup2(number, at)
    os.closerange(MOST, MOST + len(aside))
    assert job["environment"].get("OMP_NUM_THREADS") == "1", "OpenMP has read its environment already"
    os.environ.clear()
    os.environ.update(job["environment"])
    config.disable_fast_boxes()  # as the library does when it is imported, which it is already
    os.chdir(job["directory"])
    tempfile.tempdir = None  # read TMPDIR again
    sys.stdin = open(0, closefd=False)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    arguments = job["arguments"]
    first, *rest = arguments[1:] if arguments[0] == "-u" else arguments  # lines are written at once
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        source = rest[0]
    elif first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        source = f"import runpy\nrunpy.run_module({rest[0]!r}, run_name='__main__', alter_sys=True)"
    else:
        sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.abspath(first))
        main.__file__ = first
        with open(first, encoding="utf-8") as file:
            source = file.read()
    for path in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if path:
            sys.path.insert(1, path)
    return compile(source, first, "exec"), vars(main)


if __name__ == "__main__":
    preload()
    exec(*become(*serve(sys.argv[1])))  # an error of the script ends this process as it ends any
