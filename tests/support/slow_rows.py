"""Sources of rows that cost time: they count their reads, read ahead in threads that a test can hold, and can fail."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from mpigraph.arrays import I64, Array
from mpigraph.errors import StorageError
from mpigraph.kernels.row_ops import as_words
from mpigraph.rows.row_tensor import Policy
from mpigraph.rows.sources.row_source import RowSource, Ticket
from mpigraph.rows.window import SourceOf
from mpigraph.storage.contents import PartFiles, StoredRows, read_rows
from mpigraph.store import store as stores
from mpigraph.store.topology import Topology


class Slow(RowSource):
    """Rows that take a millisecond a read, and are counted."""

    def __init__(self, rows: Array) -> None:
        self.words = as_words(rows)
        self.reads = np.zeros(len(rows), np.int64)

    def read(self, rows: I64, out: Array, positions: I64) -> None:
        assert (np.diff(rows) > 0).all()
        time.sleep(0.001)
        self.reads[rows] += 1
        out.view(self.words.dtype)[positions] = self.words[rows]


class Disk(Slow):
    """Rows that a thread for each ticket reads into memory of its own, once it may; some cannot be read.

    Attributes:
        begun: the rows of each ticket of this rank's own reads; not of its answers to other nodes.
        held: the number of the first of these tickets whose thread waits for ``may_read``.
        bad: rows that none of them can read.
        threads: all that read.
    """

    def __init__(self, rows: Array) -> None:
        super().__init__(rows)
        self.begun: list[I64] = []
        self.held = 1 << 30
        self.may_read = threading.Event()
        self.bad: set[int] = set()
        self.threads: list[threading.Thread] = []

    def read(self, rows: I64, out: Array, positions: I64) -> None:
        if bad := self.bad.intersection(rows.tolist()):
            raise StorageError(f"feat.h5: row {min(bad)}: Input/output error")
        super().read(rows, out, positions)

    def read_ahead(self, rows: I64, out: Array, positions: I64) -> Ticket:
        if threading.current_thread().name == "mpigraph-progress":
            return Ticket(self, rows, out, positions)
        self.begun.append(rows)
        return _DiskTicket(self, rows, out, positions)


class _DiskTicket(Ticket):
    __slots__ = ("_error", "_thread")

    def __init__(self, source: Disk, rows: I64, out: Array, positions: I64) -> None:
        super().__init__(source, rows, out, positions)
        self._error: list[StorageError] = []
        waits = len(source.begun) > source.held
        self._thread = threading.Thread(
            target=_read, args=(source, rows, out, positions, self._error, waits), name="disk", daemon=True
        )
        source.threads.append(self._thread)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def finish(self) -> None:
        self._thread.join()
        for error in self._error:
            raise error


def _read(source: Disk, rows: I64, out: Array, positions: I64, errors: list[StorageError], waits: bool) -> None:
    if waits:
        source.may_read.wait()
    try:
        source.read(rows, out, positions)
    except StorageError as error:
        errors.append(error)


def slow_sources(monkeypatch: pytest.MonkeyPatch, sources: list[Any], kind: type[Slow] = Slow) -> None:
    """Make the feature "feat" of nodes slow in graphs that are opened from now on; its sources come to ``sources``."""

    def slow(topology: Topology, files: PartFiles, policy: Policy, name: str, *_: object) -> SourceOf:
        config, offsets = files.config, policy.offsets(topology.hosts)
        shape = config.node_features[config.schema.ntypes[policy.type_id]][name].shape
        stored = StoredRows.of_feature(config, True, policy.type_id, name)

        def source(host: int) -> RowSource:
            first, last = offsets[host : host + 2].tolist()
            rows = np.empty((last - first, *shape), np.float32)
            read_rows(files, stored, first, rows)
            sources.append(kind(rows))
            return sources[-1]

        return source

    monkeypatch.setenv("MPIGRAPH_STORAGE", "feat=disk")
    monkeypatch.setattr(stores, "sources_on_disk", slow)
