"""The way of one minibatch through the library, followed by the interpreter's profiler on two simulated hosts.

    PYTHONPATH=tests/support mpiexec -n 2 python tests/dataloading/test_trace.py

prints it. A minibatch begins in the prefetch thread's ``produce`` and ends when the batch is there, features and all.
Its *way down* is what stands on the stack whenever it calls MPI: what somebody reads who wants to know how a minibatch
comes about. The other files are leaves: types, ids, memory, compiled loops.
"""

import inspect
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from layouts import needs_threads

import mpigraph as mg
import mpigraph.distributed as dist

ROOT = str(Path(mg.__file__).parent)
MOST_FILES, MOST_FRAMES = 16, 11
MPI_CALLS = {"Get", "Ialltoall", "Ialltoallv", "Irecv", "Isend", "Rget"}
ROOMS = (
    "errors",
    "trace",
    "kernels",
    "mpi",
    "metadata",
    "storage",
    "rows",
    "store",
    "sampling",
    "graphs",
    "session",
    "distgraph",
)
NUM_NODES, DEGREE = 200, 6


@dataclass
class Trace:
    """What ran between the beginning of a minibatch and its end.

    Attributes:
        files: where a function ran.
        way_down: those that stood on the stack when MPI was called.
        first_round: file and function of each frame, from ``produce`` to the first ``Ialltoallv``.
        upward: calls from a room into one above it, resumed coroutines aside: caller and function.
    """

    files: set[str] = field(default_factory=set)
    way_down: set[str] = field(default_factory=set)
    first_round: list[tuple[str, str]] = field(default_factory=list)
    upward: set[tuple[str, str, str]] = field(default_factory=set)
    tracing: bool = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """See what the profiler sees."""
        if frame.f_code.co_name == "produce" and event in ("call", "return") and inside(frame):
            self.tracing = not self.files if event == "call" else False  # one minibatch
        if event != "call" or not self.tracing or not inside(frame):
            return
        self.files.add(file_of(frame))
        stack = stack_of(frame)
        if MPI_CALLS & set(frame.f_code.co_names):
            self.way_down |= {file_of(one) for one in stack}
            if "Ialltoallv" in frame.f_code.co_names and not self.first_round:
                self.first_round = [(file_of(one), one.f_code.co_name) for one in stack]
        caller = frame.f_back
        if caller is not None and inside(caller) and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            if height(caller) < height(frame):
                self.upward.add((file_of(caller), file_of(frame), frame.f_code.co_name))


def inside(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(ROOT)


def file_of(frame: FrameType) -> str:
    return frame.f_code.co_filename[len(ROOT) + 1 :]


def stack_of(frame: FrameType | None) -> list[FrameType]:
    """The library's frames from ``produce`` to this one."""
    found: list[FrameType] = []
    while frame is not None and (not found or found[-1].f_code.co_name != "produce"):
        if inside(frame):
            found.append(frame)
        frame = frame.f_back
    return found[::-1]


def height(frame: FrameType) -> int:
    """How high the room of a frame's file is; the highest for what is not listed."""
    room = file_of(frame).split("/")[0].removesuffix(".py")
    return ROOMS.index(room) if room in ROOMS else len(ROOMS)


def trace_minibatch(config: str) -> Trace:
    """Follow one minibatch of two hops with features; collective on the trainers."""
    g = dist.DistGraph("traced", part_config=config)
    seeds = dist.node_split(torch.ones(g.num_nodes(), dtype=torch.bool))
    options = {"batch_size": 8, "features": ["feat"], "labels": ["label"], "num_prefetch": 1, "cache": None}
    loader = dist.DistNodeDataLoader(g, seeds, mg.dataloading.NeighborSampler([5, 5]), **options)
    for _ in loader:
        pass  # loads compiled loops
    trace = Trace()
    threading.setprofile(trace)
    try:
        for _ in loader:
            pass
    finally:
        threading.setprofile(None)
    loader.close()
    return trace


def write_graph(folder: Path) -> str:
    src, step = torch.arange(NUM_NODES).repeat(DEGREE), torch.arange(DEGREE).repeat_interleave(NUM_NODES)
    graph = mg.graph((src, (src * 7 + step) % NUM_NODES), num_nodes=NUM_NODES)
    graph.ndata["feat"], graph.ndata["label"] = torch.ones(NUM_NODES, 4), torch.zeros(NUM_NODES)
    dist.partition_graph(graph, "traced", 2, folder, part_method="random")
    return str(folder / "traced.json")


def run(comm: Any, folder: Path) -> Trace:
    """Trace a minibatch on a communicator of two ranks, each a host on a node of its own."""
    config = comm.bcast(write_graph(folder) if comm.rank == 0 else None)
    dist.initialize(comm=comm, num_servers=0, ranks_per_node=1, timeout=40)
    try:
        return trace_minibatch(config)
    finally:
        dist.exit_client()


@needs_threads
@pytest.mark.parametrize("comm", [2], indirect=True)
def test_the_way_of_a_minibatch_is_short(comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIGRAPH_SAMPLING", "alltoallv")
    trace = run(comm, tmp_path)
    assert any(file.startswith("rows/") for file in trace.way_down)  # features were read from the other host
    assert len(trace.way_down) <= MOST_FILES, sorted(trace.way_down)
    assert 0 < len(trace.first_round) <= MOST_FRAMES, trace.first_round
    # Only mpi/agree.py calls upwards: work that may fail while MPI writes to memory, or others wait for this rank.
    assert {function for _, _, function in trace.upward} <= {"timed", "load_local", "begin", "_finish"}, trace.upward


def main() -> None:
    import started_mpi  # noqa: F401
    from mpi4py import MPI

    with tempfile.TemporaryDirectory() as folder:
        trace = run(MPI.COMM_WORLD, Path(folder))
    if MPI.COMM_WORLD.rank == 0:
        print(f"{len(trace.files)} files: {', '.join(sorted(trace.files))}")
        print(f"{len(trace.way_down)} on the way down: {', '.join(sorted(trace.way_down))}")
        print(f"{len(trace.first_round)} frames to the first Ialltoallv, in {len(dict(trace.first_round))} files:")
        for file, function in trace.first_round:
            print(f"    {file}: {function}")
        print(f"{len(trace.upward)} upward calls: {sorted(trace.upward)}")


if __name__ == "__main__":
    sys.exit(main())
