"""A rank's part in reports: all ranks begin and end one together, and trainer 0 gathers and writes it."""

import os
import platform
import socket
import sys
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph import config
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError, MPIGraphError
from mpigraph.log import get_logger
from mpigraph.memory import process_figures
from mpigraph.mpi.agree import describe, gather_bytes
from mpigraph.mpi.compat import library_version
from mpigraph.recording import Recording
from mpigraph.reports import summary as report
from mpigraph.reports.page import write_page
from mpigraph.store.store import Store
from mpigraph.trace import Snapshot

_ALL_SPANS = 4_000_000  # of all ranks together
_LEAST_SPANS = 10_000  # of a rank, whatever their number
_TO_HOST = ("sent_messages", "sent_bytes", "received_bytes", "requests", "answered_ns")  # counters, by host
_TO_TRAINER = ("group_sent_bytes", "group_received_bytes")  # counters, by trainer
_USED = ("cpu_seconds", "run_delay_seconds", "major_faults", "memory_pressure_seconds")
_FILES = (report.FILE, report.TRACE, report.PAGE)


class Reporting:
    """Makes the reports of a job, one at a time, on this rank.

    Attributes:
        folder: of the report that is being made, as the user gave it; "" without one.
        left: its block was left by an error, which other trainers need not have; it ends with the job, or as the next
            one begins.
        arguments: those of ``initialize()``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._world = store.world
        self._root = int(store.world.trainer_ranks[0])
        self.folder = ""
        self.left = False
        self.arguments: Mapping[str, object] = {}

    @collective("world.comm")
    def begin(self, folder: str) -> None:
        """Begin a report. Raises InvalidArgumentError, on every rank, if the folder cannot be written to."""
        self.finish()
        world = self._world
        with world.on_all_ranks("making the folder of the report"):
            if world.rank == self._root:
                prepare_folder(folder)
        self._path = Path(os.path.abspath(folder))
        self._began = time.time()
        self.folder, self.left = folder, False
        self._before = process_figures()
        world.barrier("beginning a report")  # at this moment all recordings begin
        self._recording = Recording()

    @collective("world.comm")
    def end(self) -> None:
        """End the report, and write it on trainer 0. Raises StorageError, on every rank, if it cannot be written."""
        world, recording = self._world, self._recording
        world.barrier("ending a report")
        recording.stop()
        used = process_figures()
        nanoseconds = np.array([recording.end - recording.begin], np.int64)
        world.comm.Bcast(nanoseconds, self._root)
        names = gather_bytes(world.comm, socket.gethostname().encode(), self._root)
        ranks = gather_bytes(world.comm, report.encode(self._rank(used)), self._root)
        traces = gather_bytes(world.comm, zlib.compress(self._spans(int(nanoseconds[0])), 1), self._root)
        folder, self.folder = self.folder, ""
        with world.on_all_ranks(f"writing the report {folder}"):
            if world.rank == self._root:
                self._write([name.decode() for name in names], ranks, traces)

    @collective("world.comm")
    def finish(self) -> None:
        """End the report, if there is one, as the job ends; if it cannot be written, only warn."""
        if self.folder:
            try:
                self.end()
            except MPIGraphError as error:
                if self._world.rank == self._root:
                    get_logger().warning("the report is lost: %s", describe(error))

    def _rank(self, used: Mapping[str, float | None]) -> report.Rank:
        """Return what this rank tells of itself."""
        world, recording = self._world, self._recording
        peers = world.trainer_ranks if world.is_trainer else np.setdiff1d(world.hosts, world.trainer_ranks)
        rank = report.Rank(
            rank=world.rank,
            role="trainer" if world.is_trainer else "server",
            number=int(np.searchsorted(peers, world.rank)),
            node=world.node_index,
            hosts=world.is_host,
            pid=os.getpid(),
            seconds=(recording.end - recording.begin) / 1e9,
            cpu=report.Cpu(*(_increase(self._before[name], used[name]) for name in _USED)),
        )
        _put_sums(rank, recording)
        if recording.steps:
            *times, delay, seeds, inputs = np.array(recording.steps, np.int64).T
            rank.steps = report.Steps(
                *((column / 1e9).round(7).tolist() for column in times),
                *(np.maximum(column, 0).tolist() for column in (seeds, inputs)),
            )
            if (delay >= 0).any():  # not in a step in which the recording has begun
                rank.steps.delay = (np.maximum(delay, 0) / 1e9).round(7).tolist()
        return rank

    def _spans(self, nanoseconds: int) -> bytes:
        """Return the spans of this rank for the trace; on the clock of trainer 0 the report took ``nanoseconds``."""
        recording = self._recording
        most = max(_LEAST_SPANS, _ALL_SPANS // self._world.size) // max(1, len(recording.logs))
        threads = [(log.name, list(log.spans)[-most:]) for log in recording.logs]
        scale = nanoseconds / (recording.end - recording.begin)  # clocks of other nodes are faster or slower
        return report.events_of(self._world.rank, threads, recording.begin, scale)

    def _write(self, hosts: Sequence[str], ranks: Sequence[bytes], traces: Sequence[bytes]) -> None:
        """Write the files, given what all ranks have told."""
        firsts = np.unique(self._world.node_of, return_index=True)[1].tolist()
        names = [hosts[first] for first in firsts]
        alike = len(set(names)) < len(names)  # simulated nodes
        summary = report.Summary(
            job=self._job(),
            nodes=[report.Node(f"{name}.{node}" if alike else name) for node, name in enumerate(names)],
            ranks=[report.decode(report.Rank, data, f"what rank {rank} told") for rank, data in enumerate(ranks)],
        )
        report.write(self._path, summary)
        report.write_trace(self._path, summary, map(zlib.decompress, traces))
        write_page(self._path, summary)
        get_logger().warning("the report is %s", self._path / report.PAGE)

    def _job(self) -> report.Job:
        import torch  # here, since a server needs none of it

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


def _increase(before: float | None, after: float | None) -> Any:
    """Return what came to a figure of this process; threads that have ended take theirs away."""
    return None if before is None or after is None else max(after - before, 0)


def _put_sums(rank: report.Rank, recording: Recording) -> None:
    """Set the fields of a rank that come from sums of its spans and counters."""
    counts = Counter[Any]()
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
        counts.update({key: number for key, number in passed.counts.items() if number > 0})

    def lines(names: Sequence[str]) -> list[list[int]]:
        peers = sorted({key[1] for key in counts if isinstance(key, tuple) and key[0] in names})
        return [[peer, *(counts[name, peer] for name in names)] for peer in peers]

    rank.to_hosts = [report.ToHost._make([*numbers, waited / 1e9]) for *numbers, waited in lines(_TO_HOST)]
    rank.to_trainers = [report.ToTrainer(*numbers) for numbers in lines(_TO_TRAINER)]
    rank.remote_rows, rank.cached_rows = counts["remote_rows"], counts["cached_rows"]


def prepare_folder(name: str) -> None:
    """Make the folder of a report, check that it can be written to, and remove the report that is in it.

    Raises InvalidArgumentError if it cannot, or has a file of the user's with a report's name.
    """
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / f".{report.FILE}.{os.getpid()}"
        trial.write_bytes(b"{}")
        trial.unlink()
        old = [path for name in _FILES if (path := folder / name).exists()]
        if old and not report.is_report(folder):
            raise InvalidArgumentError(
                f"a report would replace {old[0]}, which mpigraph did not write: give another folder, or remove it"
            )
        for path in reversed(old):
            path.unlink()
    except (OSError, ValueError) as error:  # the latter for names that no file can have
        why = getattr(error, "strerror", None) or error
        raise InvalidArgumentError(
            f"the folder of a report must be one that trainer 0 can write to (got {name!r}: {why})"
        ) from error
