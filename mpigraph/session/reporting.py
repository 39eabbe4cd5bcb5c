"""A rank's part in reports: all ranks begin and end one together, and trainer 0 gathers and writes it.

Until a report has ended, the witness of each node has what is known of the node's ranks, and writes that if the job
dies: on trainer 0's node as ``summary.json``, on the others as ``summary-NODE.json``.
"""

import json
import os
import platform
import socket
import sys
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mpi4py import MPI

from mpigraph import config, trace
from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError, MPIGraphError
from mpigraph.log import get_logger
from mpigraph.memory import held_memory, process_figures
from mpigraph.mpi.agree import allgather_bytes, describe, gather_bytes
from mpigraph.mpi.compat import library_version
from mpigraph.mpi.coroutine import Coroutine, run
from mpigraph.mpi.wait import NOW
from mpigraph.recording import STEP_FIELDS, Recording, Track, at_each_step
from mpigraph.reports import summary as report
from mpigraph.reports.page import write_page
from mpigraph.store.store import Store
from mpigraph.trace import Snapshot, clock

# The clocks of other nodes, compared with that of one rank.
#
# A rank asks another one for its time; the answer was read at some moment between question and arrival. So the middle
# of both is at most half a round trip wrong, and of several round trips the fastest counts (F. Cristian, Probabilistic
# clock synchronization, Distributed Computing 3, 1989). Two comparisons, at the begin and at the end of what is
# measured, also tell how the clocks drift in between.

_TAG = 33
_TRIPS = 20


class Ahead(NamedTuple):
    """A comparison of another rank's clock with one's own.

    Attributes:
        at: one's own time, in seconds.
        seconds: by which the other clock was ahead.
        error: of that, at most.
    """

    at: float = 0.0
    seconds: float = 0.0
    error: float = 0.0


class Drift(NamedTuple):
    """Two comparisons with the same clock."""

    begin: Ahead = Ahead()
    end: Ahead = Ahead()

    @property
    def error(self) -> float:
        """The largest error of a time between both, in seconds, where the clock drifts evenly."""
        return max(self.begin.error, self.end.error)

    def own_time(self, theirs: float) -> float:
        """Return the time of one's own clock at a time of the other, both in seconds."""
        (begin, first, _), (end, last, _) = self
        if end <= begin:
            return theirs - first
        return begin + (theirs - begin - first) * (end - begin) / (end + last - begin - first)


@collective("comm")
def compare_clocks(comm: MPI.Intracomm, asking: int, asked: Sequence[int]) -> list[Ahead]:
    """Return on the rank ``asking`` how far the clock of each of the ranks ``asked`` is ahead; [] on the others."""
    if comm.rank == asking:
        return [run(_ask(comm, rank), policy=NOW) for rank in asked]
    if comm.rank in asked:
        run(_answer(comm, asking), policy=NOW)
    return []


def _ask(comm: MPI.Intracomm, rank: int) -> Coroutine[Ahead]:
    answer = np.empty(1)
    trips = []
    for _ in range(_TRIPS):
        begin = clock()
        yield comm.Isend(answer, rank, _TAG)
        yield comm.Irecv(answer, rank, _TAG)
        end = clock()
        middle = (begin + end) / 2
        trips.append(Ahead(middle, float(answer[0]) - middle, (end - begin) / 2))
    return min(trips, key=lambda trip: trip.error)


def _answer(comm: MPI.Intracomm, rank: int) -> Coroutine[None]:
    time = np.empty(1)
    for _ in range(_TRIPS):
        yield comm.Irecv(time, rank, _TAG)
        time[0] = clock()
        yield comm.Isend(time, rank, _TAG)


MOST_SPANS = 4096
"""Spans of a thread that a report without a window of steps has: the last ones."""

MOST_STEPS = 1000
"""Steps of a trainer that a report has: the last ones."""

_EPOCHS = 100  # that have numbers of the cache; the first of them has those of earlier ones, too
_APART = 0.1  # seconds between two looks at the memory that this process holds: they cost 0.1 ms
_ROOM = 1 << 16  # spans of a thread in a window of steps
_ALL_SPANS = 4_000_000  # of all ranks together
_LEAST_SPANS = 10_000  # of a rank, whatever their number
_OF_CACHE = ("remote_rows", "cached_rows", "fetched_rows", "fetched_bytes")
_TO_HOST = ("sent_messages", "sent_bytes", "received_bytes", "requests", "answered_ns")  # counters, by host
_TO_TRAINER = ("group_sent_bytes", "group_received_bytes")  # counters, by trainer
_USED = ("cpu_seconds", "run_delay_seconds", "major_faults", "memory_pressure_seconds")
_FILES = ("summary.json", "trace.json.gz", "report.html")
_SPAN = np.dtype([("name", "u2"), ("detail", "u4"), ("batch", "i8"), ("begin", "i8"), ("end", "i8")])


Span = tuple[str, float, float, str, int]
"""A span as in :meth:`.TraceWriter.thread`: stage, begin, end, more words, minibatch."""


class Reporting:
    """Makes the reports of a job, one at a time, on this rank.

    Attributes:
        folder: of the report that is being made, as the user gave it; "" without one.
        left: its block was left by an error that other trainers need not have; it ends with the job, or as the next one
            begins.
    """

    def __init__(self, store: Store) -> None:
        world = store.world
        self._store = store
        self._world = world
        self._root = int(world.trainer_ranks[0])
        followed = world.trainer_ranks[world.nodes_of_trainers == world.node_index][0]
        self._followed = int((world.node_of[:followed] == world.node_index).sum())  # its rank in the node
        self._firsts = np.unique(world.node_of, return_index=True)[1].tolist()  # of each node, the first rank
        self._node = int(world.nodes_of_trainers[0])
        self.folder = ""
        self.left = False
        self.arguments: Mapping[str, object] = {}  # of ``initialize()``

    @collective("world.comm")
    def begin(self, folder: str, window: tuple[int, int] | None = None) -> None:
        """Begin a report; ``window``: the first step to record, and the first one after those.

        Raises InvalidArgumentError, on every rank, if the folder cannot be written to.
        """
        self.finish()
        world = self._world
        self._steps = self._own_steps()[0] = 0
        with world.on_all_ranks("making the folder of the report"):
            if world.rank == self._root:
                prepare_folder(folder)
        told = json.dumps([os.path.abspath(folder), socket.gethostname()]).encode()
        everyone = [json.loads(data) for data in allgather_bytes(world.comm, told)]
        self._path = Path(everyone[self._root][0])
        names = [everyone[rank][1] for rank in self._firsts]
        alike = len(set(names)) < len(names)  # simulated nodes
        self._nodes = [report.Node(f"{name}.{node}" if alike else name) for node, name in enumerate(names)]
        self._began = time.time()
        self._clocks = [self._compare_clocks()]
        self._window = window
        self.folder, self.left = folder, False
        self._in_window = False
        self._record(MOST_SPANS)
        if world.is_trainer:
            self._base = at_each_step(self._at_step)
            self._at_step(self._base)
        self._tell_witness()

    @collective("world.comm")
    def end(self, because: str = "") -> None:
        """End the report, maybe early ``because`` of an error, and write it on trainer 0.

        Raises StorageError, on every rank, if it cannot be written.
        """
        world = self._world
        at_each_step(None)
        self._stop()
        self._clocks.append(self._compare_clocks())
        ranks = gather_bytes(world.comm, self._rank(), self._root)
        tracks = gather_bytes(world.comm, self._tracks(), self._root)
        folder, self.folder = self.folder, ""
        with world.on_all_ranks(f"writing the report {folder}"):
            if world.rank == self._root:
                self._write(ranks, tracks, because)
        self._tell_witness()

    @collective("world.comm")
    def finish(self) -> None:
        """End the report, if there is one, as the job ends; if it cannot be written, only warn."""
        if self.folder:
            try:
                self.end()
            except MPIGraphError as error:
                if self._world.rank == self._root:
                    get_logger().warning("the report is lost: %s", describe(error))

    def _compare_clocks(self) -> dict[int, Ahead]:
        """Return on trainer 0 by node how far the clocks of other nodes are ahead."""
        first = {node: rank for node, rank in enumerate(self._firsts) if node != self._node}
        return dict(zip(first, compare_clocks(self._world.comm, self._root, list(first.values())), strict=False))

    def _record(self, most_spans: int) -> None:
        self._before = process_figures()
        self._epochs: deque[list[int]] = deque(maxlen=_EPOCHS)
        self._memory: deque[tuple[float, int]] = deque(maxlen=MOST_STEPS)
        self._counts = [trace.counted(_OF_CACHE)]
        self._recording = Recording(most_spans)

    def _stop(self) -> None:
        if not self._recording.end:
            self._recording.stop()
            self._counts.append(trace.counted(_OF_CACHE))
            self._after = process_figures()

    def _at_step(self, done: int) -> None:
        """Record anew and stop where the window does; this trainer has done some steps."""
        if self._world.forked:  # the recording, and the number on the node's board, are the trainer's
            return
        self._own_steps()[0] = done - self._base
        if not self._recording.end:
            self._reach(done - self._base)

    def end_epoch(self) -> None:
        """Note that a loader's epoch is over."""
        if self.folder and not self._recording.end:
            self._epochs.append(trace.counted(_OF_CACHE))

    def follow(self) -> None:
        """On a server: go along with the first trainer of the node, whose loop this one cannot see."""
        if self.folder and not self._recording.end:
            self._reach(int(self._world.watchdog.board.steps[self._followed][0]))

    def _reach(self, steps: int) -> None:
        now = trace.clock()
        if not self._memory or now - self._memory[-1][0] > _APART:
            self._memory.append((now, held_memory()))
        self._steps = steps
        if self._window is None:
            return
        first, last = self._window
        if steps >= first and not self._in_window:
            self._stop()
            self._record(_ROOM)
            self._in_window = True
        if steps >= last:
            self._stop()

    def _own_steps(self) -> I64:
        return self._world.watchdog.board.steps[self._world.node.rank]

    # ---- what this rank tells ----------------------------------------------------------------------------------------

    def _known(self, rank: int) -> report.Rank:
        """Return what every rank knows of a rank."""
        world = self._world
        trains = bool((world.trainer_ranks == rank).any())
        peers = world.trainer_ranks if trains else np.setdiff1d(world.hosts, world.trainer_ranks)
        return report.Rank(
            rank=rank,
            role="trainer" if trains else "server",
            number=int(np.searchsorted(peers, rank)),
            node=int(world.node_of[rank]),
            hosts=bool((world.hosts == rank).any()),
            pid=int(world.pids[rank]),
        )

    def _rank(self) -> bytes:
        """Return what this rank tells of itself, a :class:`.Rank` as JSON; times of steps on its own clock."""
        recording = self._recording
        rank = self._known(self._world.rank)
        rank.seconds = (recording.end - recording.begin) / 1e9
        rank.cpu = report.Cpu(*(self._used(name) for name in _USED))
        _put_sums(rank, recording)
        counts = [self._counts[0], *self._epochs, self._counts[1]]
        epochs = [report.CacheEpoch(*counts) for counts in np.maximum(np.diff(counts, axis=0), 0).tolist() if counts[0]]
        rank.cache = report.Cache(epochs)
        steps = np.frombuffer(recording.steps, np.int64).reshape(-1, len(STEP_FIELDS))[-MOST_STEPS:]
        begin, end, wait, meet, delay, seeds, inputs = steps.T
        times = ((column / 1e9).round(7).tolist() for column in (begin, end - begin, wait, meet))
        rank.steps = report.Steps(*times, *(np.maximum(column, 0).tolist() for column in (seeds, inputs)))
        if (delay >= 0).any():  # not in a step in which the recording has begun
            rank.steps.delay = (np.maximum(delay, 0) / 1e9).round(7).tolist()
        return report.encode(rank)

    def _used(self, name: str) -> Any:
        """Return what came to a figure of this process; threads that have ended take theirs away."""
        before, after = self._before[name], self._after[name]
        return None if before is None or after is None else max(after - before, 0)

    def _tracks(self) -> bytes:
        """Return the spans of this rank: a line of JSON, then :data:`_SPAN` of all threads."""
        most = max(_LEAST_SPANS, _ALL_SPANS // self._world.size)
        tracks = self._recording.tracks
        packed = [_pack(track, most // max(1, len(tracks))) for track in tracks]
        heads = json.dumps([list(self._memory), [head for head, _ in packed]])
        return b"".join([heads.encode(), b"\n", *(spans.tobytes() for _, spans in packed)])

    def _job(self) -> report.Job:
        store = self._store
        transport = store.rows.transport
        given = torch.distributed.is_available() and torch.distributed.is_initialized()
        return report.Job(
            began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began)),
            seconds=max(time.time() - self._began, 0.0),
            versions={
                "mpigraph": sys.modules["mpigraph"].__version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
                "mpi": library_version(),
            },
            transport=transport.name if transport else "",
            exchange=store.exchange.name,
            process_group=str(torch.distributed.get_backend()) if given else "",
            arguments={name: str(value) for name, value in self.arguments.items() if value is not None},
            settings=config.variables(),
            graphs=[
                report.GraphSize(
                    name,
                    sum(int(offsets[-1]) for offsets in graph.topology.hosts.node_offsets),
                    sum(int(offsets[-1]) for offsets in graph.topology.hosts.edge_offsets),
                )
                for name, graph in store.graphs.items()
            ],
            command=sys.argv,
        )

    def _tell_witness(self) -> None:
        """Tell the witness of this node what to write if the job dies."""
        world = self._world
        if world.witness is None:
            return
        if not self.folder:
            world.witness.expect()
            return
        ranks = [self._known(rank) for rank in np.flatnonzero(world.node_of == world.node_index).tolist()]
        summary = report.Summary(complete=False, job=self._job(), nodes=self._nodes, ranks=ranks)
        name = _FILES[0] if world.node_index == self._node else f"summary-{world.node_index}.json"
        world.witness.expect(str(self._path / name), json.loads(report.encode(summary)))

    # ---- what trainer 0 makes of it ----------------------------------------------------------------------------------

    def _write(self, messages: list[bytes], tracks: list[bytes], ended: str) -> None:
        ranks = [report.decode(report.Rank, data, f"what rank {rank} told") for rank, data in enumerate(messages)]
        recordings = [_Recorded(data) for data in tracks]
        zero = self._recording.begin / 1e9
        drifts = [Drift(*(clocks.get(rank.node, Ahead()) for clocks in self._clocks)) for rank in ranks]
        for rank, drift in zip(ranks, drifts, strict=True):
            rank.steps.begin = [round(drift.own_time(begin) - zero, 7) for begin in rank.steps.begin]
        summary = report.Summary(
            complete=not ended,
            ended=ended,
            job=self._job(),
            clock_error=max((drift.error for drift in drifts), default=0.0),
            nodes=self._nodes,
            ranks=ranks,
        )
        first = ranks[self._root].steps
        if self._window is not None:
            summary.job.asked = report.Window(*self._window)
            if self._in_window:  # its first step may not have come
                last = min(self._steps, self._window[1])
                summary.job.window = report.Window(last - len(first.seconds), last)
        with report.writing_trace(self._path / _FILES[1], summary) as writer:
            for rank, recorded, drift in zip(ranks, recordings, drifts, strict=True):
                points = ((drift.own_time(seconds) - zero, size) for seconds, size in recorded.memory)
                writer.counter(rank.rank, "memory", points)
                writer.counter(rank.rank, "input nodes", zip(rank.steps.begin, rank.steps.inputs, strict=True))
                for thread, spans in recorded.threads(drift, zero):
                    writer.thread(rank.rank, thread, spans)
        report.write(self._path, summary)
        write_page(self._path, summary)
        get_logger().info("the report is %s", self._path / _FILES[2])


def _put_sums(rank: report.Rank, recording: Recording) -> None:
    """Set the fields of a rank that come from sums of its spans and counters."""
    counts = Counter[tuple[str, int]]()  # of the counters that have hosts
    for name, after in recording.after.items():
        passed = after.since(recording.before.get(name, Snapshot()))
        stages = {
            stage: report.Stage(
                max(seconds, 0.0), max(own, 0.0), sum(bins), np.trim_zeros(np.array(bins), "b").tolist()
            )
            for stage, (seconds, bins, own) in passed.stages.items()
            if seconds
        }
        if stages:
            rank.threads.append(report.Thread(name, stages, rank.seconds - sum(stage.own for stage in stages.values())))
        counts.update({key: number for key, number in passed.counts.items() if isinstance(key, tuple) and number > 0})

    def lines(names: Sequence[str]) -> list[list[int]]:
        peers = sorted({peer for name, peer in counts if name in names})
        return [[peer, *(counts[name, peer] for name in names)] for peer in peers]

    rank.to_hosts = [report.ToHost._make([*numbers, waited / 1e9]) for *numbers, waited in lines(_TO_HOST)]
    rank.to_trainers = [report.ToTrainer(*numbers) for numbers in lines(_TO_TRAINER)]


class _Recorded:
    """The spans of a rank, as :meth:`Reporting._tracks` tells them."""

    def __init__(self, data: bytes) -> None:
        head, _, spans = data.partition(b"\n")
        self.memory, self._heads = json.loads(head)
        self._spans = np.frombuffer(spans, _SPAN)

    def threads(self, drift: Drift, zero: float) -> Iterator[tuple[str, list[Span]]]:
        """Yield each thread's name and spans."""
        at = 0
        for name, names, details, number in self._heads:
            rows = self._spans[at : at + number].tolist()
            at += number
            times = ([drift.own_time(ns / 1e9) - zero for ns in row[3:]] for row in rows)
            yield name, [(names[row[0]], *both, details[row[1]], row[2]) for row, both in zip(rows, times, strict=True)]


def _pack(track: Track, most: int) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """Return the name of a thread, names, details, and number of its last spans; and these as :data:`_SPAN`."""
    numbers = np.frombuffer(track.spans, np.int64).reshape(-1, 4)[-most:]
    details = track.details[len(track.details) - len(numbers) :]
    places = {detail: place for place, detail in enumerate(dict.fromkeys(details))}
    spans = np.empty(len(numbers), _SPAN)
    for name, column in zip(("name", "batch", "begin", "end"), numbers.T, strict=True):
        spans[name] = column
    spans["detail"] = [places[detail] for detail in details]
    return [track.thread, list(track.names), list(places), len(spans)], spans


def prepare_folder(name: str) -> None:
    """Make the folder of a report, check that it can be written to, and remove the report that is in it.

    Raises InvalidArgumentError if it cannot, or has a file of the user's with a report's name.
    """
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / f".{_FILES[0]}.{os.getpid()}"
        trial.write_bytes(b"{}")
        trial.unlink()
        old = [path for name in (*_FILES, "summary-[0-9]*.json") for path in folder.glob(name)]
        for path in old:
            if not _is_of_a_report(path):
                raise InvalidArgumentError(
                    f"a report would replace {path}, which mpigraph did not write: give another folder, or remove it"
                )
        for path in old:
            path.unlink()
    except (OSError, ValueError) as error:  # the latter for names that no file can have
        why = getattr(error, "strerror", None) or error
        raise InvalidArgumentError(
            f"the folder of a report must be one that trainer 0 can write to (got {name!r}: {why})"
        ) from error


def _is_of_a_report(path: Path) -> bool:
    """Return whether a file's first bytes are those of a report."""
    with path.open("rb") as file:
        begin = file.read(1 << 10)
    if path.suffix == ".gz":
        with suppress(zlib.error):
            begin = zlib.decompressobj(wbits=31).decompress(begin, 1 << 10)
    return b"mpigraph" in begin
